"""The Well's own package as referee: it opens what we write, we open what it writes, and the numbers are the same.

Its pinned requirements clash with others', so it lives in an environment of its own, named by UPS_WELL_PYTHON:

    python -m venv well && well/bin/pip install the_well
    UPS_WELL_PYTHON=well/bin/python pytest tests/data/test_well_referee.py
"""

import json
import os
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from layout_cases import batch_of, header_of, sides

from ups.data.formats.well.reader import WellFile
from ups.data.formats.well.writer import WellWriter
from ups.data.prepare.moments import well_stats, write_statistics
from ups.fields import Boundary, Grid, Side

PYTHON = os.environ.get("UPS_WELL_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="UPS_WELL_PYTHON does not name an interpreter that has the_well installed"
)

CASES = {
    "1d": header_of((8,), 4, ("u",), parameters={"nu": 0.1}),
    "1d-walls": header_of((8,), 4, ("u", "v"), boundary=sides((Side("value", (1.0, 2.0)), "robin"))),
    "2d-vector": header_of(
        (6, 5), 4, ("velocity_x", "density", "velocity_y"), boundary=sides(("periodic",), ("reflecting", "open"))
    ),
    "2d-constant": header_of((6, 5), 4, ("u",), static=("a", "b"), masked=True, parameters={"nu": None, "beta": 2.0}),
    "2d-forced": header_of(
        (6, 5), 4, ("u", "Vx", "Vy"), forcings={"f": True, "g": False}, boundary=sides(("open",), ("flux",))
    ),
    "3d": header_of(
        (4, 3, 5),
        3,
        ("density", "Vx", "Vy", "Vz"),
        grid=Grid.nodal((4, 3, 5)),
        dtype=torch.float64,
        boundary=Boundary.all("periodic", 3),
    ),
}
CODES = {"periodic": 2.0, "open": 1.0}


def asked(*words) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [PYTHON, str(Path(__file__).with_name("well_referee.py")), *map(str, words)], check=True, env=environment
    )


def made(tmp_path: Path, header, count: int = 10) -> tuple[Path, WellFile]:
    """A folder of The Well's, files by split and statistics beside them, and its training part."""
    folder, whole, tenth = tmp_path / header.task, batch_of(header, count), count // 10
    rows = {"train": range(count - 2 * tenth), "valid": range(count - 2 * tenth, count - tenth)}
    for split, part in {**rows, "test": range(count - tenth, count)}.items():
        path = folder / "data" / split / f"{header.task}.hdf5"
        path.parent.mkdir(parents=True)
        with WellWriter(path, header, len(part)) as writer:
            writer.write(whole.select(part))
    train = WellFile(folder / "data" / "train" / f"{header.task}.hdf5")
    write_statistics(well_stats(header, numbers(train)), folder / "stats.yaml")
    return folder, train


def numbers(dataset) -> dict[str, dict[str, float]]:
    """Statistics by their definition, all data at once."""
    batch = dataset.read(range(len(dataset)), slice(None))
    fields = {name: batch.values[..., i] for i, name in enumerate(dataset.channels)}
    fields |= {name: batch.forcings[name] for name, varies in dataset.header.forcings.items() if varies}
    fixed = {**batch.static, **{n: batch.forcings[n] for n, varies in dataset.header.forcings.items() if not varies}}
    fixed |= {"mask": batch.mask.float()} if batch.mask is not None else {}
    content = {}
    for end, views in (("", {**fields, **fixed}), ("_delta", {n: f.diff(dim=1) for n, f in fields.items()})):
        content[f"mean{end}"] = {n: float(f.double().mean()) for n, f in views.items()}
        content[f"std{end}"] = {n: float(f.double().std(correction=0)) for n, f in views.items()}
        content[f"rms{end}"] = {n: float(f.double().square().mean().sqrt()) for n, f in views.items()}
    return content


