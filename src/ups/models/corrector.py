"""A generative corrector of a frozen operator: conditional flow matching on its error, seen by a frozen codec.

    r = E(u) − E(û),      x₁ = r / s,      x_τ = cos(πτ/2) z + sin(πτ/2) x₁,   z ~ N(0, 1)
    loss = ‖ v(x_τ, τ) − dx_τ/dτ ‖²,       sample: dx/dτ = v from z at τ = 0 to τ = 1
    u ≈ û + D(E(û) + s x) − D(E(û))        so that what the codec cannot say cancels

û lies several lead times after the state u₀ that it starts from; v sees both fields, the time between them and the
parameters. s is the rms of r given the same, which it learns too. On this path v = 0 turns z into itself: the untrained
corrector samples Gaussian noise of size s, in one step, and what is left to learn is the error's shape.
(Lipman et al., arXiv 2210.02747; trigonometric paths: Albergo and Vanden-Eijnden, arXiv 2209.15571.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from ups.config.settings import Positive
from ups.models.codec import Codec
from ups.models.geometry import Frame
from ups.models.operator.model import patchify
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask
from ups.models.trunk import Trunk, TrunkSettings

QUICK = 5.0
"""So many times faster than other numbers is the logarithm of the error's size learned: it may be a thousandth."""

Velocity = Callable[[Float[Tensor, "B *latent D"], Float[Tensor, " B"], Float[Tensor, " B"]], Tensor]
"""(x, τ, span) → dx/dτ at τ; or, of a `span`, the mean over τ … τ + span along the path (a consistency model's)."""


@dataclass(frozen=True, eq=False)
class Guess:
    """An operator's prediction, and what its error depends on: the state before, what is given beside both, the time
    between them.
    """

    task: str
    before: Float[Tensor, "B *space C"]
    predicted: Float[Tensor, "B *space C"]
    static: Float[Tensor, "B *space S"]
    parameters: Mapping[str, Float[Tensor, " B"]]
    elapsed: Float[Tensor, " B"]

    @classmethod
    def solution(
        cls,
        task: str,
        predicted: Float[Tensor, "B *space C"],
        static: Float[Tensor, "B *space S"],
        parameters: Mapping[str, Float[Tensor, " B"]],
    ) -> Guess:
        """Of a steady task, which nothing came before."""
        return cls(task, torch.zeros_like(predicted), predicted, static, parameters, predicted.new_ones(len(predicted)))


class FlowSettings(TrunkSettings):
    """Of what looks at the fields and of what moves latents each."""

    sampler: Literal["euler", "heun"] = "heun"
    steps: Positive = Field(default=4, description="of the sampler")


class CorrectorSettings(FlowSettings):
    horizon: Positive = Field(default=4, description="steps of the operator, at most, whose error is corrected at once")


