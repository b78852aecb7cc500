"""PDEGym's files: every family as its card describes it, chunks, splits, and what we write."""

import os
import shutil
import subprocess
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import assert_same, batch_of, header_of, write

from ups.data.formats.pdegym.reader import LICENCE, GymFile
from ups.data.formats.pdegym.writer import GymWriter
from ups.data.formats.reading import inside
from ups.data.inspect import describe, inspect_dataset
from ups.data.open import open_dataset
from ups.errors import UserError
from ups.fields import Boundary, Grid

FLUID = ("density", "velocity_x", "velocity_y", "pressure", "tracer", "potential")
PUBLISHED = {
    # name: arrays, channels, static, end time, kind of side
    "NS-Sines": ({"velocity": (5, 21, 3, 4, 6)}, ("velocity_x", "velocity_y", "tracer"), (), 1.0, "periodic"),
    "CE-RP": ({"data": (5, 21, 5, 4, 6)}, FLUID[:5], (), 1.0, "periodic"),
    "CE-Gauss": ({"data": (5, 21, 4, 4, 6)}, FLUID[:4], (), 1.0, "periodic"),
    "CE-RM": ({"solution": (5, 21, 5, 4, 6)}, FLUID[:5], (), 2.0, "periodic"),
    "GCE-RT": ({"solution": (5, 11, 6, 4, 6)}, FLUID, (), 5.0, "open"),
    "FNS-KF": ({"solution": (5, 21, 2, 4, 6)}, FLUID[1:3], (), 1.0, "periodic"),
    "ACE": ({"solution": (5, 20, 4, 6)}, ("u",), (), 2e-4, "periodic"),
    "Wave-Gauss": ({"solution": (5, 15, 4, 6), "c": (5, 4, 6)}, ("u",), ("c",), 1.0, "open"),
    "Poisson-Gauss": ({"solution": (5, 4, 6), "source": (5, 4, 6)}, ("u",), ("source",), None, "value"),
    "SE-AF": ({"solution": (5, 2, 4, 6)}, ("density",), ("airfoil",), None, "open"),
}


def published(path, arrays, dtype=np.float32):
    made = {
        name: np.random.default_rng(i).random(shape).astype(dtype) for i, (name, shape) in enumerate(arrays.items())
    }
    with h5py.File(path, "w") as file:
        for name, values in made.items():
            file[name] = values
    return made


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_family_is_read_as_its_card_says(tmp_path, name):
    arrays, channels, static, end, kind = PUBLISHED[name]
    made = published(tmp_path / f"{name}.nc", arrays)
    dataset = open_dataset(tmp_path / f"{name}.nc")
    assert isinstance(dataset, GymFile)
    assert (dataset.task, dataset.channels, dataset.header.static) == (name, channels, static)
    assert dataset.header.licence == LICENCE == "CC-BY-NC-4.0" and dataset.header.test_at == "last"
    assert dataset.boundary == Boundary.all(kind, 2)
    assert dataset.grid.same_as(Grid.cell_centred((4, 6)))
    assert float(dataset.times[0]) == 0.0 and float(dataset.times[-1]) == pytest.approx(end or 0.0)
    values = next(iter(made.values()))
    if end is None:
        batch = dataset.read([4, 0, 4], slice(None))
        expected = (values[:, 1] if name == "SE-AF" else values)[[4, 0, 4]][:, None, ..., None]
    else:
        batch = dataset.read([4, 0, 4], slice(2, 9, 3))
        expected = values[[4, 0, 4], 2:9:3]
        expected = np.moveaxis(expected, 2, -1) if values.ndim == 5 else expected[..., None]
    if name == "SE-AF":  # nothing flows inside the airfoil
        expected = np.where((values[[4, 0, 4], 0] < 0.5)[:, None, ..., None], expected, 0)
    assert np.array_equal(batch.values, expected)
    for field in static:
        assert np.array_equal(batch.static[field], (made[field] if field in made else values[:, 0])[[4, 0, 4]])
    if name == "SE-AF":
        assert batch.mask is not None and np.array_equal(batch.mask, values[[4, 0, 4], 0] < 0.5)


