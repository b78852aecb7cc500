"""Input-output pairs: small files made here, and the real third-party ones where they are at hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import assert_same, batch_of, header_of, write

from ups.data.formats.pairs import PairsFile, PairsWriter
from ups.data.open import open_dataset
from ups.errors import UserError
from ups.fields import Boundary, Grid

REAL = Path(__file__).parents[3] / "shared" / "data" / "neuraloperator_darcy"


def small(path: Path, **replaced) -> Path:
    arrays = {"x": torch.rand(4, 6, 6) > 0.5, "y": torch.rand(4, 6, 6)} | replaced
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in arrays.items()})
    else:
        torch.save(arrays, path)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
@pytest.mark.parametrize("axis", [None, 1, -1], ids=["NXY", "N1XY", "NXY1"])
def test_pairs_are_read_whatever_the_channel_axis(tmp_path, suffix, axis):
    x, y = torch.rand(4, 6, 6) > 0.5, torch.rand(4, 6, 6)
    widen = (lambda v: v) if axis is None else (lambda v: v.unsqueeze(axis))
    dataset = PairsFile(
        small(tmp_path / f"pairs{suffix}", x=widen(x), y=widen(y)), convention="nodal", parameters={"beta": 1.0}
    )
    batch = dataset.read([3, 1], slice(None))
    assert torch.equal(batch.static["a"], x[[3, 1]].float())
    assert torch.equal(batch.values, y[[3, 1]][:, None, ..., None])
    assert batch.parameters["beta"].tolist() == [1.0, 1.0] and batch.ids.tolist() == [3, 1]


def test_the_convention_says_where_the_points_lie(tmp_path):
    path = small(tmp_path / "pairs.pt")
    assert PairsFile(path, convention="nodal").grid.positions[0].tolist() == pytest.approx([i / 6 for i in range(6)])
    assert PairsFile(path, convention="cell_centred").grid.positions[0].tolist() == pytest.approx(
        [(i + 0.5) / 6 for i in range(6)]
    )
    with pytest.raises(UserError, match="convention is 'centre'"):
        PairsFile(path, convention="centre")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"y": torch.rand(4, 5, 6)}, "they must agree"),
        ({"x": torch.ones(4, 6, 6, dtype=torch.int64)}, "'x' is of type torch.int64"),
        ({"x": torch.rand(4, 6)}, "'x' has shape"),
        ({"y": torch.full((4, 6, 6), float("nan"))}, "sample 0 has NaN or infinite values in channel 'u'"),
        ({"x": torch.full((4, 6, 6), float("inf"))}, "sample 0 has NaN or infinite values in static field 'a'"),
    ],
)
def test_wrong_pairs_are_named_with_what_is_wrong(tmp_path, replaced, message):
    with pytest.raises(UserError, match=message):
        PairsFile(small(tmp_path / "pairs.pt", **replaced), convention="nodal")


def test_missing_truncated_and_unsafe_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="not there"):
        PairsFile(tmp_path / "none.pt", convention="nodal")
    for suffix in (".pt", ".npz"):
        path = small(tmp_path / f"cut{suffix}")
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(UserError, match="truncated"):
            PairsFile(path, convention="nodal")
    torch.save({"x": Path("/"), "y": torch.rand(4, 6, 6)}, tmp_path / "unsafe.pt")  # needs code to unpickle
    with pytest.raises(UserError, match="more than plain arrays"):
        PairsFile(tmp_path / "unsafe.pt", convention="nodal")
    torch.save([torch.rand(2)], tmp_path / "list.pt")
    with pytest.raises(UserError, match="dictionary with x and y"):
        PairsFile(tmp_path / "list.pt", convention="nodal")
    torch.save({"input": torch.rand(2)}, tmp_path / "named.pt")
    with pytest.raises(UserError, match="no array 'x'"):
        PairsFile(tmp_path / "named.pt", convention="nodal")


def test_a_pair_outside_is_named(tmp_path):
    pairs = PairsFile(small(tmp_path / "pairs.pt"), convention="nodal")
    for wrong in (-1, len(pairs)):
        with pytest.raises(UserError, match=f"trajectory {wrong} is not among the {len(pairs)}"):
            pairs.read([0, wrong, 1], slice(None))


def test_a_transient_task_has_no_pairs(tmp_path):
    with pytest.raises(UserError, match="'burgers' is not"):
        PairsFile(small(tmp_path / "pairs.pt"), convention="nodal", task="burgers")


@pytest.mark.skipif(not REAL.is_dir(), reason="the third-party Darcy pairs are not beside this checkout")
def test_the_real_third_party_pairs_are_read_on_nested_grids():
    train, coarse, fine = (
        PairsFile(REAL / f"darcy_{n}.pt", convention="nodal") for n in ("train_16", "test_16", "test_32")
    )
    assert (len(train), len(coarse), len(fine)) == (1000, 50, 50)
    assert train.grid.shape == (16, 16) and fine.grid.shape == (32, 32)
    assert all(torch.equal(f[::2], c) for f, c in zip(fine.grid.positions, coarse.grid.positions, strict=True))
    small_batch, large_batch = (d.read(range(50), slice(None)) for d in (coarse, fine))
    assert torch.equal(large_batch.values[:, :, ::2, ::2], small_batch.values)  # as their README says
    assert set(small_batch.static["a"].unique().tolist()) == {0.0, 1.0}


PAIRS = header_of(
    (6, 5),
    1,
    ("u",),
    boundary=Boundary.all("value", 2),
    grid=Grid.cell_centred((6, 5), ((0.0, 2.0), (-1.0, 1.0))),
    static=("a",),
    parameters={"beta": 0.25},
    task="flow",
)


@settings(max_examples=20)
@given(
    st.sampled_from([".pt", ".npz"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 4),
)
def test_pairs_we_write_come_back_bit_by_bit(tmp_path_factory, suffix, dtype, shape, count):
    header = replace(PAIRS, dtype=dtype, grid=Grid.nodal(shape))
    batch = batch_of(header, count)
    path = write(PairsWriter, tmp_path_factory.mktemp("pairs") / f"pairs{suffix}", header, batch)
    dataset = open_dataset(path)
    assert isinstance(dataset, PairsFile)
    assert_same(dataset, header, batch)


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_others_read_what_we_write_as_plain_arrays(tmp_path, suffix):
    batch = batch_of(PAIRS, 3)
    path = write(PairsWriter, tmp_path / f"pairs{suffix}", PAIRS, batch)
    held = torch.load(path, weights_only=True) if suffix == ".pt" else np.load(path, allow_pickle=False)
    assert np.array_equal(held["x"], batch.static["a"]) and np.array_equal(held["y"], batch.values[:, 0, ..., 0])
    with pytest.raises(UserError, match="says itself where its points lie"):
        open_dataset(path, convention="nodal")


def test_double_precision_is_kept(tmp_path):
    y = torch.rand(4, 6, 6, dtype=torch.float64)
    dataset = PairsFile(small(tmp_path / "pairs.pt", y=y), convention="nodal")
    assert dataset.header.dtype == torch.float64
    assert torch.equal(dataset.read([2], slice(None)).values[0, 0, ..., 0], y[2])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (replace(PAIRS, channels=("u", "v")), "depends on one static field"),
        (replace(PAIRS, static=()), "depends on one static field"),
        (replace(PAIRS, times=torch.arange(2).double()), "steady field"),
        (replace(PAIRS, parameters={"beta": None}), "no place for beta"),
    ],
)
def test_what_pairs_cannot_hold_is_refused(tmp_path, header, message):
    with pytest.raises(UserError, match=message):
        PairsWriter(tmp_path / "pairs.pt", header, 2)


def test_a_pairs_file_is_whole_or_absent(tmp_path):
    path, batch = tmp_path / "pairs.pt", batch_of(PAIRS, 2)
    with pytest.raises(UserError, match="2 of the 3 trajectories"), PairsWriter(path, PAIRS, 3) as writer:
        writer.write(batch)
    with pytest.raises(KeyError), PairsWriter(path, PAIRS, 2) as writer:
        writer.write(batch)
        raise KeyError
    with (
        pytest.raises(UserError, match="sample 0 has NaN or infinite values in channel 'u'"),
        PairsWriter(path, PAIRS, 2) as writer,
    ):
        writer.write(replace(batch, values=batch.values * float("nan")))
    assert not list(tmp_path.iterdir())
    write(PairsWriter, path, PAIRS, batch)
    with pytest.raises(UserError, match="exists and is not overwritten"):
        PairsWriter(path, PAIRS, 2)
