"""Any trajectory that a layout says it can hold comes back from its file bit for bit."""

import h5py
import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layout_cases import batch_of, header_of, named

from ups.data.formats.layouts import layout_of, named_layout
from ups.data.open import open_dataset
from ups.fields import KINDS, Batch, Boundary, Grid, Header, Side

# What each layout can hold: dimension, channels, static fields, whether it must be steady, whether parameters may vary.
FLUID = ("density", "pressure", "Vx", "Vy", "Vz")
HELD = {
    "pdebench-tensor": [(1, ("u",), (), False, False), (2, ("u",), ("a",), True, False)],
    "pdebench-cfd": [
        (1, FLUID[:3], (), False, False),
        (2, ("Vy", "Vx", "density", "pressure"), (), False, False),
        (3, FLUID, (), False, False),
    ],
    "pdebench-grouped": [
        (1, ("u",), (), False, True),
        (2, ("h", "温度"), (), False, True),
        (3, ("a", "b", "c"), (), False, True),
    ],
    "pdebench-incompressible": [
        (2, ("Vx", "Vy", "particles"), ("force_x", "force_y"), False, False),
        (2, ("particles", "Vy", "Vx"), ("force_y", "force_x"), False, False),
    ],
    "netcdf": [(1, ("u",), (), False, True), (2, ("h", "温度"), ("a",), False, True), (3, FLUID, (), False, True)],
    "zarr": [(1, ("u",), (), False, True), (2, ("h", "温度"), ("a",), False, True), (3, FLUID, (), False, True)],
    "arrays": [(1, ("u",), (), False, True), (2, ("h", "温度"), ("a",), False, True), (3, FLUID, (), False, True)],
    "well": [
        (1, ("u",), (), False, True),
        (2, ("velocity_y", "温度", "velocity_x", "Vx"), ("a",), False, True),
        (3, FLUID, ("a", "b"), False, True),
    ],
    "pdegym": [
        (2, ("velocity_x", "velocity_y", "tracer"), (), False, False),
        (2, ("density", "velocity_x", "velocity_y", "pressure"), (), False, False),
        (2, ("u",), ("c",), False, False),
        (2, ("u",), ("c",), True, False),
        (2, ("a", "b", "温度"), (), False, False),
    ],
    "pairs": [(2, ("u",), ("a",), True, False)],
}
finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text("abcνß_ -.", min_size=1, max_size=5).filter(lambda name: name.strip("."))


def increasing(draw: st.DrawFn, count: int) -> torch.Tensor:
    """Positions of any kind: even, uneven, far from zero, closer than float32 can tell apart."""
    start, step = draw(st.sampled_from([0.0, -2.5, 1e6])), draw(st.sampled_from([1e-9, 0.01, 1 / 3, 5.0]))
    jitter = draw(st.lists(st.floats(0, 0.5), min_size=count, max_size=count))
    step = max(step, abs(start) * 1e-12)
    return torch.tensor([start + (i + j) * step for i, j in enumerate(jitter)], dtype=torch.float64)


def grids(draw: st.DrawFn, dimension: int) -> Grid:
    shape = draw(st.lists(st.integers(2, 5), min_size=dimension, max_size=dimension))
    extent = [(a, a + n) for a, n in draw(st.tuples(*[st.tuples(st.floats(-9, 9), st.floats(0.1, 9))] * dimension))]
    kind = draw(st.sampled_from(["cell_centred", "nodal", "uneven"]))
    if kind == "cell_centred":
        return Grid.cell_centred(shape, extent)
    if kind == "nodal":
        return Grid.nodal(shape, extent)
    return Grid(tuple(increasing(draw, n) for n in shape), tuple(extent))


def boundaries(draw: st.DrawFn, dimension: int) -> Boundary:
    def pair() -> tuple[Side, Side]:
        lower, upper = draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=2))
        if "periodic" in (lower, upper):
            return Side("periodic"), Side("periodic")
        value = draw(st.lists(finite, max_size=3))
        return Side(lower, tuple(value)), Side(upper)

    return Boundary(tuple(pair() for _ in range(dimension)))