def helmholtz(path, count=4):
    fields = np.random.default_rng(0).random((2, count, 4, 6))
    with h5py.File(path, "w") as file:
        for i in range(count):
            file[f"Sample_{i}/a"], file[f"Sample_{i}/u"], file[f"Sample_{i}/bc"] = fields[0, i], fields[1, i], 0.5 * i
    return fields


def test_helmholtz_has_a_group_a_sample(tmp_path):
    fields = helmholtz(tmp_path / "Helmholtz.h5", 12)  # Sample_10 sorts before Sample_2 as text
    dataset = open_dataset(tmp_path / "Helmholtz.h5")
    batch = dataset.read([11, 2], slice(None))
    assert np.array_equal(batch.static["a"], fields[0, [11, 2]])
    assert np.array_equal(batch.values[:, 0, ..., 0], fields[1, [11, 2]]) and batch.values.dtype == torch.float64
    assert batch.parameters["bc"].tolist() == [5.5, 1.0] and dataset.header.parameters == {"bc": None}
    assert dataset.boundary == Boundary.all("value", 2)


def test_chunks_are_one_dataset_in_the_order_of_their_numbers(tmp_path):
    solution = np.random.default_rng(0).random((24, 3, 4, 6)).astype(np.float32)
    speed = np.random.default_rng(1).random((24, 4, 6)).astype(np.float32)
    folder = tmp_path / "Wave-Layer"
    folder.mkdir()
    for number in range(12):  # solution_10.nc sorts before solution_2.nc as text
        with h5py.File(folder / f"solution_{number}.nc", "w") as file:
            file["solution"] = solution[2 * number : 2 * number + 2]
    for number in range(2):  # the speed has chunks of its own length
        with h5py.File(folder / f"c_{number}.nc", "w") as file:
            file["c"] = speed[12 * number : 12 * number + 12]
    dataset = open_dataset(folder)
    assert isinstance(dataset, GymFile) and len(dataset) == 24 and dataset.task == "Wave-Layer"
    rows = [23, 4, 5, 20, 4]
    batch = dataset.read(rows, slice(1, 3))
    assert np.array_equal(batch.values[..., 0], solution[rows, 1:3]) and np.array_equal(batch.static["c"], speed[rows])
    assert dataset.read([], slice(None)).values.shape == (0, 3, 4, 6, 1)
    (folder / "c_1.nc").unlink()
    with pytest.raises(UserError, match=r"'c' has 12 samples, 'solution' 24.*fetch the missing chunks"):
        open_dataset(folder)


def test_what_files_do_not_say_can_be_said(tmp_path):
    published(tmp_path / "ACE.nc", {"solution": (3, 20, 4, 6)})
    dataset = open_dataset(tmp_path / "ACE.nc", task="allen_cahn", convention="nodal", boundary="flux")
    assert dataset.task == "allen_cahn" and dataset.boundary == Boundary.all("flux", 2)
    assert dataset.grid.same_as(Grid.nodal((4, 6)))
    with pytest.raises(UserError, match="convention is 'corner'"):
        open_dataset(tmp_path / "ACE.nc", convention="corner")


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_assumed_is_said_when_a_file_is_inspected(tmp_path, name):
    arrays, _, _, end, kind = PUBLISHED[name]
    published(tmp_path / f"{name}.nc", arrays)
    said = describe(inspect_dataset(open_dataset(tmp_path / f"{name}.nc")))
    assert "positions assumed: cell_centred on the unit square\n" in said and f"sides assumed: {kind}\n" in said
    assert (f"times assumed: equally spaced from 0 to {end:g}\n" in said) if end else "times assumed" not in said
    known = open_dataset(tmp_path / f"{name}.nc", boundary="periodic", convention="nodal").header.notes
    assert "sides assumed" not in known and known["positions assumed"] == "nodal on the unit square"