@pytest.mark.parametrize("case", CASES)
def test_its_dataset_gives_the_numbers_we_wrote(tmp_path, case):
    header = CASES[case]
    folder, train = made(tmp_path, header)
    asked("open", folder, tmp_path / "out.npz")
    said = json.loads((tmp_path / "out.npz.json").read_text())
    theirs = np.load(tmp_path / "out.npz")
    ours = train.read(range(len(train)), slice(None))

    moving = dict(zip(header.channels, ours.values.unbind(-1), strict=True)) | dict(ours.forcings)
    moving |= {f"V_{axis}": moving[f"V{axis}"] for axis in "xyz" if f"V{axis}" in moving}
    fields = np.concatenate([theirs["input_fields"], theirs["output_fields"]], axis=1)
    names = [name for order in "012" for name in said["field_names"][order]]
    assert fields.shape[-1] == len(names) == len(header.channels) + sum(header.forcings.values())
    for number, name in enumerate(names):
        assert np.array_equal(fields[..., number], moving[name]), name

    fixed = {**ours.static, **ours.forcings} | ({"mask": ours.mask} if ours.mask is not None else {})
    for number, name in enumerate(said["constant_field_names"]["0"]):
        assert np.array_equal(theirs["constant_fields"][..., number], fixed[name]), name
    for number, name in enumerate(said["constant_scalar_names"]):
        assert np.array_equal(theirs["constant_scalars"][..., number], ours.parameters[name]), name

    grid = np.stack(np.meshgrid(*header.grid.positions, indexing="ij"), -1)
    assert np.allclose(theirs["space_grid"][0], grid, rtol=0, atol=1e-7)  # stored in float32
    times = np.concatenate([theirs["input_time_grid"], theirs["output_time_grid"]], axis=1)
    assert np.allclose(times, header.times, rtol=0, atol=1e-7)
    kinds = [[CODES.get(side.kind, 0.0) for side in pair] for pair in header.boundary.sides]
    assert theirs["boundary_conditions"][0].tolist() == kinds


def test_its_normalisation_takes_our_statistics(tmp_path):
    header = CASES["2d-forced"]
    folder, _ = made(tmp_path, header, count=40)
    asked("normalise", folder, tmp_path / "out.npz")
    theirs = np.load(tmp_path / "out.npz")
    fields = np.concatenate([theirs["input_fields"], theirs["output_fields"]], axis=1)
    assert np.abs(fields.mean((0, 1, 2, 3))).max() < 1e-5
    assert np.abs(fields.std((0, 1, 2, 3)) - 1).max() < 1e-5


def test_we_open_its_example(tmp_path):
    folder = tmp_path / "dummy" / "data" / "train"
    folder.mkdir(parents=True)
    asked("dummy", folder / "dummy.hdf5")
    asked("open", tmp_path / "dummy", tmp_path / "out.npz")
    theirs = np.load(tmp_path / "out.npz")
    dataset = WellFile(folder / "dummy.hdf5")
    ours = dataset.read(range(len(dataset)), slice(None))
    fields = np.concatenate([theirs["input_fields"], theirs["output_fields"]], axis=1)
    assert dataset.channels == ("field_x", "field_y") and np.array_equal(fields, ours.values)
    assert np.array_equal(theirs["constant_fields"][..., 0], ours.static["constant_field"])
    scalars = np.concatenate([theirs["input_scalars"], theirs["output_scalars"]], axis=1)
    assert np.array_equal(scalars[..., 0], ours.forcings["time_varying_scalar"][:, :, 0, 0])
    assert theirs["constant_scalars"][0].tolist() == [float(ours.parameters[name][0]) for name in ("a", "b")]
    assert np.allclose(theirs["space_grid"][0], ours.grid.points().reshape(32, 32, 2), rtol=0, atol=1e-6)
    # Its periodic masks are empty, by a slip; bc_type says periodic, and so do we.
    with h5py.File(folder / "dummy.hdf5") as file:
        assert not file["boundary_conditions/x_periodic/mask"][()].any()
    assert dataset.boundary == Boundary.all("periodic", 2)
