"""The playground without server or page: what can be played, starts, and frames as they are computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from ups.config.settings import Strict
from ups.data.sampler import mix
from ups.errors import UserError
from ups.fields import Conditions, Grid
from ups.metrics import nrmse
from ups.metrics.spectra import power_spectrum
from ups.models.predictor import State
from ups.models.saved import TrainedTask
from ups.rollout.places import grid_like
from ups.rollout.trust import Departures, untrained
from ups.simulator import Simulator
from ups.web import starts
from ups.web.files import FORMATS, MASK
from ups.web.reference import references
from ups.web.wire import packed

MOST_STEPS = 10_000
MOST_POINTS = 2**18
MEMBERS = 8
SEED = Field(default=0, ge=0, lt=2**31)


class Begin(Strict):
    """What a start is asked for with."""

    task: str
    name: str
    seed: int = SEED
    parameters: dict[str, float] = Field(default={})
    shape: list[int]


class Play(Strict):
    """What a play is asked for with, beside its arrays: `fields` (C, *space), and every static field by its name."""

    task: str
    parameters: dict[str, float] = Field(default={})
    dt: float | None = None
    steps: int = Field(default=200, ge=1, le=MOST_STEPS)
    members: int = Field(default=1, ge=1, le=64)
    seed: int = SEED
    solver: bool = True


@dataclass(frozen=True, eq=False)
class PlayedFrame:
    """One moment: the model's field (the mean of its members), the solver's, the members' deviation, and numbers."""

    time: float
    fields: Float[Tensor, "*space C"]
    truth: Float[Tensor, "*space C"] | None
    spread: Float[Tensor, "*space C"] | None
    numbers: Mapping[str, Any]

    def packed(self) -> bytes:
        there = {"fields": self.fields, "truth": self.truth, "spread": self.spread}
        arrays = {name: channels_first(field) for name, field in there.items() if field is not None}
        return packed({"time": self.time, "numbers": self.numbers}, arrays)


