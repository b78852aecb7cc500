"""The one training loop.

Batches are a pure function of (seed, step) and there is no other randomness, so a run that stops and resumes takes the
same path, to the last bit, as one that never stopped. The best weights are those of the lowest validation rollout
error; the test split is not known here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ups.config.schema import TrainingConfig
from ups.data.sampler import Sampler, TaskShare, noise
from ups.distributed.optimiser_state import optimiser_tensors, refuse_gradients
from ups.distributed.runtime import Runtime
from ups.distributed.saver import Checkpoints
from ups.errors import UserError
from ups.fields import Batch
from ups.models.propagator import Propagator
from ups.store.fields import FieldStore
from ups.track.jsonl import Events
from ups.training.ema import EMA
from ups.training.losses import LossParts
from ups.training.optim import build_optimiser, learning_rate, rollout_length
from ups.training.stages.operator import OperatorStage
from ups.training.step import Step

PATIENCE = 20
"""So many steps in a row without a finite gradient end a run."""


@dataclass
class State:
    """Where the training stands; all of it is in every checkpoint."""

    step: int = 0
    seconds: float = 0.0
    best: float = math.inf
    best_step: int = -1
    skipped: int = 0


class Trainer:
    """`Trainer(...).fit()` trains to the last step, or resumes and goes on. Order: data, model, optimiser, load."""

    def __init__(
        self,
        runtime: Runtime,
        model: Propagator,
        stores: Mapping[str, FieldStore],
        shares: Mapping[str, float],
        config: TrainingConfig,
        seed: int,
        directory: Path,
        manifest: Mapping[str, Any],
        validate: Callable[[Propagator], Mapping[str, float]],
    ) -> None:
        self.runtime, self.config, self.seed = runtime, config, seed
        self.stores, self.manifest, self.validate = stores, manifest, validate
        self.checkpoints = Checkpoints(directory / "checkpoints")
        self.sampler = Sampler(
            tuple(
                TaskShare(name, s.trajectories, s.frames, shares[name], model.tasks[name].history)
                for name, s in stores.items()
            ),
            seed,
            config.batch_size,
        )
        self.stage = OperatorStage(model.to(runtime.device), config.noise)
        self.model = self.stage.modules()
        self.optimiser = build_optimiser(self.model, config)
        self.ema = EMA(self.model, config.ema)
        self.stepper = Step(self.stage, self.optimiser, self.ema, config.clip)
        self.state = State()
        self.events = Events(directory / "events.jsonl")
        # The longest rollout comes last in the schedule: what does not fit must fail now, not hours from now.
        self.sampler.indices(config.steps, rollout_length(config, config.steps), tuple(config.strides.items()))
        self._resume()

    def batch(self, step: int) -> Sequence[tuple[Batch, Tensor | None]]:
        """The global batch of a step, one micro-batch a task, with the noise of its first frames."""
        parts = self.sampler.indices(step, rollout_length(self.config, step), tuple(self.config.strides.items()))
        batches = []
        for part in (p.slice_for(self.runtime.rank, self.runtime.size) for p in parts):
            batch = self.stores[part.task].gather(part).to(self.runtime.device)
            task, device = self.model.tasks[part.task], self.runtime.device
            shape = (task.history, *batch.values.shape[2:])
            noisy = self.config.noise > 0 and not task.steady
            batches.append((batch, noise(self.seed, step, part.slots, shape, device=device) if noisy else None))
        return batches

    def step(self) -> LossParts:
        """One optimiser step."""
        step = self.state.step
        loss = self.stepper.gradients(self.batch(step))
        norm = self.stepper.update(step, learning_rate(self.config, step))
        if torch.isfinite(norm):
            self.state.skipped = 0
        else:
            self.state.skipped += 1
            self.events.write("skipped", step=step, norm=float(norm), loss=float(loss.total))
            if self.state.skipped == PATIENCE:
                raise UserError(
                    f"the gradient was not finite in {PATIENCE} steps in a row, up to step {step}; "
                    "lower training.learning_rate or look at the data"
                )
        self.state.step += 1
        return loss

    def fit(self, report: Callable[[int, str], None] = lambda step, text: None) -> State:
        """Train to the last step. On Ctrl-C or SIGTERM: save, then `Stopped`."""
        config, state = self.config, self.state
        began = time.monotonic() - state.seconds
        loss_text = ""
        while state.step < config.steps:
            loss = self.step()
            state.seconds = time.monotonic() - began
            if state.step % 20 == 0 or state.step == config.steps:
                value = float(loss.total)
                loss_text = f"loss {value:.4f}"
                self.events.write(
                    "step",
                    step=state.step,
                    loss=value,
                    train_seconds=state.seconds,
                    parts=dict(loss.parts),
                    learning_rate=learning_rate(config, state.step - 1),
                )
            report(state.step, loss_text)
            due = state.step % config.checkpoint_every == 0 or state.step == config.steps
            if state.step % config.validate_every == 0 or state.step == config.steps:
                paused = time.monotonic()
                due = self._validate() or due
                began += time.monotonic() - paused
            if due or self.runtime.stop.asked:
                paused = time.monotonic()
                self._save()
                began += time.monotonic() - paused
            self.runtime.check_stop(f"step {state.step} of {config.steps} is saved in {self.checkpoints.directory}")
        self.events.close()
        return state

    def _validate(self) -> bool:
        """Rollout error of the averaged weights on the validation split; True if it is the best so far."""
        with self.ema.applied(), torch.no_grad():
            errors = self.validate(self.model)
        score = sum(errors.values()) / len(errors)
        better = score < self.state.best
        if better:
            self.state.best, self.state.best_step = score, self.state.step
        self.events.write(
            "validation",
            step=self.state.step,
            train_seconds=self.state.seconds,
            score=score,
            errors=errors,
            best=better,
        )
        return better

    def _tensors(self) -> dict[str, Tensor]:
        return {
            **{f"model.{name}": p for name, p in self.model.state_dict().items()},
            **{f"ema.{name}": p for name, p in self.ema.averages.items()},
            **optimiser_tensors(self.optimiser, self.model.named_parameters()),
        }

    def _save(self) -> None:
        state = self.state
        content = {**self.manifest, "progress": vars(state) | {"best": None if math.isinf(state.best) else state.best}}
        self.checkpoints.save(state.step, self._tensors(), content, best=state.best_step == state.step)
        self.checkpoints.wait()

    def _resume(self) -> None:
        refuse_gradients(self.optimiser)
        manifest = self.checkpoints.load(self._tensors())
        if manifest is None:
            return
        saved = manifest.content["progress"]
        self.state = State(**(saved | {"best": math.inf if saved["best"] is None else saved["best"]}))
        self.events.write("resumed", step=self.state.step, notes=list(manifest.warnings))
