"""From physical to normalised units and back: u/rms, (u − mean)/std where standardised, (ln u − mean)/std under log.
Cells outside a trajectory's domain are zero in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.data.prepare.statistics import Statistics
from ups.errors import UserError
from ups.fields import Batch, TaskSpec

MARGIN = 0.1
"""So far beyond the trained range, in its own length, may a rollout go."""


@dataclass(frozen=True)
class Normaliser:
    """A task's units. An identity channel is only scaled (a zero stays zero), static fields and forcings are
    standardised, as is a channel that says so: one that varies little about a large mean.
    """

    spec: TaskSpec
    statistics: Statistics

    def _columns(self, like: Tensor) -> tuple[Tensor, Tensor]:
        offsets, scales = [], []
        for channel in self.spec.channels:
            scale = self.statistics.channels[channel.name]
            moved = channel.transform != "identity"
            offsets.append(scale.mean if moved else 0.0)
            scales.append((scale.std if moved else scale.rms) or 1.0)
        return like.new_tensor(offsets), like.new_tensor(scales)

    def units(self) -> Float[Tensor, " C"]:
        """What a difference of one is, in a channel's own units or in its logarithm."""
        return self._columns(torch.zeros((), dtype=torch.float64))[1]

    def offsets(self) -> Float[Tensor, " C"]:
        """What a channel's zero is, in the same."""
        return self._columns(torch.zeros((), dtype=torch.float64))[0]

    def ranges(self) -> Float[Tensor, "two C"] | None:
        """The smallest and largest value of each normalised channel in the training data; None where not known."""
        found = [self.statistics.channels[channel.name].range for channel in self.spec.channels]
        if None in found:
            return None
        ends = torch.tensor([span for span in found if span], dtype=torch.float64).T
        offset, scale = self._columns(ends)
        return (ends - offset) / scale

    def limits(self) -> Float[Tensor, "two C"] | None:
        """The same with a margin, within which rollouts are kept; what has no negative value in training gets none."""
        if (ends := self.ranges()) is None:
            return None
        margin = MARGIN * (ends[1] - ends[0])
        logs = torch.tensor([channel.transform == "log" for channel in self.spec.channels])
        zero = (-self.offsets() / self.units()).where(~logs, -torch.inf)
        lower = torch.where(ends[0] >= zero, torch.maximum(ends[0] - margin, zero), ends[0] - margin)
        return torch.stack([lower, ends[1] + margin])

    def _logarithmic(self, like: Tensor) -> Tensor | None:
        """Which channels are; None where none is, known without asking the device."""
        flags = [c.transform == "log" for c in self.spec.channels]
        return torch.tensor(flags, device=like.device) if any(flags) else None

    def normalise(
        self, values: Float[Tensor, "*any C"], inside: Bool[Tensor, "*cells one"] | None = None
    ) -> Float[Tensor, "*any C"]:
        """Zero in the cells that are not `inside` the domain, whatever is there."""
        offset, scale = self._columns(values)
        log = self._logarithmic(values)
        if log is not None:
            positive = log if inside is None else log & inside
            values = torch.where(log, torch.where(positive, values, 1.0).log(), values)
        values = (values - offset) / scale
        return values if inside is None else torch.where(inside, values, 0.0)

    def physical(
        self, values: Float[Tensor, "*any C"], inside: Bool[Tensor, "*cells one"] | None = None
    ) -> Float[Tensor, "*any C"]:
        """Zero in the cells that are not `inside` the domain."""
        offset, scale = self._columns(values)
        log = self._logarithmic(values)
        values = values * scale + offset
        values = values if log is None else torch.where(log, torch.where(log, values, 0.0).exp(), values)
        return values if inside is None else torch.where(inside, values, 0.0)

    def static(
        self,
        fields: Mapping[str, Float[Tensor, "B *space"]],
        like: Tensor,
        mask: Bool[Tensor, "B *space"] | None = None,
    ) -> Float[Tensor, "B *space S"]:
        """The task's static fields, stacked in its order; a task without any has S = 0. Zero outside the mask."""
        for name in self.spec.static:
            if name not in fields:
                raise UserError(f"task {self.spec.name!r} needs the static field {name!r}; give it in the conditions")
        columns = [self._standardised(name, fields[name].to(like), mask) for name in self.spec.static]
        return torch.stack(columns, -1) if columns else like.new_zeros(*like.shape[:1], *like.shape[2:-1], 0)

    def physical_static(self, columns: Float[Tensor, "B *space S"]) -> dict[str, Float[Tensor, "B *space"]]:
        """The task's static fields in their own units, by name."""
        scales = [self.statistics.static[name] for name in self.spec.static]
        fields = zip(self.spec.static, scales, columns.unbind(-1), strict=True)
        return {name: field * (scale.std or 1.0) + scale.mean for name, scale, field in fields}

    def forcings(
        self,
        fields: Mapping[str, Float[Tensor, "B ..."]],
        like: Tensor,
        mask: Bool[Tensor, "B *space"] | None = None,
    ) -> dict[str, Float[Tensor, "B ..."]]:
        """The task's forcings, in its order, with or without an axis of time."""
        for name in self.spec.forcings:
            if name not in fields:
                raise UserError(f"task {self.spec.name!r} needs the forcing {name!r}; give it in the conditions")
        return {name: self._standardised(name, fields[name].to(like), mask) for name in self.spec.forcings}

    def _standardised(self, name: str, field: Tensor, mask: Tensor | None) -> Tensor:
        scale = self.statistics.static[name]
        values = (field - scale.mean) / (scale.std or 1.0)
        if mask is None:
            return values
        return torch.where(mask if values.dim() == mask.dim() else mask[:, None], values, 0.0)

    def batch(self, batch: Batch) -> Batch:
        """Physical fields and static fields as models see them, with what the task does not vary left out."""
        mask = batch.mask if self.spec.masked else None
        static = self.static(batch.static, batch.values, mask).unbind(-1)
        return replace(
            batch,
            values=self.normalise(batch.values, None if mask is None else mask[:, None, ..., None]),
            parameters={name: batch.parameters[name] for name in self.spec.parameters},
            static=dict(zip(self.spec.static, static, strict=True)),
            forcings=self.forcings(batch.forcings, batch.values, mask),
            mask=mask,
        )

    def walls(self) -> dict[tuple[int, int], Float[Tensor, " C"]]:
        """What is prescribed on walls, by axis and side (0 lower, 1 upper), normalised; NaN where a channel is free."""
        walls, count = {}, len(self.spec.channels)
        for axis, pair in enumerate(self.spec.boundary.sides):
            for side, wall in enumerate(pair):
                if wall.kind == "value":
                    given = wall.value or (0.0,) * count
                    values = [*given, *[torch.nan] * count][:count]
                    walls[axis, side] = self.normalise(torch.tensor(values, dtype=torch.float64))
        return walls

    def step_scales(self) -> tuple[Float[Tensor, " S"], Float[Tensor, "S C"]]:
        """Lead times, those of the strides where frames are equally spaced, and the rms of normalised change over each,
        per channel.
        """
        leads = self.statistics.lead_times
        if not leads:
            raise ValueError(f"{self.spec.name} is steady: it has no step")
        units = self.units().tolist()
        changes = [self.statistics.channels[channel.name].differences for channel in self.spec.channels]
        rows = [[max(of[i] / unit, 1e-6) for of, unit in zip(changes, units, strict=True)] for i in range(len(leads))]
        return torch.tensor(leads, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64)
