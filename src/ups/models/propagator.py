"""One step of a learned simulator, in normalised units.

    û(t + Δ) = u(t) + s(Δ) · network( u, static fields, conditions )

s(Δ) is the task's rms of change over a lead time Δ, from the strides 1, 2, 4, 8 … by interpolation in log Δ; a steady
problem starts from u = 0 with s = 1. The network's last layer starts at zero: the untrained propagator is persistence.
Fields are in units of the task's rms, not of the sample's own: what walls, sources and nonlinear terms add to a weak
field would be many of its own units, and a rollout whose field grows would grow the faster for it.

A channel learned in logarithms, u = ln ρ / unit, whose mean ρ the equation conserves, is moved by one constant more:
ln( mean ρ(t) / mean ρ(t + Δ) ) / unit. What leaves the trained range and a margin is cut off there (`Guards`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ups.fields import Grid, TaskSpec
from ups.models.given import cell_mean, inside
from ups.models.network import Layered


class Scales(nn.Module):
    """What the changes of a transient task's fields are measured in."""

    compiled = True

    def __init__(self, leads: Float[Tensor, " S"], changes: Float[Tensor, "S C"]) -> None:
        """`changes`: the rms of normalised change over the lead times, per channel. Its logarithm is linear in that of
        the lead time on each stretch between two, so it is a sum: how far Δ has come on each stretch, times its slope.
        """
        super().__init__()
        logs, values = leads.double().log(), changes.double().log()
        gaps = logs.diff()
        none, far = torch.zeros_like(logs[:1]), torch.full_like(logs[:1], -torch.inf)
        tables = {
            "first": values[0],
            "starts": torch.cat([logs[:1], logs[:-1]]),
            "least": torch.cat([far, none.expand(len(gaps))]),
            "most": torch.cat([none, gaps]),
            "slopes": torch.cat([torch.ones_like(values[:1]), values.diff(dim=0) / gaps[:, None]]),
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)  # a saved model's statistics tell them

    def forward(self, lead: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        """s(Δ): linear in log-log between the strides, proportional to Δ below the first, constant above the last."""
        names = ("first", "starts", "least", "most", "slopes")
        first, starts, least, most, slopes = (self.get_buffer(name) for name in names)
        inside = torch.clamp(lead.double().log()[:, None] - starts, least, most)
        return (first + (inside[..., None] * slopes).sum(1)).exp().to(lead.dtype)


class Guards(nn.Module):
    """Keeps a step where networks can be trusted: within the trained range and a margin of it, or the range of the
    field it starts from, and at the means that the equation conserves. Inside the range no digit changes. In training
    mode nothing is cut off: it would have no gradient.

    Without it errors may feed on themselves, and a logarithm that drifts is a number that explodes. What is cut off
    from a channel with a conserved mean is spread over its points in proportion to their distance from a limit,
    v ← v + f · (limit − v) with 0 ≤ f ≤ 1, so that both hold.
    """

    compiled = True

    def __init__(
        self, task: TaskSpec, units: Float[Tensor, " C"] | None = None, limits: Float[Tensor, "two C"] | None = None
    ) -> None:
        """`units`: those of the channels, if means are to be kept; `limits`: smallest and largest values allowed."""
        super().__init__()
        invariant = {invariant.channel for invariant in task.invariants} if units is not None else set()
        self.logs = [channel.transform == "log" for channel in task.channels]
        self.kept = [
            i for i, c in enumerate(task.channels) if c.name in invariant and (self.logs[i] or limits is not None)
        ]
        self.units = [] if units is None else units.tolist()
        self.limited = limits is not None
        if limits is not None:
            self.register_buffer("lower", limits[0], persistent=False)
            self.register_buffer("upper", limits[1], persistent=False)

    def forward(
        self,
        state: Float[Tensor, "B *space C"],
        last: Float[Tensor, "B *space C"],
        mask: Bool[Tensor, "B *space one"] | None = None,
    ) -> Float[Tensor, "B *space C"]:
        """`mask`: the cells that count; where there is one, fields are zero in others, before and after."""
        inside, lower, upper = state, None, None
        if self.limited and not self.training:
            lower, upper = self.limits(last, mask)
            inside = state.clamp(lower, upper)
        if self.kept:
            columns = list(inside.unbind(-1))
            cells = None if mask is None else mask[..., 0]
            for i in self.kept:
                ends = None if lower is None or upper is None else (lower[..., i], upper[..., i])
                if self.logs[i]:
                    columns[i] = _logs_with_mean(columns[i], last[..., i], self.units[i], ends, cells)
                elif ends is not None:
                    columns[i] = _spread(state[..., i], columns[i], *ends, cells)
            inside = torch.stack(columns, -1)
        return inside if mask is None else inside.where(mask, 0.0)

    def limits(
        self, last: Float[Tensor, "B *space C"], mask: Bool[Tensor, "B *space one"] | None = None
    ) -> tuple[Float[Tensor, "B *ones C"], Float[Tensor, "B *ones C"]]:
        """Of each sample and channel after `last`, where they are `limited`."""
        space = tuple(range(1, last.dim() - 1))
        least, most = (last, last) if mask is None else (last.where(mask, torch.inf), last.where(mask, -torch.inf))
        lower = torch.minimum(self.get_buffer("lower").to(last), least.amin(space, keepdim=True))
        return lower, torch.maximum(self.get_buffer("upper").to(last), most.amax(space, keepdim=True))

    def cut_off(
        self,
        state: Float[Tensor, "B *space C"],
        last: Float[Tensor, "B *space C"],
        mask: Bool[Tensor, "B *space one"] | None = None,
    ) -> Float[Tensor, " B"]:
        """The share of a guarded step's values that are at a limit: those that were cut off, but of a channel with a
        conserved mean only those on the side to which the mean was brought back. Near a limit is not at it: what decays
        to zero may do so.
        """
        if not self.limited:
            return state.new_zeros(len(state))
        lower, upper = self.limits(last, mask)
        found = ((state <= lower) | (state >= upper)) & (upper > lower)
        return cell_mean(found.to(state), mask).flatten(1).mean(1)


def _logs_with_mean(
    state: Float[Tensor, "B *space"],
    last: Float[Tensor, "B *space"],
    unit: float,
    ends: tuple[Tensor, Tensor] | None,
    cells: Bool[Tensor, "B *space"] | None,
) -> Float[Tensor, "B *space"]:
    """Logarithms moved so that the mean of what they are of is that of `last`, within the limits."""
    space = tuple(range(1, state.dim()))
    counted = (values if cells is None else values.where(cells, -torch.inf) for values in (last, state))
    before, after = (torch.logsumexp(unit * values, space, keepdim=True) for values in counted)
    moved = state + (before - after) / unit
    if ends is None:
        return moved
    inside = moved.clamp(*ends)
    wanted, kept, lower, upper = ((unit * values).exp() for values in (moved, inside, *ends))
    spread = _spread(wanted, kept, lower, upper, cells)
    return torch.where((moved == inside).all(space, keepdim=True), moved, spread.log() / unit)


def _spread(
    wanted: Float[Tensor, "B *space"],
    inside: Float[Tensor, "B *space"],
    lower: Float[Tensor, "B *ones"],
    upper: Float[Tensor, "B *ones"],
    cells: Bool[Tensor, "B *space"] | None,
) -> Float[Tensor, "B *space"]:
    """The values inside the limits, moved towards one of them to the mean of those wanted."""
    lost = _mean(wanted - inside, cells)
    room = torch.where(lost > 0, upper, lower) - inside
    whole = _mean(room, cells)
    return inside + (lost / torch.where(whole == 0, 1.0, whole)).clamp(0.0, 1.0) * room


def _mean(values: Float[Tensor, "B *space"], cells: Bool[Tensor, "B *space"] | None) -> Float[Tensor, "B *ones"]:
    if cells is None:
        return values.mean(tuple(range(1, values.dim())), keepdim=True)
    return cell_mean(values[..., None], cells[..., None])[..., 0]


class Propagator(nn.Module):
    """Scaling around any network of increments (the operator model, an FNO)."""

    def __init__(
        self,
        network: nn.Module,
        tasks: Sequence[TaskSpec],
        step_scales: Mapping[str, tuple[Float[Tensor, " S"], Float[Tensor, "S C"]]],
        units: Mapping[str, Float[Tensor, " C"]] | None = None,
        limits: Mapping[str, Float[Tensor, "two C"]] | None = None,
    ) -> None:
        """`step_scales[task]` = lead times Δ_j and the rms of normalised change over them, per channel.

        `units[task]`: those of the normalised channels (`Normaliser.units`), where conserved means are to be kept.
        `limits[task]`: the smallest and largest values allowed (`Normaliser.limits`), where these are known.
        """
        super().__init__()
        self.network = network
        self.tasks = {task.name: task for task in tasks}
        for task in tasks:
            if not task.steady:
                self.add_module(f"scales_{task.name}", Scales(*step_scales[task.name]))
                guards = Guards(task, (units or {}).get(task.name), (limits or {}).get(task.name))
                self.add_module(f"guards_{task.name}", guards)

    def layers(self) -> list[nn.Module]:
        return self.network.layers() if isinstance(self.network, Layered) else []

    def matrices(self) -> list[nn.Parameter]:
        return self.network.matrices() if isinstance(self.network, Layered) else []

    def change(self, task: str, lead: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The rms of change over a lead time, over all channels: about the relative error of persistence. Of a steady
        task that of its solutions, which are normalised.
        """
        if self.tasks[task].steady:
            return torch.ones_like(lead)
        return self.get_submodule(f"scales_{task}")(lead).square().mean(-1).sqrt()

    @staticmethod
    def rms(
        history: Float[Tensor, "B H *space C"], mask: Bool[Tensor, "B *space"] | None = None
    ) -> Float[Tensor, "B one *ones C"]:
        """Root mean square of each sample and channel over history and the space inside the mask, ready to broadcast.
        Fields are zero outside it.
        """
        axes = tuple(range(1, history.dim() - 1))
        square = history.square().mean(dim=axes, keepdim=True)
        if mask is not None:
            square = square / mask.to(square)[:, None, ..., None].mean(dim=axes, keepdim=True)
        return square.sqrt()

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        parameters: Mapping[str, Float[Tensor, " B"]],
        lead: Float[Tensor, " B"] | None,
        grid: Grid,
    ) -> Float[Tensor, "B *space C"]:
        """The field one lead time later. `static` are the channels that `TaskSpec.given` names, also those that are of
        this step alone; cells outside a task's mask are zero, before and after.
        """
        spec = self.tasks[task]
        conditions = {f"parameter_{name}": parameters[name] for name in spec.parameters}
        last = history[:, -1]
        mask = inside(static) if spec.masked else None
        if spec.steady:
            solution = last + self.network(task, history, static, conditions, grid)
            return solution if mask is None else solution.where(mask, 0.0)
        assert lead is not None, "a transient task needs a lead time"
        conditions["lead"] = lead
        step = self.get_submodule(f"scales_{task}")(lead)
        batch, channels = step.shape  # not len(): an exported program would take it for a constant
        change = step.view(batch, *(1,) * (history.dim() - 3), channels)
        increment = self.network(task, history, static, conditions, grid)
        return self.get_submodule(f"guards_{task}")(last + change * increment, last, mask)

    def cut_off(
        self,
        task: str,
        start: Float[Tensor, "B *space C"],
        states: Sequence[Float[Tensor, "B *space C"]],
        mask: Bool[Tensor, "B *space"] | None = None,
    ) -> Float[Tensor, " B"]:
        """The share of a rollout's values that its guards cut off, in the mean over its steps."""
        guards = self.get_submodule(f"guards_{task}")
        assert isinstance(guards, Guards)
        cells = None if mask is None else mask[..., None]
        each = [guards.cut_off(state, last, cells) for last, state in zip([start, *states], states, strict=False)]
        return torch.stack(each).mean(0)