def test_chunks_without_one_between_are_refused(tmp_path):
    for number in (0, 1, 3):
        published(tmp_path / f"velocity_{number}.nc", {"velocity": (2, 3, 2, 4, 6)})
    with pytest.raises(UserError, match=r"'velocity' are numbered 0, 1, 3, not from 0.*fetch velocity_2\.nc"):
        open_dataset(tmp_path)
    (tmp_path / "velocity_3.nc").rename(tmp_path / "velocity_2.nc")
    assert len(open_dataset(tmp_path)) == 6
    with pytest.raises(UserError, match="option 'grid' does not apply"):
        open_dataset(tmp_path, grid=4)


def test_a_damaged_sample_is_named(tmp_path):
    path = tmp_path / "Helmholtz.h5"
    helmholtz(path)
    with h5py.File(path, "a") as file:
        field = file["Sample_2/u"][()]
        del file["Sample_2/u"]
        packed = file["Sample_2"].create_dataset("u", data=field, compression="gzip")
        place = packed.id.get_chunk_info(0).byte_offset
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff" * 16)
    dataset = open_dataset(path)
    dataset.read([0, 1, 3], slice(None))
    with pytest.raises(UserError, match=r"'/Sample_2/u' cannot be read .* the file is damaged"):
        dataset.read([2], slice(None))


@st.composite
def headers(draw):
    """All that some family can hold."""
    frames = draw(st.integers(1, 4))
    static = draw(st.booleans())
    masked = static and frames == 1 and draw(st.booleans())
    channels = (
        ("q",)
        if static
        else draw(
            st.sampled_from(
                [
                    ("u",),
                    ("a", "b"),
                    ("velocity_x", "velocity_y"),
                    ("velocity_x", "velocity_y", "tracer"),
                    FLUID[:4],
                    FLUID[:5],
                    FLUID,
                    ("p", "q", "r", "s", "t", "u", "v"),
                ]
            )
        )
    )
    bc = draw(st.sampled_from([{}, {"bc": None}, {"bc": 1.5}])) if static and frames == 1 and not masked else {}
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    return header_of(
        shape,
        frames,
        channels,
        boundary=Boundary.all(draw(st.sampled_from(["periodic", "value", "open"])), 2),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        grid=draw(st.sampled_from([Grid.cell_centred, Grid.nodal]))(shape, ((0.0, 2.0), (-1.0, 1.0))),
        static=("medium",) if static else (),
        masked=masked,
        parameters={"nu": 0.25, **bc},
        licence="CC0",
    )


@settings(max_examples=25)
@given(headers(), st.integers(1, 3))
def test_whatever_the_layout_can_hold_comes_back_bit_by_bit(tmp_path_factory, header, count):
    folder = tmp_path_factory.mktemp("gym")
    batch = batch_of(header, count)
    if header.masked:
        batch.static["medium"].flatten(1)[:, 0] = 0.0  # one cell is inside at least
        mask = batch.static["medium"] < 0.5
        batch = inside(replace(batch, mask=mask), batch.ids.numpy(), folder)
    dataset = open_dataset(write(GymWriter, folder / "file.nc", header, batch))
    assert isinstance(dataset, GymFile)
    assert_same(dataset, header, batch)
    shutil.rmtree(folder)


def test_without_our_description_our_files_are_like_the_published(tmp_path):
    header = header_of(
        (4, 6), 21, ("velocity_x", "velocity_y", "tracer"), times=torch.arange(21).double() / 20, task="NS"
    )
    batch = batch_of(header, 3)
    path = write(GymWriter, tmp_path / "NS.nc", header, batch)
    with h5py.File(path, "a") as file:
        assert file["velocity"].shape == (3, 21, 3, 4, 6) and file["velocity"].dtype == np.float32
        assert np.array_equal(file["velocity"][()], batch.values.movedim(-1, 2))
        assert [dim[0].name for dim in file["velocity"].dims] == ["/member", "/time", "/channel", "/x", "/y"]
        del file.attrs["ups"]
    dataset = open_dataset(path)
    assert dataset.channels == header.channels and dataset.grid.same_as(header.grid)
    assert torch.allclose(dataset.times, header.times, rtol=0, atol=1e-15)
    assert torch.equal(dataset.read(range(3), slice(None)).values, batch.values)


