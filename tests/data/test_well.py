"""The Well's files: what its format says of them, what comes back, what is refused. Its own package is asked in
test_well_referee.py.
"""

import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import assert_same, batch_of, header_of, sides, write

from ups.data.formats.well.reader import WellFile, grouped
from ups.data.formats.well.writer import WellWriter
from ups.data.open import open_dataset
from ups.data.prepare.moments import KINDS, well_stats
from ups.errors import UserError
from ups.fields import Boundary, Grid, Side

RICH = header_of(
    (6, 5),
    4,
    ("velocity_x", "density", "velocity_y", "Vx", "Vy"),
    boundary=sides(("periodic",), (Side("value", (1.0, 2.0, 3.0, 4.0, 5.0)), "robin")),
    parameters={"nu": 0.1, "reynolds": None},
    static=("a",),
    forcings={"f": True, "g": False},
    masked=True,
    licence="CC-BY-4.0",
    notes={"solver": "by hand"},
)


def rich_file(tmp_path):
    return write(WellWriter, tmp_path / "rich.hdf5", RICH, batch_of(RICH, 5))


def others(path):
    """The file as others would have written it: without our description."""
    with h5py.File(path, "a") as file:
        del file.attrs["ups"]
    return path


names = st.text("abcXYZ_αβ é.-", min_size=1, max_size=6).filter(lambda name: name.strip("."))


@st.composite
def headers(draw):
    dimension = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(2, 4), min_size=dimension, max_size=dimension)))
    pool = draw(st.lists(names, min_size=4, max_size=8, unique=True))
    vector = draw(st.sampled_from(["velocity_{}", "V{}", None]))
    channels = [pool.pop(), *([vector.format(axis) for axis in "xyz"[:dimension]] if vector else [])]
    channels = tuple(draw(st.permutations(channels)))
    side = st.builds(
        Side,
        st.sampled_from(["value", "flux", "robin", "reflecting", "open"]),
        st.sampled_from([(), tuple(float(i) for i in range(len(channels)))]),
    )
    pair = st.one_of(st.just((Side("periodic"), Side("periodic"))), st.tuples(side, side))
    extent = tuple(
        draw(
            st.lists(st.sampled_from([(0.0, 1.0), (-2.5, 2.5), (1e6, 1e6 + 1)]), min_size=dimension, max_size=dimension)
        )
    )
    grid = draw(st.sampled_from([Grid.cell_centred, Grid.nodal]))(shape, extent)
    if draw(st.booleans()):
        grid = Grid(
            tuple(
                a + (b - a) * torch.linspace(0.1, 1, n).double() ** 2 for n, (a, b) in zip(shape, extent, strict=True)
            ),
            extent,
        )
    return header_of(
        shape,
        draw(st.integers(1, 3)),
        channels,
        boundary=Boundary(tuple(draw(st.lists(pair, min_size=dimension, max_size=dimension)))),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        grid=grid,
        static=(pool.pop(),) if draw(st.booleans()) else (),
        forcings={pool.pop(): draw(st.booleans())} if draw(st.booleans()) else {},
        masked=draw(st.booleans()),
        parameters={
            f"{n}!": draw(st.none() | st.floats(-1e3, 1e3)) for n in draw(st.lists(names, max_size=2, unique=True))
        },
        licence=draw(st.sampled_from(["", "CC-BY-4.0"])),
    )


@settings(max_examples=25)
@given(headers(), st.integers(1, 4))
def test_whatever_the_layout_can_hold_comes_back_bit_by_bit(tmp_path_factory, header, count):
    folder = tmp_path_factory.mktemp("well")
    batch = batch_of(header, count)
    dataset = open_dataset(write(WellWriter, folder / "file.hdf5", header, batch))
    assert isinstance(dataset, WellFile)
    assert_same(dataset, header, batch)
    assert dataset.header.licence == header.licence
    shutil.rmtree(folder)


