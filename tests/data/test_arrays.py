"""Plain arrays are understood: axes, sides, times, grids and conditions are found in them, and said."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

from ups.data.convert import convert
from ups.data.formats.arrays.contents import contents_of
from ups.data.formats.arrays.meaning import Told, Understood, shown
from ups.data.formats.arrays.reader import Arrays
from ups.data.formats.arrays.understood import understood
from ups.data.open import open_dataset
from ups.errors import UserError

RANDOM = np.random.default_rng(0)
COUNT, T = 12, 9
NU = RANDOM.uniform(0.005, 0.05, COUNT)
PARTS = RANDOM.normal(size=(2, 4, COUNT))


def heat(x: np.ndarray, waves: str = "around") -> np.ndarray:
    """Solutions of ∂u/∂t = ν ∂²u/∂x² by their waves: around a ring, or between walls of value 0 or of no flux."""
    t = np.arange(T) * 0.05
    total = np.zeros((COUNT, T, len(x)))
    for k, (a, b) in enumerate(zip(*PARTS, strict=True), start=1):
        q = np.pi * k * (2 if waves == "around" else 1)
        shape = {"around": a[:, None] * np.sin(q * x) + b[:, None] * np.cos(q * x), "value": a[:, None] * np.sin(q * x)}
        wave = shape.get(waves, a[:, None] * np.cos(q * x))
        total += np.exp(-NU[:, None] * q**2 * t)[:, :, None] * wave[:, None]
    return total


RING = heat(np.arange(32) / 32)
PLANE = RING[..., None] * np.cos(2 * np.pi * np.arange(24) / 24)


def taken(data, **told) -> Understood:
    return understood(contents_of(data), Told(**told), "heat")


def said(found: Understood) -> str:
    return "\n".join(shown(found))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("array", "axes"),
    [
        (RING, "BTX"),
        (RING[..., None], "BTXC"),
        (RING[:, :, None], "BTCX"),
        (RING.transpose(0, 2, 1), "BXT"),
        (np.stack([RING, RING**2], -1), "BTXC"),
        (np.stack([RING, RING**2], 1), "BCTX"),
        (np.stack([RING, RING**2], 2), "BTCX"),
        (PLANE, "BTXY"),
        (np.stack([PLANE, PLANE**2], 1), "BCTXY"),
        (np.moveaxis(PLANE, 1, -1), "BXYT"),
    ],
)
def test_every_order_of_axes_is_recognised_and_gives_the_same_fields(array, axes):
    found = taken(array)
    assert found.axes == axes
    assert ("note" in said(found)) == (axes not in ("BTX", "BTXC", "BTXY"))
    read = Arrays(found, "it").read([1], slice(None)).values[0].numpy()
    expected = PLANE[1] if "Y" in axes else RING[1]
    assert np.array_equal(read[..., 0], expected)


def test_lengths_times_and_parameters_tell_axes_apart():
    assert taken(RING.transpose(1, 0, 2), parameters={"nu": NU}).axes == "TBX"
    assert taken(RING.transpose(0, 2, 1), times=np.arange(T) * 0.1).axes == "BXT"
    few = np.stack([RING] * 5, -1)  # five alike: points of y, or channels
    assert taken(few, lengths=[1.0]).axes == "BTXC" and taken(few, lengths=[1.0, 1.0]).axes == "BTXY"


@pytest.mark.parametrize(
    ("points", "waves", "sides", "kept", "first"),
    [
        (np.arange(32) / 32, "around", "periodic/periodic", 32, 0.0),
        (np.linspace(0, 1, 33), "around", "periodic/periodic", 32, 0.0),
        (np.linspace(0, 1, 33), "value", "value/value", 33, 0.0),
        ((np.arange(32) + 0.5) / 32, "flux", "flux/flux", 32, 0.5 / 32),
        ((np.arange(32) + 0.5) / 32, "value", "open/open", 32, 0.5 / 32),
    ],
)
def test_sides_and_points_are_found_in_the_fields(points, waves, sides, kept, first):
    found = taken(heat(points, waves), dt=0.05, lengths=[1.0])
    assert found.header.boundary.kinds == sides
    (positions,) = found.header.grid.positions
    assert (len(positions), float(positions[0]), found.header.grid.lengths) == (kept, first, (1.0,))
    assert ("repeats the first" in said(found)) == (len(points) - kept == 1)


def test_what_was_said_is_not_overruled_but_doubted():
    walls = heat((np.arange(32) + 0.5) / 32, "flux")
    found = taken(walls, boundary="periodic", dt=0.05)
    assert found.header.boundary.kinds == "periodic/periodic" and "the data jump there" in said(found)
    assert taken(PLANE, boundary={"x": "periodic", "y": "open"}).header.boundary.kinds == "periodic/periodic, open/open"


def test_sizes_that_differ_and_what_never_changes_are_said():
    three = np.stack([RING, 1e6 * RING, np.full_like(RING, 7.0)], -1)
    words = said(taken(three, channels=["u", "p", "g"]))
    assert "channels differ in size" in words and "channel g is 7 everywhere" in words
    assert "nu is 0.1 in every trajectory" in said(taken(RING, parameters={"nu": np.full(COUNT, 0.1)}))


def test_named_arrays_are_fields_times_positions_parameters_and_static_fields():
    x, t = np.arange(32) / 16, np.arange(T) * 0.5
    found = taken(
        {"u": RING, "v": RING**2, "t": t, "x": x, "nu": NU, "a": RING[:, 0], "b": RING[0, 0], "odd": np.eye(3)}
    )
    header = found.header
    assert (header.channels, header.static, set(header.parameters)) == (("u", "v"), ("a", "b"), {"nu"})
    assert header.grid.lengths == (2.0,) and float(header.times[1]) == 0.5 and "'odd' of shape (3, 3)" in said(found)
    batch = Arrays(found, "it").read([3, 0], slice(2, 4))
    assert np.array_equal(batch.values[..., 1].numpy(), RING[[3, 0], 2:4] ** 2)
    assert np.array_equal(batch.static["a"].numpy(), RING[[3, 0], 0]) and batch.parameters["nu"].tolist() == [
        NU[3],
        NU[0],
    ]


def test_forcings_have_any_of_the_axes_that_they_need():
    t, x = np.arange(T) * 0.05, np.arange(32) / 32
    own = np.sin(2 * np.pi * (x + t[:, None])) * NU[:, None, None]
    told = {"own": own, "still": own[:, 0], "shared": own[0], "wind": own[0, :, 3], "gusts": own[:, :, 3]}
    found = taken({"u": RING, "f": own, "t": t}, forcings=["f"])
    assert (found.header.channels, dict(found.header.forcings)) == (("u",), {"f": True})
    data = Arrays(taken(RING, dt=0.05, forcings=told), "it")
    assert dict(data.header.forcings) == {name: name != "still" for name in told}
    read = data.read([3, 0], slice(2, 5)).forcings
    assert np.array_equal(read["own"].numpy(), own[[3, 0], 2:5])
    assert np.array_equal(read["still"].numpy(), own[[3, 0], 0])
    assert np.array_equal(read["shared"].numpy(), own[[0, 0], 2:5])
    for row, trajectory in enumerate((0, 0)):
        assert np.array_equal(read["wind"][row].numpy(), np.repeat(own[trajectory, 2:5, 3, None], 32, 1))
    assert np.array_equal(read["gusts"][0].numpy(), np.repeat(own[3, 2:5, 3, None], 32, 1))
    lists = [RING[n, : 4 + n % 3] for n in range(6)]
    ragged = Arrays(taken(lists, dt=0.05, forcings={"f": [own[n, : len(u)] for n, u in enumerate(lists)]}), "it")
    assert np.array_equal(ragged.read([4], slice(1, 3)).forcings["f"][0].numpy(), own[2, 3:5])


def test_a_mask_lets_the_data_be_nan_outside_and_nowhere_else():
    land = np.hypot(*np.meshgrid(np.arange(32) - 16, np.arange(24) - 12, indexing="ij")) < 5
    sea = np.where(land, np.nan, PLANE)
    for data in (Arrays(taken(sea, mask=~land), "it"), Arrays(taken({"u": sea, "mask": 1.0 - land}), "it")):
        batch = data.read([2], slice(None))
        assert data.header.masked and batch.mask is not None and np.array_equal(batch.mask[0].numpy(), ~land)
        assert np.array_equal(batch.values[0, ..., 0].numpy(), np.nan_to_num(sea[2]))
    sea[4, 2, 0, 0] = np.nan
    with pytest.raises(UserError, match=r"trajectory 4 has NaN .* frame 2, point \(0, 0\).*or give a mask"):
        Arrays(taken(sea, mask=~land), "it").read(range(COUNT), slice(None))


def test_uneven_times_stay_with_their_trajectories():
    times = np.cumsum(RANDOM.uniform(0.5, 1.5, (COUNT, T)), 1)
    found = taken(RING, times=times)
    data = Arrays(found, "it")
    assert data.header.dt is None and "uneven" in said(found)
    assert np.array_equal(data.read([3, 1], slice(1, 4)).times.numpy(), times[[3, 1], 1:4])
    same = Arrays(taken({"u": RING, "t": np.arange(T) ** 2}), "it")
    assert same.header.own_times is None and same.times.tolist() == [n**2 for n in range(T)]
    lists = [RING[n, : 4 + n % 2] for n in range(6)]
    pieces = Arrays(taken(lists, times=[times[n, : len(u)] for n, u in enumerate(lists)]), "it")
    assert np.array_equal(pieces.read([2], slice(None)).times[0].numpy(), times[1, 1:5])


def test_an_array_of_200_gb_is_looked_at_without_being_read(tmp_path):
    shape = (5000, 100, 1000, 100)
    with (tmp_path / "u.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * int(np.prod(shape)))  # zeros that take no room on the disk
    data = open_dataset(tmp_path / "u.npy", dt=0.1)
    assert data.grid.shape == shape[2:] and len(data) == shape[0]
    assert not data.read([4999], slice(99, None)).values.any()


TABLE = "trajectory,t,x [m],u [K],nu,a\n"


def rows_of(lengths: list[int]) -> str:
    lines = [
        f"{n},{0.05 * t:.2f},{x / 16},{float(RING[n, t, x])!r},{float(NU[n])!r},{float(RING[n, 0, x])!r}\n"
        for n, length in enumerate(lengths)
        for t in range(length)
        for x in range(32)
    ]
    return "".join(np.random.default_rng(1).permutation(lines))


def test_a_table_of_text_names_its_columns(tmp_path):
    path = tmp_path / "u.csv"
    path.write_text(TABLE + rows_of([T] * 5))
    data = open_dataset(path)
    header = data.header
    assert (header.channels, header.static, header.parameters) == (("u",), ("a",), {"nu": None})
    assert header.grid.lengths == (2.0,) and header.dt == pytest.approx(0.05)
    assert header.notes["units"] == {"u": "K", "x": "m"}
    assert np.array_equal(data.read([4, 2], slice(1, 3)).values[..., 0].numpy(), RING[[4, 2], 1:3])
    path.write_text(TABLE + rows_of([4, 5, 4]))
    pieces = open_dataset(path)
    assert np.array_equal(pieces.read([2], slice(None)).values[0, ..., 0].numpy(), RING[1, 1:5])
    path.write_text(TABLE + rows_of([T] * 3)[:-40].rpartition("\n")[0])
    with pytest.raises(UserError, match="one row for every point at every time"):
        open_dataset(path)


def test_trajectories_of_several_lengths_become_pieces_that_cover_them():
    found = taken([RING[n, : 4 + n % 3] for n in range(6)], dt=0.05)
    pieces = Arrays(found, "it")
    assert pieces.pieces == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 2), (3, 0), (4, 0), (4, 1), (5, 0), (5, 2)]
    assert np.array_equal(pieces.read([4], slice(None)).values[0, ..., 0].numpy(), RING[2, 2:6])


def test_torch_tensors_and_their_gradients_are_taken():
    found = taken(torch.tensor(RING, dtype=torch.float32, requires_grad=True))
    assert found.header.dtype == torch.float32 and len(Arrays(found, "it")) == COUNT


@pytest.mark.parametrize(
    ("data", "told", "sentence"),
    [
        (RING[0], {}, "trajectories of fields have at least three axes"),
        (np.array([[1], [2, 3]], dtype=object), {}, "no array of numbers"),
        (RING.astype(complex), {}, "give real numbers"),
        (RING[:, :2], {"dt": 0.1}, "of 2 frames"),
        (RING, {"times": np.arange(T)[::-1]}, "times of trajectory 0 do not increase"),
        (RING, {"times": np.arange(T - 1)}, "give 9 increasing numbers"),
        (RING, {"forcings": {"f": np.ones((3, 32))}}, "forcing 'f' has the shape"),
        (RING, {"forcings": ["f"]}, "has no array 'f' to be a forcing"),
        (RING[:T], {"forcings": {"f": np.ones((T, 32))}}, "could have the axes TX or BX"),
        (RING, {"dt": -1.0}, "dt is -1.0"),
        (RING, {"lengths": [0.0]}, "positive lengths"),
        (RING, {"boundary": ["periodic", "open"]}, "does not go with 2 axes of space"),
        (RING, {"axes": "BTXY"}, "one letter an axis"),
        (RING, {"parameters": {"nu": [1.0, 2.0]}}, "parameters are given for 2"),
        (RING, {"static": {"a": np.ones(5)}}, "static field 'a' has the shape"),
        (RING, {"channels": ["u", "v"]}, "channels names 2"),
        ([RING[0], RING[1, :, :7]], {}, "only their numbers of frames may differ"),
        ({}, {}, "holds no array"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_a_sentence(data, told, sentence):
    with pytest.raises(UserError, match=sentence):
        taken(data, **told)


def test_nan_is_refused_with_its_place():
    broken = RING.copy()
    broken[5, 3, 17] = np.nan
    with pytest.raises(UserError, match=r"trajectory 5 has NaN .* channel 'u' at frame 3, point \(17,\)"):
        Arrays(taken(broken), "it").read(range(COUNT), slice(None))


@pytest.mark.parametrize("kind", ["npy", "npz", "pt", "h5", "mat7.3", "nc"])
def test_every_kind_of_file_gives_the_same_trajectories(tmp_path, kind):
    path = tmp_path / f"u.{kind.partition('7')[0]}"
    if kind == "npy":
        np.save(path, RING)
    elif kind == "npz":
        np.savez(path, u=RING, nu=NU)
    elif kind == "pt":
        torch.save({"u": torch.from_numpy(RING), "nu": torch.from_numpy(NU)}, path)
    elif kind == "mat7.3":
        with h5py.File(path, "w", userblock_size=512) as file:
            file["u"] = RING.T
        with path.open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file".ljust(512))
    else:
        with h5py.File(path, "w") as file:
            file["run/u"] = RING
            if kind == "nc":
                file["time"] = np.arange(T) * 0.05
                file["time"].attrs["units"] = "s"
                file["time"].make_scale("time")
                file["run/u"].dims[1].attach_scale(file["time"])
    told = {} if kind == "nc" else {"dt": 0.05}
    if kind == "pt":
        found = Arrays(understood(contents_of(path), Told(**told), "u"), str(path))
    else:
        found = open_dataset(path, **told)
    assert np.array_equal(found.read([4, 2], slice(1, 3)).values[..., 0].numpy(), RING[[4, 2], 1:3])
    assert float(found.times[1]) == pytest.approx(0.05)
    if kind == "nc":
        assert found.header.notes["units"]["time"] == "s"
    elif kind not in ("pt",):
        with pytest.raises(UserError, match="does not say its times"):
            open_dataset(path)


def test_arrays_become_netcdf_with_names_that_others_read(tmp_path):
    np.savez(tmp_path / "u.npz", u=RING, nu=NU)
    source = open_dataset(tmp_path / "u.npz", dt=0.05, boundary="periodic", units={"u": "K", "x": "m"})
    convert(source, tmp_path / "u.nc", "netcdf")
    with h5py.File(tmp_path / "u.nc") as file:
        assert [dim[0].name for dim in file["u"].dims] == ["/sample", "/time", "/x"]
        assert file["u"].attrs["units"] == "K" and file["x"].attrs["units"] == "m"
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    with xarray.open_dataset(tmp_path / "u.nc") as made:
        assert made["u"].dims == ("sample", "time", "x") and np.array_equal(made["u"].values, RING)


def test_arrays_become_zarr_and_npy(tmp_path):
    np.savez(tmp_path / "u.npz", u=RING, nu=NU)
    source = open_dataset(tmp_path / "u.npz", dt=0.05, boundary="periodic", units={"u": "s", "time": "h"})
    with pytest.raises(UserError, match="no place for parameters"):
        convert(source, tmp_path / "u.npy", "arrays")
    np.save(tmp_path / "plain.npy", np.stack([RING, RING**2], -1))
    plain = open_dataset(tmp_path / "plain.npy", dt=0.05)
    convert(plain, tmp_path / "again.npy", "arrays")
    assert np.array_equal(np.load(tmp_path / "again.npy"), np.load(tmp_path / "plain.npy"))
    for package in ("zarr", "xarray"):
        pytest.importorskip(package)
    monkey = ("ups.data.convert._PIECE_BYTES", 5 * RING[0].nbytes)  # in three pieces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*monkey)
        convert(source, tmp_path / "u.zarr", "zarr")
    stored = open_dataset(tmp_path / "u.zarr")
    assert stored.header.units == {"u": "s", "time": "h"} and stored.header.boundary == source.header.boundary
    whole, first = (data.read(range(COUNT), slice(None)) for data in (stored, source))
    assert torch.equal(whole.values, first.values) and torch.equal(whole.parameters["nu"], first.parameters["nu"])
    assert torch.equal(stored.times, source.times) and [p.name for p in tmp_path.glob(".*")] == []


def test_xarray_gives_names_coordinates_and_units(tmp_path):
    xarray = pytest.importorskip("xarray")
    dims = ("run", "time", "lat", "lon")
    coordinates = {
        "time": ("time", np.arange(T) * 2.0, {"units": "h"}),
        "lon": np.arange(32) * 0.5,
        "lat": np.arange(24) * 0.1,
    }
    fields = {"temperature": (dims, np.moveaxis(PLANE, 2, 3), {"units": "K"}), "nu": ("run", NU)}
    data = xarray.Dataset(fields, coordinates)
    found = taken(data)
    header = found.header
    assert (found.axes, header.channels, header.parameters) == ("BTYX", ("temperature",), {"nu": None})
    assert header.grid.shape == (32, 24) and header.grid.spacing == pytest.approx((0.5, 0.1))
    assert header.notes["units"] == {"temperature": "K", "time": "h"} and float(header.times[1]) == 2.0
    assert np.array_equal(Arrays(found, "it").read([1], slice(None)).values[0, ..., 0].numpy(), PLANE[1])
    pytest.importorskip("zarr")
    data.to_zarr(tmp_path / "u.zarr")
    stored = open_dataset(tmp_path / "u.zarr")
    assert np.array_equal(stored.read([1], slice(None)).values[0, ..., 0].numpy(), PLANE[1])