@pytest.mark.skipif(
    not os.environ.get("UPS_NETCDF_PYTHON"),
    reason="UPS_NETCDF_PYTHON does not name an interpreter with netCDF4 installed",
)
def test_netcdf4_reads_names_and_values(tmp_path):
    header = header_of((4, 6), 5, static=("c",))
    batch = batch_of(header, 3)
    path = write(GymWriter, tmp_path / "wave.nc", header, batch)
    ask = (
        "import netCDF4, numpy, sys; d = netCDF4.Dataset(sys.argv[1]);"
        "print(d['solution'].dimensions, d['c'].dimensions);"
        "print({k: len(v) for k, v in d.dimensions.items()}, sorted(d.variables));"
        "numpy.savez(sys.argv[2], u=d['solution'][:].data, c=d['c'][:].data, x=d['x'][:].data, t=d['time'][:].data)"
    )
    words = [os.environ["UPS_NETCDF_PYTHON"], "-c", ask, str(path), str(tmp_path / "out.npz")]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert said.startswith("('member', 'time', 'x', 'y') ('member', 'x', 'y')")
    assert (
        "'member': 3" in said and "'time': 5" in said and said.strip().endswith("['c', 'solution', 'time', 'x', 'y']")
    )
    read = np.load(tmp_path / "out.npz")
    assert np.array_equal(read["u"], batch.values[..., 0]) and np.array_equal(read["c"], batch.static["c"])
    assert np.array_equal(read["x"], header.grid.positions[0]) and np.array_equal(read["t"], header.times)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"velocity": (3, 21, 4, 4, 6)}, r"holds velocity \(N, 21, 4, 4, 6\); no family of PDEGym"),
        ({"solution": (3, 21, 7, 4, 6)}, "no family"),
        ({"solution": (3, 20, 4, 6), "c": (3, 4, 5)}, "no family"),
        ({"solution": (3, 20, 4, 6), "c": (2, 4, 6)}, "'c' has 2 samples, 'solution' 3"),
        ({"solution": (3, 4)}, "samples must be of one shape"),
    ],
)
def test_wrong_shapes_are_named(tmp_path, arrays, message):
    published(tmp_path / "a.nc", arrays)
    with pytest.raises(UserError, match=message):
        open_dataset(tmp_path / "a.nc")


def test_wrong_types_nan_gaps_and_truncation_are_refused(tmp_path):
    published(tmp_path / "int.nc", {"solution": (3, 20, 4, 6)}, dtype=np.int16)
    with pytest.raises(UserError, match="'solution' is of type int16"):
        open_dataset(tmp_path / "int.nc")
    published(tmp_path / "nan.nc", {"data": (3, 4, 5, 4, 6)})
    with h5py.File(tmp_path / "nan.nc", "a") as file:
        file["data"][1, 2, 3] = np.nan
    dataset = open_dataset(tmp_path / "nan.nc")
    dataset.read([1], slice(0, 2))
    with pytest.raises(UserError, match="sample 1 has NaN or infinite values in channel 'pressure'"):
        dataset.read([0, 1], slice(None))
    helmholtz(tmp_path / "gap.h5")
    with h5py.File(tmp_path / "gap.h5", "a") as file:
        file.move("Sample_3", "Sample_7")
    with pytest.raises(UserError, match="group Sample_3 is missing"):
        open_dataset(tmp_path / "gap.h5")
    whole = (tmp_path / "nan.nc").read_bytes()
    (tmp_path / "cut.nc").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="truncated"):
        open_dataset(tmp_path / "cut.nc")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (header_of((6,)), "two dimensions"),
        (header_of((4, 4), channels=("u", "v"), static=("c",)), "beside a single channel"),
        (header_of((4, 4), masked=True), "only files with a mask"),
        (header_of((4, 4), parameters={"nu": None}), "no place for nu"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused_and_leaves_nothing(tmp_path, header, message):
    with pytest.raises(UserError, match=message):
        GymWriter(tmp_path / "a.nc", header, 1)
    assert not list(tmp_path.iterdir())
