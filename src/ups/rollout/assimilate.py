"""The state that sensors saw: 4D-Var, by gradients through a predictor's steps and what reads its states at points.

    u₀ = ū + Bᵀv,    J(v, z) = ½|v|² + ½|z|² + ½ Σ (y − û(t, p; u₀, z))² / σ²

What the system is like is told by states of it. All are rolled out once; ū is the mean of the few whose rollouts are
nearest to what sensors read, and B their differences from it, with a share of those of all states from their mean. The
nearest are also starts of the search, beside ū: where a system is chaotic J has many valleys.

z is the noise of a corrector's stretches, where the predictor has one: it is guided to errors of the operator that
sensors agree with. Of several members, each has sensors with noise of its own and a v and z of its own to stay near,
drawn as they are (randomised maximum likelihood: exact members of the posterior where all is linear).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.draws import Draws
from ups.data.prepare.row_ranges import in_steps
from ups.fields import Conditions
from ups.models.predictor import Predictor, Target
from ups.rollout.corrected import CorrectedPredictor
from ups.rollout.descent import least
from ups.rollout.predict import POINTS
from ups.rollout.question import Question
from ups.rollout.result import Rollout
from ups.rollout.trust import Departures

ITERATIONS = 60
"""Gradients, each of which is a rollout there and back."""
NEAR = 64
"""States that a background is made of; where there are no more than that, of all alike."""
SHARE = 0.1
"""Of the covariance of all states, that is added to theirs."""
STARTS = 4
"""Of the search: the background's mean, and the nearest states."""
MISSED = 2.0
"""Sensors that are missed by more than so many times their noise are warned of."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Assimilated(Rollout):
    """`misfit` is the rms of what is missing at the sensors, over their noise: about 1 where all is well."""

    misfit: Float[Tensor, "..."]  # of each member and sample

    def _said(self) -> list[tuple[str, str]]:
        told = f"{float(self.misfit.mean()):.3g} of the sensors' noise"
        said = [*super()._said(), ("misfit", told)]
        return said if self.count == 1 else [*said, ("spread", f"{float(self.spread.square().mean().sqrt()):.4g}, rms")]


@dataclass(frozen=True, eq=False)
class Problem:
    """A checked question, whose target are the sensors' points; states of the system, as normalised frames that a model
    starts from; what sensors read of which channels, and by how much that is off.
    """

    question: Question
    known: Float[Tensor, "N H *space C"]
    read: Float[Tensor, "B T P Q"]
    channels: tuple[int, ...]
    noise: Float[Tensor, " Q"]

    def misses(self, seen: Float[Tensor, "R T P C"], read: Float[Tensor, "#R T P Q"]) -> Float[Tensor, "R any"]:
        """Over the sensors' noise."""
        return ((seen[..., self.channels] - read) / self.noise).flatten(1)


@dataclass(frozen=True, eq=False)
class Background:
    """Of each sample: a mean, and differences from it, its own and those that all share, whose weights are N(0, 1)."""

    mean: Float[Tensor, "B H *space C"]
    own: Float[Tensor, "B K H *space C"]
    shared: Float[Tensor, "N H *space C"]
    near: tuple[Float[Tensor, "B V"], ...]  # v of the nearest states

    @classmethod
    def of(cls, known: Float[Tensor, "N H *space C"], far: Float[Tensor, "B N"]) -> Background:
        """From all states, and how far each is from what was read."""
        apart = (known - known.mean(0)) / (len(known) - 1) ** 0.5
        if len(known) <= NEAR:
            own, mean, shared = apart.new_zeros(len(far), 0, *apart.shape[1:]), known.mean(0, keepdim=True), apart
            return cls(mean.expand(len(far), *mean.shape[1:]), own, shared, ())
        nearest = known[far.topk(NEAR, largest=False).indices]  # the nearest first
        mean, scale = nearest.mean(1), (NEAR - 1) ** 0.5
        starts = torch.zeros(STARTS - 1, len(far), NEAR + len(known)).to(known)
        for place, start in enumerate(starts):
            start[:, place] = scale
        return cls(mean, (nearest - mean[:, None]) / scale, SHARE**0.5 * apart, tuple(starts))

    @property
    def count(self) -> int:
        """Of v's numbers."""
        return self.own.shape[1] + len(self.shared)

    def state(self, v: Float[Tensor, "S B V"]) -> Float[Tensor, "S_B H *space C"]:
        own, shared = v.split([self.own.shape[1], len(self.shared)], -1)
        found = self.mean + torch.einsum("sbk,bk...->sb...", own, self.own) + torch.tensordot(shared, self.shared, 1)
        return found.flatten(0, 1)


