"""The state that sensors saw: 4D-Var, by gradients through a predictor's steps and what reads its states at points.

    u₀ = ū + Bᵀv,    J(v, z) = ½|v|² + ½|z|² + ½ Σ (y − û(t, p; u₀, z))² / σ²

ū and B are the mean of states of the system and their differences from it, over √(N − 1): v ~ N(0, 1) has their
covariance. z is the noise of a corrector's stretches, where the predictor has one: it is guided to errors of the
operator that sensors agree with. Of several members, each has sensors with noise of its own and a v and z of its own
to stay near, drawn as they are (randomised maximum likelihood: exact members of the posterior where all is linear).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.draws import Draws
from ups.fields import Conditions
from ups.models.predictor import Predictor, State, Target
from ups.rollout.corrected import CorrectedPredictor
from ups.rollout.descent import least
from ups.rollout.members import repeated
from ups.rollout.question import Question
from ups.rollout.result import Rollout
from ups.rollout.trust import Departures

ITERATIONS = 100
"""Gradients, each of which is a rollout there and back."""
MISSED = 2.0
"""Sensors that are missed by more than so many times their noise are warned of."""


@dataclass(frozen=True, eq=False)
class Background:
    """What states of a system are like, as the last frames that a model starts from, normalised."""

    mean: Float[Tensor, "H *space C"]
    apart: Float[Tensor, "N H *space C"]

    @classmethod
    def of(cls, states: Float[Tensor, "N H *space C"]) -> Background:
        mean = states.mean(0)
        return cls(mean, (states - mean) / (len(states) - 1) ** 0.5)

    def state(self, controls: Float[Tensor, "B N"]) -> Float[Tensor, "B H *space C"]:
        return self.mean + torch.tensordot(controls, self.apart, 1)


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
    """A checked question, whose target are the sensors' points, what they read there and by how much that is off."""

    question: Question
    background: Background
    read: Float[Tensor, "B T P C"]
    channels: tuple[int, ...]
    noise: Float[Tensor, " C"]


def assimilate(predictor: Predictor, problem: Problem) -> Assimilated:
    """The states at the question's times that agree with what was read, of each member and sample."""
    question, members = problem.question, problem.question.members
    model = _Model(predictor, problem)
    rows = members * len(question.frames)
    centre, noise = model.controls(), problem.noise.new_zeros(problem.read.shape).repeat(members, 1, 1, 1)
    if members > 1:
        draws = Draws(question.seed, "assimilate", torch.zeros((), dtype=torch.long), torch.arange(rows))
        centre = draws.normal("background", (centre.shape[1],)).to(centre)
        noise = problem.noise * draws.normal("sensors", problem.read.shape[1:]).to(noise)
    wanted = repeated(problem.read, members) + noise
    weights = 1 / problem.noise

    def misses(controls: Tensor, read: Tensor) -> Tensor:
        seen = torch.stack(list(model.states(controls, question.target)), 1)[..., problem.channels]
        return ((seen - read) * weights).square().flatten(1)

    def objective(controls: Tensor) -> Tensor:
        return (controls - centre).square().sum(1) / 2 + misses(controls, wanted).sum(1) / 2

    found = least(objective, centre, ITERATIONS)
    return model.result(found, misses(found, repeated(problem.read, members)).mean(1).sqrt())


class _Model:
    """States at the question's times as a function of controls: those of the background, then of the corrector."""

    def __init__(self, predictor: Predictor, problem: Problem) -> None:
        self.predictor, self.problem, self.question = predictor, problem, problem.question
        question, members = self.question, self.question.members
        assert question.schedule is not None, "a steady task has no frames to be assimilated"
        self.schedule, self.task = question.schedule, question.learned.spec.name
        self.conditions = _of_members(question.conditions, members)
        self.rows = members * len(question.frames)
        self.latent: tuple[int, ...] = ()
        if isinstance(predictor, CorrectedPredictor):
            stretches = -(-question.steps // predictor.horizon)
            self.latent = (stretches, *predictor.correct.noise_shape(self.task))

    def controls(self) -> Float[Tensor, "B K"]:
        """All zero: the mean of the background, without chance."""
        of_noise = torch.Size(self.latent).numel() if self.latent else 0
        return self.problem.background.mean.new_zeros(self.rows, len(self.problem.background.apart) + of_noise)

    def states(self, controls: Float[Tensor, "B K"], target: Target) -> Iterator[Float[Tensor, "B *points C"]]:
        predictor, learned = self.predictor, self.question.learned
        first = len(self.problem.background.apart)
        frames = learned.normaliser.physical(self.problem.background.state(controls[:, :first]))
        noise = controls[:, first:].view(len(controls), *self.latent) if self.latent else None
        state: State = predictor.start(self.task, frames, self.conditions, learned.grid)
        needed = set(self.schedule.needed.tolist())
        if 0 in needed:
            yield predictor.decode(state, target)
        for place, lead in enumerate(self.schedule.leads(state.history), 1):
            if noise is None or not isinstance(predictor, CorrectedPredictor):
                state = predictor.step(state, lead)
            else:
                state = predictor.advance(state, lead, noise[:, (place - 1) // predictor.horizon])
            if place in needed:
                yield predictor.decode(state, target)

    @torch.no_grad()
    def result(self, controls: Float[Tensor, "B K"], misfit: Float[Tensor, " B"]) -> Assimilated:
        question, learned, spec = self.question, self.question.learned, self.question.learned.spec
        departures, states = Departures(learned, question.conditions.mask), []
        for state in self.states(controls, question.grid):
            departures.see(state)
            states.append(state)
        values, misfit = (t.unflatten(0, (question.members, -1)) for t in (torch.stack(states, 1), misfit))
        notes = [*question.notes, *departures.notes()]
        if (worst := float(misfit.max())) > MISSED:
            notes.append(
                f"sensors are missed by {worst:.3g} times their noise: it is larger, or the model is wrong here"
            )
        values, misfit = (t if question.batched else t[:, 0] for t in (values, misfit))
        values, misfit = (t if question.members > 1 else t[0] for t in (values, misfit))
        return Assimilated(
            values,
            self.schedule.when,
            spec.channel_names,
            spec.name,
            tuple(notes),
            question.grid,
            spec.units,
            question.members,
            misfit=misfit,
        )


def _of_members(conditions: Conditions, members: int) -> Conditions:
    def each(fields):
        return {name: repeated(torch.as_tensor(field), members) for name, field in fields.items()}

    mask = None if conditions.mask is None else conditions.mask.repeat(members, *(1,) * (conditions.mask.dim() - 1))
    return Conditions(each(conditions.parameters), each(conditions.static), each(conditions.forcings), mask)
