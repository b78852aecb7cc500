"""The one training loop, on one rank or many.

Batches are a pure function of (seed, step) and there is no other randomness, so a run that stops and resumes takes the
same path, to the last bit, as one that never stopped. The best weights are those of the lowest validation error
over the trivial one's, in the geometric mean over tasks; the test split is not known here.
"""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from ups.checkpoint.optimiser_state import optimiser_tensors, refuse_gradients
from ups.data.sampler import Sampler, TaskIndices, TaskShare, check_ranks, sampling_shares
from ups.distributed.faults.crash import PeerFailed
from ups.distributed.launch import backoff
from ups.distributed.parallel import enough_memory, parallelise, reduce_gradients, replicas_agree
from ups.distributed.runtime.start import Runtime
from ups.distributed.vote import Ballot, Voting, is_out_of_memory
from ups.errors import GaveUp
from ups.models.saved import TrainedTask
from ups.store.place import place
from ups.track.rollouts import ROLLOUTS, keep
from ups.track.tracker import Tracker
from ups.training.capture import captured
from ups.training.data import TaskData
from ups.training.ema import EMA
from ups.training.optimisers import agree_on_kernels, build_optimiser, learning_rate
from ups.training.pace import Pace
from ups.training.prefetch import prefetched
from ups.training.probe import fitting_micro_batches
from ups.training.saving import IN_FLIGHT, Saving, TrainingState
from ups.training.settings import TrainingConfig
from ups.training.stage import Stage
from ups.training.step import MicroBatch, Step, Sums
from ups.training.validation import validate

PATIENCE = 20
"""So many steps in a row without a finite gradient end a run."""
LOG_EVERY = 20
FEWEST = 16
"""Samples of a step, unless the configuration says how many."""
DRAWN = 10
"""Times in a training that rollouts of the validation data are drawn, where it is tracked."""
DOUBT = 0.02
"""Scores so close do not tell weights apart; then the last ones, averaged over the most steps, are kept."""


