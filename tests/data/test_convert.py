"""Between any two layouts: equal values, losses named, nothing half-written."""

from __future__ import annotations

from dataclasses import replace

import h5py
import layout_cases
import pytest
import torch

from ups.data import convert as convert_module
from ups.data.convert import convert, layout_for
from ups.data.formats.description import to_json
from ups.data.formats.layouts import LAYOUTS, named_layout
from ups.data.formats.reading import inside
from ups.data.generate.make import generate
from ups.data.open import open_dataset
from ups.equations import Advection
from ups.errors import UserError

EQUATION = Advection(points=16, frames=4)
OTHERS = [layout.name for layout in LAYOUTS if layout.name != "pdebench-tensor"]


def holding(path) -> list[str]:
    """The layouts that can hold one field in one dimension."""
    return [name for name in OTHERS if not _refused(name, path)]


def _refused(name: str, path) -> bool:
    try:
        convert(open_dataset(path), path.with_name(f"try-{name}"), name)
    except UserError:
        return True
    return False


@pytest.mark.parametrize("piece", [1, 1 << 26])
def test_there_and_back_again_gives_the_same_data(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(convert_module, "_PIECE_BYTES", piece)
    source = generate(EQUATION, 9, 0, tmp_path / "a.hdf5")
    there = holding(source)
    assert "well" in there
    for name in there:
        other = tmp_path / f"there-{name}"
        counted: list[tuple[int, int]] = []
        lost = convert(open_dataset(source), other, name, lambda *count, seen=counted: seen.append(count))
        assert counted[-1] == (9, 9) and len(counted) == (9 if piece == 1 else 1)
        back = tmp_path / f"back-{name}.hdf5"
        convert(open_dataset(other), back, "pdebench-tensor")
        one, two = open_dataset(source), open_dataset(back)
        assert torch.equal(one.read(range(9), slice(None)).values, two.read(range(9), slice(None)).values)
        if not lost:
            assert one.header.grid.same_as(two.header.grid) and torch.equal(one.header.times, two.header.times)
            assert dict(one.header.parameters) == dict(two.header.parameters)
            assert one.header.boundary == two.header.boundary and one.header.notes == two.header.notes


RICH = {"forcings": {"g": True, "f": False}, "masked": True, "parameters": {"nu": 0.5}, "notes": {"solver": "by hand"}}
HELD = {  # data with more than the layout keeps, and what it keeps of the static fields, forcings and mask
    "pdebench-tensor": (layout_cases.header_of((6,), static=("a",), **RICH), ((), (), False)),
    "pdebench-cfd": (
        layout_cases.header_of((4, 5), channels=("density", "pressure", "Vx", "Vy"), static=("a",), **RICH),
        ((), (), False),
    ),
    "pdebench-grouped": (layout_cases.header_of((4, 5), static=("c",), **RICH), ((), (), False)),
    "pdebench-incompressible": (
        layout_cases.header_of((4, 5), channels=("Vx", "Vy", "particles"), static=("force_x", "force_y"), **RICH),
        (("force_x", "force_y"), (), False),
    ),
    "well": (layout_cases.header_of((4, 5), static=("a", "b"), **RICH), (("a", "b"), ("g", "f"), True)),
    "netcdf": (layout_cases.header_of((4, 5), static=("a",), **RICH), (("a",), ("g", "f"), True)),
    "zarr": (layout_cases.header_of((4, 5), static=("a",), **RICH), (("a",), ("g", "f"), True)),
    "arrays": (layout_cases.header_of((4, 5), static=("a",), **RICH), (("a",), ("g", "f"), True)),
    "pdegym": (layout_cases.header_of((4, 5), 1, static=("shape",), **RICH), (("shape",), (), True)),
    "pairs": (layout_cases.header_of((4, 5), 1, static=("a",), **RICH), (("a",), (), False)),
}


def rich(path, header):
    """A file of The Well, which keeps everything."""
    batch = layout_cases.batch_of(header, 3)
    batch = inside(replace(batch, mask=batch.static[header.static[0]] < 0.5), batch.ids.numpy(), path)
    layout_cases.write(named_layout("well").writer, path, header, batch)
    return open_dataset(path), batch


@pytest.mark.parametrize("layout", layout_cases.named(kind.name for kind in LAYOUTS))
def test_a_file_describes_what_it_holds_and_not_what_was_dropped(tmp_path, layout):
    header, kept = HELD[layout]
    source, batch = rich(tmp_path / "source.hdf5", header)
    lost = convert(source, tmp_path / "there", layout)
    there = open_dataset(tmp_path / "there")
    said = there.header
    assert (said.static, tuple(said.forcings), said.masked) == kept
    assert to_json(said) == to_json(named_layout(layout).writer.kept(header))
    assert len(lost) == len(header.static) - len(kept[0]) + len(header.forcings) - len(kept[1]) + (not kept[2])
    read = there.read(range(3), slice(None))
    assert torch.equal(read.values, batch.values)
    assert (tuple(read.static), tuple(read.forcings), read.mask is not None) == kept
    assert all(torch.equal(read.static[name], batch.static[name]) for name in read.static)
    convert(there, tmp_path / "back.hdf5", "well")
    layout_cases.assert_same(open_dataset(tmp_path / "back.hdf5"), said, read)


@pytest.mark.parametrize(("change", "message"), [({"mask": None}, "and no mask"), ({"forcings": {}}, r"forcings \[\]")])
def test_trajectories_without_what_the_header_names_are_refused(tmp_path, change, message):
    header = HELD["well"][0]
    with (
        pytest.raises(UserError, match=message),
        named_layout("well").writer(tmp_path / "a.hdf5", header, 3) as writer,
    ):
        writer.write(replace(layout_cases.batch_of(header, 3), **change))
    assert not list(tmp_path.iterdir())


def test_what_a_layout_cannot_hold_is_refused_and_leaves_nothing(tmp_path):
    header = layout_cases.header_of((4, 4), channels=("u", "v"))
    path = tmp_path / "two.hdf5"
    layout_cases.write(named_layout("well").writer, path, header, layout_cases.batch_of(header, 3))
    with pytest.raises(UserError):
        convert(open_dataset(path), tmp_path / "no.hdf5", "pdebench-tensor")
    assert [p.name for p in tmp_path.iterdir()] == ["two.hdf5"]


def test_damage_met_on_the_way_leaves_nothing(tmp_path):
    path = generate(EQUATION, 9, 0, tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        file["tensor"][7, 1, 2] = float("nan")
    with pytest.raises(UserError, match="sample 7 has NaN"):
        convert(open_dataset(path), tmp_path / "b.hdf5", "well")
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]


def test_an_existing_file_is_never_overwritten(tmp_path):
    path = generate(EQUATION, 9, 0, tmp_path / "a.hdf5")
    before = path.read_bytes()
    with pytest.raises(UserError, match="exists"):
        convert(open_dataset(path), path, "well")
    assert path.read_bytes() == before


def test_the_layout_is_never_guessed_from_the_extension():
    with pytest.raises(UserError, match=r"--format, one of .*; published files ending in \.hdf5 are .*well"):
        layout_for("a.hdf5", None)
    with pytest.raises(UserError, match="no layout 'wel'"):
        layout_for("a.hdf5", "wel")
    assert layout_for("a.hdf5", "well") == "well"
