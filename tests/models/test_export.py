"""A model that is handed over: loaded like a run, and as a program that needs nothing of ours."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small
import torch

import ups
from ups.errors import UserError
from ups.models.export import WEIGHTS, export_model
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator
from ups.training.restore import load_model

RUN = """
import sys, json, numpy, torch
for task in sys.argv[1:]:
    files = {"task.json": ""}
    step = torch.export.load(f"out/{task}.pt2", extra_files=files).module()
    assert json.loads(files["task.json"])["spec"]["name"] == task
    given = {name: torch.from_numpy(array) for name, array in numpy.load(f"{task}.npz").items()}
    fields, numbers = ({name: given[name] for name in names if name in given} for names in (["a"], ["beta"]))
    results = []
    for n in (1, 2, 5):
        conditions = [{name: value[:n] for name, value in part.items()} for part in (fields, numbers)]
        results.append(step(given["u"][:n], *conditions, given["lead"][:n]) if "u" in given else step(*conditions))
    numpy.savez(f"{task}_result.npz", *[result.detach().numpy() for result in results])
assert not any(name.split(".")[0] == "ups" for name in sys.modules)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Propagator, ModelSpec]:
    """Both small tasks, with weights that do something."""
    spec = small.prepared(tmp_path_factory.mktemp("exported"))[0]
    model = spec.build(0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if not parameter.detach().any():
            parameter.data.normal_(std=0.3, generator=generator)
    return model.eval().requires_grad_(False), spec  # as models are loaded: in training nothing is cut off


@pytest.fixture(scope="module")
def simulator(trained) -> Simulator:
    return Simulator(OperatorPredictor(trained[0], trained[1].tasks))


def test_an_exported_model_is_loaded_like_a_run(simulator: Simulator, trained, tmp_path: Path) -> None:
    written = export_model(*trained, tmp_path / "out")
    assert sorted(path.name for path in written) == sorted(path.name for path in (tmp_path / "out").iterdir())
    loaded = ups.load(tmp_path / "out")
    u0 = torch.rand(2, 32, 1)
    ours, theirs = (sim.rollout(u0, steps=5, conditions={"beta": 0.4}) for sim in (simulator, loaded))
    assert torch.equal(ours.values, theirs.values) and theirs.warnings == ours.warnings
    assert all(note.startswith("step ") for note in theirs.warnings)  # random weights leave the range, beta does not
    assert not any(p.requires_grad for p in load_model(tmp_path / "out")[0].parameters())


def test_double_precision_stays_double(trained, tmp_path: Path) -> None:
    model = trained[1].build(3).double()
    export_model(model, trained[1], tmp_path / "out")
    assert {p.dtype for p in load_model(tmp_path / "out")[0].parameters()} == {torch.float64}


def test_a_run_and_its_export_give_the_same(finished_run: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ups", "export", str(finished_run), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "out" / WEIGHTS) in done.stdout
    u0 = np.sin(2 * np.pi * (np.arange(128) + 0.5) / 128)
    ours, theirs = (
        ups.load(path).rollout(u0, steps=3, conditions={"nu": 0.01}) for path in (finished_run, tmp_path / "out")
    )
    assert torch.equal(ours.values, theirs.values)
    assert (tmp_path / "out" / WEIGHTS).stat().st_size < 5e6  # the weights once, without an optimiser's moments


def test_a_program_runs_without_ups_and_gives_the_simulator_s_step(
    simulator: Simulator, trained, tmp_path: Path
) -> None:
    export_model(*trained, tmp_path / "out", ("advection", "darcy"))
    generator = torch.Generator().manual_seed(2)
    u, a = torch.rand(5, 32, 1, generator=generator), 1 + torch.rand(5, 16, 16, generator=generator)
    beta, lead = torch.linspace(0.3, 0.5, 5), torch.full((5,), simulator.tasks["advection"].spec.dt or 0.0)
    np.savez(tmp_path / "advection.npz", u=u[:, None].numpy(), beta=beta.numpy(), lead=lead.numpy())
    np.savez(tmp_path / "darcy.npz", a=a.numpy())
    expected = {
        "advection": simulator.rollout(u, steps=1, conditions={"beta": beta}).values[:, 0],
        "darcy": simulator.rollout(conditions={"a": a}).values[:, 0],
    }
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", RUN, *expected]
    done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for task, values in expected.items():
        with np.load(tmp_path / f"{task}_result.npz") as results:
            for size, name in zip((1, 2, 5), results.files, strict=True):
                assert torch.allclose(torch.from_numpy(results[name]), values[:size], rtol=1e-5, atol=1e-5)
    assert torch.equal(
        ups.load(tmp_path / "out").rollout(u, steps=1, conditions={"beta": beta}).values[:, 0], expected["advection"]
    )


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("fno", {"width": 8, "modes": 4, "depth": 2, "padding": 0.125}),
        ("pdet_stack", {"width": 16, "depth": 2, "heads": 2, "head": 8, "conditions": 8}),
        ("pdet_unet", {"width": 8, "depth": 1, "levels": 2, "window": 8, "head": 8, "conditions": 8}),
    ],
)
def test_other_architectures_have_programs_too(
    simulator: Simulator, tmp_path: Path, architecture: str, settings: dict
) -> None:
    learned = simulator.tasks["advection"]
    learned = replace(learned, spec=replace(learned.spec, history=2))
    spec = ModelSpec(architecture, settings, (learned,))
    model = spec.build(0).requires_grad_(False)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    export_model(model, spec, tmp_path / "out", ("advection",))
    step = torch.export.load(tmp_path / "out" / "advection.pt2").module()
    history, beta = torch.rand(3, 2, 32, 1), torch.full((3,), 0.4)
    expected = (
        Simulator(OperatorPredictor(model, spec.tasks))
        .rollout(history, steps=1, conditions={"beta": beta})
        .values[:, 0]
    )
    assert torch.allclose(step(history, {}, {"beta": beta}, torch.full((3,), learned.spec.dt)), expected, atol=1e-5)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no task 'sound' to make a program of; it has advection, darcy"):
        export_model(*trained, tmp_path / "out", ("sound",))
    with pytest.raises(UserError, match="is in a folder that is not there"):
        export_model(*trained, tmp_path / "nowhere" / "out")
    assert list(tmp_path.iterdir()) == []
    export_model(*trained, tmp_path / "out")
    with pytest.raises(UserError, match="exists; choose another place"):
        export_model(*trained, tmp_path / "out")


def test_folders_beside_the_export_are_left_alone(trained, tmp_path: Path) -> None:
    (tmp_path / "out.tmp").mkdir()
    (tmp_path / "out.tmp" / "mine").write_text("kept")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # a disk with no room for the weights
    try:
        with pytest.raises(OSError):
            export_model(*trained, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["out.tmp"]
    export_model(*trained, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp"]
    assert (tmp_path / "out.tmp" / "mine").read_text() == "kept"
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_damaged_export_is_found(trained, tmp_path: Path) -> None:
    export_model(*trained, tmp_path / "out")
    file = tmp_path / "out" / WEIGHTS
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors has checksum"):
        ups.load(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["content"]["content"]["stage"]["settings"]["architecture"] == "spectral"
