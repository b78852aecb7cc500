"""Data without some of their conditions: what a model is not to know, said by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ups.errors import UserError
from ups.fields import Batch, Dataset, Header, TaskSpec

T = TypeVar("T")
MASK = "mask"


class Without(Dataset):
    """A dataset without the parameters, static fields and forcings of some names; `mask` is the mask."""

    def __init__(self, dataset: Dataset, names: Collection[str]) -> None:
        self.dataset, self.names = dataset, frozenset(names)
        self.header = header_without(dataset.header, names)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        batch = self.dataset.read(indices, frames)
        return replace(
            batch,
            parameters=_kept(batch.parameters, self.names),
            static=_kept(batch.static, self.names),
            forcings=_kept(batch.forcings, self.names),
            mask=batch.mask if self.header.masked else None,
        )


def header_without(header: Header, names: Collection[str]) -> Header:
    """The header of such data; a name that they do not have is refused."""
    held = [*header.parameters, *header.static, *header.forcings, *([MASK] if header.masked else [])]
    if unknown := [name for name in names if name not in held]:
        raise UserError(
            f"task {header.task!r}: {unknown[0]!r} is to be dropped, but the data have "
            f"{', '.join(held) or 'no conditions'}; correct drop"
        )
    return replace(
        header,
        parameters=_kept(header.parameters, names),
        static=tuple(name for name in header.static if name not in names),
        forcings=_kept(header.forcings, names),
        masked=header.masked and MASK not in names,
    )


def spec_without(spec: TaskSpec, names: Collection[str]) -> TaskSpec:
    """The task that knows nothing of them."""

    def kept(known: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in known if name not in names)

    changed: dict[str, Any] = {kind: kept(getattr(spec, kind)) for kind in ("parameters", "static", "forcings")}
    return replace(spec, **changed, masked=spec.masked and MASK not in names)


def _kept(named: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in named.items() if name not in names}
