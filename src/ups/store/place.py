"""Where a step finds its training fields: a copy in the device's memory where they fit, else the mapped files.

A GPU that holds the whole set needs only the numbers of the samples; it gathers the windows itself. Otherwise windows
are gathered from mapped pages on the host and copied over, step by step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from ups.data.prepare.row_ranges import in_steps
from ups.data.sampler import TaskIndices
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Batch
from ups.store.fields import FieldStore, times_of

ROOM = 0.4
"""The share of a GPU's free memory that fields may take: the rest is for the model and its passes."""
_PIECE = 256 * 2**20
"""Bytes copied to the device at a time."""


class DeviceStore:
    """One task's fields in a device's memory, in the precision of the store."""

    def __init__(self, store: FieldStore, device: torch.device, dtype: torch.dtype) -> None:
        spec = store.normaliser.spec
        self.device, self.dtype, self.spec = device, dtype, spec
        self.grid, self.boundary = store.grid, store.boundary
        self.fields = _copied(store, "fields", device)
        self.columns = columns = store.columns
        self.static = _copied(store, "static", device) if columns.count else None
        self.forcings = _copied(store, "forcings", device) if columns.timed else None
        self.times = store.times.to(device)
        self.parameters = store.parameters.to(device, dtype)

    def window(self, part: TaskIndices) -> Window:
        return Window(self, part.ids, part.windows)

    def gather(self, window: Window) -> Batch:
        ids, frames = window.ids, window.frames
        static = None if self.static is None else self.static[ids].to(self.dtype)
        forcings = None if self.forcings is None else self.forcings[ids[:, None], frames].to(self.dtype)
        return Batch(
            task=self.spec.name,
            values=self.fields[ids[:, None], frames].to(self.dtype),
            times=times_of(self.times, ids, frames),
            grid=self.grid,
            boundary=self.boundary,
            parameters={name: self.parameters[ids, i] for i, name in enumerate(self.spec.parameters)},
            ids=ids,
            **self.columns.named(static, forcings),
        )


def _copied(store: FieldStore, name: str, device: torch.device) -> Tensor:
    """A whole array of the store, checked as it is read."""
    array = store.store[name]
    out = torch.empty(array.shape, dtype=getattr(torch, array.dtype), device=device)
    rows = max(1, _PIECE // max(1, out[0].nbytes))
    for part in in_steps(len(out), rows):
        out[part.start : part.stop] = store.rows(name, torch.arange(part.start, part.stop))
    return out


@dataclass(frozen=True, eq=False)
class Window:
    """Samples whose fields are in a device's memory: only their numbers travel there."""

    source: DeviceStore
    ids: Int[Tensor, " B"]
    frames: Int[Tensor, "B T"]

    @property
    def task(self) -> str:
        return self.source.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values to be gathered."""
        return *self.frames.shape, *self.source.fields.shape[2:]

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Window:
        return replace(self, ids=change(self.ids), frames=change(self.frames))

    def read(self) -> Batch:
        return self.source.gather(self)


def place(stores: Mapping[str, FieldStore], runtime: Runtime, dtype: torch.dtype) -> dict[str, DeviceStore]:
    """Copies of all fields on the device, or none: decided once, by all ranks together, as the config says."""
    choice, device = runtime.config.placement, runtime.device
    if choice == "mapped" or (choice == "auto" and device.type != "cuda"):
        return {}
    if device.type == "cuda":
        needed = sum(store.nbytes for store in stores.values())
        sharing = runtime.ranks.local_size if os.environ.get("UPS_SHARE_DEVICE") == "1" else 1
        room = min(runtime.gather(ROOM * torch.cuda.mem_get_info(device)[0] / sharing))
        if needed > room:
            if choice == "auto":
                return {}
            raise UserError(
                f"runtime.placement is device, but the fields take {needed / 2**30:.1f} GiB and the smallest GPU has "
                f"{room / 2**30:.1f} to spare for them; use runtime.placement=mapped or data.store=float16"
            )
    return {name: DeviceStore(store, device, dtype) for name, store in stores.items()}