def assimilate(predictor: Predictor, problem: Problem) -> Assimilated:
    """The states at the question's times that agree with what was read, of each member and sample."""
    question, read = problem.question, problem.read
    with torch.no_grad():
        model = _Model(predictor, question, Background.of(problem.known, _far(predictor, problem)))
    near = [torch.cat([v, v.new_zeros(len(v), model.numbers - v.shape[1])], 1) for v in model.background.near]
    starts = torch.stack([read.new_zeros(len(read), model.numbers), *near])
    ends, values = _search(model, problem, starts, torch.zeros_like(starts), read.expand(len(starts), *read.shape))
    lowest = values.nan_to_num(nan=torch.inf).argmin(0)
    found = ends.take_along_dim(lowest[None, :, None], 0)
    if (members := question.members) > 1:
        draws = Draws(question.seed, "assimilate", torch.zeros((), dtype=torch.long), torch.arange(members * len(read)))
        centre = draws.normal("background", (model.numbers,)).to(read).unflatten(0, (members, -1))
        noise = draws.normal("sensors", read.shape[1:]).to(read).unflatten(0, (members, -1))
        found, _ = _search(model, problem, found.expand_as(centre), centre, read + problem.noise * noise)
    return _result(model, problem, found)


def _search(
    model: _Model,
    problem: Problem,
    start: Float[Tensor, "S B K"],
    centre: Float[Tensor, "S B K"],
    read: Float[Tensor, "S B T P Q"],
) -> tuple[Float[Tensor, "S B K"], Float[Tensor, "S B"]]:
    """Where J, whose controls stay near the centre, is least, and how much it is there."""

    def objective(controls: Float[Tensor, "R K"]) -> Float[Tensor, " R"]:
        seen = torch.stack(list(model.states(controls.view_as(start), problem.question.target)), 1)
        missed = problem.misses(seen, read.flatten(0, 1))
        return ((controls - centre.flatten(0, 1)).square().sum(1) + missed.square().sum(1)) / 2

    end = least(objective, start.flatten(0, 1), ITERATIONS)
    with torch.no_grad():
        return end.view_as(start), objective(end).view(start.shape[:2])


