"""PDEBench tensor files: round trips, files of others, and every way a file can be wrong."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layout_cases import batch_of, header_of, write

from ups.data.formats.pdebench.arrays import TensorFile, TensorWriter
from ups.errors import UserError
from ups.fields import Boundary, Grid, Header

PERIODIC = Boundary.all("periodic", 1)


def published(path: Path, frames: int = 5, points: int = 8, samples: int = 3, **attributes: float) -> Path:
    """A file as PDEBench writes it: no attributes of ours."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["tensor"] = rng.standard_normal((samples, frames, points)).astype("f4")
        file["x-coordinate"] = ((np.arange(points) + 0.5) / points).astype("f4")
        file["t-coordinate"] = (np.arange(frames + 1) * 0.01).astype("f4")
        file.attrs.update(attributes)
    return path


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 5),
    frames=st.integers(2, 6),
    points=st.integers(4, 40),
    lower=st.sampled_from([0.0, -1.0, -2.5]),
    length=st.sampled_from([1.0, 2.0, 5.0]),
    dt=st.sampled_from([0.01, 0.05, 0.1, 5.0]),
    beta=st.floats(0.01, 10),
    data=st.data(),
)
def test_what_is_written_is_read_back(tmp_path_factory, samples, frames, points, lower, length, dt, beta, data):
    path = tmp_path_factory.mktemp("round") / "trip.hdf5"
    grid = Grid.cell_centred((points,), ((lower, lower + length),))
    times = torch.arange(frames, dtype=torch.float64) * dt
    header = header_of(grid.shape, grid=grid, times=times, task="advection", parameters={"beta": beta})
    made = batch_of(header, samples)
    values = made.values
    write(TensorWriter, path, header, made)
    dataset = TensorFile(path)
    assert len(dataset) == samples and dataset.grid.same_as(grid) and torch.equal(dataset.times, times)
    assert dataset.task == "advection" and dataset.channels == ("u",)
    indices = data.draw(st.lists(st.integers(0, samples - 1), max_size=6))
    start = data.draw(st.integers(0, frames - 1))
    batch = dataset.read(indices, slice(start, frames))
    assert torch.equal(batch.values, values[indices][:, start:])
    assert batch.times.shape == (len(indices), frames - start) and batch.ids.tolist() == indices
    assert batch.parameters["beta"].tolist() == [beta] * len(indices)


def test_a_darcy_file_is_read_back_with_its_coefficient(tmp_path):
    grid = Grid.cell_centred((6, 4))
    walls = Boundary.all("value", 2, (0.0,))
    header = header_of((6, 4), 1, boundary=walls, static=("a",), parameters={"beta": 2.0}, task="darcy")
    made = batch_of(header, 2)
    a, u = made.static["a"], made.values
    write(TensorWriter, tmp_path / "d.hdf5", header, made)
    dataset = TensorFile(tmp_path / "d.hdf5")
    batch = dataset.read([1, 0], slice(None))
    assert torch.equal(batch.values, u[[1, 0]]) and torch.equal(batch.static["a"], a[[1, 0]])
    assert dataset.grid.same_as(grid) and dataset.times.tolist() == [0.0]
    assert dataset.boundary == walls


@pytest.mark.parametrize(
    ("name", "attributes", "task", "parameters"),
    [
        ("1D_Advection_Sols_beta0.4.hdf5", {}, "advection", {"beta": 0.4}),
        ("1D_Burgers_Sols_Nu0.001.hdf5", {}, "burgers", {"nu": 0.001}),
        ("1D_Burgers_Sols_Nu1e-3.hdf5", {}, "burgers", {"nu": 0.001}),
        ("renamed.hdf5", {"beta": 0.7}, "advection", {"beta": 0.7}),
        ("1D_Burgers_Sols_Nu0.001.hdf5", {"Nu": 0.002}, "burgers", {"nu": 0.002}),
    ],
)
def test_published_files_say_their_parameters_in_attributes_or_name(tmp_path, name, attributes, task, parameters):
    dataset = TensorFile(published(tmp_path / name, **attributes))
    assert dataset.task == task and dataset.header.parameters == parameters
    assert dataset.times.tolist() == pytest.approx([0, 0.01, 0.02, 0.03, 0.04], abs=1e-15)  # the extra entry is gone
    assert dataset.grid.extent == ((0.0, 1.0),)


def test_a_published_darcy_file_is_known_by_its_content(tmp_path):
    path = tmp_path / "2D_DarcyFlow_beta0.1_Train.hdf5"
    with h5py.File(path, "w") as file:
        file["tensor"] = np.ones((2, 1, 4, 4), "f4")
        file["nu"] = np.ones((2, 4, 4), "f4")
        file["x-coordinate"] = file["y-coordinate"] = np.array([0.125, 0.375, 0.625, 0.875], "f4")
    dataset = TensorFile(path)
    assert dataset.task == "darcy" and dataset.header.parameters == {"beta": 0.1}
    assert dataset.read([0], slice(None)).static["a"].shape == (1, 4, 4)


