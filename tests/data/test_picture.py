"""Pictures and sketches show the field: where it is high, the drawing says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from layout_cases import batch_of, header_of

from ups.data.picture import draw
from ups.data.sketch import sketch
from ups.errors import UserError
from ups.fields import Batch, Header


class InMemory:
    """A dataset of one batch."""

    def __init__(self, header: Header, batch: Batch) -> None:
        self.header, self.batch = header, batch
        self.task, self.channels, self.grid = header.task, header.channels, header.grid
        self.times, self.boundary = header.times, header.boundary

    def __len__(self) -> int:
        return len(self.batch)

    def read(self, indices, frames: slice) -> Batch:
        part = self.batch.select(list(indices))
        return Batch(
            part.task,
            part.values[:, frames],
            part.times[:, frames],
            part.grid,
            part.boundary,
            part.parameters,
            part.static,
            part.ids,
            {name: f[:, frames] if self.header.forcings[name] else f for name, f in part.forcings.items()},
            part.mask,
        )


def dataset(shape, **rest) -> InMemory:
    header = header_of(shape, **rest)
    return InMemory(header, batch_of(header, 2))


@pytest.mark.parametrize(
    "data",
    [
        dataset((40,)),
        dataset((40,), channels=("u", "v"), static=("a",), forcings={"f": True}, parameters={"nu": 0.1}),
        dataset((9,), frames=1),
        dataset((12, 8), channels=("u", "v"), static=("a",)),
        dataset((12, 8), frames=1, static=("a",)),
        dataset((6, 5, 4), channels=("u", "v", "w")),
    ],
    ids=["1D", "1D with more", "1D steady", "2D", "2D steady", "3D"],
)
def test_data_of_every_dimension_are_drawn(tmp_path, data):
    assert draw(data, tmp_path / "a.png", trajectories=1).read_bytes().startswith(b"\x89PNG")
    assert max(map(len, sketch(data).splitlines())) <= 100


def test_a_file_that_is_no_picture_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"ends in \.png, \.pdf or \.svg"):
        draw(dataset((8,)), tmp_path / "a.hdf5")


def test_a_picture_is_whole_and_never_overwrites(tmp_path):
    (tmp_path / "a.png").write_text("mine")
    with pytest.raises(UserError, match=r"a\.png exists"):
        draw(dataset((8,)), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "mine"
    for name in ("b.pdf", "c.SVG"):
        draw(dataset((8,)), tmp_path / name, trajectories=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.pdf", "c.SVG"]


class Damaged(InMemory):
    """Refuses the first trajectories, as readers do."""

    bad = 1

    def read(self, indices, frames: slice) -> Batch:
        if min(indices) < self.bad:
            raise UserError(f"sample {min(indices)} is damaged")
        return super().read(indices, frames)


def test_what_cannot_be_read_is_left_out_of_drawings(tmp_path):
    header = header_of((72,), 2)
    data = Damaged(header, batch_of(header, 2))
    data.batch.values[1] = torch.linspace(0, 1, 72)[:, None]
    assert sketch(data).splitlines()[1].endswith("█")
    # matplotlib keeps a text's words as a comment beside its outlines
    assert "trajectory 1" in draw(data, tmp_path / "a.svg").read_text()
    data.bad = 2
    assert sketch(data) == "no trajectory can be read, so none is drawn"
    with pytest.raises(UserError, match="no trajectory can be read"):
        draw(data, tmp_path / "b.png")


def test_bars_rise_where_the_field_does():
    data = dataset((72,), frames=2)
    data.batch.values[0] = torch.linspace(0, 1, 72)[:, None]
    line = sketch(data).splitlines()[1].split(" ")[-1]
    heights = ["▁▂▃▄▅▆▇█".index(bar) for bar in line]
    assert heights == sorted(heights) and set(heights) == set(range(8)) and len(heights) == 72


def test_shades_lie_where_the_field_is_high_with_y_upwards():
    data = dataset((16, 16), frames=1)
    data.batch.values[:] = 0
    data.batch.values[0, 0, 12:, 12:] = 1.0  # large x, large y
    rows = [row.ljust(32) for row in sketch(data).split("\n")[1:]]
    picture = np.array([[" ░▒▓█".index(character) for character in row] for row in rows])
    assert picture.shape == (16, 32)
    assert (picture[:4, 24:] == 4).all() and picture.sum() == 4 * picture[:4, 24:].size


@pytest.mark.parametrize("shape", [(12,), (12, 8), (6, 5, 4)])
def test_cells_outside_a_mask_are_left_blank_and_no_scale_knows_them(tmp_path, shape):
    data = dataset(shape, static=("a",), forcings={"f": True}, masked=True)
    mask = torch.ones(2, *shape, dtype=torch.bool)
    mask[(slice(None), *(slice(1, n // 2) for n in shape))] = False
    cells = mask[:, None, ..., None]
    clean = replace(data.batch, mask=mask)
    data.batch = replace(
        clean,
        values=clean.values.where(cells, 1e30),
        static={"a": clean.static["a"].where(mask, -1e30)},
        forcings={"f": clean.forcings["f"].where(mask[:, None], 1e30)},
    )
    assert sketch(data) == sketch(InMemory(data.header, clean)) and "e+30" not in sketch(data)
    assert (
        draw(data, tmp_path / "a.png").read_bytes()
        == draw(InMemory(data.header, clean), tmp_path / "b.png").read_bytes()
    )


def test_fields_that_are_flat_or_not_numbers_can_be_sketched():
    data = dataset((16, 16))
    data.batch.values[:] = 3.0
    assert "3 to 3" in sketch(data)
    data.batch.values[:] = float("nan")
    assert sketch(data)


def test_a_drawing_has_the_times_of_its_own_trajectory():
    data = dataset((12,))
    data.batch = replace(data.batch, times=data.batch.times + 40.0)  # those of the header are another's
    assert f"t = {float(data.times[0]) + 40:.3g}" in sketch(data)
