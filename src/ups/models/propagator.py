"""One step of a learned simulator, in normalised units.

    û(t + Δ, p) = u(t, p) + r · s(Δ) · network( u/r, static fields, conditions, p )

r is the sample's own rms (so the network sees fields of size one whatever the amplitude; log r is a condition) and s(Δ)
the task's rms of change over a lead time Δ, from the strides 1, 2, 4, 8 … by interpolation in log Δ. A steady problem
starts from u = 0 with r = s = 1. The network's last layer starts at zero: the untrained propagator is persistence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ups.fields import Grid, TaskSpec
from ups.models.interpolation import interpolate

SMALLEST_SCALE = 1e-3
"""Samples weaker than this share of the task's rms are not scaled up further: round-off is not physics."""


class Propagator(nn.Module):
    """Scaling around any network of increments (the operator model, an FNO)."""

    def __init__(
        self,
        network: nn.Module,
        tasks: Sequence[TaskSpec],
        step_scales: Mapping[str, tuple[Float[Tensor, " S"], Float[Tensor, "S C"]]],
    ) -> None:
        """`step_scales[task]` = lead times Δ_j and the rms of normalised change over them, per channel."""
        super().__init__()
        self.network = network
        self.tasks = {task.name: task for task in tasks}
        for name, task in self.tasks.items():
            if not task.steady:
                leads, scales = step_scales[name]
                self.register_buffer(f"leads_{name}", leads.double().log(), persistent=True)
                self.register_buffer(f"scales_{name}", scales.double().log(), persistent=True)

    def step_scale(self, task: str, lead: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        """s(Δ): linear in log-log between the strides, proportional to Δ below the first, constant above the last."""
        logs, scales = self.get_buffer(f"leads_{task}"), self.get_buffer(f"scales_{task}")
        log_lead = lead.double().log()
        inside = torch.clamp(log_lead, logs[0], logs[-1])
        if len(logs) > 1:
            right = torch.searchsorted(logs, inside.detach().contiguous()).clamp(1, len(logs) - 1)
            share = ((inside - logs[right - 1]) / (logs[right] - logs[right - 1]))[:, None]
            value = scales[right - 1] * (1 - share) + scales[right] * share
        else:
            value = scales[0].expand(lead.shape[0], -1)
        return (value + torch.clamp(log_lead - logs[0], max=0.0)[:, None]).exp().to(lead.dtype)

    @staticmethod
    def rms(history: Float[Tensor, "B H *space C"]) -> Float[Tensor, "B one *ones C"]:
        """Root mean square of each sample and channel over history and space, ready to broadcast."""
        return history.square().mean(dim=tuple(range(1, history.dim() - 1)), keepdim=True).sqrt()

    def sample_scale(self, spec: TaskSpec, history: Float[Tensor, "B H *space C"]) -> Float[Tensor, "B C"]:
        """rms per sample and channel; components of one vector share theirs, log channels keep 1."""
        square = history.square().mean(dim=tuple(range(1, history.dim() - 1)))
        columns = []
        for i, channel in enumerate(spec.channels):
            if channel.transform == "log":
                columns.append(torch.ones_like(square[:, i]))
            elif channel.vector is not None:
                group = [j for j, other in enumerate(spec.channels) if other.vector == channel.vector]
                columns.append(torch.stack([square[:, j] for j in group], -1).mean(1))
            else:
                columns.append(square[:, i])
        return torch.stack(columns, -1).clamp_min(SMALLEST_SCALE**2).sqrt()

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        parameters: Mapping[str, Float[Tensor, " B"]],
        lead: Float[Tensor, " B"] | None,
        grid: Grid,
        query: Float[Tensor, "P dim"] | None = None,
    ) -> Tensor:
        """The field one lead time later, on the grid (B, *space, C) or at `query` (B, P, C)."""
        spec = self.tasks[task]
        conditions = {f"parameter_{name}": parameters[name] for name in spec.parameters}
        last = history[:, -1]
        if query is not None:
            last = interpolate(last, grid, spec.boundary.periodic, query, 3)
        if spec.steady:
            return last + self.network(task, history, static, conditions, grid, query)
        assert lead is not None, "a transient task needs a lead time"
        scale = self.sample_scale(spec, history)
        conditions["lead"] = lead
        conditions |= {f"rms_{c}": scale[:, i] for i, c in enumerate(spec.channel_names)}
        batch, channels = scale.shape  # not len(): an exported program would take it for a constant
        wide = (batch, *(1,) * (history.dim() - 3), channels)
        increment = self.network(task, history / scale.view(batch, 1, *wide[1:]), static, conditions, grid, query)
        step = (scale * self.step_scale(task, lead)).view(wide if query is None else (batch, 1, channels))
        return last + step * increment
