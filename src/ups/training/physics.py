"""What a task's equation says of predictions beside their error: losses of their own, for tasks that have them.

    balance        ‖ e(t₁) − e(t₀) − ½ Δ (f(û₁) − f(u₁) + f(û₀) − f(u₀)) ‖ / ‖ u(t₁) − u(t₀) ‖,      e = û − u
    (steady)       ‖ f(û) − f(u) ‖ / ‖ f(0) ‖
    conservation   |⟨û⟩ − ⟨u⟩| / rms u,      of channels whose means are kept
    boundary       ‖ û − u ‖ / ‖ u ‖         on the outermost points along axes that end in walls

f is the equation's own discrete rate (`Equation.rate`), in physical units. What the truth is out of balance by, because
a trapezoidal rule is not exact, is subtracted: each is zero for the truth, and least there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Batch
from ups.models.saved import TrainedTask
from ups.rollout.equation import equation_of
from ups.training.losses import FLOOR
from ups.training.settings import PhysicsConfig

if TYPE_CHECKING:  # who does not ask for a balance does not wait for the solvers
    from ups.equations import Equation

States = Sequence[Float[Tensor, "B *space C"]]


@dataclass(frozen=True, eq=False)
class Physics:
    """Of one task. `equation` is there where a balance is asked for; its `varied` parameters are each sample's own."""

    learned: TrainedTask
    weights: PhysicsConfig
    equation: Equation | None
    varied: tuple[str, ...]
    _made: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, learned: TrainedTask, weights: PhysicsConfig, keeps_means: bool) -> Physics:
        """Refused where the task has no such loss, or the network obeys by construction."""
        spec = learned.spec
        where = f"training.physics.{spec.name}"
        if spec.masked:
            raise UserError(f"{where} is of whole grids, and the task has masks; leave it out")
        if weights.conservation and (keeps_means or not spec.invariants):
            why = "this architecture keeps its means to round-off" if keeps_means else "its equation keeps no mean"
            raise UserError(f"{where}.conservation has nothing to teach: {why}; leave it out")
        if weights.boundary and all(spec.boundary.periodic):
            raise UserError(f"{where}.boundary has nothing to teach: the domain has no walls; leave it out")
        equation, varied = _equation(learned, where) if weights.balance else (None, ())
        return cls(learned, weights, equation, varied)

    def losses(
        self, states: States, targets: States, start: Float[Tensor, "B *space C"], leads: Sequence[Tensor], batch: Batch
    ) -> dict[str, Float[Tensor, " B"]]:
        """By name, unweighted, for normalised fields. `start` is the true one, `leads` are the steps' times, of which a
        steady task has none.
        """
        weights = self.weights
        found, true = ([self._physical(state) for state in each] for each in (states, targets))
        parts = {}
        if weights.balance:
            columns = [batch.static[name] for name in self.learned.spec.static]
            static = self.learned.normaliser.physical_static(torch.stack(columns, -1)) if columns else {}
            if self.learned.spec.steady:
                parts["balance"] = self._residual(found[0], true[0], static, batch)
            else:
                parts["balance"] = self._balance(found, true, self._physical(start), leads, static, batch)
        if weights.conservation:
            parts["conservation"] = self._mean(
                [self._conservation(one, other) for one, other in zip(found, true, strict=True)]
            )
        if weights.boundary:
            parts["boundary"] = self._mean(
                [self._boundary(one, other) for one, other in zip(states, targets, strict=True)]
            )
        return parts

    def total(self, parts: Mapping[str, Float[Tensor, " B"]]) -> Float[Tensor, " B"]:
        return torch.stack([getattr(self.weights, name) * part for name, part in parts.items()]).sum(0)

    @staticmethod
    def _mean(parts: list[Tensor]) -> Float[Tensor, " B"]:
        return torch.stack(parts).mean(0)

    def _rate(
        self, values: Float[Tensor, "B *space C"], static: Mapping[str, Tensor], batch: Batch
    ) -> Float[Tensor, "B *space C"]:
        equation = self.equation
        assert equation is not None
        if not self.varied:
            return equation.rate(values, static).to(values)

        def one(state: Tensor, fields: dict[str, Tensor], own: dict[str, Tensor]) -> Tensor:
            judge = copy.copy(equation)
            for name, value in own.items():  # frozen, and its numbers were checked when the data were made
                object.__setattr__(judge, name, value)
            return judge.rate(state[None], {name: value[None] for name, value in fields.items()})[0]

        own = {name: batch.parameters[name].to(values) for name in self.varied}
        return torch.vmap(one)(values, dict(static), own).to(values)

    def _residual(self, found: Tensor, true: Tensor, static: Mapping[str, Tensor], batch: Batch) -> Float[Tensor, " B"]:
        apart = self._rate(found, static, batch) - self._rate(true, static, batch)
        return _share(apart, self._rate(torch.zeros_like(true), static, batch), self._tables(true)[2])

    def _balance(
        self,
        found: States,
        true: States,
        before: Float[Tensor, "B *space C"],
        leads: Sequence[Tensor],
        static: Mapping[str, Tensor],
        batch: Batch,
    ) -> Float[Tensor, " B"]:
        parts, error, rate = [], torch.zeros_like(before), torch.zeros_like(before)
        for one, other, lead in zip(found, true, leads, strict=True):
            half = lead.view(-1, *(1,) * (before.dim() - 1)) / 2
            now, quicker = one - other, self._rate(one, static, batch) - self._rate(other, static, batch)
            parts.append(_share(now - error - half * (quicker + rate), other - before, self._tables(before)[2]))
            before, error, rate = other, now, quicker
        return self._mean(parts)

    def _physical(self, state: Float[Tensor, "B *space C"]) -> Float[Tensor, "B *space C"]:
        offset, unit, _ = self._tables(state)
        values = state * unit + offset
        logs = [channel.transform == "log" for channel in self.learned.spec.channels]
        if not any(logs):
            return values
        return torch.stack([v.exp() if log else v for v, log in zip(values.unbind(-1), logs, strict=True)], -1)

    def _tables(self, like: Tensor) -> Tensor:
        """Offset and unit of every channel, and the least change that is divided by; made once for each device, because
        nothing may be brought there while a step is recorded.
        """
        key = like.device, like.dtype
        if key not in self._made:
            normaliser, scales = self.learned.normaliser, self.learned.statistics.channels
            units = normaliser.units()
            names = self.learned.spec.channel_names
            changes = [scales[n].differences[:1] or (float(u),) for n, u in zip(names, units, strict=True)]
            least = FLOOR * torch.tensor([one for one, *_ in changes], dtype=torch.float64)
            self._made[key] = torch.stack([normaliser.offsets(), units, least]).to(like)
        return self._made[key]

    def _conservation(self, found: Tensor, true: Tensor) -> Float[Tensor, " B"]:
        names = self.learned.spec.channel_names
        columns = [names.index(invariant.channel) for invariant in self.learned.spec.invariants]
        one, other = found[..., columns].flatten(1, -2), true[..., columns].flatten(1, -2)
        size = other.square().mean(1).sqrt()
        return ((one.mean(1) - other.mean(1)).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)).mean(1)

    def _boundary(self, found: Tensor, true: Tensor) -> Float[Tensor, " B"]:
        edges = [
            (one.select(1 + axis, place) for one in (found, true))
            for axis, wraps in enumerate(self.learned.spec.boundary.periodic)
            if not wraps
            for place in (0, -1)
        ]
        outer, wanted = (torch.cat([edge.flatten(1) for edge in own], 1) for own in zip(*edges, strict=True))
        return (outer - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(FLOOR * wanted.shape[1] ** 0.5)


def _share(
    apart: Float[Tensor, "B *space C"], of: Float[Tensor, "B *space C"], least: Float[Tensor, " C"]
) -> Float[Tensor, " B"]:
    """The norm of one over that of the other, channel by channel; the mean over them."""
    one, other = (each.flatten(1, -2).square().mean(1) for each in (apart, of))
    # Under the root nothing may be zero, where it has no gradient.
    return ((one + 1e-12 * least.square()).sqrt() / other.sqrt().clamp_min(least)).mean(1)


def _equation(learned: TrainedTask, where: str) -> tuple[Equation, tuple[str, ...]]:
    """The task's equation, and which of its parameters differ between samples."""
    try:
        return equation_of(learned), tuple(learned.spec.source.get("varied", ()))
    except UserError as error:
        raise UserError(f"{where}.balance: {error}") from None