def test_an_uneven_grid_is_kept_as_it_is(tmp_path):
    path = published(tmp_path / "beta1.0.hdf5", points=4)
    with h5py.File(path, "a") as file:
        file["x-coordinate"][:] = [0.0, 0.25, 0.75, 1.75]
    dataset = TensorFile(path)
    assert dataset.grid.positions[0].tolist() == [0.0, 0.25, 0.75, 1.75]
    assert dataset.grid.extent == ((-0.125, 2.25),)


def test_a_dataset_travels_to_another_process(tmp_path):
    import pickle

    dataset = TensorFile(published(tmp_path / "beta1.0.hdf5"))
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy.read([2], slice(None)).values, dataset.read([2], slice(None)).values)


# Bad files. Each case breaks a good one and names what the message must say.


def _drop(name):
    def damage(file):
        del file[name]

    return damage


def _replace(name, values):
    def damage(file):
        del file[name]
        file[name] = values

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop("tensor"), "no dataset 'tensor'"),
        (_drop("x-coordinate"), "no dataset 'x-coordinate'"),
        (_drop("t-coordinate"), "no dataset 't-coordinate'"),
        (_replace("tensor", np.ones((3, 5, 8), "i4")), "'tensor' is of type int32"),
        (_replace("tensor", np.ones((3, 5), "f4")), "'tensor' has shape"),
        (_replace("tensor", np.ones((0, 5, 8), "f4")), "'tensor' has shape"),
        (_replace("x-coordinate", np.array([0, 1, 2, 3, 4, 5, 6, 6], "f4")), "'x-coordinate' must be .* increasing"),
        (_replace("x-coordinate", np.arange(7, dtype="f4")), "'x-coordinate' has 7 entries"),
        (_replace("x-coordinate", np.full(8, np.nan, "f4")), "increasing"),
        (_replace("t-coordinate", np.array([0, 2, 1, 3, 4, 5], "f4")), "'t-coordinate' must be .* increasing"),
        (_replace("t-coordinate", np.arange(9, dtype="f4")), "'t-coordinate' has 9 entries for 5 frames"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, damage, message):
    path = published(tmp_path / "1D_Advection_Sols_beta0.4.hdf5")
    with h5py.File(path, "a") as file:
        damage(file)
    with pytest.raises(UserError, match=message) as error:
        TensorFile(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named_by_file_sample_and_channel(tmp_path, bad):
    path = published(tmp_path / "beta0.4.hdf5")
    with h5py.File(path, "a") as file:
        file["tensor"][2, 3, 1] = bad
    dataset = TensorFile(path)
    assert len(dataset.read([0, 1], slice(None))) == 2
    with pytest.raises(UserError, match=r"beta0\.4\.hdf5: sample 2 has NaN or infinite values in channel 'u'"):
        dataset.read([0, 2], slice(None))


def test_missing_truncated_and_foreign_files_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="not there"):
        TensorFile(tmp_path / "none.hdf5")
    path = published(tmp_path / "beta0.4.hdf5", points=500)
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(UserError, match="truncated"):
        TensorFile(path)
    text = tmp_path / "beta1.0.hdf5"
    text.write_text("not a data file")
    with pytest.raises(UserError, match="not HDF5"):
        TensorFile(text)


def test_a_file_that_does_not_say_its_task_asks_for_it(tmp_path):
    path = published(tmp_path / "mystery.hdf5")
    with pytest.raises(UserError, match=r"say it \(--task, or task=\)"):
        TensorFile(path)
    with pytest.raises(UserError, match="parameter 'beta'"):
        TensorFile(path, task="advection")
    with pytest.raises(UserError, match="did you mean 'advection'"):
        TensorFile(path, task="advektion")
    with pytest.raises(UserError, match="1 dimensions"):
        TensorFile(published(tmp_path / "beta1.0.hdf5"), task="darcy")


def test_a_trajectory_that_is_not_there_is_refused(tmp_path):
    dataset = TensorFile(published(tmp_path / "beta1.0.hdf5"))
    with pytest.raises(UserError, match="trajectory 3 is not among the 3"):
        dataset.read([0, 3], slice(None))


HEADER = Header("advection", ("u",), Grid.cell_centred((4,)), torch.tensor([0.0, 1.0]).double(), PERIODIC)


def test_a_failed_write_leaves_nothing_and_an_existing_file_is_kept(tmp_path):
    path = tmp_path / "a.hdf5"
    with pytest.raises(RuntimeError), TensorWriter(path, HEADER, 1):
        raise RuntimeError("power cut")
    assert list(tmp_path.iterdir()) == []
    path.write_text("mine")
    with pytest.raises(UserError, match="not overwritten"):
        TensorWriter(path, HEADER, 1)
    assert path.read_text() == "mine"


def test_trajectories_that_do_not_fit_one_file_are_refused(tmp_path):
    path, varying = tmp_path / "a.hdf5", replace(HEADER, parameters={"beta": None})
    with pytest.raises(UserError, match="beta differs between trajectories"):
        TensorWriter(path, varying, 2)
    with pytest.raises(UserError, match="have other times than the file"):
        write(TensorWriter, path, HEADER, batch_of(replace(HEADER, times=2 * HEADER.times), 2))
    with pytest.raises(UserError, match="no trajectories"):
        TensorWriter(path, HEADER, 0)
    assert list(tmp_path.iterdir()) == []
