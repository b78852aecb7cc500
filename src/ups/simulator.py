"""What a user holds after training.

    sim = ups.load("runs/quickstart")
    result = sim.rollout(u0, steps=40, conditions={"beta": 0.4})
    result.values                  # (40, 128, 1), or (B, 40, 128, 1) for a batch
    sim.rollout(u0, times=[0.1, 0.33], conditions={"beta": 0.4}, at=torch.tensor([[0.25], [0.8]]))

Everything is differentiable in u0, in the conditions and in the forcings.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.distributed.runtime.host import memory_of
from ups.distributed.runtime.settings import RuntimeConfig
from ups.durable import read_json
from ups.errors import UserError
from ups.fields import AXES, Conditions, Grid, Trajectory
from ups.models.predictor import Predictor
from ups.models.saved import TrainedTask
from ups.rollout.assimilate import Assimilated, Problem, assimilate
from ups.rollout.conditions import checked, flat_conditions, numbers, of_samples
from ups.rollout.domain import cells_of, check_named, in_time, inside_of, with_domain
from ups.rollout.places import grid_like, query_points
from ups.rollout.question import Question, answer
from ups.rollout.result import Rollout as Rollout
from ups.rollout.schedule import Schedule, exact, regular, uneven
from ups.rollout.sensors import check_frames, known_states, read_sensors, seen_channels, sensor_noise
from ups.rollout.trust import untrained
from ups.training.restore import restored, stage_folder

MOST_MEMBERS = 4096
"""Of a rollout."""
FEWEST_POINTS = 4
"""Along an axis of a start: fewer are a slip, such as channels taken for points."""
MOST_STEPS = 10**7
"""Of a rollout: more is a slip of the pen."""


def load(run: str | Path, device: str | torch.device = "cpu", capture: bool = True) -> Simulator:
    """The simulator of a run directory (its best checkpoint by validation error, averaged weights), of an export, or of
    a model on Hugging Face, "hf://owner/name".

    On a GPU its steps are replayed as CUDA graphs, unless `capture` is false.
    """
    how = RuntimeConfig(capture="auto" if capture else "off")
    _check_device(device)
    return Simulator(restored(stage_folder(Path(run)), how).predictor().to(device), Path(run))


def _check_device(device: str | torch.device) -> None:
    why = {
        "cuda": None if torch.cuda.is_available() else "torch finds no GPU here",
        "mps": "Apple's GPUs have no float64, in which a step scales its lead time",
    }.get(torch.device(device).type)
    if why is not None:
        raise UserError(f"device is {str(device)!r}, but {why}; leave device out to use the CPU")


def _whole(name: str, value: Any, most: int) -> int:
    """A whole number of any kind, but no truth value."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number <= most:
        raise UserError(f"{name} is {value!r}; give a whole number from 1 to {most:,}")
    return number


