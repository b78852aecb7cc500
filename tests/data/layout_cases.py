"""Small random data of any shape, for the claims that layouts keep what they are given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ups.data.formats.reading import inside
from ups.fields import Batch, Boundary, Grid, Header, Side


def named(layouts: Iterable[str]) -> list:
    """As parameters of a test, which is skipped where a layout's packages are not installed."""
    missing = not (find_spec("zarr") and find_spec("xarray"))
    without = pytest.mark.skipif(missing, reason="xarray and zarr are not installed")
    return [pytest.param(name, marks=without if name == "zarr" else ()) for name in layouts]


def header_of(
    shape=(6,), frames=4, channels=("u",), boundary=None, dtype=torch.float32, grid=None, times=None, **rest
) -> Header:
    return Header(
        task=rest.pop("task", "heat"),
        channels=channels,
        grid=grid or Grid.cell_centred(shape),
        times=times if times is not None else torch.arange(frames, dtype=torch.float64) * 0.1,
        boundary=boundary or Boundary.all("periodic", len(shape)),
        dtype=dtype,
        **rest,
    )


def batch_of(header: Header, count: int, seed: int = 0) -> Batch:
    """Random numbers in every field the header names, zeros outside the mask."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int, dtype: torch.dtype = header.dtype) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    shape, frames = header.grid.shape, len(header.times)
    mask = draw(count, *shape) > 0 if header.masked else None
    if mask is not None:
        mask.flatten(1)[:, 0] = True  # one cell is inside at least
    drawn = Batch(
        task=header.task,
        values=draw(count, frames, *shape, len(header.channels)),
        times=header.times.expand(count, -1) if header.own_times is None else header.own_times,
        grid=header.grid,
        boundary=header.boundary,
        parameters={
            name: draw(count, dtype=torch.float64)
            if value is None
            else torch.full((count,), value, dtype=torch.float64)
            for name, value in header.parameters.items()
        },
        static={name: draw(count, *shape) for name in header.static},
        ids=torch.arange(count),
        forcings={name: draw(count, *(frames,) * varies, *shape) for name, varies in header.forcings.items()},
        mask=mask,
    )
    return inside(drawn, drawn.ids.numpy(), Path("drawn"))


def write(writer, path: Path, header: Header, batch: Batch) -> Path:
    """In two pieces, so that writing piece by piece is what is tested."""
    half = math.ceil(len(batch) / 2)
    with writer(path, header, len(batch)) as file:
        file.write(batch.select(range(half)))
        file.write(batch.select(range(half, len(batch))))
    return path


def assert_same(dataset, header: Header, batch: Batch) -> None:
    """Everything the header and the batch hold came back, bit by bit."""
    assert len(dataset) == len(batch)
    assert (dataset.task, dataset.channels, dataset.boundary) == (header.task, header.channels, header.boundary)
    assert dataset.grid.same_as(header.grid) and torch.equal(dataset.times, header.times)
    assert dict(dataset.header.parameters) == dict(header.parameters)
    read = dataset.read(range(len(batch)), slice(None))
    assert read.values.dtype == header.dtype and torch.equal(read.values, batch.values)
    assert torch.equal(read.times, batch.times)
    for mine, theirs in (
        (read.parameters, batch.parameters),
        (read.static, batch.static),
        (read.forcings, batch.forcings),
    ):
        assert set(mine) == set(theirs)
        for name in theirs:
            assert torch.equal(mine[name], theirs[name]), name
    assert (read.mask is None) == (batch.mask is None)
    if batch.mask is not None:
        assert read.mask is not None and torch.equal(read.mask, batch.mask)


def sides(*pairs) -> Boundary:
    """`sides(("periodic",), ("value", "open"))` and the like; a Side stands for itself."""
    made = []
    for pair in pairs:
        both = [side if isinstance(side, Side) else Side(side) for side in (pair * 2 if len(pair) == 1 else pair)]
        made.append((both[0], both[1]))
    return Boundary(tuple(made))