def fields(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Values of every size, signed zeros and subnormal numbers among them."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.standard_normal(shape) * 10.0 ** generator.integers(-40, 30, shape)
    flat = values.reshape(-1)
    flat[: min(len(flat), 3)] = [-0.0, 1e-310, 0.0][: len(flat)]
    return torch.from_numpy(values).to(dtype)


@st.composite
def held(draw: st.DrawFn, layout: str) -> tuple[Header, Batch]:
    """One to three trajectories and their header."""
    dimension, channels, static, steady, varying = draw(st.sampled_from(HELD[layout]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    grid, boundary = grids(draw, dimension), boundaries(draw, dimension)
    times = increasing(draw, 1 if steady else draw(st.integers(1, 4)))
    count = draw(st.integers(1, 3))
    taken = (
        (*channels, *static) if layout in ("netcdf", "zarr", "arrays") else ()
    )  # there, all names stand side by side
    one = draw(st.dictionaries(names.filter(lambda name: name not in taken), finite, max_size=3))
    own = {name: [draw(finite) for _ in range(count)] if varying else [value] * count for name, value in one.items()}
    header = Header(
        task=draw(st.sampled_from(["", "burgers", "my task"])),
        channels=channels,
        grid=grid,
        times=times,
        boundary=boundary,
        parameters={name: values[0] if len(set(values)) == 1 else None for name, values in own.items()},
        static=static,
        dtype=dtype,
        licence=draw(st.text(max_size=8)),
        test_at=named_layout(layout).test_at,
    )
    batch = Batch(
        task=header.task,
        values=fields(draw, (count, len(times), *grid.shape, len(channels)), dtype),
        times=times.expand(count, -1),
        grid=grid,
        boundary=boundary,
        parameters={name: torch.tensor(values, dtype=torch.float64) for name, values in own.items()},
        static={name: fields(draw, (count, *grid.shape), dtype) for name in static},
        ids=torch.arange(count),
    )
    return header, batch


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("layout", named(HELD))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_a_layout_can_hold_comes_back_bit_for_bit(tmp_path_factory, layout, data):
    header, made = data.draw(held(layout))
    assert named_layout(layout).loses(header) == []
    path = tmp_path_factory.mktemp("trip") / "file"
    with named_layout(layout).writer(path, header, len(made)) as writer:
        writer.write(made)
    assert layout_of(path).name == layout
    dataset = open_dataset(path)
    found = dataset.header
    assert len(dataset) == len(made) and found.grid.same_as(header.grid) and same_bits(found.times, header.times)
    assert (found.channels, found.boundary, found.static) == (header.channels, header.boundary, header.static)
    assert (found.task, found.licence, found.test_at) == (header.task, header.licence, header.test_at)
    order = list(reversed(range(len(made))))
    batch, expected = dataset.read(order, slice(None)), made.select(order)
    assert same_bits(batch.values, expected.values) and same_bits(batch.times, expected.times)
    assert dict(found.parameters) == dict(header.parameters) and set(batch.parameters) == set(expected.parameters)
    assert all(values.tolist() == expected.parameters[name].tolist() for name, values in batch.parameters.items())
    assert set(batch.static) == set(expected.static)
    assert all(same_bits(field, expected.static[name]) for name, field in batch.static.items())


# Strangers' readers: nothing but h5py and the published names.


def written(path, layout, channels, static=()):
    header = header_of((4, 4), channels=channels, times=torch.arange(3) * 0.5, static=static, parameters={"eta": 0.01})
    made = batch_of(header, 2)
    with named_layout(layout).writer(path, header, 2) as writer:
        writer.write(made)
    return made


def test_a_stranger_reads_our_cfd_files(tmp_path):
    made = written(tmp_path / "a.hdf5", "pdebench-cfd", FLUID[:4])
    with h5py.File(tmp_path / "a.hdf5") as file:
        for channel, name in enumerate(FLUID[:4]):
            assert file[name].dtype == np.dtype("<f4") and file[name].chunks is None
            assert np.array_equal(file[name][1], made.values[1, ..., channel])
        assert np.allclose(file["x-coordinate"], [0.125, 0.375, 0.625, 0.875])
        assert file["y-coordinate"].dtype == np.dtype("<f4")
        assert np.allclose(file["t-coordinate"], [0, 0.5, 1, 1.5])  # one entry too many, as published
        assert file.attrs["eta"] == 0.01


def test_a_stranger_reads_our_grouped_files(tmp_path):
    made = written(tmp_path / "a.h5", "pdebench-grouped", ("u", "v"))
    with h5py.File(tmp_path / "a.h5") as file:
        assert sorted(file) == ["0000", "0001"]
        for key, values in zip(sorted(file), made.values, strict=True):
            assert np.array_equal(file[key]["data"], values)
            assert np.allclose(file[key]["grid"]["y"], [0.125, 0.375, 0.625, 0.875])
            assert np.allclose(file[key]["grid"]["t"], [0, 0.5, 1])
            assert yaml.safe_load(file[key].attrs["config"]) == {"sim": {"eta": 0.01}}


def test_a_stranger_reads_our_incompressible_files(tmp_path):
    made = written(tmp_path / "a.h5", "pdebench-incompressible", ("Vx", "Vy", "particles"), ("force_x", "force_y"))
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["velocity"].shape == (2, 3, 4, 4, 2) and file["particles"].shape == (2, 3, 4, 4, 1)
        assert np.array_equal(file["velocity"][1], made.values[1, ..., :2])
        assert np.array_equal(file["particles"][0], made.values[0, ..., 2:])
        assert np.array_equal(file["force"][1, ..., 1], made.static["force_y"][1])
        assert np.allclose(file["t"], [[0, 0.5, 1]] * 2) and file.attrs["latestIndex"] == 2