class Corrector(nn.Module):
    """The velocity v, and the size s of the error."""

    computed_by = ("size", "context", "velocity")

    def __init__(self, tasks: Sequence[TrainedTask], codec: Codec, settings: FlowSettings) -> None:
        super().__init__()
        names = [task.spec.name for task in tasks]
        pairs = {t.spec.name: replace(t.spec, history=2) for t in tasks}
        points = {t.spec.name: Frame(t.grid, t.spec.boundary, (1,) * t.spec.dimension) for t in tasks}
        self.frames = {name: codec.frames[name] for name in names}
        told = {f"parameter_{p}" for task in tasks for p in task.spec.parameters}
        self.seen = Trunk(pairs, points, settings, {"lead", *told})
        self.flow = Trunk(pairs, self.frames, settings, {"time", "left", "span"}, stem=False)
        self.dts = {t.spec.name: t.spec.dt or 1.0 for t in tasks}
        self.parameters_of = {t.spec.name: t.spec.parameters for t in tasks}
        self.gather, self.inputs, self.outputs = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        self.sizes, self.sizing = nn.ParameterDict(), nn.ParameterDict()
        for name in names:
            numbers, rows = codec.numbers[name], settings.width * math.prod(self.frames[name].patch)
            if (cells := self._cells(name)) not in self.gather:
                self.gather[cells] = nn.Parameter(torch.randn(rows, settings.width) / math.sqrt(rows))
            # A latent's numbers mean what the codec makes of a task's fields: no two tasks' are alike.
            self.inputs[f"task_{name}"] = nn.Parameter(
                torch.randn(2 * numbers, settings.width) / math.sqrt(2 * numbers)
            )
            self.outputs[f"task_{name}"] = nn.Parameter(torch.zeros(settings.width, numbers))
            self.sizes[f"task_{name}"] = nn.Parameter(torch.zeros(2, numbers))
            self.sizing[f"task_{name}"] = nn.Parameter(torch.zeros(settings.width, numbers))

    def _cells(self, task: str) -> str:
        return "x".join(map(str, self.frames[task].patch))

    def layers(self) -> list[nn.Module]:
        return [*self.seen.layers(), *self.flow.layers()]

    def matrices(self) -> list[nn.Parameter]:
        return [*self.seen.matrices(), *self.flow.matrices()]

    def size(
        self,
        task: str,
        elapsed: Float[Tensor, " B"],
        change: Float[Tensor, " B"],
        context: Float[Tensor, "B *latent W"],
    ) -> Float[Tensor, "B D"]:
        """s, for each number of a cell: the change of the field over that time, times a learned power of it and what
        the mean of the context says.
        """
        offset, power = QUICK * self.sizes[f"task_{task}"]
        steps = (elapsed / self.dts[task]).log()
        seen = context.flatten(1, -2).mean(1) @ self.sizing[f"task_{task}"]
        return change[:, None] * (offset + power * steps[:, None] + seen).exp()

    def flow_parts(self) -> list[nn.Module]:
        """What is of v alone, and not of what it sees or of s."""
        return [self.flow, self.inputs, self.outputs]

    def context(self, guess: Guess) -> Float[Tensor, "B *latent D"]:
        """What v sees of the state, of the prediction and of the time between them; once for all steps of a sampler."""
        task, pair = guess.task, [guess.before, guess.predicted]
        told = {f"parameter_{name}": guess.parameters[name] for name in self.parameters_of[task]}
        told |= {"lead": guess.elapsed}
        fields = torch.cat([rearrange(pair, "h b ... c -> b ... (c h)"), guess.static], -1)
        return patchify(self.seen(task, fields, told), self.frames[task].patch) @ self.gather[self._cells(task)]

    def velocity(
        self,
        task: str,
        x: Float[Tensor, "B *latent D"],
        time: Float[Tensor, " B"],
        span: Float[Tensor, " B"],
        latent: Float[Tensor, "B *latent D"],
        context: Float[Tensor, "B *latent W"],
    ) -> Float[Tensor, "B *latent D"]:
        """`latent` is that of the prediction."""
        inputs = torch.cat([x, latent], -1) @ self.inputs[f"task_{task}"] + context
        told = {"time": time, "left": 1 - time, "span": span}
        return self.flow(task, inputs, told) @ self.outputs[f"task_{task}"]


def spread(numbers: Float[Tensor, " B"], like: Float[Tensor, "B *any"]) -> Float[Tensor, "B *ones"]:
    return numbers.view(-1, *(1,) * (like.dim() - 1))