def test_a_file_is_laid_out_as_the_format_says(tmp_path):
    batch = batch_of(RICH, 5)
    with h5py.File(rich_file(tmp_path)) as file:
        assert set(file) == {"dimensions", "scalars", "t0_fields", "t1_fields", "t2_fields", "boundary_conditions"}
        assert file.attrs["dataset_name"] == "heat" and file.attrs["grid_type"] == "cartesian"
        assert int(file.attrs["n_spatial_dims"]) == 2 and int(file.attrs["n_trajectories"]) == 5
        assert list(file.attrs["simulation_parameters"]) == ["nu"] and file.attrs["nu"] == 0.1
        assert list(file["dimensions"].attrs["spatial_dims"]) == ["x", "y"]
        assert file["dimensions/x"].dtype == file["dimensions/time"].dtype == np.float32
        assert list(file["scalars"].attrs["field_names"]) == ["nu", "reynolds"]
        assert file["scalars/nu"].shape == () and file["scalars/reynolds"].shape == (5,)
        assert list(file["t0_fields"].attrs["field_names"]) == ["density", "a", "f", "g", "mask"]
        assert list(file["t1_fields"].attrs["field_names"]) == ["velocity", "V"]
        assert list(file["t2_fields"].attrs["field_names"]) == []
        velocity = file["t1_fields/velocity"]
        assert velocity.shape == (5, 4, 6, 5, 2) and velocity.dtype == np.float32
        assert np.array_equal(velocity[()], batch.values[..., [0, 2]])
        for name, varies in (("density", True), ("a", False), ("f", True), ("g", False), ("mask", False)):
            item = file[f"t0_fields/{name}"]
            assert item.attrs["time_varying"] == varies and item.attrs["sample_varying"]
            assert item.attrs["dim_varying"].tolist() == [True, True]
            assert item.shape == ((5, 4, 6, 5) if varies else (5, 6, 5))
        conditions = file["boundary_conditions"]
        assert set(conditions) == {"x_periodic", "y0_wall_density", "y0_wall_velocity", "y0_wall_V", "yL_wall"}
        assert conditions["x_periodic"].attrs["bc_type"] == "PERIODIC"
        assert conditions["x_periodic/mask"][()].tolist() == [True, False, False, False, False, True]
        assert conditions["y0_wall_density/mask"][()].tolist() == [True, False, False, False, False]
        assert conditions["y0_wall_density/values"][()].tolist() == [2.0]
        assert conditions["y0_wall_velocity/values"][()].tolist() == [[1.0, 3.0]]
        for group in conditions.values():
            assert group.attrs["bc_type"] in ("WALL", "OPEN", "PERIODIC")
            assert {"associated_dims", "associated_fields", "sample_varying", "time_varying"} <= set(group.attrs)


def test_without_our_description_the_format_itself_says_enough(tmp_path):
    header = header_of(
        (6, 5),
        4,
        ("density", "velocity_x", "velocity_y"),
        static=("a",),
        parameters={"nu": None},
        boundary=sides(("periodic",), (Side("value", (1.0, 2.0, 3.0)), "open")),
    )
    batch = batch_of(header, 5)
    assert_same(WellFile(others(write(WellWriter, tmp_path / "a.hdf5", header, batch))), header, batch)


def test_points_are_taken_for_what_they_are(tmp_path):
    for number, (grid, kind) in enumerate(
        [
            (Grid.cell_centred((8,), ((-1.0, 1.0),)), "open"),
            (Grid.nodal((8,), ((0.0, 2.0),)), "periodic"),
            (Grid((torch.linspace(0, 1, 9).double(),), ((0.0, 1.0),)), "reflecting"),
        ]
    ):
        header = header_of(grid.shape, grid=grid, boundary=Boundary.all(kind, 1))
        path = others(write(WellWriter, tmp_path / f"{number}.hdf5", header, batch_of(header, 2)))
        found = WellFile(path).grid
        assert found.extent == grid.extent
        assert float((found.positions[0] - grid.positions[0]).abs().max()) < 1e-7


