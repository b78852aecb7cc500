"""Damaged and hostile data files are refused with one sentence: no other exception, no memory without bounds."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from fuzzing import altered, damaged, fuzzed, odd, refused_or_read, refused_or_read_apart
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import batch_of, header_of
from test_round_trips import HELD

from ups.data.formats.layouts import named_layout
from ups.data.open import open_dataset
from ups.errors import UserError

FILES = [layout for layout in HELD if layout != "zarr"]  # which is a folder, and read by xarray
CASES = [(layout, number) for layout in FILES for number in range(len(HELD[layout]))]
ODD_ARRAYS = {
    "numbers": np.arange(3),
    "words": np.array([b"a", b"b"]),
    "one": np.float32(1.0),
    "none": np.zeros((0, 3), "f4"),
    "complex": np.zeros((2, 4, 6), "c8"),
    "half": np.zeros((2, 4, 6), "f2"),
    "nan": np.full((2, 4, 6), np.nan, "f4"),
    "record": np.zeros(2, [("a", "f4"), ("b", "i4")]),
    "long": np.linspace(0, 1, 99, dtype="f4"),
    "falling": np.linspace(1, 0, 6, dtype="f4"),
    "axes": np.zeros((1,) * 9, "f4"),
}


@pytest.fixture(scope="session")
def originals(tmp_path_factory) -> dict[tuple[str, int], Path]:
    """A small file of each layout and case, as we write it."""
    folder, made = tmp_path_factory.mktemp("originals"), {}
    for layout, number in CASES:
        dimension, channels, static, steady, varying = HELD[layout][number]
        header = header_of(
            (6, 5, 4)[:dimension],
            frames=1 if steady else 4,
            channels=channels,
            static=static,
            parameters={"nu": None if varying else 0.1, "beta": 0.4},
        )
        made[layout, number] = folder / f"{layout}_{number}"
        with named_layout(layout).writer(made[layout, number], header, 2) as writer:
            writer.write(batch_of(header, 2))
    return made


def read_all(path: Path, **options: str) -> None:
    dataset = open_dataset(path, **options)
    dataset.read(range(min(2, len(dataset))), slice(None))


@pytest.mark.parametrize("layout", FILES)
@fuzzed
@given(data=st.data())
def test_damaged_bytes_are_refused_or_read(originals, tmp_path_factory, layout, data):
    original = originals[layout, data.draw(st.integers(0, len(HELD[layout]) - 1))]
    path = tmp_path_factory.getbasetemp() / f"bytes_{layout}"
    path.write_bytes(data.draw(damaged(original.read_bytes())))
    refused_or_read_apart(lambda: read_all(path))


@pytest.mark.parametrize("layout", [layout for layout in FILES if layout not in ("pairs", "arrays")])
@fuzzed
@given(data=st.data())
def test_odd_arrays_attributes_and_links_are_refused_or_read(originals, tmp_path_factory, layout, data):
    original = originals[layout, data.draw(st.integers(0, len(HELD[layout]) - 1))]
    path = tmp_path_factory.getbasetemp() / f"odd_{layout}.hdf5"
    path.write_bytes(original.read_bytes())
    with h5py.File(path, "r+") as file:
        if data.draw(st.booleans()):
            del file.attrs["ups"]  # as a file of others
        for _ in range(data.draw(st.integers(1, 3))):
            spoil(file, data, outside=original)
    refused_or_read_apart(lambda: read_all(path))


def spoil(file: h5py.File, data: st.DataObject, outside: Path) -> None:
    names: list[str] = []
    file.visit(names.append)
    name = data.draw(st.sampled_from(sorted(names))) if names else "tensor"
    how = data.draw(
        st.sampled_from(("array", "huge", "remove", "group", "outside", "loop", "attribute", "description"))
    )
    item = file.get(name)
    if how == "attribute":
        owner = item if item is not None and data.draw(st.booleans()) else file
        key = data.draw(st.sampled_from(sorted(owner.attrs) or ["nu"]))
        value = data.draw(
            st.one_of(odd, st.binary(max_size=4).map(np.void), st.sampled_from(list(ODD_ARRAYS.values())))
        )
        try:
            owner.attrs[key] = value
        except (TypeError, ValueError, OverflowError):  # HDF5 has no such value
            owner.attrs[key] = "odd"
    elif how == "description":
        with h5py.File(outside) as original:
            file.attrs["ups"] = json.dumps(data.draw(altered(json.loads(original.attrs["ups"]))))
    elif item is not None:
        shape = item.shape if isinstance(item, h5py.Dataset) and item.shape else (2,)
        del file[name]
        if how == "array":
            file[name] = data.draw(st.sampled_from(list(ODD_ARRAYS.values())))
        elif how == "huge":
            axis = data.draw(st.integers(0, len(shape) - 1))
            large = [2**40 if number == axis else n for number, n in enumerate(shape)]
            file.create_dataset(name, [max(1, n) for n in large], "f4", chunks=(1,) * len(shape))
        elif how == "group":
            file.create_group(name)
        elif how == "outside":
            file[name] = h5py.ExternalLink(outside, name)
        elif how == "loop":
            file[name] = h5py.SoftLink(f"/{name}")


@fuzzed
@given(data=st.data())
def test_odd_pairs_are_refused_or_read(originals, tmp_path_factory, data):
    arrays = {name: np.zeros((2, 6, 5), "f4") for name in ("x", "y")}
    arrays[data.draw(st.sampled_from(("x", "y", "ups", "../z", "/z")))] = data.draw(
        st.one_of(st.sampled_from(list(ODD_ARRAYS.values())), odd.map(lambda value: np.array(str(value))))
    )
    content, path = io.BytesIO(), tmp_path_factory.getbasetemp() / "odd_pairs"
    if data.draw(st.booleans()):
        torch.save({name: torch.tensor(a) if a.dtype.kind == "f" else str(a) for name, a in arrays.items()}, content)
    else:
        np.savez(content, **arrays)
    path.write_bytes(content.getvalue())
    with refused_or_read():
        read_all(path, **data.draw(st.sampled_from(({}, {"convention": "nodal"}))))


# What was found, or feared, one by one.


def tensor_file(path: Path) -> Path:
    header = header_of((6,), parameters={"beta": 0.4})
    with named_layout("pdebench-tensor").writer(path, header, 2) as writer:
        writer.write(batch_of(header, 2))
    return path


@pytest.mark.parametrize("where", ["tensor", "x-coordinate"])
@pytest.mark.parametrize("how", ["link", "bytes", "virtual"])
def test_a_file_does_not_read_other_files(tmp_path, where, how):
    other, path = tensor_file(tmp_path / "other.hdf5"), tensor_file(tmp_path / "file.hdf5")
    (tmp_path / "raw").write_bytes(bytes(8 * 1000))
    with h5py.File(path, "r+") as file:
        shape = file[where].shape
        del file[where], file.attrs["ups"]
        if how == "link":
            file[where] = h5py.ExternalLink(other, where)
        elif how == "bytes":
            file.create_dataset(where, shape, "f4", external=[(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)])
        else:
            layout = h5py.VirtualLayout(shape, "f4")
            layout[...] = h5py.VirtualSource(str(other), where, shape=shape)
            file.create_virtual_dataset(where, layout)
    with pytest.raises(UserError, match="another file"):
        read_all(path)


@pytest.mark.parametrize("name", ["tensor", "x-coordinate", "t-coordinate"])
def test_an_array_that_declares_more_than_its_bytes_can_hold_is_refused(tmp_path, name):
    path = tensor_file(tmp_path / "file.hdf5")
    with h5py.File(path, "r+") as file:
        shape = (2**38, *file[name].shape[1:])
        del file[name], file.attrs["ups"]
        file.create_dataset(name, shape, "f4", chunks=(1, *shape[1:]))
    with pytest.raises(UserError, match="declares"):
        read_all(path)


def test_pairs_that_declare_more_than_their_bytes_can_hold_are_refused(tmp_path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("x", "y"):
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": "<f4", "fortran_order": False, "shape": (2**34, 16, 16)}
            )
            archive.writestr(f"{name}.npy", header.getvalue() + bytes(64))
    (tmp_path / "pairs").write_bytes(content.getvalue())
    with refused_or_read(), pytest.raises(UserError, match=r"truncated|damaged"):
        read_all(tmp_path / "pairs", convention="nodal")


def test_a_description_of_a_huge_grid_is_refused(tmp_path):
    path = tensor_file(tmp_path / "file.hdf5")
    with h5py.File(path, "r+") as file:
        content = json.loads(file.attrs["ups"])
        content["grid"][0] = {"extent": [0, 1], "cell_centred": 2**50}
        file.attrs["ups"] = json.dumps(content)
    with refused_or_read(), pytest.raises(UserError, match="'ups'"):
        read_all(path)
