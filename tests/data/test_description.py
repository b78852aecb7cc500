"""The attribute `ups`: text that reads back as the header it was made from, preferred, but never believed blindly."""

import resource
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ups.data.formats.description import from_json, to_json
from ups.data.formats.layouts import named_layout
from ups.data.formats.pdebench.arrays import TensorFile, TensorWriter
from ups.data.generate.make import generate
from ups.data.open import open_dataset
from ups.equations import Advection, Darcy
from ups.errors import UserError
from ups.fields import Batch, Boundary, Grid, Header, Side

HEADER = Header(
    task="flow",
    channels=("u", "p"),
    grid=Grid((torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64), torch.arange(4).double()), ((0.0, 1.0), (0.0, 4.0))),
    times=torch.tensor([0.1, 0.3], dtype=torch.float64),
    boundary=Boundary(((Side("value", (0.1, 1 / 3)), Side("open")), (Side("periodic"), Side("periodic")))),
    parameters={"nu": 1e-300, "rho": None},
    static=("a", "b"),
    forcings={"g": True, "f": False},
    masked=True,
    dtype=torch.float64,
    licence="CC-BY-4.0",
    notes={"solver": "by hand", "levels": [1, 2]},
    test_at="last",
    given=3,
)


def test_a_header_reads_back_as_it_was():
    back = from_json(to_json(HEADER), Path("a.hdf5"))
    assert back.grid.same_as(HEADER.grid) and torch.equal(back.times, HEADER.times)
    plain = {"grid": Grid.cell_centred((1,)), "times": torch.zeros(1)}
    assert str(replace(back, **plain)) == str(replace(HEADER, **plain))


def test_one_given_frame_needs_no_word():
    """What files of before say is what is said now, so nothing that is known by that text is lost."""
    text = to_json(replace(HEADER, given=1))
    assert "given" not in text and from_json(text, Path("a.hdf5")).given == 1


def test_a_long_uneven_axis_fits_into_the_attribute(tmp_path):
    """HDF5 keeps short attributes in an object's header, which is limited to 64 KiB."""
    positions = torch.rand(20_000, dtype=torch.float64).cumsum(0)
    header = Header("t", ("u",), Grid((positions,), ((0.0, 2e4),)), torch.zeros(1).double(), Boundary.all("open", 1))
    with TensorWriter(tmp_path / "a.hdf5", header, 1) as writer:
        writer.write(_batch(header, torch.zeros(1, 1, 20_000, 1)))
    assert open_dataset(tmp_path / "a.hdf5").grid.same_as(header.grid)


def _batch(header: Header, values: torch.Tensor) -> Batch:
    count = len(values)
    return Batch(
        header.task, values, header.times.expand(count, -1), header.grid, header.boundary, {}, {}, torch.arange(count)
    )


@pytest.fixture
def file(tmp_path) -> Path:
    return generate(Advection(points=8, frames=3), 4, 0, tmp_path / "1D_Advection_Sols_beta0.4.hdf5")