def test_fields_that_vary_along_some_axes_only_are_spread_over_the_others(tmp_path):
    path = others(rich_file(tmp_path))
    line = np.arange(5, dtype=np.float32)
    with h5py.File(path, "a") as file:
        fields = file["t0_fields"]
        for name, data in (("dropped", line), ("kept", line[None])):
            item = fields.create_dataset(name, data=data)
            item.attrs.update({"dim_varying": [False, True], "sample_varying": False, "time_varying": False})
        moving = fields.create_dataset("moving", data=np.arange(4 * 6, dtype=np.float32).reshape(4, 6))
        moving.attrs.update({"dim_varying": [True, False], "sample_varying": False, "time_varying": True})
        fields.attrs["field_names"] = ["density", "a", "f", "g", "mask", "dropped", "kept", "moving"]
        tensor = file["t2_fields"].create_dataset(
            "D", data=np.random.default_rng(0).random((5, 4, 6, 5, 2, 2), np.float32)
        )
        tensor.attrs.update({"dim_varying": [True, True], "sample_varying": True, "time_varying": True})
        file["t2_fields"].attrs["field_names"] = ["D"]
        stored = tensor[()]
    dataset = WellFile(path)
    assert dataset.channels == (
        "density",
        "f",
        "moving",
        "velocity_x",
        "velocity_y",
        "V_x",
        "V_y",
        "D_xx",
        "D_xy",
        "D_yx",
        "D_yy",
    )
    batch = dataset.read([3, 1], slice(1, 3))
    for name in ("dropped", "kept"):
        assert torch.equal(batch.static[name], torch.from_numpy(line).expand(2, 6, 5))
    assert batch.values[1, 0, :, 4, 2].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    assert np.array_equal(batch.values[..., 7:], stored[[3, 1], 1:3].reshape(2, 2, 6, 5, 4))


def test_scalars_of_time_are_forcings_and_times_may_differ(tmp_path):
    header = header_of((6,), 3)
    path = others(write(WellWriter, tmp_path / "a.hdf5", header, batch_of(header, 2)))
    with h5py.File(path, "a") as file:
        scalar = file["scalars"].create_dataset("drive", data=np.array([1.0, 2.0, 4.0]))
        scalar.attrs.update({"time_varying": True, "sample_varying": False})
        file["scalars"].attrs["field_names"] = ["drive"]
        del file["dimensions/time"]
        time = file["dimensions"].create_dataset("time", data=np.array([[0, 1, 2], [0, 2, 4]], np.float32))
        time.attrs["sample_varying"] = True
    dataset = WellFile(path)
    batch = dataset.read([1, 0], slice(1, 3))
    assert batch.times.tolist() == [[2.0, 4.0], [1.0, 2.0]] and dataset.times.tolist() == [0.0, 1.0, 2.0]
    assert batch.forcings["drive"].shape == (2, 2, 6) and batch.forcings["drive"][0, :, 5].tolist() == [2.0, 4.0]


def test_a_parameter_or_a_forcing_that_is_no_number_is_refused(tmp_path):
    header = header_of((6,), 3)
    for name, varies in (("nu", False), ("drive", True)):
        path = others(write(WellWriter, tmp_path / f"{name}.hdf5", header, batch_of(header, 2)))
        with h5py.File(path, "a") as file:
            scalar = file["scalars"].create_dataset(name, data=np.full((2, 3) if varies else 2, np.nan))
            scalar.attrs.update({"time_varying": varies, "sample_varying": True})
            file["scalars"].attrs["field_names"] = [name]
        with pytest.raises(UserError, match=rf"sample 1 has NaN or infinite values in (parameter|forcing) '{name}'"):
            WellFile(path).read([1], slice(None))


@pytest.mark.parametrize("varies", [True, False])
def test_damage_in_a_field_that_all_trajectories_share_is_named(tmp_path, varies):
    header = header_of((6, 5), 3)
    path = others(write(WellWriter, tmp_path / "a.hdf5", header, batch_of(header, 2)))
    with h5py.File(path, "a") as file:
        data = np.ones((3,) * varies + (6, 5), "f4")
        shared = file["t0_fields"].create_dataset("shared", data=data, compression="gzip", chunks=data.shape)
        shared.attrs.update({"dim_varying": [True, True], "sample_varying": False, "time_varying": varies})
        file["t0_fields"].attrs["field_names"] = ["u", "shared"]
        place = shared.id.get_chunk_info(0).byte_offset
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff" * 8)
    dataset = WellFile(path)
    with pytest.raises(UserError, match=r"'/t0_fields/shared' cannot be read .* the file is damaged"):
        dataset.read([0], slice(None))


