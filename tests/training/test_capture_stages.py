"""Steps of codec, corrector, distilled, steady and cached stages replayed as CUDA graphs: eager steps, to the bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small import SETTINGS, prepared, whole
from torch import Tensor

from ups.config.settings import Strict
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.track.jsonl import read_events
from ups.training.capture import CapturedStep
from ups.training.fit import Plan, fit
from ups.training.kinds import STAGES
from ups.training.settings import TrainingConfig
from ups.training.trainer import Trainer

SIZES = {"width": 8, "depth": 1, "modes": 4, "conditions": 8}
STEPS = 8
CHAINS: dict[str, dict[str, tuple[list[str], dict[str, Any]]]] = {
    "advection": {
        "operator": ([], {"architecture": "spectral", **SETTINGS}),
        "codec": ([], SIZES),
        "corrector": (["operator", "codec"], {**SIZES, "horizon": 3, "steps": 1}),
        "distilled": (["corrector"], {"teacher_steps": 2}),
        "cached": (["codec"], {"architecture": "spectral", **SETTINGS}),
    },
    "darcy": {
        "operator": ([], {"architecture": "spectral", **SETTINGS}),
        "codec": ([], {**SIZES, "cell": 4}),
        "steady": (["operator", "codec"], {**SIZES, "steps": 1}),
    },
}
STAGES_OF = [(system, name) for system, chain in CHAINS.items() for name in list(chain)[1:]]


def plan_of(folder: Path, system: str, name: str, directory: Path | None = None) -> Plan:
    """Of a stage that stands on those of the folder."""
    on, given = CHAINS[system][name]
    settings: Strict = STAGES[name].settings(given).model_validate(given)
    training = TrainingConfig(steps=STEPS, batch_size=5, noise=0.01, warmup=2, ema=0.9, validate_every=STEPS)
    place, tasks = folder / system, {system: prepared(folder / "data")[1][system]}
    directory = directory or place / name
    directory.mkdir(parents=True, exist_ok=True)
    return Plan(name, name, name, settings, tasks, {system: 1.0}, training, 0, directory, tuple(on), parents=place)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage that others stand on."""
    folder = tmp_path_factory.mktemp("stages")
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as runtime:
        for system, chain in CHAINS.items():
            for name in chain:
                if any(name in on for on, _ in chain.values()):
                    fit(runtime, plan_of(folder, system, name))
    return folder


def stepped(trained: Path, run: Path, system: str, name: str, **runtime: Any) -> tuple[Trainer, dict[str, Tensor]]:
    """All steps of a stage with deterministic kernels, and every tensor of its state after them."""
    settings = RuntimeConfig(threads=1, deterministic=True, **runtime)
    with Runtime.start(settings, 0, run) as rt:
        trainer = plan_of(trained, system, name, run).trainer(rt)
        trainer.fit()
        trainer.events.close()
        return trainer, {key: whole(tensor).cpu() for key, tensor in trainer._tensors().items()}


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in read_events(run / "events.jsonl") if event["kind"] == "step"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
@pytest.mark.parametrize(("system", "name"), STAGES_OF)
def test_captured_steps_of_every_stage_are_its_eager_steps(
    trained: Path, tmp_path: Path, system: str, name: str
) -> None:
    trainer, captured = stepped(trained, tmp_path / "on", system, name, device="cuda", capture="on")
    _, eager = stepped(trained, tmp_path / "off", system, name, device="cuda", capture="off")
    assert isinstance(trainer.stepper, CapturedStep) and trainer.stepper.replayed
    assert captured.keys() == eager.keys()
    assert [key for key in captured if not torch.equal(captured[key], eager[key])] == []
    assert losses(tmp_path / "on") == losses(tmp_path / "off") and math.isfinite(losses(tmp_path / "on")[-1])


@pytest.mark.parametrize(("system", "name"), STAGES_OF)
def test_eager_steps_of_every_stage_move_its_weights_alike_twice(
    trained: Path, tmp_path: Path, system: str, name: str
) -> None:
    """What a GPU is asked above, without one."""
    (trainer, one), (_, again) = (
        stepped(trained, tmp_path / place, system, name, device="cpu", capture="auto") for place in ("one", "again")
    )
    assert trainer.state.step == STEPS and not isinstance(trainer.stepper, CapturedStep)
    assert [key for key in one if not torch.equal(one[key], again[key])] == []
    assert losses(tmp_path / "one") == losses(tmp_path / "again") and math.isfinite(losses(tmp_path / "one")[-1])
