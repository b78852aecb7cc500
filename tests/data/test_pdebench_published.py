"""PDEBench's CFD, grouped and incompressible files as they are published, made here with h5py alone."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ups.data.formats.pdebench.arrays import CFDFile, IncompressibleFile, TensorFile
from ups.data.formats.pdebench.grouped import GroupedFile
from ups.data.open import open_dataset
from ups.errors import UserError
from ups.fields import Boundary

FLUID = ("density", "pressure", "Vx", "Vy", "Vz")


def centres(n: int, lower: float = 0.0, upper: float = 1.0) -> np.ndarray:
    return (lower + (np.arange(n) + 0.5) * (upper - lower) / n).astype("f4")


def tensor_file(path: Path, frames: int = 5, points: int = 8, samples: int = 3, dtype: str = "f4") -> Path:
    with h5py.File(path, "w") as file:
        file["tensor"] = np.random.default_rng(0).standard_normal((samples, frames, points)).astype(dtype)
        file["x-coordinate"] = centres(points)
        file["t-coordinate"] = (np.arange(frames + 1) * 0.01).astype("f4")
    return path


def cfd_file(path: Path, dimension: int = 2, samples: int = 3, frames: int = 4, n: int = 6, dtype: str = "f4") -> Path:
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        for name in FLUID[: dimension + 2]:
            file[name] = rng.random((samples, frames, *(n,) * dimension)).astype(dtype)
        for axis in "xyz"[:dimension]:
            file[f"{axis}-coordinate"] = centres(n)
        file["t-coordinate"] = (np.arange(frames + 1) * 0.05).astype("f4")
    return path


def grouped_file(
    path: Path, channels: int = 2, samples: int = 3, frames: int = 3, n: int = 8, end: float = 5.0, half: float = 1.0
) -> Path:
    rng = np.random.default_rng(2)
    with h5py.File(path, "w") as file:
        for seed in range(samples):
            group = file.create_group(f"{seed:04d}")
            group["data"] = rng.standard_normal((frames, n, n, channels)).astype("f4")
            for axis in "xy":
                group[f"grid/{axis}"] = centres(n, -half, half)
            group["grid/t"] = np.linspace(0, end, frames).astype("f4")
            group.attrs["config"] = f"sim:\n  Du: 1e-3\n  Dv: 0.005\n  k: 0.005\n  xdim: {n}\n  seed: {seed}\n"
    return path


def incompressible_file(path: Path, samples: int = 2, frames: int = 3, n: int = 8, **options) -> Path:
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        shape = (samples, frames, n, n)
        file.create_dataset("velocity", data=rng.standard_normal((*shape, 2)).astype("f4"), **options)
        file.create_dataset("particles", data=rng.random((*shape, 1)).astype("f4"), **options)
        file["force"] = rng.standard_normal((samples, n, n, 2)).astype("f4")
        file["t"] = np.tile(np.arange(frames) * 0.005, (samples, 1)).astype("f4")
        file.attrs["latestIndex"] = samples
    return path


# What files say, and what only their names do.


def test_reaction_diffusion_is_known_by_its_two_parameters(tmp_path):
    dataset = TensorFile(tensor_file(tmp_path / "ReacDiff_Nu0.5_Rho10.0.hdf5"))
    assert dataset.task == "reaction_diffusion" and dataset.header.parameters == {"nu": 0.5, "rho": 10.0}
    assert dataset.boundary == Boundary.all("periodic", 1) and dataset.channels == ("u",)


@pytest.mark.parametrize(
    ("name", "dimension", "parameters", "kind"),
    [
        ("1D_CFD_Rand_Eta0.01_Zeta0.01_periodic_Train.hdf5", 1, {"eta": 0.01, "zeta": 0.01}, "periodic"),
        ("1D_CFD_Rand_Eta1.e-8_Zeta1.e-8_trans_Train.hdf5", 1, {"eta": 1e-8, "zeta": 1e-8}, "open"),
        (
            "2D_CFD_Turb_M0.1_Eta1e-08_Zeta1e-08_periodic_512_Train.hdf5",
            2,
            {"eta": 1e-8, "zeta": 1e-8, "M": 0.1},
            "periodic",
        ),
        (
            "3D_CFD_Rand_M1.0_Eta1e-08_Zeta1e-08_periodic_Train.hdf5",
            3,
            {"eta": 1e-8, "zeta": 1e-8, "M": 1.0},
            "periodic",
        ),
    ],
)
def test_cfd_files_say_parameters_and_sides_only_in_their_names(tmp_path, name, dimension, parameters, kind):
    dataset = open_dataset(cfd_file(tmp_path / name, dimension))
    assert isinstance(dataset, CFDFile) and dataset.task == f"compressible_{dimension}d"
    assert dataset.header.parameters == parameters and dataset.boundary == Boundary.all(kind, dimension)
    assert dataset.channels == FLUID[: dimension + 2] and dataset.header.test_at == "first"
    assert dataset.times.tolist() == pytest.approx([0, 0.05, 0.1, 0.15], abs=1e-15)  # the extra entry is gone
    batch = dataset.read([2, 0], slice(1, 3))
    with h5py.File(tmp_path / name) as file:
        for channel, field in enumerate(dataset.channels):
            assert np.array_equal(batch.values[..., channel], file[field][()][[2, 0], 1:3])


def test_attributes_of_a_cfd_file_count_more_than_its_name(tmp_path):
    path = cfd_file(tmp_path / "2D_CFD_Rand_M0.1_Eta0.1_Zeta0.1_periodic_128_Train.hdf5")
    with h5py.File(path, "a") as file:
        file.attrs.update(eta=0.01, zeta=0.02, M=1.0)
    assert CFDFile(path).header.parameters == {"eta": 0.01, "zeta": 0.02, "M": 1.0}


def test_float64_files_stay_float64(tmp_path):
    tensor = TensorFile(tensor_file(tmp_path / "1D_Advection_Sols_beta0.4.hdf5", dtype="f8"))
    fluid = CFDFile(cfd_file(tmp_path / "1D_CFD_Rand_Eta1.e-8_Zeta1.e-8_periodic_Train.hdf5", 1, dtype="f8"))
    assert tensor.header.dtype == torch.float64 and tensor.read([0], slice(None)).values.dtype == torch.float64
    big_endian = TensorFile(tensor_file(tmp_path / "beta1.0.hdf5", dtype=">f8"))
    assert torch.equal(big_endian.read([1], slice(None)).values, tensor.read([1], slice(None)).values)
    assert fluid.header.dtype == torch.float64


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_compressed_files_are_read_like_others(tmp_path, compression):
    plain = IncompressibleFile(incompressible_file(tmp_path / "plain.h5"))
    packed = open_dataset(incompressible_file(tmp_path / "packed.h5", compression=compression))
    assert isinstance(packed, IncompressibleFile)
    one, other = (dataset.read([1, 0], slice(0, 2)) for dataset in (plain, packed))
    assert torch.equal(one.values, other.values) and torch.equal(one.static["force_x"], other.static["force_x"])


def test_the_force_of_incompressible_flow_is_two_static_fields(tmp_path):
    path = incompressible_file(tmp_path / "ns_incom_inhom_2d_512-0.h5")
    dataset = open_dataset(path)
    assert dataset.task == "incompressible" and dataset.channels == ("Vx", "Vy", "particles")
    assert dataset.header.static == ("force_x", "force_y") and dataset.boundary == Boundary.all("value", 2, (0.0, 0.0))
    batch = dataset.read([1], slice(None))
    with h5py.File(path) as file:
        assert np.array_equal(batch.values[0, ..., :2], file["velocity"][1])
        assert np.array_equal(batch.values[0, ..., 2:], file["particles"][1])
        assert np.array_equal(batch.static["force_y"][0], file["force"][1, ..., 1])
    assert dataset.grid.positions[0].tolist() == [(i + 0.5) / 8 for i in range(8)]
    assert dataset.header.notes == {"positions assumed": "cell_centred on the unit square", "sides assumed": "value"}


@pytest.mark.parametrize(
    ("name", "options", "task", "channels", "kind"),
    [
        ("2D_diff-react_NA_NA.h5", {"n": 6}, "diffusion_reaction", ("u", "v"), "flux"),
        ("2D_rdb_NA_NA.h5", {"channels": 1}, "shallow_water", ("h",), "open"),
        ("renamed.h5", {}, "diffusion_reaction", ("u", "v"), "flux"),
        ("renamed.h5", {"channels": 1, "end": 1.0, "half": 2.5}, "shallow_water", ("h",), "open"),
    ],
)
def test_grouped_files_are_known_by_name_or_by_domain_and_time(tmp_path, name, options, task, channels, kind):
    dataset = open_dataset(grouped_file(tmp_path / name, **options))
    assert isinstance(dataset, GroupedFile) and dataset.task == task and dataset.channels == channels
    assert dataset.boundary == Boundary.all(kind, 2) and dataset.header.test_at == "last"
    batch = dataset.read([2, 0, 2], slice(1, 3))
    with h5py.File(tmp_path / name) as file:
        assert np.array_equal(batch.values, np.stack([file[f"{i:04d}/data"][1:3] for i in (2, 0, 2)]))


def test_the_configuration_of_a_group_says_parameters_and_may_vary(tmp_path):
    path = grouped_file(tmp_path / "2D_diff-react_NA_NA.h5")
    dataset = GroupedFile(path)
    assert dataset.header.parameters == {"Du": 1e-3, "Dv": 5e-3, "k": 5e-3}  # not the seed, nor the points
    assert dataset.header.notes["config"]["sim"]["xdim"] == 8
    with h5py.File(path, "a") as file:
        file["0002"].attrs["config"] = "sim: {k: 0.007}"
    varying = GroupedFile(path)
    assert varying.header.parameters["k"] is None
    assert varying.read([2, 1], slice(0, 1)).parameters["k"].tolist() == [0.007, 0.005]
    with h5py.File(path, "a") as file:
        file["0001"].attrs["config"] = "sim: {k: 0.005, Du: 0.5}"
    with pytest.raises(UserError, match=r"Du is 0\.5 in group '0001' and 0\.001 in '0000'"):
        GroupedFile(path).read([1], slice(None))


def test_one_dimensional_grouped_files_never_take_time_for_space(tmp_path):
    path = tmp_path / "1D_diff-sorp_NA_NA.h5"
    with h5py.File(path, "w") as file:
        for seed in range(2):
            file[f"{seed:04d}/data"] = np.ones((5, 4, 1), "f4")
            file[f"{seed:04d}/grid/x"], file[f"{seed:04d}/grid/t"] = centres(4), np.linspace(0, 500, 5).astype("f4")
    dataset = GroupedFile(path)
    assert dataset.task == "diffusion_sorption" and dataset.grid.shape == (4,) and len(dataset.times) == 5
    assert [side.kind for side in dataset.boundary.sides[0]] == ["value", "robin"]
    with h5py.File(path, "a") as file:
        del file["0000/data"]
        file["0000/data"] = np.ones((4, 5, 1), "f4")
    with pytest.raises(UserError, match="'0000/grid/t' has 5 entries, '0000/data' has 4 along t"):
        GroupedFile(path)


def test_published_darcy_targets_are_said_to_be_frames_of_a_transient(tmp_path):
    path = tmp_path / "2D_DarcyFlow_beta0.1_Train.hdf5"
    with h5py.File(path, "w") as file:
        file["tensor"], file["nu"] = np.ones((2, 1, 4, 4), "f4"), np.ones((2, 4, 4), "f4")
        file["x-coordinate"] = file["y-coordinate"] = centres(4)
    assert "not steady" in TensorFile(path).header.notes["target"]


# What is ambiguous, damaged or foreign: one sentence that names file, key and remedy.


def test_a_tensor_with_an_axis_of_devices_is_refused(tmp_path):
    path = tmp_path / "1D_Advection_Sols_beta0.4.hdf5"
    with h5py.File(path, "w") as file:
        file["tensor"] = np.ones((2, 3, 5, 8), "f4")
        file["x-coordinate"], file["t-coordinate"] = centres(8), np.arange(6, dtype="f4")
    with pytest.raises(
        UserError, match=r"beta0\.4\.hdf5: 'tensor'.*\(devices, samples, times, x\), merge the first two"
    ):
        open_dataset(path)
    fluid = cfd_file(tmp_path / "2D_CFD_Rand_M0.1_Eta0.1_Zeta0.1_periodic_Train.hdf5")
    with h5py.File(fluid, "a") as file:
        del file["Vy"]
    with pytest.raises(UserError, match="1 velocity components say"):
        open_dataset(fluid)


def _set(name, values):
    def damage(file):
        if name in file:
            del file[name]
        if values is not None:
            file[name] = values

    return damage


def _nan(name, place):
    def damage(file):
        file[name][place] = np.nan

    return damage


NAMES = {
    cfd_file: "2D_CFD_Rand_M0.1_Eta0.1_Zeta0.1_periodic_128_Train.hdf5",
    grouped_file: "2D_diff-react_NA_NA.h5",
    incompressible_file: "ns_incom_inhom_2d_512-0.h5",
}


@pytest.mark.parametrize(
    ("make", "damage", "message"),
    [
        (cfd_file, _set("Vy", np.ones((3, 4, 6, 5), "f4")), "'Vy' has shape"),
        (cfd_file, _set("pressure", np.ones((3, 4, 6, 6), "i4")), "'pressure' is of type int32"),
        (cfd_file, _set("density", np.ones((3, 4, 6, 6), "f2")), "'density' is of type float16"),
        (cfd_file, _set("y-coordinate", centres(6)[::-1]), "'y-coordinate' must be .* increasing"),
        (cfd_file, _set("y-coordinate", None), "no dataset 'y-coordinate'"),
        (cfd_file, _set("t-coordinate", np.arange(9, dtype="f4")), "'t-coordinate' has 9 entries for 4 frames"),
        (cfd_file, _nan("Vx", (1, 2, 3, 3)), "sample 1 has NaN or infinite values in channel 'Vx'"),
        (grouped_file, _set("0001", None), "the group '0001' is missing between '0000' and '0002'"),
        (grouped_file, _set("extras/data", np.ones(3)), "the group 'extras' is not a trajectory's number"),
        (grouped_file, _set("0001/data", None), "no dataset '0001/data'"),
        (grouped_file, _set("0001/data", np.ones((3, 8, 8, 1), "f4")), r"'0001/data' has shape .* and '0000/data'"),
        (grouped_file, _set("0001/data", np.ones((3, 8, 8, 2), "i8")), "'0001/data' is of type int64"),
        (grouped_file, _set("0001/grid/y", None), "'0001/grid' holds t, x"),
        (grouped_file, _set("0000/grid/z", centres(8)), "'0000/grid' holds t, x, y, z"),
        (grouped_file, _set("0001/grid/t", np.array([0, 2, 1], "f4")), "'0001/grid/t' must be .* increasing"),
        (grouped_file, _set("0001/grid/t", np.array([0, 1, 2], "f4")), "'0001/grid/t' differs from '0000/grid/t'"),
        (grouped_file, _nan("0002/data", (0, 0, 0, 1)), "sample 2 has NaN or infinite values in channel 'v'"),
        (incompressible_file, _set("particles", np.ones((2, 3, 8, 7, 1), "f4")), "'particles' has shape"),
        (incompressible_file, _set("force", None), "no dataset 'force'"),
        (incompressible_file, _set("velocity", np.ones((2, 3, 8, 8, 3), "f4")), "'velocity' has shape"),
        (incompressible_file, _set("t", np.zeros((2, 3), "f4")), "'t' must be finite and increase"),
        (incompressible_file, _set("t", np.array([[0, 1, 2], [0, 1, 3]], "f4")), "the rows of 't' differ"),
        (
            incompressible_file,
            _nan("force", (1, 0, 0, 0)),
            "sample 1 has NaN or infinite values in static field 'force_x'",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path, make, damage, message):
    path = make(tmp_path / NAMES[make])
    with h5py.File(path, "a") as file:
        damage(file)
    with pytest.raises(UserError, match=message) as error:
        dataset = open_dataset(path)
        dataset.read(range(len(dataset)), slice(None))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("make", NAMES)
def test_truncated_files_are_refused(tmp_path, make):
    path = make(tmp_path / NAMES[make])
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UserError, match="truncated"):
        open_dataset(path)


def test_a_damaged_chunk_is_named_when_it_is_read(tmp_path):
    path = incompressible_file(tmp_path / "ns_incom_inhom_2d_512-0.h5", compression="gzip")
    with h5py.File(path) as file:
        chunk = file["velocity"].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\0" * chunk.size)
    with pytest.raises(UserError, match=r"512-0\.h5: '/velocity' cannot be read .* fetch or make it again"):
        open_dataset(path).read([0, 1], slice(None))


def test_a_grouped_file_of_an_unknown_task_asks_for_it(tmp_path):
    with pytest.raises(UserError, match=r"say it \(--task, or task=\)"):
        open_dataset(grouped_file(tmp_path / "mine.h5", end=7.0))
    with pytest.raises(UserError, match=r"holds 2 fields in 2 dimensions, but task 'shallow_water' has 1 in 2"):
        open_dataset(grouped_file(tmp_path / "other.h5"), "shallow_water")