def test_walls_inside_the_domain_become_the_mask(tmp_path):
    header = header_of((6, 5), boundary=Boundary.all("open", 2))
    path = others(write(WellWriter, tmp_path / "a.hdf5", header, batch_of(header, 3)))
    walls = np.zeros((6, 5), bool)
    walls[2:4, 1] = walls[0] = True
    with h5py.File(path, "a") as file:
        group = file["boundary_conditions"].create_group("xy_wall")
        group.attrs.update({"bc_type": "WALL", "associated_dims": ["x", "y"], "associated_fields": []})
        group["mask"] = walls
    dataset = WellFile(path)
    assert [side.kind for pair in dataset.boundary.sides for side in pair] == ["reflecting", "open", "open", "open"]
    mask = dataset.read([0, 2], slice(None)).mask
    assert mask is not None and np.array_equal(mask, np.broadcast_to(~walls, (2, 6, 5)))


@pytest.mark.parametrize("axes", ["yx", "xz", "y"])
def test_a_wall_is_read_along_the_axes_it_names_and_holds_along_the_others(tmp_path, axes):
    header = header_of((6, 5, 4), boundary=Boundary.all("open", 3))
    path = others(write(WellWriter, tmp_path / "a.hdf5", header, batch_of(header, 3)))
    sizes = dict(zip("xyz", (6, 5, 4), strict=True))
    walls = np.random.default_rng(0).random((3, *(sizes[axis] for axis in axes))) < 0.3
    walls[(slice(None), *(slice(1, 2),) * len(axes))] = True
    with h5py.File(path, "a") as file:
        group = file["boundary_conditions"].create_group("inside")
        group.attrs.update({"bc_type": "WALL", "associated_dims": list(axes), "associated_fields": []})
        group["mask"] = walls.astype("u1")
        group.attrs["sample_varying"] = True
    mask = WellFile(path).read([2, 0], slice(None)).mask
    letters = "".join(sorted(axes))
    whole = np.einsum(f"b{axes}->b{letters}", walls.astype(int))
    for place, axis in enumerate("xyz", start=1):
        if axis not in axes:
            whole = np.repeat(np.expand_dims(whole, place), sizes[axis], place)
    assert mask is not None and np.array_equal(mask, whole[[2, 0]] == 0)
    with h5py.File(path, "a") as file:
        file["boundary_conditions/inside"].attrs.update({"sample_varying": False, "time_varying": True})
    with pytest.raises(UserError, match="boundary_conditions/inside moves with time"):
        WellFile(path)
    with h5py.File(path, "a") as file:
        file["boundary_conditions/inside"].attrs["time_varying"] = False
        del file["boundary_conditions/inside/mask"]
        file["boundary_conditions/inside/mask"] = walls[:, :4]
    with pytest.raises(UserError, match="inside has a mask of shape"):
        WellFile(path)


def test_vectors_are_grouped_only_where_every_axis_has_its_component():
    assert grouped(("u_x", "p"), 2) == [("u_x", ("u_x",)), ("p", ("p",))]
    assert grouped(("u_y", "p", "u_x"), 2) == [("p", ("p",)), ("u", ("u_x", "u_y"))]
    assert grouped(("u_x", "u_y", "u"), 2) == [(n, (n,)) for n in ("u_x", "u_y", "u")]
    assert grouped(("Vx",), 1) == [("V", ("Vx",))]


def spoil_group(file):
    del file["boundary_conditions"]


def spoil_dtype(file):
    data = file["t0_fields/density"][()].astype(np.int32)
    del file["t0_fields/density"]
    file["t0_fields/density"] = data


def spoil_positions(file):
    file["dimensions/x"][1] = 5.0


def spoil_times(file):
    file["dimensions/time"][2] = 0.0


