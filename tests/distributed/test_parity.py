"""The same numbers on one rank or many, whatever the strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
import small
import torch
from ranks import run_ranks
from small import prepared, train_small

from ups.models.saved import ModelSpec

pytestmark = pytest.mark.parity

LAYOUTS = [
    ("ddp", 2, {}),
    pytest.param("ddp", 3, {}, marks=pytest.mark.smoke),
    ("ddp", 4, {}),
    pytest.param("fsdp2", 2, {}, marks=pytest.mark.smoke),
    ("fsdp2", 4, {}),
    pytest.param("hsdp", 4, {"shard": 2}, marks=pytest.mark.smoke),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    prepared(folder)
    return folder


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """One process with the global batch: what every other way to compute is compared with."""
    run = tmp_path_factory.mktemp("alone")
    return {
        "sgd": train_small(data, run, sgd=True),
        "adamw": train_small(data, run),
        "muon": train_small(data, run, optimiser="muon"),
        "float32": train_small(data, run, precision="float32"),
    }


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], kinds: tuple[str, ...]) -> float:
    """The largest difference, relative to the largest number of the same tensor."""
    assert one.keys() == other.keys()
    named = [name for name in one if name.startswith(kinds)]
    return max(
        float((one[n] - other[n]).abs().max() / one[n].abs().max().clamp_min(1e-300)) for n in named if one[n].any()
    )


@pytest.mark.parametrize(("strategy", "ranks", "more"), LAYOUTS)
def test_many_ranks_take_the_same_path_as_one(
    data: Path, alone: dict, tmp_path: Path, strategy: str, ranks: int, more: dict
) -> None:
    """Parameters and averages after 20 steps with clipping, averaging, two heads and uneven parts; float32 losses."""
    settings = {"strategy": strategy, **more}
    for kind, bound in (("sgd", 1e-12), ("adamw", 1e-10)):
        results = run_ranks(ranks, train_small, data, tmp_path / kind, 20, kind == "sgd", settings)
        for _, tensors in results:
            assert distance(alone[kind][1], tensors, ("model.", "ema.")) <= bound
    losses = run_ranks(ranks, _train_float32, data, tmp_path / "float32", settings)[0]
    assert losses == pytest.approx(alone["float32"][0], rel=1e-6)


def _train_float32(data: Path, run: Path, settings: dict) -> list[float]:
    return train_small(data, run, runtime=settings, precision="float32")[0]


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("fsdp2", 2)])
def test_accumulation_and_recomputation_change_nothing(
    data: Path, alone: dict, tmp_path: Path, strategy: str, ranks: int
) -> None:
    settings = {"strategy": strategy, "micro_batch": 1, "checkpoint_activations": True}
    for _, tensors in run_ranks(ranks, train_small, data, tmp_path, 20, False, settings):
        assert distance(alone["adamw"][1], tensors, ("model.", "ema.")) <= 1e-10


@pytest.mark.parametrize(
    ("strategy", "ranks", "more"),
    [
        ("ddp", 2, {}),
        pytest.param("fsdp2", 2, {}, marks=pytest.mark.smoke),
        ("fsdp2", 3, {}),  # no axis divides evenly: the last rank holds less of a matrix, or nothing
        ("hsdp", 4, {"shard": 2}),
    ],
)
def test_matrices_are_orthogonalised_whole_on_any_ranks(
    data: Path, alone: dict, tmp_path: Path, strategy: str, ranks: int, more: dict
) -> None:
    for tensors in run_ranks(ranks, _train_muon, data, tmp_path, {"strategy": strategy, **more}):
        assert distance(alone["muon"][1], tensors, ("model.", "ema.", "optimiser.")) <= 1e-10


def _train_muon(data: Path, run: Path, settings: dict) -> dict[str, torch.Tensor]:
    return train_small(data, run, runtime=settings, optimiser="muon")[1]


STACK = ("pdet_stack", {"width": 16, "depth": 2, "heads": 2, "head": 8, "conditions": 8})
UNET = ("pdet_unet", {"width": 8, "depth": 1, "levels": 2, "window": 9, "heads": 2, "head": 8, "conditions": 8})
SEPARATE = ("pdet_unet", UNET[1] | {"channels": "separate"})
RECOMPUTED = {"micro_batch": 1, "checkpoint_activations": True}


@pytest.mark.parametrize(
    ("model", "strategy", "more"),
    [
        (STACK, "ddp", {}),
        (STACK, "fsdp2", {}),
        (UNET, "ddp", {}),
        (UNET, "fsdp2", RECOMPUTED),
        pytest.param(SEPARATE, "fsdp2", {}, marks=pytest.mark.slow),
    ],
    ids=["stack", "sharded stack", "unet", "sharded and recomputed unet", "sharded unet of separate channels"],
)
def test_a_transformer_takes_the_same_path_on_two_ranks(
    data: Path, tmp_path: Path, model: tuple[str, dict], strategy: str, more: dict
) -> None:
    alone = _train_other(data, tmp_path / "alone", model, {})
    for tensors in run_ranks(2, _train_other, data, tmp_path / "ranks", model, {"strategy": strategy, **more}):
        assert distance(alone, tensors, ("model.", "ema.")) <= 1e-10


def _train_other(data: Path, run: Path, model: tuple[str, dict], settings: dict) -> dict[str, torch.Tensor]:
    """The state after 20 steps of another architecture on the same data."""
    spec, stores = prepared(data)
    described = ModelSpec(*model, spec.tasks)
    small.prepared = lambda folder: (described, stores)
    try:
        return train_small(data, run, runtime=settings)[1]
    finally:
        small.prepared = prepared