def test_our_files_say_more_than_published_ones(file, tmp_path):
    header = TensorFile(file).header
    assert header.notes["seed"] == 0 and header.notes["solver"] == Advection(points=8, frames=3).solver
    steady = TensorFile(generate(Darcy(points=8), 2, 0, tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5"))
    assert "target" not in steady.header.notes  # ours are steady


def test_a_description_of_other_shapes_is_refused(file):
    with h5py.File(file, "a") as data:
        del data["tensor"]
        data["tensor"] = np.ones((4, 3, 7), "f4")
    with pytest.raises(UserError, match=r"'tensor' has shape \(3, 7\), but the attribute 'ups' describes \(3, 8\)"):
        TensorFile(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("{}", "damaged"),
        ("[]", "damaged"),
        ('{"version": 99}', "is of version 99"),
        (7, "is no text"),
    ],
)
def test_a_damaged_description_is_refused_and_can_be_deleted(file, text, message):
    with h5py.File(file, "a") as data:
        data.attrs["ups"] = text
    with pytest.raises(UserError, match=message) as error:
        TensorFile(file)
    assert str(file) in str(error.value)
    with h5py.File(file, "a") as data:
        del data.attrs["ups"]
    assert TensorFile(file).task == "advection"


def test_our_file_can_be_opened_as_a_task_of_the_same_shape_only(file):
    with pytest.raises(UserError, match="pass the task= of these data"):
        TensorFile(file, "darcy")
    assert TensorFile(file, "burgers").task == "burgers"
    with h5py.File(file, "a") as data:
        header = from_json(data.attrs["ups"], file)
        data.attrs["ups"] = to_json(replace(header, boundary=Boundary.all("open", 1)))
    with pytest.raises(UserError, match=r"its sides are open/open, those of task 'burgers' periodic/periodic"):
        TensorFile(file, "burgers")


# Writers check what they are given, and leave nothing behind when it is wrong.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": torch.zeros(2, 2, 4, 1)}, r"trajectories have shape \(2, 4, 1\), the file's is \(2, 8, 1\)"),
        ({"values": torch.full((2, 2, 8, 1), torch.nan)}, "sample 0 has NaN or infinite values in channel 'u'"),
        ({"times": torch.ones(2, 2).double()}, "other times"),
        ({"parameters": {}}, r"trajectories have parameters \[\]"),
        ({"parameters": {"beta": torch.tensor([1.0, 2.0])}}, "beta is 1.0 in this file"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(tmp_path, change, message):
    header = Header(
        "advection",
        ("u",),
        Grid.cell_centred((8,)),
        torch.arange(2).double(),
        Boundary.all("periodic", 1),
        {"beta": 1.0},
    )
    good = replace(_batch(header, torch.zeros(2, 2, 8, 1)), parameters={"beta": torch.ones(2)})
    with pytest.raises(UserError, match=message), TensorWriter(tmp_path / "a.hdf5", header, 2) as writer:
        writer.write(replace(good, **change))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("batches", "message"), [(1, "2 of the 3 trajectories"), (2, "more than the 3 trajectories")])
def test_a_file_holds_as_many_trajectories_as_announced(tmp_path, batches, message):
    header = Header("t", ("u",), Grid.cell_centred((8,)), torch.arange(2).double(), Boundary.all("open", 1))
    with pytest.raises(UserError, match=message), TensorWriter(tmp_path / "a.hdf5", header, 3) as writer:
        for _ in range(batches):
            writer.write(_batch(header, torch.zeros(2, 2, 8, 1)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        ("pdebench-tensor", {}, "holds one channel, not u, p"),
        ("pdebench-tensor", {"channels": ("u",)}, "one-dimensional fields"),
        ("pdebench-cfd", {}, "holds density, pressure, Vx, Vy, not u, p"),
        ("pdebench-incompressible", {}, "holds Vx, Vy, particles"),
        (
            "pdebench-incompressible",
            {"channels": ("Vx", "Vy", "particles"), "static": ("force_x",)},
            "static fields force_x, force_y",
        ),
        ("pdebench-cfd", {"channels": ("density", "pressure", "Vx", "Vy")}, "rho differs between trajectories"),
        ("pdebench-grouped", {"times": torch.tensor([1.0, 0.5]).double()}, "must be finite and increasing"),
        ("pdebench-grouped", {"grid": Grid.cell_centred((1, 4))}, "axis x has 1 point"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused_before_anything_is_written(tmp_path, layout, change, message):
    with pytest.raises(UserError, match=message):
        named_layout(layout).writer(tmp_path / "a", replace(HEADER, **change), 1)
    assert list(tmp_path.iterdir()) == []


def test_what_a_layout_drops_is_named():
    assert named_layout("pdebench-grouped").loses(HEADER) == [
        "static field a",
        "static field b",
        "forcing g",
        "forcing f",
        "the mask",
    ]
    assert named_layout("pdebench-incompressible").loses(HEADER) == ["forcing g", "forcing f", "the mask"]
    with pytest.raises(UserError, match="there is no layout 'pdebench'"):
        named_layout("pdebench")


def test_a_full_disk_leaves_nothing(tmp_path):
    """A limit on the size of files stands in for the disk's end."""
    header = Header("t", ("u",), Grid.cell_centred((4096,)), torch.arange(2).double(), Boundary.all("open", 1))
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"), TensorWriter(tmp_path / "a.hdf5", header, 20) as writer:
            writer.write(_batch(header, torch.ones(20, 2, 4096, 1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