class _Model:
    """States at the question's times as a function of controls: those of the background, then of a corrector."""

    def __init__(self, predictor: Predictor, question: Question, background: Background) -> None:
        self.predictor, self.question, self.background = predictor, question, background
        self.latent: tuple[int, ...] = (0,)
        if isinstance(predictor, CorrectedPredictor):
            stretches = -(-question.steps // predictor.horizon)
            self.latent = (stretches, *predictor.correct.noise_shape(question.learned.spec.name))

    @property
    def numbers(self) -> int:
        return self.background.count + torch.Size(self.latent).numel()

    def states(self, controls: Float[Tensor, "S B K"], target: Target) -> Iterator[Float[Tensor, "S_B *points C"]]:
        question, count = self.question, self.background.count
        noise = controls[..., count:].reshape(controls.shape[:2].numel(), *self.latent)
        return _states(
            self.predictor,
            question,
            self.background.state(controls[..., :count]),
            _repeated(question.conditions, len(controls)),
            target,
            noise if noise.numel() else None,
        )


def _states(
    predictor: Predictor,
    question: Question,
    frames: Float[Tensor, "R H *space C"],
    conditions: Conditions,
    target: Target,
    noise: Float[Tensor, "R stretches *latent D"] | None = None,
) -> Iterator[Float[Tensor, "R *points C"]]:
    """Those at the question's times, from normalised frames; a corrector's are of this noise, or of none."""
    learned, schedule = question.learned, question.schedule
    assert schedule is not None, "a steady task has no frames to be assimilated"
    state = predictor.start(learned.spec.name, learned.normaliser.physical(frames), conditions, learned.grid)
    needed = set(schedule.needed.tolist())
    if 0 in needed:
        yield predictor.decode(state, target)
    for place, lead in enumerate(schedule.leads(state.history), 1):
        if noise is None or not isinstance(predictor, CorrectedPredictor):
            state = predictor.step(state, lead)
        else:
            state = predictor.advance(state, lead, noise[:, (place - 1) // predictor.horizon])
        if place in needed:
            yield predictor.decode(state, target)


def _far(predictor: Predictor, problem: Problem) -> Float[Tensor, "B N"]:
    """The mean square of what each state's rollout misses of what was read, under the conditions of each sample."""
    question, target, known, rows = problem.question, problem.question.target, problem.known, []
    if len(known) <= NEAR:
        return problem.read.new_zeros(len(problem.read), len(known))
    parts = list(in_steps(len(known), max(1, POINTS // known[0, 0, ..., 0].numel())))
    seen: dict[tuple[float, ...], Tensor] = {}
    for row, read in enumerate(problem.read):
        of = _select(question.conditions, row)
        fields = bool(of.static or of.forcings) or of.mask is not None
        same = (float(row),) if fields else tuple(float(torch.as_tensor(value)) for value in of.parameters.values())
        if same not in seen:
            seen = {} if fields else seen
            rolled = []
            for part in parts:
                alike = _repeated(of, len(part))
                rolled.append(torch.stack(list(_states(predictor, question, known[list(part)], alike, target)), 1))
            seen[same] = torch.cat(rolled)
        rows.append(problem.misses(seen[same], read[None]).square().mean(1))
    return torch.stack(rows)


@torch.no_grad()
def _result(model: _Model, problem: Problem, controls: Float[Tensor, "M B K"]) -> Assimilated:
    question, learned, spec = problem.question, problem.question.learned, problem.question.learned.spec
    departures, states = Departures(learned, question.conditions.mask), []
    for state in model.states(controls, question.grid):
        departures.see(state)
        states.append(state)
    seen = torch.stack(list(model.states(controls, question.target)), 1)
    read = problem.read.expand(len(controls), *problem.read.shape).flatten(0, 1)
    misfit = problem.misses(seen, read).square().mean(1).sqrt()
    notes = [*question.notes, *departures.notes()]
    if (worst := float(misfit.max())) > MISSED:
        notes.append(f"sensors are missed by {worst:.3g} times their noise: it is more, or the model is wrong here")
    values, misfit = (t.unflatten(0, (question.members, -1)) for t in (torch.stack(states, 1), misfit))
    values, misfit = (t if question.batched else t[:, 0] for t in (values, misfit))
    values, misfit = (t if question.members > 1 else t[0] for t in (values, misfit))
    return Assimilated(
        values,
        torch.zeros(1) if question.schedule is None else question.schedule.when,
        spec.channel_names,
        spec.name,
        tuple(notes),
        question.grid,
        spec.units,
        question.members,
        misfit=misfit,
    )


def _repeated(conditions: Conditions, times: int) -> Conditions:
    """All samples, so many times one after another."""

    def each(values: object) -> Tensor:
        tensor = torch.as_tensor(values)
        return tensor.repeat(times, *(1,) * (tensor.dim() - 1))

    return Conditions(
        {name: each(value) for name, value in conditions.parameters.items()},
        {name: each(field) for name, field in conditions.static.items()},
        {name: each(field) for name, field in conditions.forcings.items()},
        None if conditions.mask is None else each(conditions.mask),
    )


def _select(conditions: Conditions, row: int) -> Conditions:
    """Those of one sample, as a batch of it alone."""
    return Conditions(
        {name: torch.as_tensor(value)[row : row + 1] for name, value in conditions.parameters.items()},
        {name: field[row : row + 1] for name, field in conditions.static.items()},
        {name: field[row : row + 1] for name, field in conditions.forcings.items()},
        None if conditions.mask is None else conditions.mask[row : row + 1],
    )
