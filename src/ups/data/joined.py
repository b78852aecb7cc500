"""Datasets made of datasets: a selection of one, or several of one task end to end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Batch, Dataset, Header


class Subset(Dataset):
    """Some trajectories of a dataset, in the given order. A batch's ids are positions in the subset."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        out = [i for i in indices if not 0 <= i < len(dataset)]
        if out:
            raise UserError(f"trajectory {out[0]} is not in the dataset, which has {len(dataset)}; choose from those")
        self.dataset = dataset
        self.indices = tuple(indices)
        own = dataset.header.own_times
        self.header = replace(dataset.header, own_times=None if own is None else own[list(self.indices)])

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        batch = self.dataset.read([self.indices[i] for i in indices], frames)
        return replace(batch, ids=torch.tensor(list(indices), dtype=torch.int64))


class Joined(Dataset):
    """Several datasets of one task on one grid with as many frames, end to end: e.g. the files of three β.

    Parameters stay those of each trajectory, and so do times where they differ. A batch's ids are positions in the
    whole. Licences add up.
    """

    def __init__(self, parts: Sequence[Dataset]) -> None:
        if not parts:
            raise UserError("no datasets to join; give at least one")
        first = parts[0]
        for number, part in enumerate(parts[1:], start=2):
            for what, same in (
                ("task", part.task == first.task),
                ("channels", part.channels == first.channels),
                ("grid", part.grid.same_as(first.grid)),
                ("number of frames", len(part.times) == len(first.times)),
                ("boundary", part.boundary == first.boundary),
                ("set of parameters", set(part.header.parameters) == set(first.header.parameters)),
                ("set of static fields", set(part.header.static) == set(first.header.static)),
                ("set of forcings", dict(part.header.forcings) == dict(first.header.forcings)),
                ("use of masks", part.header.masked == first.header.masked),
                ("precision", part.header.dtype == first.header.dtype),
                ("number of given frames", part.header.given == first.header.given),
                ("set of units", part.header.units == first.header.units),
            ):
                if not same:
                    raise UserError(
                        f"dataset {number} of {first.task!r} has another {what} than the first; join equals"
                    )
        self.parts = tuple(parts)
        self.header = replace(_common([part.header for part in parts]), own_times=_own_times(parts))
        self._starts = (0, *accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """Each part is read once; the trajectories come back in the order asked for."""
        wanted: dict[int, list[int]] = {}
        for position, index in enumerate(indices):
            if not 0 <= index < len(self):
                raise UserError(f"trajectory {index} is not in the dataset, which has {len(self)}; choose from those")
            wanted.setdefault(bisect_right(self._starts, index) - 1, []).append(position)
        if not wanted:
            return self.parts[0].read([], frames)
        batches, order = [], []
        for part, positions in sorted(wanted.items()):
            batches.append(self.parts[part].read([indices[p] - self._starts[part] for p in positions], frames))
            order.extend(positions)
        back = torch.tensor(order).argsort()
        return end_to_end(batches).mapped(lambda tensor: tensor[back], torch.tensor(list(indices), dtype=torch.int64))


def end_to_end(batches: Sequence[Batch]) -> Batch:
    """Batches of the same task and frames as one."""
    first = batches[0]
    if len(batches) == 1:
        return first
    return replace(
        first,
        values=torch.cat([b.values for b in batches]),
        times=torch.cat([b.times for b in batches]),
        parameters={k: torch.cat([b.parameters[k] for b in batches]) for k in first.parameters},
        static={k: torch.cat([b.static[k] for b in batches]) for k in first.static},
        ids=torch.cat([b.ids for b in batches]),
        forcings={k: torch.cat([b.forcings[k] for b in batches]) for k in first.forcings},
        mask=None if first.mask is None else torch.cat([b.mask for b in batches if b.mask is not None]),
    )


def _own_times(parts: Sequence[Dataset]) -> Float[Tensor, "N T"] | None:
    """Of all trajectories, where they differ."""
    first = parts[0].times
    if all(part.header.own_times is None and torch.equal(part.times, first) for part in parts):
        return None
    own = (
        part.times.expand(len(part), -1) if part.header.own_times is None else part.header.own_times for part in parts
    )
    return torch.cat(list(own))


def _common(headers: list[Header]) -> Header:
    """The header of data put together: parameters that differ are said to, licences all hold, and only notes that are
    true of every part stay; the key of generated data is of one file, so it never does.
    """
    first = headers[0]
    if len(headers) == 1:
        return first
    parameters = {
        name: value if all(other.parameters.get(name) == value for other in headers) else None
        for name, value in first.parameters.items()
    }
    licences = dict.fromkeys(word for header in headers for word in header.licence.split("; ") if word)
    notes = {
        name: value
        for name, value in first.notes.items()
        if name != "key" and all(name in other.notes and other.notes[name] == value for other in headers)
    }
    return replace(first, parameters=parameters, licence="; ".join(licences), notes=notes)