def spoil_shape(file):
    del file["t0_fields/a"]
    file["t0_fields/a"] = np.zeros((5, 6, 4), np.float32)
    file["t0_fields/a"].attrs.update({"dim_varying": [True, True], "sample_varying": True, "time_varying": False})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_group, "has a group 'boundary_conditions', this one does not .*; add the group"),
        (lambda f: f.create_group("t3_fields"), "group 't3_fields' is not part of The Well's format"),
        (lambda f: f.attrs.update({"grid_type": "spherical"}), "grid_type is 'spherical'; only cartesian"),
        (spoil_dtype, "'density' is of type int32"),
        (spoil_positions, "'x' must be a list of at least 2 finite, increasing numbers"),
        (spoil_times, "'time' goes from .* must be increasing"),
        (spoil_shape, r"t0_fields/a has shape \(5, 6, 4\), but .* say \(5, 6, 5\)"),
        (
            lambda f: f["boundary_conditions/yL_wall"].attrs.update({"bc_type": "SOFT"}),
            "bc_type 'SOFT'; use one of WALL",
        ),
        (lambda f: f["boundary_conditions/yL_wall"].attrs.update({"associated_dims": ["q"]}), "on the axes q"),
        (lambda f: f["t1_fields"].attrs.pop("field_names"), "t1_fields has no attribute 'field_names'"),
        (lambda f: f["t0_fields"].pop("density"), "no dataset 'density'"),
        (lambda f: f.attrs.update({"n_trajectories": "many"}), "n_trajectories and n_spatial_dims must be whole"),
        (lambda f: f.attrs.update({"n_trajectories": 6}), "scalar 'reynolds' has shape"),
    ],
)
@pytest.mark.parametrize("foreign", [True, False], ids=["foreign", "ours"])
def test_wrong_files_are_named_with_what_is_wrong(tmp_path, spoil, message, foreign):
    path = rich_file(tmp_path)
    with h5py.File(path, "a") as file:
        if foreign:
            del file.attrs["ups"]
        spoil(file)
    with pytest.raises(UserError, match=message):
        open_dataset(path)


@pytest.mark.parametrize("place", ["t0_fields/density", "t1_fields/V", "t0_fields/a", "t0_fields/f"])
def test_nan_is_refused_when_it_is_read(tmp_path, place):
    path = rich_file(tmp_path)
    with h5py.File(path, "a") as file:
        file[place][3] = np.nan
    dataset = WellFile(path)
    dataset.read([0, 1], slice(None))
    with pytest.raises(UserError, match="sample 3 has NaN or infinite values in"):
        dataset.read([1, 3], slice(None))
    with pytest.raises(UserError, match="trajectory 5 is not among the 5"):
        dataset.read([5], slice(None))


def test_a_truncated_file_is_refused(tmp_path):
    path = rich_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UserError, match="truncated"):
        open_dataset(path)


def test_a_description_of_other_data_is_refused(tmp_path):
    path = rich_file(tmp_path)
    with h5py.File(path, "a") as file:
        file.attrs["ups"] = file.attrs["ups"].replace('"density"', '"pressure"')
    with pytest.raises(UserError, match=r"holds fields .* but its attribute 'ups' says"):
        WellFile(path)


@pytest.mark.parametrize(
    "header",
    [
        header_of(channels=("a/b",)),
        header_of(channels=("u", "u")),
        header_of(static=("u",)),
        header_of((4, 4), channels=("u_x", "u_y"), static=("u_x",)),
        header_of((4, 4), channels=("u_x", "u_y"), static=("u",)),
        header_of(static=("mask",), masked=True),
        header_of(parameters={"grid_type": 1.0}),
        header_of((1,)),
    ],
)
def test_what_the_layout_cannot_hold_is_refused_and_leaves_nothing(tmp_path, header):
    with pytest.raises(UserError, match="The Well"):
        WellWriter(tmp_path / "a.hdf5", header, 1)
    assert not list(tmp_path.iterdir())


def numbers(header):
    fields = (*header.channels, *header.static)
    return {key: {name: float(i) for i, name in enumerate(fields)} for key in KINDS}


def test_statistics_have_the_published_form():
    stats = well_stats(RICH, numbers(RICH))
    assert set(stats) == set(KINDS)
    assert stats["mean"]["velocity"] == [0.0, 2.0] and stats["mean"]["density"] == 1.0 and stats["mean"]["a"] == 5.0


def test_a_folder_of_several_files_is_one_dataset(tmp_path):
    batches = []
    for nu in (0.1, 0.2):
        header = replace(RICH, parameters={"nu": nu, "reynolds": None})
        batches.append(batch_of(header, 3, seed=int(nu * 10)))
        write(WellWriter, tmp_path / f"nu{nu}.hdf5", header, batches[-1])
    dataset = open_dataset(tmp_path)
    assert len(dataset) == 6 and dataset.header.parameters["nu"] is None
    batch = dataset.read([4, 0], slice(None))
    assert batch.parameters["nu"].tolist() == [0.2, 0.1]
    assert torch.equal(batch.forcings["f"][0], batches[1].forcings["f"][1])
    assert batch.mask is not None and batches[1].mask is not None and torch.equal(batch.mask[0], batches[1].mask[1])


def test_a_folder_without_data_files_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="holds no data files"):
        open_dataset(empty)