class Simulator:
    """A predictor, asked in a user's words. `run` is the directory it was loaded from, if any."""

    def __init__(self, predictor: Predictor, run: Path | None = None) -> None:
        self.predictor, self.tasks, self.run = predictor, predictor.tasks, run

    @property
    def scores(self) -> Mapping[str, Any]:
        """Of a run that was evaluated: what its metrics.json says of each task on trajectories kept from training,
        such as scores["heat"]["rollout"]["nrmse"]["model"].
        """
        return self._metrics.get("tasks", {})

    @property
    def truth_first(self) -> Mapping[str, float]:
        """Of such a run: how often the equation of each task tells the truth from 7 candidates, for `Chosen`."""
        return self._metrics.get("truth_first", {})

    @cached_property
    def _metrics(self) -> Mapping[str, Any]:
        path = None if self.run is None else self.run / "metrics.json"
        return read_json(path) if path is not None and path.is_file() else {}

    def __repr__(self) -> str:
        return "\n".join(f"{what:11}{value}" for what, value in self._said())

    def _repr_html_(self) -> str:
        from ups.rollout.pictures import table

        return table(self._said())

    def _said(self) -> list[tuple[str, str]]:
        said = [("simulator", str(self.run or type(self.predictor).__name__))]
        for name, learned in self.tasks.items():
            spec = learned.spec
            shape = " × ".join(map(str, learned.grid.shape))
            dt = f"{spec.dt:g}" if spec.dt is not None else " to ".join(f"{lead:g}" for lead in learned.leads)
            step = "steady" if spec.steady else f"dt {dt} {spec.units.get('time', '')}".rstrip()
            said.append(("task", f"{name}: {', '.join(spec.channel_names)} on {shape} points, {step}"))
            said.append(("sides", spec.boundary.kinds))
            for each, (low, high) in learned.ranges.items():
                said.append(("condition", f"{each} from {low:g} to {high:g} {spec.units.get(each, '')}".rstrip()))
            said += [("condition", f"{each}, a field") for each in spec.static]
            said += [("condition", f"{each}, a forcing") for each in spec.forcings]
            said += [("condition", "a mask")] if spec.masked else []
            view = self.scores.get(name, {})
            for told, measured in (view.get("rollout") or view.get("one_step") or {}).items():
                if told == "nrmse":
                    shown = {other: v for other, v in measured.items() if isinstance(v, float)}
                    said.append(("error", ", ".join(f"{other} {v:.4g}" for other, v in shown.items())))
        return said

    def to(self, where: torch.device | torch.dtype | str) -> Simulator:
        """Move to a device, or compute in another precision."""
        if not isinstance(where, torch.dtype):
            _check_device(where)
        self.predictor.to(where)
        return self

    def rollout(
        self,
        u0: Tensor | np.ndarray | Trajectory | None = None,
        steps: int | None = None,
        times: Sequence[float] | Tensor | None = None,
        conditions: Mapping[str, Any] | Conditions | None = None,
        at: Tensor | np.ndarray | None = None,
        *,
        task: str | None = None,
        dt: float | None = None,
        grid: Grid | None = None,
        members: int = 1,
        seed: int = 0,
        forcings: Mapping[str, Any] | None = None,
        mask: Tensor | np.ndarray | None = None,
    ) -> Rollout:
        """Advance u0 by `steps` of `dt`, or to the given `times` after it.

        - u0: (*space, C) or (B, *space, C), also without C when there is one channel; (B, T, *space, C) are several
          frames a step apart, of which the last is now. A `Trajectory` is started from its first frame and brings its
          own grid and conditions. A steady task needs none.
        - conditions: the task's parameters (numbers, or one per sample) and static fields (on u0's grid), by name.
        - at: points (P, dim) inside the domain; without it, values come on u0's grid.
        - task: needed when the conditions do not tell it.
        - dt: the task's own step if not given, and any between the shortest and the longest lead time trained on. Times
          between steps are interpolated by a cubic through those around; without dt, a model of a range of lead times
          takes steps that end at each of them, where these are in its range.
        - forcings: by name, on u0's grid: (*space), or (T, *space) or (B, T, *space) with a field now and one after
           each of `steps` (T = 1: it stays the same), or a function of the time after now, which serves any `times`.
        - mask: of a task that has masks, true inside: (*space) or (B, *space). Elsewhere u0 may be anything, NaN
           too, and predictions are zero.
        - members: of several, values have them as an axis in front of the batch's, and the rollout has their `mean` and
          `quantile(share)`; `seed` says which ones. Those of a model without chance are all the same. Of one, what
          chance there is, is left out.
        """
        return answer(
            self.predictor,
            self.question(
                u0,
                steps,
                times,
                conditions,
                at,
                task=task,
                dt=dt,
                grid=grid,
                members=members,
                seed=seed,
                forcings=forcings,
                mask=mask,
            ),
        )

    def assimilate(
        self,
        observations: Tensor | np.ndarray,
        points: Tensor | np.ndarray,
        times: Sequence[float] | Tensor,
        conditions: Mapping[str, Any] | Conditions | None = None,
        *,
        task: str | None = None,
        channels: Sequence[str] | None = None,
        noise: float | Sequence[float] | None = None,
        states: Tensor | np.ndarray | None = None,
        members: int = 1,
        seed: int = 0,
        forcings: Mapping[str, Any] | None = None,
        mask: Tensor | np.ndarray | None = None,
    ) -> Assimilated:
        """The states that sensors at `points` (P, dim) saw at `times`: a rollout on the trained grid with its `misfit`.

        - observations: (T, P, C) or (B, T, P, C) in physical units, without C where there is one channel.
        - times: those of the observations, after the state that the rollout starts from, in whole steps of `dt`.
        - channels: of the task, those that sensors see; all without it.
        - noise: the rms error of sensors in the channels' units, for all channels or each; without it a twentieth of
          the channel's standard deviation in training.
        - states: (N, *space, C) on the trained grid, or (N, H, *space, C) of a task with a history; what the system is
          like where sensors do not see. Without them those of the run's training data.
        - members: of several, each is a state that may have been, and the result has their `mean` and `spread`.
        """
        given = flat_conditions(conditions)
        learned = self._learned(task, given)
        seen = seen_channels(learned, channels)
        saw, batched = read_sensors(learned, observations, points, times, seen, self.predictor.like)
        start = saw.new_zeros(len(saw), *learned.grid.shape, len(learned.spec.channels))
        question = self.question(
            start if batched else start[0],
            times=times,
            conditions=conditions,
            at=points,
            task=learned.spec.name,
            members=members,
            seed=seed,
            forcings=forcings,
            mask=mask,
        )
        check_frames(question)
        known = known_states(learned, states, self.run, self.predictor.like)
        return assimilate(self.predictor, Problem(question, known, saw, seen, sensor_noise(learned, seen, noise, saw)))

    def question(
        self,
        u0: Tensor | np.ndarray | Trajectory | None = None,
        steps: int | None = None,
        times: Sequence[float] | Tensor | None = None,
        conditions: Mapping[str, Any] | Conditions | None = None,
        at: Tensor | np.ndarray | None = None,
        *,
        task: str | None = None,
        dt: float | None = None,
        grid: Grid | None = None,
        members: int = 1,
        seed: int = 0,
        forcings: Mapping[str, Any] | None = None,
        mask: Tensor | np.ndarray | None = None,
        most_steps: int = MOST_STEPS,
    ) -> Question:
        """What `rollout` is asked, checked but not computed yet (`rollout.question`)."""
        if isinstance(u0, Trajectory) and conditions is None:
            conditions = u0.conditions
            forcings = forcings or in_time(conditions.forcings, u0.times, u0.space.dimension)
        if isinstance(conditions, Conditions):
            forcings, mask = forcings or conditions.forcings, conditions.mask if mask is None else mask
        given = flat_conditions(conditions)
        if isinstance(u0, Trajectory):
            mask = u0.mask if mask is None else mask
            task = task or u0.task or None
            if task is not None and task in self.tasks:  # a trajectory also says what its task does not vary
                spec = self.tasks[task].spec
                given = {name: v for name, v in given.items() if name in (*spec.parameters, *spec.static)}
                forcings = {name: v for name, v in (forcings or {}).items() if name in spec.forcings}
                mask = mask if spec.masked else None
            u0, grid = u0.values[0], grid or u0.space
        learned = self._learned(task, given)
        name, notes = learned.spec.name, []
        check_named(learned.spec, forcings or {}, mask)
        domain = None if mask is None else cells_of(mask, self.predictor.like)
        given = checked(learned, given, self.predictor.like, notes, domain)
        frames, batched = self._frames(learned, u0, given, domain)
        grid = grid or grid_like(learned.grid, frames.shape[2:-1])
        if grid.shape != tuple(frames.shape[2:-1]):
            raise UserError(f"u0 has {tuple(frames.shape[2:-1])} points, but grid has {grid.shape}; they must agree")
        target = query_points(at, grid) if at is not None else grid
        members = _whole("members", members, MOST_MEMBERS)
        of = of_samples(learned, given, len(frames), grid)
        if learned.spec.steady and (steps is not None or times is not None):
            raise UserError(f"task {name!r} is steady: it has no steps or times; leave them out")
        schedule = None if learned.spec.steady else self._schedule(learned, steps, times, dt, notes, most_steps)
        leads = [] if schedule is None else [lead for lead, count in schedule.runs for _ in range(count)]
        of = with_domain(of, learned.spec, forcings or {}, domain, leads, frames, grid)
        question = Question(learned, frames, of, grid, target, schedule, members, seed, batched, tuple(notes))
        if question.bytes > (room := memory_of(frames.device)):
            raise UserError(
                f"{question.states:,} states of {len(frames) * members:,} members need {question.bytes / 1e9:,.0f} GB, "
                f"and there are {room / 1e9:,.0f}; ask for fewer members, steps or times"
            )
        return question

    def _schedule(
        self, learned: TrainedTask, steps: int | None, times: Any, dt: float | None, notes: list[str], most: int
    ) -> Schedule:
        if (steps is None) == (times is None):
            raise UserError("say how far to go with either steps=N or times=[...] (--steps N or --times T,T,...)")
        if learned.spec.dt is None and dt is None and steps is not None:
            raise UserError(
                f"task {learned.spec.name!r} was trained on steps of its own lengths; say how long yours are (dt=), or "
                "give times=[...]"
            )
        own = learned.spec.dt or max(learned.leads)
        step = float(own if dt is None else dt)
        if not 0 < step < math.inf:
            raise UserError(f"dt is {step}; give a positive time")
        if steps is not None:
            steps = _whole("steps", steps, most)
            if step * steps == math.inf:
                raise UserError(f"dt is {step:g}; {steps:,} steps of it reach no time that is a number")
            notes += untrained(learned, step)
            return regular(step, torch.arange(1, steps + 1, dtype=torch.float64) * step)
        when = torch.as_tensor(times, dtype=torch.float64).reshape(-1)
        if len(when) == 0 or float(when.min()) < 0 or bool((when.diff() <= 0).any()) or not bool(when.isfinite().all()):
            raise UserError("times must be increasing, finite and not negative, with at least one of them")
        if (needed := float(when[-1]) / step) > most:
            raise UserError(
                f"time {float(when[-1]):g} is {needed:.3g} steps of {step:g} away; a rollout has at most {most:,}"
            )
        if learned.spec.dt is None and dt is None:
            schedule = uneven(learned.leads, when)
            notes += [note for lead, _ in schedule.runs for note in untrained(learned, lead)][:1]
            return schedule
        schedule = regular(step, when)
        if schedule.places is None and dt is None and learned.spec.history == 1:  # else the history's times matter too
            schedule = exact(step, learned.leads, when) or schedule
        if schedule.places is None:
            notes.append(f"times that are not multiples of dt = {step:g} are interpolated between steps")
        notes += untrained(learned, schedule.runs[-1][0])  # steps of several lengths are all in the trained range
        return schedule

    def _learned(self, task: str | None, given: Mapping[str, Any]) -> TrainedTask:
        if task is None:
            fitting = [n for n, t in self.tasks.items() if set(given) == {*t.spec.parameters, *t.spec.static}]
            if len(self.tasks) == 1:
                fitting = list(self.tasks)
            if len(fitting) != 1:
                raise UserError(
                    f"the conditions {sorted(given)} do not tell which of the tasks {', '.join(self.tasks)} is meant; "
                    "pass task= (--task NAME)"
                )
            task = fitting[0]
        if task not in self.tasks:
            raise UserError(f"this model has no task {task!r}; it has {', '.join(self.tasks)}")
        return self.tasks[task]

    def _frames(
        self, learned: TrainedTask, u0: Any, given: Mapping[str, Tensor], domain: Tensor | None
    ) -> tuple[Tensor, bool]:
        """u0 as (B, T, *space, C), and whether it came as a batch."""
        spec = learned.spec
        d, c = spec.dimension, len(spec.channels)
        like = self.predictor.like
        if u0 is None:
            if not spec.steady:
                raise UserError(f"task {spec.name!r} needs an initial field; pass u0= (an array of this name in INPUT)")
            static = given[spec.static[0]] if spec.static else None
            if static is not None and static.dim() not in (d, d + 1):
                raise UserError(f"static field {spec.static[0]!r} has shape {tuple(static.shape)}; give {d} axes")
            shape = learned.grid.shape if static is None else tuple(static.shape[-d:])
            if min(shape) < FEWEST_POINTS:
                raise UserError(
                    f"static field {spec.static[0]!r} has {min(shape)} points along an axis; give {FEWEST_POINTS} at "
                    f"least, on {', '.join(AXES[:d])}"
                )
            batched = static is not None and static.dim() > d
            many = len(static) if static is not None and batched else 1
            return like.new_zeros(many, 1, *shape, c), batched
        field = numbers(u0, "u0", like)
        if (field.dim() == d and c == 1) or (field.dim() == d + 1 and c == 1 and field.shape[-1] != 1):
            field = field[..., None]
        if not d + 1 <= field.dim() <= d + 3 or field.shape[-1] != c:
            raise UserError(
                f"u0 has shape {tuple(np.shape(u0))}; task {spec.name!r} takes "
                f"({', '.join(AXES[:d])}, {c}) or (batch, {', '.join(AXES[:d])}, {c})"
            )
        if min(points := tuple(field.shape[-1 - d : -1])) < FEWEST_POINTS:
            raise UserError(
                f"u0 of shape {tuple(np.shape(u0))} has {min(points)} points along an axis, since task "
                f"{spec.name!r} has {c} channel{'s' * (c > 1)}; give {FEWEST_POINTS} at least, on {', '.join(AXES[:d])}"
            )
        batched = field.dim() > d + 1
        while field.dim() < d + 3:
            field = field[None] if field.dim() == d + 1 else field[:, None]
        if domain is not None:
            field = inside_of((domain if domain.dim() == d else domain[:, None])[..., None], field, "u0")
        if not bool(torch.isfinite(field.detach()).all()):
            raise UserError("u0 has NaN or infinite values; mend it")
        most = max(spec.history, learned.given)
        if not spec.steady and field.shape[1] > most:
            raise UserError(
                f"u0 has {field.shape[1]} frames a sample; task {spec.name!r} starts from {most}: give those alone, "
                f"such as u0[:, :{most}]"
            )
        return field, batched
