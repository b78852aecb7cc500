"""Codec, corrector, distillation and steady stage take the same path on one rank or two, whatever the strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small import SETTINGS, prepared

from ups.config.settings import Strict
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.training.fit import Plan, fit
from ups.training.kinds import STAGES
from ups.training.restore import averaged_weights
from ups.training.settings import TrainingConfig

pytestmark = pytest.mark.parity

SIZES = {"width": 8, "depth": 1, "modes": 4, "conditions": 8}
CHAIN: dict[str, tuple[list[str], dict[str, Any]]] = {
    "operator": ([], {"architecture": "spectral", **SETTINGS}),
    "codec": ([], SIZES),
    "corrector": (["operator", "codec"], {**SIZES, "horizon": 3, "steps": 1}),
    "distilled": (["corrector"], {"teacher_steps": 2}),
}
STEADY: dict[str, tuple[list[str], dict[str, Any]]] = {
    "operator": ([], {"architecture": "spectral", **SETTINGS}),
    "codec": ([], {**SIZES, "cell": 4}),
    "steady": (["operator", "codec"], {**SIZES, "steps": 1}),
}
CHAINS = {"advection": CHAIN, "darcy": STEADY}


def train_chain(data: Path, run: Path, settings: dict[str, Any], system: str) -> dict[str, torch.Tensor]:
    """Six steps of each stage on the stages before it; all weights."""
    with Runtime.start(RuntimeConfig(device="cpu", threads=1, **settings), 0) as runtime:
        task = prepared(data)[1][system]
        training = TrainingConfig(
            steps=6, batch_size=5, noise=0.01, warmup=2, ema=0.9, validate_every=6, precision="float64"
        )
        for name, (on, given) in CHAINS[system].items():
            chosen: Strict = STAGES[name].settings(given).model_validate(given)
            shares = {system: 1.0}
            fit(runtime, Plan(name, name, name, chosen, {system: task}, shares, training, 0, run / name, tuple(on)))
    weights = {name: averaged_weights(run / name)[0] for name in CHAINS[system]}
    return {f"{name}.{key}": tensor for name, own in weights.items() for key, tensor in own.items()}


@pytest.mark.parametrize(
    ("settings", "system"),
    [
        pytest.param({}, "advection", marks=pytest.mark.smoke),
        ({"micro_batch": 2}, "advection"),
        ({"strategy": "fsdp2"}, "advection"),
        ({"micro_batch": 2}, "darcy"),
        ({"strategy": "fsdp2"}, "darcy"),
    ],
    ids=["ddp", "pieces", "fsdp2", "steady pieces", "steady fsdp2"],
)
def test_every_stage_takes_the_same_path_on_two_ranks(tmp_path: Path, settings: dict[str, Any], system: str) -> None:
    data = tmp_path / "data"
    prepared(data)
    (alone,) = run_ranks(1, train_chain, data, tmp_path / "alone", {}, system)
    ranks = run_ranks(2, train_chain, data, tmp_path / "ranks", settings, system)
    for found in ranks:
        assert alone.keys() == found.keys()
        for name, tensor in alone.items():
            far = (tensor - found[name]).abs().max() / tensor.abs().max().clamp_min(1e-300)
            assert float(far) <= 1e-10, name
    last = list(CHAINS[system])[-1]
    assert any(name.startswith(f"{last}.") and tensor.any() for name, tensor in alone.items())