class Playground:
    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.tasks = {
            name: learned
            for name, learned in sim.tasks.items()
            if learned.spec.dimension < 3 and learned.statistics is not None
        }
        self.references = references(sim.run, self.tasks)

    def describe(self) -> dict[str, Any]:
        run = self.sim.run
        left = [name for name in self.sim.tasks if name not in self.tasks]
        return {
            "model": {"name": "simulator" if run is None else run.resolve().name, "left_out": left},
            "formats": sorted(FORMATS),
            "tasks": {name: self._described(name) for name in self.tasks},
        }

    def _described(self, name: str) -> dict[str, Any]:
        learned, reference = self.tasks[name], self.references.get(name)
        spec, equation = learned.spec, None
        parameters = {each: self._slider(name, each) for each in spec.parameters}
        if reference is not None:
            equation = reference.equation(learned.grid.shape[0], {n: p["default"] for n, p in parameters.items()})
        scales = learned.statistics
        painted = [*spec.static, *spec.forcings]
        spans = {n: scale.range or (scale.mean - 3 * scale.std, scale.mean + 3 * scale.std) for n, scale in
                 [*scales.channels.items(), *((n, scales.static[n]) for n in painted)]}  # fmt: skip
        for channel in spec.channels:
            if channel.transform == "log":
                low, high = spans[channel.name]
                spans[channel.name] = (math.exp(low), math.exp(high))
        return {
            "title": equation.title if equation else name.replace("_", " ").capitalize(),
            "formula": equation.formula if equation else "",
            "dimensions": spec.dimension,
            "shape": list(learned.grid.shape),
            "lengths": list(learned.grid.lengths),
            "origin": [low for low, _ in learned.grid.extent],
            "boundary": [pair[0].kind for pair in spec.boundary.sides],
            "channels": [{"name": n, "unit": spec.units.get(n, "")} for n in spec.channel_names],
            "parameters": parameters,
            "static": painted + ([MASK] if spec.masked else []),
            "spans": spans | ({MASK: (0.0, 1.0)} if spec.masked else {}),
            "steady": spec.steady,
            "dt": None if spec.steady else spec.dt or max(learned.leads),
            "leads": [] if spec.steady else [min(learned.leads), max(learned.leads)],
            "steps": 1 if spec.steady else len(equation.times) - 1 if equation else 40,
            "members": MEMBERS if self.sim.predictor.chance else 1,
            "solver": reference is not None,
            "starts": starts.names(learned, reference),
            "resolutions": [1] if spec.masked else [0.5, 1, 2],
        }

    def _slider(self, task: str, name: str) -> dict[str, float]:
        low, high = self.tasks[task].ranges[name]
        tried = sorted(self.references[task].make.values.get(name, [])) if task in self.references else []
        return {"low": low, "high": high, "default": tried[len(tried) // 2] if tried else (low + high) / 2}

    def start(self, begin: Begin) -> tuple[Float[Tensor, "*space C"], dict[str, Tensor]]:
        learned = self._learned(begin.task)
        grid, parameters = self._grid(learned, begin.shape), self._parameters(learned, begin.parameters)
        reference = self.references.get(begin.task)
        fields, static = starts.start(learned, reference, begin.name, begin.seed, parameters, grid)
        return fields, static | ({MASK: torch.ones(grid.shape)} if learned.spec.masked else {})

    def play(self, said: Play, arrays: Mapping[str, Float[np.ndarray, "..."]]) -> Iterator[PlayedFrame]:
        """What follows the field given; checked at once, computed frame by frame. Call each `next` without autograd."""
        learned = self._learned(said.task)
        spec, parameters = learned.spec, self._parameters(learned, said.parameters)
        fields, static, grid = self._fields(learned, arrays)
        lead = 0.0 if spec.steady else said.dt or spec.dt or max(learned.leads)
        if not 0 <= lead < math.inf:
            raise UserError(f"dt is {lead}; give a positive time")
        steps, members = 1 if spec.steady else said.steps, said.members if self.sim.predictor.chance else 1
        like, given = self.sim.predictor.like, static
        conditions = Conditions(
            {name: torch.tensor([value]).to(like) for name, value in parameters.items()},
            {name: given[name][None].to(like) for name in spec.static},
            {name: given[name][None].to(like) for name in spec.forcings},
            (given[MASK][None] > 0.5).to(like.device) if spec.masked else None,
        )
        state = self.sim.predictor.start(said.task, fields[None, None].to(like), conditions, grid)
        reference = self.references.get(said.task) if said.solver else None
        truths = None if reference is None else reference.frames(fields, static, parameters, lead, steps)
        notes = [] if spec.steady else untrained(learned, lead)
        return self._frames(learned, state, conditions.mask, lead, steps, members, said.seed, truths, notes)

    def _frames(
        self,
        learned: TrainedTask,
        state: State,
        mask: Tensor | None,
        dt: float,
        steps: int,
        members: int,
        seed: int,
        truths: Iterator[Tensor] | None,
        notes: list[str],
    ) -> Iterator[PlayedFrame]:
        predictor, warned = self.sim.predictor, set[str]()
        lead = None if learned.spec.steady else torch.full((1,), dt, dtype=torch.float64)
        for number in range(steps):
            if members == 1:
                state = predictor.step(state, lead)
                fields, spread = predictor.decode(state)[0].float().cpu(), None
            else:
                state = predictor.sample(state, lead, mix(seed, number), members)
                each = predictor.decode(state)[:, 0].float().cpu()
                fields, spread = each.mean(0), each.std(0)
            departures = Departures(learned, mask)
            departures.see(fields[None])
            notes = notes + [note.split(": ", 1)[-1] for note in departures.notes()]
            truth = None
            if truths is not None:
                try:
                    truth = next(truths)
                except UserError as error:
                    truths, notes = None, [*notes, f"the solver stopped: {error}"]
            told = [note for note in notes if note[:24] not in warned]
            warned, notes = warned | {note[:24] for note in told}, list[str]()
            numbers = {**_numbers(learned, fields, truth, mask), "notes": told}
            yield PlayedFrame((number + 1) * dt, fields, truth, spread, numbers)

    def _learned(self, task: str) -> TrainedTask:
        if task not in self.tasks:
            raise UserError(f"there is no task {task!r} to play; choose {', '.join(self.tasks)}")
        return self.tasks[task]

    @staticmethod
    def _grid(learned: TrainedTask, shape: list[int] | tuple[int, ...]) -> Grid:
        d = learned.spec.dimension
        if len(shape) != d or min(shape) < 4 or math.prod(shape) > MOST_POINTS:
            raise UserError(
                f"the shape {list(shape)} does not do; give {d} numbers from 4, {MOST_POINTS} points at most"
            )
        return grid_like(learned.grid, shape)

    @staticmethod
    def _parameters(learned: TrainedTask, given: Mapping[str, float]) -> dict[str, float]:
        if set(given) != set(learned.spec.parameters) or not all(map(math.isfinite, given.values())):
            raise UserError(f"give a number for each of {', '.join(learned.spec.parameters) or 'no parameters'}")
        return dict(given)

    def _fields(
        self, learned: TrainedTask, arrays: Mapping[str, Float[np.ndarray, "..."]]
    ) -> tuple[Float[Tensor, "*space C"], dict[str, Tensor], Grid]:
        spec = learned.spec
        wanted = ["fields", *spec.static, *spec.forcings, *([MASK] if spec.masked else [])]
        if set(arrays) != set(wanted):
            raise UserError(f"the arrays are {', '.join(arrays)}; give {', '.join(wanted)}")
        shape = arrays["fields"].shape[1:]
        grid, bad = self._grid(learned, shape), [n for n, a in arrays.items() if not np.isfinite(a).all()]
        if bad or arrays["fields"].shape[0] != len(spec.channels):
            raise UserError(f"{bad[0] if bad else 'fields'} has NaN, infinite values or other channels; start anew")
        if wrong := [name for name in wanted[1:] if arrays[name].shape != shape]:
            raise UserError(f"{wrong[0]} has the shape {arrays[wrong[0]].shape}; give {shape}, as fields has")
        fields = torch.from_numpy(arrays["fields"]).movedim(0, -1)
        for number, channel in enumerate(spec.channels):
            if channel.transform == "log" and not spec.steady and bool((fields[..., number] <= 0).any()):
                raise UserError(f"{channel.name} must be positive everywhere; draw it above zero")
        return fields, {name: torch.from_numpy(arrays[name]) for name in wanted[1:]}, grid


def _numbers(
    learned: TrainedTask, fields: Float[Tensor, "*space C"], truth: Tensor | None, mask: Tensor | None
) -> dict[str, Any]:
    """Error over all channels, spectra by channel, and the means that the equation keeps, of both."""
    ours, right = fields[None, None].double(), None if truth is None else truth[None, None].double()
    k, energy = power_spectrum(ours, mask)
    spectrum = {"k": k.tolist(), "model": energy[0, 0].T.tolist(), "truth": None}
    if right is not None:
        spectrum["truth"] = power_spectrum(right, mask)[1][0, 0].T.tolist()
    kept, names = {}, learned.spec.channel_names
    for invariant in learned.spec.invariants:
        place = names.index(invariant.channel)
        kept[f"mean of {invariant.channel}"] = [
            None if field is None else float(field[..., place].mean()) for field in (ours, right)
        ]
    error = None if right is None else float(nrmse(ours, right, mask).mean())
    return {"error": error, "conserved": kept, "spectrum": spectrum}


def channels_first(field: Float[Tensor, "*space C"]) -> Float[np.ndarray, "C *space"]:
    return field.movedim(-1, 0).numpy()