class Trainer:
    """`Trainer(...).fit()` trains to the last step, or resumes and goes on. Order: data, stage, optimiser, load.

    `description` is what a checkpoint says of the stage, enough to build it anew.
    """

    def __init__(
        self,
        runtime: Runtime,
        stage: Stage,
        tasks: Mapping[str, TaskData],
        config: TrainingConfig,
        seed: int,
        directory: Path,
        description: Mapping[str, Any],
        events: Tracker,
    ) -> None:
        self.runtime, self.stage, self.tasks, self.config, self.seed = runtime, stage, tasks, config, seed
        self.directory, self.events, self.job = directory, events, runtime.directory or directory
        self.stores = {name: task.store for name, task in tasks.items()}
        lengths = {name: (task.store.trajectories, task.store.frames) for name, task in tasks.items()}
        shares = {name: task.share for name, task in tasks.items()}
        self.sampler = sampler_of({name: task.learned for name, task in tasks.items()}, lengths, shares, config, seed)
        check_ranks(self.sampler.batch_size, runtime.size)
        # The longest rollout comes last in the schedule: what does not fit must fail now, not hours from now.
        self._indices(config.steps)
        self.dtype = torch.float64 if config.precision == "float64" else torch.float32
        with enough_memory(runtime.device, runtime.ranks.attempt):
            runtime.heartbeat.mark("data")
            self.device_stores = place(self.stores, runtime, self.dtype)
            runtime.heartbeat.mark("shard")
            self.model = self._placed(stage.trainable())
            for parent in stage.parents().values():
                self._placed(parent.module).requires_grad_(False)
            self.optimiser = parallelise(
                self.model, runtime, config.precision, lambda module: build_optimiser(module, config)
            )
            agree_on_kernels(self.optimiser, runtime)
            self.ema = EMA(self.model, config.ema)
        self.batches = prefetched(self._micro_batches, runtime.device, bool(self.device_stores))
        step = Step(stage, self.optimiser, self.ema, config.clip, seed)
        self.stepper = captured(step, runtime, lambda reason: events.write("eager", reason=reason))
        self.voting = Voting(runtime)
        self.norms: deque[tuple[int, SupportsFloat]] = deque()  # of gradients, by step, that nobody has looked at yet
        self.norm: float | None = None
        self.pace = Pace(runtime.device)
        self.state = TrainingState()
        parents = {name: parent.checksum for name, parent in stage.parents().items()}
        self.saving = Saving(directory, runtime, self.state, {**description, "parents": parents}, events)
        refuse_gradients(self.optimiser)
        self.saving.resume(self._tensors())
        self.micro = self._micro_batch_sizes()

    def _placed(self, module: nn.Module) -> nn.Module:
        module = module.to(self.runtime.device)  # not to a type: tables in float64 stay so
        return module.double() if self.dtype == torch.float64 else module

    def step(self) -> tuple[Sums, Ballot]:
        """One optimiser step: gradients, vote, reduction, update. This rank's part of the losses, and the vote."""
        step, runtime = self.state.step, self.runtime
        while True:
            sums, ballot, failure = self._gradients(step)
            result = self._vote(step, ballot)
            if failure is not None:
                runtime.heartbeat.mark("gradients")  # the report says where it happened, not where it was told
                raise failure
            if result.failed:
                raise PeerFailed(f"rank {result.failed - 1} failed in step {step}")
            if not result.out_of_memory:
                break
            self._halve(list(self.stores)[result.out_of_memory - 1])
        runtime.heartbeat.mark("reduce")
        reduce_gradients(self.stepper.of_tasks, runtime)
        runtime.heartbeat.mark("update")
        self.norms.append((step, self.stepper.update(step, learning_rate(self.config, step))))
        runtime.inject_fault("update", self.stepper.parameters)
        self._note_skipped(unread=1 if self.stepper.replayed else 0)
        self.state.step += 1
        return sums, result

    def _gradients(self, step: int) -> tuple[Sums, Ballot, Exception | None]:
        """The local passes of a step, and what this rank has to tell the others: also that it failed."""
        runtime = self.runtime
        stop, save = int(runtime.stop.asked), self.saving.said
        try:
            sums = self.stepper.gradients(self.micro_batches(step), runtime)
            return sums, Ballot(0, 0, stop, save), None
        except Exception as error:
            if runtime.mesh is not None:  # peers wait in collectives of this very pass: there is no vote to be had
                if is_out_of_memory(error):
                    self._note_out_of_memory(self.micro[runtime.doing["task"]])
                raise
            if not is_out_of_memory(error) or not self.voting.due(step, self.stepper.replayed):
                return {}, Ballot(0, 1 + runtime.rank, stop, save), error
        # Outside the handler, so that the traceback no longer holds the tensors of the pass that failed.
        self.optimiser.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
        return {}, Ballot(1 + list(self.stores).index(runtime.doing["task"]), 0, stop, save), None

    def _vote(self, step: int, ballot: Ballot) -> Ballot:
        """What the ranks decide together; nothing in a replayed step in which no vote is due."""
        safe = self.stepper.replayed
        if not self.voting.due(step, safe):
            return Ballot(save=IN_FLIGHT)  # as far as anybody knows
        self.runtime.heartbeat.mark("vote")
        return self.voting.hold(step, ballot, safe)

    def micro_batches(self, step: int) -> Iterator[MicroBatch]:
        """This rank's part of the global batch of a step; every rank has the same number, tasks and shapes."""
        runtime = self.runtime
        runtime.heartbeat.mark("gradients", step)
        for micro in self.pace.waiting(lambda: self.batches(step, tuple(self.micro.items()))):
            runtime.heartbeat.mark("gradients", step)
            samples = micro.samples
            runtime.doing.update(task=samples.task, shapes=list(samples.shape), ids=samples.ids.tolist())
            yield micro

    def _micro_batches(self, step: int, sizes: tuple[tuple[str, int], ...]) -> Iterator[MicroBatch]:
        """Those of a step in which a rank takes so many samples of each task at once."""
        for part in self._indices(step):
            for micro in part.padded(self.runtime.rank, self.runtime.size).micro_batches(dict(sizes)[part.task]):
                yield self._load(step, micro, len(part))

    def _indices(self, step: int) -> tuple[TaskIndices, ...]:
        return self.sampler.indices(step, *self.stage.window(step))

    def _load(self, step: int, micro: TaskIndices, count: int) -> MicroBatch:
        """The fields of some samples; `count` samples of this task are in the global batch."""
        if micro.task in self.device_stores:
            samples = self.device_stores[micro.task].window(micro)
        else:
            samples = self.stores[micro.task].gather(micro).to("cpu", self.dtype)
        return MicroBatch(samples, (micro.weights / count).to(self.dtype), micro.slots, torch.tensor(step))

    def fit(
        self,
        report: Callable[[int, str], None] = lambda step, text: None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> TrainingState:
        """Train to the last step. On Ctrl-C or SIGTERM to any rank: save, then `Stopped` on every one.

        Every step runs inside its own `around()`, which may trace it. A training in which no validation gave a finite
        number has no weights worth keeping, and gives up: now, and whenever it is resumed.
        """
        config, state = self.config, self.state
        began, before, device_seconds = time.monotonic() - state.seconds, state.seconds, state.device_seconds
        loss_text = ""
        self.runtime.heartbeat.mark("first step", state.step)
        while state.step < config.steps:
            with around():
                sums, votes = self.step()
            state.seconds = time.monotonic() - began
            state.device_seconds = device_seconds + self.runtime.size * (state.seconds - before)
            last = state.step == config.steps
            if state.step % LOG_EVERY == 0 or last:
                loss_text = f"loss {self._log(sums):.4f}"
            report(state.step, loss_text)
            if state.step % self.runtime.config.replica_check_every == 0:
                self._compare_replicas()
            paused, leaving = time.monotonic(), last or bool(votes.stop)
            best = (state.step % config.validate_every == 0 or last) and self._validate()
            if self.saving.due(votes.save, state.step % config.checkpoint_every == 0, now=best or leaving):
                self.save(wait=leaving, stopping=not last)
            began += time.monotonic() - paused
            if votes.stop and not last:
                self.runtime.stop.asked = True
                self.runtime.check_stop(f"step {state.step} of {config.steps} is saved in {self.saving.folder}")
        if not math.isfinite(state.best):
            raise GaveUp(
                f"training diverged: no validation in its {state.step} steps was a finite number; lower "
                "training.learning_rate and give another name=...; losses and validations are in "
                f"{self.directory / 'events.jsonl'}"
            )
        return state

    def save(self, wait: bool, stopping: bool = False) -> None:
        """Begin to write a checkpoint; `wait` until it is on the disk, or, `stopping`, until it is refused."""
        self._note_skipped()
        self.saving.save(self._tensors())
        if wait:
            self.saving.settle(self._tensors(), stopping)

    def _log(self, sums: Sums) -> float:
        """Write the losses of a step, over all ranks; their mean over tasks."""
        names = list(sums)
        means = dict(zip(names, self.runtime.sum(torch.stack([sums[name] for name in names])).tolist(), strict=True))
        loss = sum(means[task] for task in self.stores) / len(self.stores)
        self.events.write(
            "step",
            step=self.state.step,
            loss=loss,
            train_seconds=self.state.seconds,
            parts=means,
            learning_rate=learning_rate(self.config, self.state.step - 1),
            gradient_norm=self.norm,
            pace=self.pace.look(self.state.step, self.state.seconds, self.sampler.batch_size),
        )
        return loss

    def _note_skipped(self, unread: int = 0) -> None:
        """Look at the gradients' norms, but for the last ones, which a GPU may not have computed yet."""
        while len(self.norms) > unread:
            step, norm = self.norms.popleft()
            self.norm = float(norm)
            self._note_if_skipped(step, self.norm)

    def _note_if_skipped(self, step: int, norm: float) -> None:
        """A gradient that is not finite was skipped on every rank; too many in a row end the run."""
        if math.isfinite(norm):
            self.state.skipped = 0
            return
        self.state.skipped += 1
        samples = {part.task: part.ids.tolist() for part in self._indices(step)}
        self.events.write("skipped", step=step, norm=norm, in_a_row=self.state.skipped, samples=samples)
        if self.state.skipped == PATIENCE:
            raise GaveUp(
                f"the gradient was not finite in {PATIENCE} steps in a row, up to step {step}; "
                "lower training.learning_rate or look at the samples that events.jsonl names"
            )

    def _micro_batch_sizes(self) -> dict[str, int]:
        """How many samples of each task a rank computes at once: as told, and less where memory did not suffice."""
        whole = {p.task: -(-len(p) // self.runtime.size) for p in self._indices(0)}
        told = self.runtime.config.micro_batch
        sizes = {task: min(n, told or n) for task, n in whole.items()}
        if self.runtime.mesh is None:
            return sizes
        known = self.runtime.from_first("micro-batches", lambda: backoff.micro_batches(self.job))
        sizes = {task: min(n, known.get(task, n)) for task, n in sizes.items()}
        if self.runtime.device.type == "cuda":
            longest = {part.task: part for part in self._indices(self.config.steps)}

            def load(task: str, size: int) -> MicroBatch:
                return self._load(self.config.steps, next(longest[task].micro_batches(size)), len(longest[task]))

            assert isinstance(self.stepper, Step), "sharded steps are not captured"
            try:
                sizes = fitting_micro_batches(sizes, load, self.stepper, self.runtime)
            except Exception as error:
                if is_out_of_memory(error):
                    self._note_out_of_memory(2)
                raise
            self.events.write("micro_batches", sizes=sizes)
        return sizes

    def _note_out_of_memory(self, micro_batch: int) -> None:
        """A sharded rank that ran out of memory can only crash; the next attempt takes half of what it had."""
        attempt, task = self.runtime.ranks.attempt, self.runtime.doing["task"]
        backoff.note_out_of_memory(self.job, attempt, task, micro_batch)

    def _halve(self, task: str) -> None:
        if self.micro[task] == 1:
            raise GaveUp(
                f"out of memory with one sample of {task} at a time, in step {self.state.step}; use a smaller model or "
                "shorter rollouts, runtime.checkpoint_activations=true, or a sharded runtime.strategy"
            )
        self.micro[task] = self.micro[task] // 2
        self.stepper.forget()  # steps of the old sizes will not come again, and what is theirs is needed
        step, size = self.state.step, self.micro[task]
        warnings.warn(f"out of memory in step {step}: from now on {size} of {task} at a time", stacklevel=2)
        self.events.write("out_of_memory", step=step, task=task, micro_batch=size)

    def _compare_replicas(self) -> None:
        frozen = {f"model.{name}" for name, p in self.model.named_parameters() if not p.requires_grad}
        moving = [tensor for name, tensor in self._tensors().items() if name not in frozen]
        if not replicas_agree(moving, self.runtime):
            raise GaveUp(
                f"ranks that should hold the same parameters do not, found at step {self.state.step}: memory or a "
                "device is faulty, or a collective went wrong; resume from the last checkpoint on other hardware"
            )

    def _validate(self) -> bool:
        """Errors of the averaged weights on the validation split; True if they are the best so far."""
        self.runtime.heartbeat.mark("validate", self.state.step - 1)  # it belongs to the step before
        self.runtime.inject_fault("validate")
        with self.ema.applied():
            found = validate(self.stage, self.tasks, self.runtime, self.seed, self.dtype)
        last = self.state.step == self.config.steps
        better = found.score < self.state.best * (1 + DOUBT if last else 1)
        if better:
            self.state.best, self.state.best_step = found.score, self.state.step
        self.events.write(
            "validation",
            step=self.state.step,
            train_seconds=self.state.seconds,
            score=found.score,
            errors=found.errors,
            trivial=found.trivial,
            cut_off=found.cut_off,
            best=better,
        )
        if self.runtime.rank == 0 and self.runtime.config.tracking and self._draws_now():
            kept = keep(found.shown, self.directory / ROLLOUTS, self.state.step)
            self.events.write(ROLLOUTS, step=self.state.step, files=kept)
        return better

    def _draws_now(self) -> bool:
        """So many times in a training trackers show rollouts: at the first validation of each part of it, and at the
        last.
        """
        step, steps, before = self.state.step, self.config.steps, self.state.step - self.config.validate_every
        return step == steps or DRAWN * step // steps > DRAWN * max(0, before) // steps

    def _tensors(self) -> dict[str, Tensor]:
        return {
            **{f"model.{name}": p for name, p in self.model.state_dict().items()},
            **{f"ema.{name}": p for name, p in self.ema.averages.items()},
            **optimiser_tensors(self.optimiser, self.model.named_parameters()),
        }


def sampler_of(
    tasks: Mapping[str, TrainedTask],
    lengths: Mapping[str, tuple[int, int]],
    told: Mapping[str, float],
    config: TrainingConfig,
    seed: int,
) -> Sampler:
    """The order of a training on tasks of so many (trajectories, frames), which are `told` their shares."""
    latents = {name: math.prod(task.frame.latent_shape) for name, task in tasks.items()}
    shares = sampling_shares(config.sampling, {name: count for name, (count, _) in lengths.items()}, told, latents)
    parts = (TaskShare(name, *lengths[name], shares[name], task.spec.history) for name, task in tasks.items())
    filling = round(math.fsum(config.sampling.points * told[name] / latents[name] for name in tasks))
    return Sampler(tuple(parts), seed, config.batch_size or max(filling, len(tasks), FEWEST))
