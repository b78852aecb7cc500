"""A step of a model as a program that needs nothing of ours: what it gives is what the simulator gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ups.errors import UserError
from ups.models.export import export_model
from ups.models.programs import OPSET, TASK, write_aoti, write_onnx, write_torch
from ups.models.saved import ModelSpec
from ups.pipeline.export import export
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator

RUN = """
import sys, json, numpy, torch
for task in sys.argv[1:]:
    files = {"task.json": ""}
    step = torch.export.load(f"{task}.pt2", extra_files=files).module()
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
OTHERS = [
    ("fno", {"width": 8, "modes": 4, "depth": 2, "padding": 0.125}),
    ("pdet_stack", {"width": 16, "depth": 2, "heads": 2, "head": 8, "conditions": 8}),
    ("pdet_unet", {"width": 8, "depth": 1, "levels": 2, "window": 8, "head": 8, "conditions": 8}),
]


def close(ours: Tensor | np.ndarray, theirs: Tensor, bar: float) -> bool:
    """Whether the largest difference is below the bar, in units of the largest value."""
    return float((torch.as_tensor(ours) - theirs).abs().max()) <= bar * float(theirs.abs().max())


def of_other(simulator: Simulator, architecture: str, settings: dict) -> tuple:
    """A model of the travelling wave from two frames, and what it makes of a start."""
    learned = simulator.tasks["advection"]
    learned = replace(learned, spec=replace(learned.spec, history=2))
    spec = ModelSpec(architecture, settings, (learned,))
    model = spec.build(0).requires_grad_(False)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    history, beta = torch.rand(3, 2, 32, 1), torch.full((3,), 0.4)
    result = Simulator(OperatorPredictor(model, spec.tasks)).rollout(history, steps=1, conditions={"beta": beta})
    return model, learned, (history, beta, torch.full((3,), learned.spec.dt)), result.values[:, 0]


def test_a_program_runs_without_ups_and_gives_the_simulator_s_step(
    simulator: Simulator, trained, tmp_path: Path
) -> None:
    export_model(*trained, tmp_path / "model")
    for task in simulator.tasks:
        assert export(tmp_path / "model", tmp_path / f"{task}.pt2", task=task) == [tmp_path / f"{task}.pt2"]
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
                assert close(results[name], values[:size], 1e-6)


@pytest.mark.parametrize(("architecture", "settings"), OTHERS)
def test_other_architectures_have_programs_too(
    simulator: Simulator, tmp_path: Path, architecture: str, settings: dict
) -> None:
    model, learned, (history, beta, lead), expected = of_other(simulator, architecture, settings)
    write_torch(model, learned, tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    assert close(step(history, {}, {"beta": beta}, lead), expected, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "settings"), OTHERS)
def test_onnx_has_other_architectures_but_for_complex_numbers(
    simulator: Simulator, tmp_path: Path, architecture: str, settings: dict
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model, learned, (history, beta, lead), expected = of_other(simulator, architecture, settings)
    if architecture == "fno":
        with pytest.raises(
            UserError, match=r"computes aten\.\w+ of complex numbers, which ONNX .opset 20. has no form"
        ):
            write_onnx(model, learned, tmp_path / "step.onnx")
        return
    write_onnx(model, learned, tmp_path / "step.onnx")
    session = runtime.InferenceSession(tmp_path / "step.onnx")
    given = {"history": history.numpy(), "parameters_beta": beta.numpy(), "lead": lead.numpy()}
    assert close(session.run(None, given)[0], expected, 1e-5)


@pytest.mark.slow
def test_onnx_runtime_gives_the_simulator_s_step(simulator: Simulator, trained, tmp_path: Path) -> None:
    """Also over forty steps, fed with its own results, and for any batch."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    u, beta = torch.rand(3, 32, 1), torch.linspace(0.3, 0.5, 3)
    learned = simulator.tasks["advection"]
    write_onnx(trained[0], learned, tmp_path / "step.onnx")
    written = onnx.load(tmp_path / "step.onnx")
    onnx.checker.check_model(written)
    assert [(each.domain, each.version) for each in written.opset_import] == [("", OPSET)]
    assert json.loads({each.key: each.value for each in written.metadata_props}[TASK])["spec"]["name"] == "advection"
    session = runtime.InferenceSession(tmp_path / "step.onnx")
    state, states = u.numpy(), []
    lead = np.full(3, learned.spec.dt, dtype=np.float32)
    for _ in range(40):
        (state,) = session.run(["state"], {"history": state[:, None], "parameters_beta": beta.numpy(), "lead": lead})
        states.append(state)
    expected = simulator.rollout(u, steps=40, conditions={"beta": beta}).values
    assert close(states[0], expected[:, 0], 1e-5)
    assert close(np.stack(states, 1), expected, 1e-5)
    one = session.run(None, {"history": u[:1, None].numpy(), "parameters_beta": beta[:1].numpy(), "lead": lead[:1]})
    assert close(one[0], expected[:1, 0], 1e-5)
    write_onnx(trained[0], simulator.tasks["darcy"], tmp_path / "solve.onnx")
    a = 1 + torch.rand(2, 16, 16)
    (solution,) = runtime.InferenceSession(tmp_path / "solve.onnx").run(None, {"static_a": a.numpy()})
    assert close(solution, simulator.rollout(conditions={"a": a}).values[:, 0], 1e-5)


@pytest.mark.slow
def test_a_compiled_program_gives_the_simulator_s_step(simulator: Simulator, trained, tmp_path: Path) -> None:
    from torch._inductor import aoti_load_package

    write_aoti(trained[0], simulator.tasks["advection"], tmp_path / "step.pt2")
    step = aoti_load_package(str(tmp_path / "step.pt2"))
    u, beta = torch.rand(3, 32, 1), torch.linspace(0.3, 0.5, 3)
    lead = torch.full((3,), simulator.tasks["advection"].spec.dt)
    for n in (1, 3):
        expected = simulator.rollout(u[:n], steps=1, conditions={"beta": beta[:n]}).values[:, 0]
        assert close(step(u[:n, None], {}, {"beta": beta[:n]}, lead[:n]), expected, 1e-5)
    assert json.loads(step.get_metadata()[TASK])["spec"]["name"] == "advection"


def test_what_cannot_be_made_is_said_and_leaves_nothing(trained, tmp_path: Path, monkeypatch) -> None:
    run = tmp_path / "model"
    export_model(*trained, run)
    for out, to, task, says in (
        ("step.pt2", None, "sound", "no task 'sound' to make a program of; it has advection, darcy"),
        ("step.pt2", None, None, "say which with --task: advection, darcy"),
        ("step.zip", None, None, "tells no form of a model; say --to safetensors, --to torch"),
        ("step.pt2", "tensorrt", None, "does not leave as 'tensorrt'"),
        ("step.pt2", "onnx", "darcy", r"ends in \.onnx"),
        ("out", None, "darcy", "leave out --task darcy"),
        ("nowhere/step.pt2", None, "darcy", "is in a folder that is not there"),
        ("model", None, None, "exists; choose another place"),
    ):
        with pytest.raises(UserError, match=says):
            export(run, tmp_path / out, to, task)
    monkeypatch.setattr("ups.models.programs.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs onnx; pip install 'universal-physics-stack\[export\]'"):
        export(run, tmp_path / "step.onnx", task="darcy")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs a C"):
        export(run, tmp_path / "step.pt2", "aoti", "darcy")
    assert list(tmp_path.iterdir()) == [run]
