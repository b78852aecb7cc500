"""Lightning's Trainer takes our path: the losses of our own, on any number of ranks, and checkpoints that load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import SMALLER

import ups
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.pipeline.config import load_run
from ups.pipeline.data import data_of
from ups.pipeline.trainings import stage_plans
from ups.training.restore import load_model

OVERRIDES = [*SMALLER, "training.steps=20", "training.precision=float64", "training.noise=0.01"]
SCRIPT = """
import sys
import lightning as L
import torch
from lightning.pytorch.strategies import ModelParallelStrategy, SingleDeviceStrategy
from ups.lightning import UPSDataModule, UPSModule

name, ranks, steps, before, device, *overrides = sys.argv[1:]
losses = []

class Keep(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        losses.append(float(trainer.callback_metrics["loss"]))

class Elsewhere(SingleDeviceStrategy):
    def tensor_init_context(self, empty_init=None):
        return torch.device("meta")  # as on a GPU, not where our Trainer makes its models

sharded = ModelParallelStrategy(int(ranks), 1, save_distributed_checkpoint=False) if name == "fsdp2" else None
trainer = L.Trainer(
    max_epochs=-1, max_steps=int(steps), accelerator=device, devices=int(ranks), callbacks=[Keep()], logger=False,
    strategy=sharded or {"ddp": "ddp", "elsewhere": Elsewhere("cpu")}.get(name, "auto"), enable_progress_bar=False,
    num_sanity_val_steps=0,
)
trainer.fit(UPSModule(), UPSDataModule("quickstart", overrides), ckpt_path=before or None)
trainer.save_checkpoint(f"{name}.ckpt")
if trainer.global_rank == 0:
    torch.save({"losses": losses, "steps": trainer.global_step, **trainer.callback_metrics}, f"{name}.pt")
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> tuple[Path, list[float], dict[str, torch.Tensor]]:
    """Twenty steps of our own Trainer: where the data are, losses, averaged weights."""
    return by_our_trainer(tmp_path_factory.mktemp("native"), "cpu")


def by_our_trainer(folder: Path, device: str) -> tuple[Path, list[float], dict[str, torch.Tensor]]:
    config = load_run("quickstart", [*OVERRIDES, f"runtime.device={device}"], folder / "runs")
    directory = folder / "runs" / config.name
    directory.mkdir(parents=True)
    with Runtime.start(config.runtime, config.seed) as runtime:
        tasks, _ = data_of(runtime, config, directory)
        plan = stage_plans(config, tasks, directory)["operator"]
        plan.directory.mkdir(parents=True)
        trainer = plan.trainer(runtime)
        losses = []
        for _ in range(20):
            sums, _ = trainer.step()
            losses.append(float(torch.stack([sums[name] for name in tasks]).mean()))
        trainer.events.close()
    return folder, losses, {name: average.cpu() for name, average in trainer.ema.averages.items()}


def by_lightning(folder: Path, name: str, ranks: int, steps: int = 20, before: str = "", device: str = "cpu") -> dict:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", name, str(ranks), str(steps), before, device, *OVERRIDES]
    command += [f"runtime.device={device}"]
    outside = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(folder / f"{name}.pt")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), [("one", 1), ("elsewhere", 1), ("ddp", 2), ("fsdp2", 2)])
def test_lightning_takes_the_path_of_our_trainer(native, name: str, ranks: int) -> None:
    pytest.importorskip("lightning")
    folder, losses, averages = native
    check(by_lightning(folder, name, ranks), folder / f"{name}.ckpt", losses, averages)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("name", ["one", "ddp", "fsdp2"])
def test_lightning_takes_the_path_of_our_trainer_on_a_gpu(tmp_path: Path, name: str) -> None:
    pytest.importorskip("lightning")
    folder, losses, averages = by_our_trainer(tmp_path, "cuda")
    check(by_lightning(folder, name, 1, device="cuda"), folder / f"{name}.ckpt", losses, averages)


def check(found: dict, saved: Path, losses: list[float], averages: dict[str, torch.Tensor]) -> None:
    assert found["steps"] == 20 and 0 < found["score"] < 2
    assert torch.allclose(torch.tensor(found["losses"]), torch.tensor(losses), rtol=1e-6, atol=0)
    simulator = ups.load(saved)
    assert simulator.rollout(torch.rand(128), steps=2, task="burgers", conditions={"nu": 0.01}).values.shape[0] == 2
    loaded = dict(load_model(saved)[0].named_parameters())
    assert loaded.keys() == averages.keys()
    assert all(torch.allclose(loaded[key], averages[key], rtol=1e-6, atol=1e-9) for key in averages)


@pytest.mark.slow
def test_a_resumed_training_goes_on_where_it_was(native) -> None:
    pytest.importorskip("lightning")
    folder, losses, averages = native
    by_lightning(folder, "half", 1, steps=10)
    found = by_lightning(folder, "rest", 1, steps=20, before="half.ckpt")
    assert torch.allclose(torch.tensor(found["losses"]), torch.tensor(losses[10:]), rtol=1e-6, atol=0)
    loaded = dict(load_model(folder / "rest.ckpt")[0].named_parameters())
    assert all(torch.allclose(loaded[key], averages[key], rtol=1e-6, atol=1e-9) for key in averages)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "epoch": 1}, tmp_path / "other.ckpt")
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    for name in ("other.ckpt", "text.ckpt", "nowhere.ckpt"):
        with pytest.raises(UserError, match=rf"{name} is no checkpoint of a UPSModule in one file"):
            ups.load(tmp_path / name)