def path(
    noise: Float[Tensor, "B *latent D"], data: Float[Tensor, "B *latent D"], time: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B *latent D"], Float[Tensor, "B *latent D"]]:
    """x_τ = cos(πτ/2) z + sin(πτ/2) x₁, and dx_τ/dτ."""
    angle = spread(time * (math.pi / 2), data)
    cosine, sine = angle.cos(), angle.sin()
    return cosine * noise + sine * data, (math.pi / 2) * (cosine * data - sine * noise)


def flow_matching(
    velocity: Velocity,
    noise: Float[Tensor, "B *latent D"],
    data: Float[Tensor, "B *latent D"],
    time: Float[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """⟨(v(x_τ, τ) − dx_τ/dτ)²⟩ of each sample; least where v = E[dx_τ/dτ | x_τ], whose flow turns noise into data."""
    x, rate = path(noise, data, time)
    return (velocity(x, time, torch.zeros_like(time)) - rate).square().flatten(1).mean(1)


def consistency(
    student: Velocity,
    teacher: Velocity,
    x: Float[Tensor, "B *latent D"],
    time: Float[Tensor, " B"],
    end: Float[Tensor, " B"],
    steps: int,
) -> Float[Tensor, " B"]:
    """⟨(v(x, τ, τ' − τ) − (x' − x) / (τ' − τ))²⟩, x' being where the teacher's flow leads from x at τ to τ', by so many
    steps of Heun's method: the student's jumps from any τ of a stretch all lead to the same end.
    """
    with torch.no_grad():
        there = solve(teacher, x, steps, "heun", time, end)
        rate = (there - x) / spread(end - time, x)
    return (student(x, time, end - time) - rate).square().flatten(1).mean(1)


def solve(
    velocity: Velocity,
    x: Float[Tensor, "B *latent D"],
    steps: int,
    sampler: str,
    start: Float[Tensor, " B"] | None = None,
    end: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, "B *latent D"]:
    """dx/dτ = v from `start` (0) to `end` (1), by Euler's or Heun's method; `jumps`: of a consistency model."""
    start = x.new_zeros(len(x)) if start is None else start
    end = torch.ones_like(start) if end is None else end
    length, none = (end - start) / steps, torch.zeros_like(start)
    for number in range(steps):
        time = start + number * length
        rate = velocity(x, time, length if sampler == "jumps" else none)
        if sampler == "heun":
            rate = (rate + velocity(x + spread(length, x) * rate, time + length, none)) / 2
        x = x + spread(length, x) * rate
    return x


class Correction:
    """û → û + D(E(û) + s x) − D(E(û)), x by a corrector's sampler from noise; within the operator's guards, at its
    conserved means, and zero on walls with a prescribed value.
    """

    def __init__(self, operator: Propagator, codec: Codec, corrector: Corrector, sampler: str, steps: int) -> None:
        self.operator, self.codec, self.corrector = operator, codec, corrector
        self.sampler, self.steps = sampler, steps

    def modules(self) -> nn.ModuleList:
        return nn.ModuleList([self.operator, self.codec, self.corrector])

    def __call__(self, guess: Guess, noise: Float[Tensor, "B *latent D"]) -> Float[Tensor, "B *space C"]:
        change = self.change(guess, noise)
        if self.operator.tasks[guess.task].steady:  # whose solutions have no guards
            return guess.predicted + change
        change = change - conserved_mean(self.operator, guess.task, change)
        return self.operator.get_submodule(f"guards_{guess.task}")(guess.predicted + change, guess.before)

    def change(self, guess: Guess, noise: Float[Tensor, "B *latent D"]) -> Float[Tensor, "B *space C"]:
        """D(E(û) + s x) − D(E(û))."""
        corrector, codec, task = self.corrector, self.codec, guess.task
        latent = codec.encode(task, guess.predicted)
        context = corrector.context(guess)

        def velocity(x: Tensor, time: Tensor, span: Tensor) -> Tensor:
            return corrector.velocity(task, x, time, span, latent, context)

        x = solve(velocity, noise, self.steps, self.sampler)
        size = corrector.size(task, guess.elapsed, self.operator.change(task, guess.elapsed), context)
        moved = latent + x * size.view(len(size), *(1,) * (x.dim() - 2), -1)
        change = codec.decode(task, moved) - codec.decode(task, latent)
        return change * corrector.seen.off_walls(task, change)

    def noise_shape(self, task: str) -> tuple[int, ...]:
        return (*self.codec.frames[task].latent_shape, self.codec.numbers[task])


def conserved_mean(operator: Propagator, task: str, change: Float[Tensor, "B *space C"]) -> Float[Tensor, "B *ones C"]:
    """The mean change of the channels whose mean the equation conserves (in logarithms, the guards see to it)."""
    spec = operator.tasks[task]
    invariant = {invariant.channel for invariant in spec.invariants}
    kept = [c.name in invariant and c.transform == "identity" for c in spec.channels]
    mean = change.mean(tuple(range(1, change.dim() - 1)), keepdim=True)
    return torch.stack([m if keep else torch.zeros_like(m) for m, keep in zip(mean.unbind(-1), kept, strict=True)], -1)
