"""Training inside Lightning, for those whose workflow is its `Trainer`: the same stages, samples and losses.

    data = UPSDataModule("quickstart", ["training.steps=2000"])
    lightning.Trainer(max_epochs=-1, accelerator="cpu").fit(UPSModule(), data)
    sim = ups.load("lightning_logs/version_0/checkpoints/epoch=0-step=2000.ckpt")

Adapters and no more: what `ups train` does about crashes, hangs, memory that runs out and CUDA graphs is not here.
Strategies are `ddp` and `ModelParallelStrategy` (FSDP2); a batch is global, so any number of ranks takes one path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

try:
    from lightning.pytorch import LightningDataModule, LightningModule  # pyright: ignore[reportMissingImports]
    from lightning.pytorch.strategies import ModelParallelStrategy  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("ups.lightning needs lightning; pip install 'universal-physics-stack[lightning]'") from error

from torch.utils.data import DataLoader, IterableDataset

from ups.data.sampler import check_ranks
from ups.distributed.faults.heartbeat import Heartbeat
from ups.distributed.parallel import parallelise, reduce_gradients
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Ranks, Runtime, device_mesh
from ups.errors import UserError
from ups.pipeline.config import load_run
from ups.pipeline.data import data_of
from ups.pipeline.trainings import stage_plans
from ups.training.ema import EMA
from ups.training.optimisers import build_optimiser, learning_rate
from ups.training.restore import LIGHTNING
from ups.training.step import MicroBatch, Step
from ups.training.trainer import sampler_of
from ups.training.validation import validate
from ups.training.warm_start import warm_start


class UPSDataModule(LightningDataModule):
    """The data of a configuration: made or opened, checked, measured and stored as by `ups train`, in `runs`/NAME.

    `config` and `overrides` are those of the command line. A batch is this rank's part of a step, micro-batch by
    micro-batch.
    """

    def __init__(self, config: str | Path, overrides: Sequence[str] = (), runs: str | Path = "runs") -> None:
        super().__init__()
        self.runs = Path(runs)
        self.config = load_run(str(config), overrides, self.runs)

    def prepare_data(self) -> None:
        self._open()

    def setup(self, stage: str) -> None:
        self.tasks = self._open()

    def _open(self) -> Any:
        directory = self.runs / self.config.name
        directory.mkdir(parents=True, exist_ok=True)
        return data_of(_runtime(self.config.runtime, Ranks(), torch.device("cpu")), self.config, directory)[0]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(_Steps(self.trainer.lightning_module), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        """A single batch: the module knows the validation trajectories."""
        return DataLoader([0], batch_size=None)  # pyright: ignore[reportArgumentType]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # a step moves what it computes


class UPSModule(LightningModule):
    """One stage of the data's configuration, the first unless named. It logs `loss`, each task's and their parts, and
    at validation `score` (error of the averaged weights over the trivial error), by which checkpoints can be chosen.
    """

    def __init__(self, stage: str | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.stage_name, self.model, self.at = stage, None, 0

    def configure_model(self) -> None:
        if self.model is not None:
            return
        data, trainer = self.trainer.datamodule, self.trainer
        if not isinstance(data, UPSDataModule):
            raise UserError("a UPSModule is trained on a UPSDataModule; pass one to Trainer.fit(module, data)")
        if trainer.precision != "32-true":
            raise UserError(f"leave out precision={trainer.precision!r} of the Trainer; training.precision says it")
        config, sharded = data.config, isinstance(trainer.strategy, ModelParallelStrategy)
        plans = stage_plans(config, data.tasks, data.runs / config.name)
        name = self.stage_name or next(iter(plans))
        if name not in plans:
            raise UserError(f"the configuration has no stage {name!r}; it has {', '.join(plans)}")
        plan = plans[name]
        if plan.on or plan.training.seconds is not None:
            why = f"stands on {plan.on[0]}" if plan.on else "is given seconds; give training.steps"
            raise UserError(f"stage {name} {why}: `ups train` trains such a one")
        runtime = config.runtime.model_copy(update={"strategy": "fsdp2" if sharded else "ddp"})
        ranks = Ranks(trainer.global_rank, trainer.world_size, trainer.local_rank, trainer.num_devices)
        device = trainer.strategy.root_device
        mesh = device_mesh(runtime, ranks, device)
        self.runtime = _runtime(runtime, ranks, device, mesh)
        self.training_config, self.seed = plan.training, plan.seed
        self.dtype_of_fields = torch.float64 if plan.training.precision == "float64" else torch.float32
        with torch.device("cpu"):  # Lightning would have it made where it trains, by that device's random numbers
            self.stage, self.tasks, self.description = plan.build(self.runtime)
        self.model = self.stage.trainable()
        if plan.start is not None:
            warm_start(self.model, plan.start, plan.like)
        if self.dtype_of_fields == torch.float64:
            self.model.double()
        lengths = {name: (task.store.trajectories, task.store.frames) for name, task in self.tasks.items()}
        shares = {name: task.share for name, task in self.tasks.items()}
        learned = {name: task.learned for name, task in self.tasks.items()}
        self.sampler = sampler_of(learned, lengths, shares, plan.training, plan.seed)
        check_ranks(self.sampler.batch_size, ranks.size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """After the model was moved to its device; sharding, too, comes before."""
        training, model = self.training_config, self.stage.trainable()
        optimiser = parallelise(
            model, self.runtime, training.precision, lambda module: build_optimiser(module, training)
        )
        self.ema = EMA(model, training.ema)
        self.stepper = Step(self.stage, optimiser, self.ema, training.clip, self.seed)
        return optimiser

    def micro_batches(self, step: int) -> Iterator[MicroBatch]:
        """This rank's part of a step."""
        told = self.runtime.config.micro_batch
        for part in self.sampler.indices(step, *self.stage.window(step)):
            for micro in part.padded(self.runtime.rank, self.runtime.size).micro_batches(told):
                samples = self.tasks[micro.task].store.gather(micro).to("cpu", self.dtype_of_fields)
                weights = (micro.weights / len(part)).to(self.dtype_of_fields)
                yield MicroBatch(samples, weights, micro.slots, torch.tensor(step))

    def training_step(self, batch: list[MicroBatch], batch_idx: int) -> None:
        self.stepper.optimiser = _Counted(self.optimizers())  # pyright: ignore[reportAttributeAccessIssue]
        sums = self.stepper.gradients(batch, self.runtime)
        reduce_gradients(self.stepper.of_tasks, self.runtime)
        self.stepper.update(self.at, learning_rate(self.training_config, self.at))
        self.at += 1
        whole = dict(zip(sums, self.runtime.sum(torch.stack(list(sums.values()))), strict=True))
        self.log("loss", torch.stack([whole[task] for task in self.tasks]).mean(), prog_bar=True, batch_size=1)
        self.log_dict(whole, batch_size=1)
        if self.at == self.training_config.steps:
            self.trainer.should_stop = True

    def validation_step(self, batch: int, batch_idx: int) -> None:
        with self.ema.applied():
            found = validate(self.stage, self.tasks, self.runtime, self.seed, self.dtype_of_fields)
        self.log("score", found.score, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What `ups.load` needs: the averaged weights, and from what the model is built anew."""
        averages = {name: _whole(average).cpu() for name, average in self.ema.averages.items()}
        checkpoint[LIGHTNING] = {"step": self.at, "content": json.dumps(self.description), "averages": averages}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.at, self.resumed = checkpoint[LIGHTNING]["step"], checkpoint[LIGHTNING]["averages"]

    def on_train_start(self) -> None:
        if (resumed := self.__dict__.pop("resumed", None)) is not None:
            for name, average in self.ema.averages.items():
                _fill(average, resumed[name])


class _Steps(IterableDataset):
    """From the step where the module stands to the last one."""

    def __init__(self, module: UPSModule) -> None:
        self.module = module

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        for step in range(self.module.at, self.module.training_config.steps):
            yield list(self.module.micro_batches(step))


class _Counted:
    """The optimiser as a step uses it, whose steps Lightning counts."""

    def __init__(self, optimiser: Any) -> None:
        self.__dict__["wrapped"] = optimiser

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.wrapped.optimizer, name, value)


def _runtime(config: RuntimeConfig, ranks: Ranks, device: torch.device, mesh: Any = None) -> Runtime:
    """The ranks that Lightning has started."""
    return Runtime(config, ranks, device, torch.get_num_threads(), Heartbeat(None, ranks.rank, 0), mesh=mesh)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _fill(tensor: Tensor, value: Tensor) -> None:
    if isinstance(tensor, DTensor):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
    with torch.no_grad():
        tensor.copy_(value)
