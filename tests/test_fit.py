"""From an array to a simulator in one call: the five cases of docs/fit.md at toy size, and a run like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ups
from ups.cli.fit import fit as fit_command
from ups.cli.simulate import simulate as simulate_command
from ups.errors import UserError
from ups.fields import Grid
from ups.pipeline import fit
from ups.pipeline.fit import _latent_spacing, _samples
from ups.simulator import Simulator

QUICK = [
    "training.seconds=null",
    "training.steps=4",
    "training.rollout=[[0.0, 1]]",
    "training.sampling.points=64",
    "stages.operator.width=4",
    "stages.operator.depth=1",
    "stages.operator.modes=4",
    "stages.operator.head=4",
    "evaluation.resamples=100",
    "runtime.threads=1",
]
RANDOM = np.random.default_rng(0)
NU = RANDOM.uniform(0.01, 0.05, 12)


def waves(shape: tuple[int, ...], count: int = 12, frames: int = 7) -> np.ndarray:
    """Waves around a box that decay: (B, T, *space)."""
    t = np.arange(frames) * 0.1
    phase = 2 * np.pi * RANDOM.random((count, *(1,) * (1 + len(shape))))
    total: np.ndarray = np.zeros(())
    for axis, n in enumerate(shape):
        along = 2 * np.pi * (np.arange(n) / n).reshape(-1, *(1,) * (len(shape) - axis - 1))
        total = total + np.sin(along + (axis + 1) * phase)
    decay = np.exp(-NU[:count, None] * 20 * t).reshape(count, frames, *(1,) * len(shape))
    return (total * decay).astype(np.float32)


def fitted(data, runs: Path, **told) -> Simulator:
    return ups.fit(data, runs=runs, overrides=[*QUICK, *told.pop("more", [])], **told)


def test_1d_periodic_with_a_parameter_for_each_trajectory(tmp_path, capsys):
    u = waves((16,))
    sim = fitted(u, tmp_path, dt=0.1, lengths=[2.0], boundary="periodic", parameters={"nu": NU}, name="heat")
    words = capsys.readouterr().out
    assert "parameter nu" in words and "report:" in words and sim.run == tmp_path / "heat"
    result = sim.rollout(u[0, 0], steps=3, conditions={"nu": 0.02})
    assert result.values.shape == (3, 16, 1) and not result.warnings
    error = sim.scores["heat"]["rollout"]["nrmse"]
    assert error["model"] > 0 and error["persistence"] > 0 and "persistence" in repr(sim)
    assert "nu from 0.0" in repr(sim) and "<table" in sim._repr_html_()
    # the same call again is the same run, and a command goes on from its directory
    before = (tmp_path / "heat" / "metrics.json").read_bytes()
    fitted(u, tmp_path, dt=0.1, lengths=[2.0], boundary="periodic", parameters={"nu": NU}, name="heat")
    assert (tmp_path / "heat" / "metrics.json").read_bytes() == before
    assert ups.load(tmp_path / "heat").tasks["heat"].grid.lengths == (2.0,)
    with pytest.raises(UserError, match="give another name="):
        later = np.where(np.arange(7)[:, None] < 6, u, u + 1)  # other only in the last frame
        fitted(
            later.astype(np.float32),
            tmp_path,
            dt=0.1,
            lengths=[2.0],
            boundary="periodic",
            parameters={"nu": NU},
            name="heat",
        )
    out, film = tmp_path / "r.nc", tmp_path / "r.gif"
    simulate_command(tmp_path / "heat", tmp_path / "heat/data/test.hdf5", out, steps=2, gif=film)
    assert out.is_file() and film.read_bytes().startswith(b"GIF")


def test_2d_two_channels_with_walls(tmp_path):
    x = (np.arange(8) + 0.5) / 8
    flat = np.cos(np.pi * x)[None, None, :, None] * waves((12,))[:, :, None]
    sim = fitted(np.stack([flat, flat**2], 2), tmp_path, dt=0.1, lengths=[1.0, 1.5], boundary=["flux", "periodic"])
    task = sim.tasks["fit"]
    assert task.spec.channel_names == ("u0", "u1") and task.spec.boundary.kinds == "flux/flux, periodic/periodic"
    start = torch.from_numpy(np.stack([flat[0, 0], flat[0, 0] ** 2], -1))
    assert sim.rollout(start, steps=2).values.shape == (2, 8, 12, 2)


def test_3d_around_a_box(tmp_path):
    u = waves((8, 6, 8), count=6, frames=4)
    sim = fitted(u, tmp_path, dt=0.1)
    assert sim.rollout(u[0, 0], steps=2).plot().figure.axes and sim.tasks["fit"].spec.dimension == 3


def test_xarray_keeps_its_units(tmp_path):
    xarray = pytest.importorskip("xarray")
    u = 290 + waves((16,))
    coordinates = {
        "time": ("time", np.arange(7) * 0.5, {"units": "h"}),
        "x": ("x", np.arange(16) * 2.0, {"units": "m"}),
    }
    data = xarray.DataArray(u, coordinates, ("sample", "time", "x"), "temperature", {"units": "K"})
    sim = fitted(data, tmp_path)
    result = sim.rollout(u[0, 0], steps=2)
    assert result.units == {"temperature": "K", "time": "h", "x": "m"} and "temperature [K]" in repr(result)
    assert result.times.tolist() == [0.5, 1.0] and result.to_xarray()["x"].attrs["units"] == "m"


def test_trajectories_of_several_lengths(tmp_path, capsys):
    u = waves((16,))
    sim = fitted([u[n, : 4 + n % 4] for n in range(12)], tmp_path, dt=0.1)
    assert "pieces of 4 frames" in capsys.readouterr().out
    assert sim.rollout(u[0, 0], steps=2).values.shape == (2, 16, 1)


def test_forcings_a_mask_and_uneven_times_reach_the_model(tmp_path):
    u = waves((8, 12))
    times = np.cumsum(RANDOM.uniform(0.05, 0.1, (12, 7)), 1)
    sea = np.ones((8, 12), bool)
    sea[2:4, 5:9] = False
    wind = np.sin(times)
    told = {"times": times, "forcings": {"wind": wind}, "mask": sea, "lengths": [1.0, 1.5], "boundary": "periodic"}
    with pytest.raises(UserError, match="uneven='resample'"):
        fitted(u, tmp_path, **told)
    sim = fitted(np.where(sea, u, np.nan), tmp_path, uneven="resample", **told)
    spec = sim.tasks["fit"].spec
    assert (spec.forcings, spec.masked) == (("wind",), True) and spec.dt is not None
    steps = (times[:, -1] - times[:, 0]) / 6
    assert steps.min() - 1e-9 <= spec.dt < steps.max()
    result = sim.rollout(u[0, 0], steps=2, mask=sea, forcings={"wind": np.ones((8, 12))})
    assert result.values.shape == (2, 8, 12, 1) and not result.values[:, 2:4, 5:9].any()


def test_runs_without_a_name_do_not_get_in_each_others_way(tmp_path):
    first, second = (fitted(waves((16,), count=5), tmp_path, dt=0.1) for _ in range(2))
    assert [sim.run.name for sim in (first, second) if sim.run] == ["fit", "fit-2"]


def test_of_data_that_are_large_for_the_budget_some_are_taken(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fit, "READ", 1)
    sim = fitted(waves((16,)), tmp_path, dt=0.1)
    assert "10 of the 12 trajectories are taken" in capsys.readouterr().out and sim.run is not None
    parts = [len(ups.open_dataset(sim.run / "data" / f"{part}.hdf5")) for part in ("train", "validation", "test")]
    assert parts == [8, 1, 1]


def test_the_command_takes_a_file_and_says_where_the_run_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("u.npy", waves((16,)).transpose(0, 2, 1))
    np.save("nu.npy", NU)
    fit_command(Path("u.npy"), QUICK, dt=0.1, lengths="0:2", axes="BXT", parameters=["nu=nu.npy"])
    assert "report: runs/u/report.html" in capsys.readouterr().out
    spec = ups.load("runs/u").tasks["u"].spec
    assert (spec.parameters, spec.dimension) == (("nu",), 1) and spec.dt == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("shape", "lengths", "cells"),
    [
        ((256,), (1.0,), None),
        ((48, 80), (1.0, 1.0), (48, 40)),
        ((128, 128), (1.0, 1.0), (32, 32)),
        ((61, 67), (1, 1), None),
    ],
)
def test_latents_are_few_and_divide_the_grid(shape, lengths, cells):
    grid = Grid.nodal(shape, [(0.0, float(length)) for length in lengths])
    spacing = _latent_spacing(grid)
    own = None if spacing is None else tuple(round(spacing / own) for own in grid.spacing)
    assert (None if own is None else tuple(n // cell for n, cell in zip(shape, own, strict=True))) == cells


@pytest.mark.parametrize(("shape", "samples"), [((128,), 16), ((48, 80), 4), ((24, 24, 24), 2)])
def test_a_step_on_a_cpu_takes_few_samples_of_large_grids(shape, samples):
    assert _samples(Grid.cell_centred(shape)) == samples


@pytest.mark.parametrize(
    ("data", "told", "sentence"),
    [
        (waves((16,), count=2), {}, "2 trajectories; give three at least"),
        (np.zeros((0, 7, 16)), {"dt": 0.1}, r"shape \(0, 7, 16\): there is nothing in it"),
        (waves((16,)), {"budget": "soon"}, "budget is 'soon'"),
        (np.where(np.arange(12)[:, None, None] == 4, np.nan, waves((16,))), {"dt": 0.1}, "trajectory 4 has NaN"),
        ("nowhere.npy", {}, "nowhere.npy is not there"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_there_is_a_run(tmp_path, data, told, sentence):
    with pytest.raises(UserError, match=sentence):
        fitted(data, tmp_path, **told)
    assert not list(tmp_path.rglob("config.yaml"))
