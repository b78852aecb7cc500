"""What one training step of a plan needs of each rank, counted on a run of the real step without numbers (`fake.py`).

    cost = step_cost(plan, lengths, config, ranks=64, node=8)

The program is the real one: the stage, `parallelise`, `Step`, `reduce_gradients`, `EMA`. The step is the last of the
training, whose rollout is the longest, unless another one is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ups.bench.roofline import Counting
from ups.data.sampler import Sampler, TaskIndices, check_ranks
from ups.distributed.parallel import local, parallelise, reduce_gradients
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.fields import Batch
from ups.models.saved import TrainedTask
from ups.ops.fake import PeakBytes, Sent, Shapes, fake_runtime
from ups.training.ema import EMA
from ups.training.fit import Plan
from ups.training.kinds import STAGES, StageContext
from ups.training.optimisers import build_optimiser
from ups.training.stage import Stage
from ups.training.step import MicroBatch, Step
from ups.training.trainer import sampler_of


@dataclass(frozen=True)
class Cost:
    """Of one rank, in bytes: the parameters it has `held`, these with gradients, moments and averages (`state`), the
    most that there is at once within a step, and what it sends in one, within its node and beyond it, in so many
    `collectives`. What it computes in one: FLOP, `operations`, and the bytes that these read and write, one by one
    (`moved`). `parameters` are the model's, counted. `gradients`: those of all tasks. `recording`: the most that there
    is while a GPU records the step, which keeps a copy of all that a first update changes (`training/capture.py`).
    """

    parameters: float
    held: float
    state: float
    peak: float
    within: float
    beyond: float
    collectives: float
    flop: float
    operations: float
    moved: float
    gradients: float
    recording: float

    def line_to(self, other: Cost, steps: int) -> Cost:
        """`other` plus `steps` times what it has more than this."""
        return Cost(*(b + steps * (b - a) for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def step_cost(
    plan: Plan,
    tasks: Mapping[str, TrainedTask],
    lengths: Mapping[str, tuple[int, int]],
    config: RuntimeConfig,
    ranks: int = 1,
    node: int = 8,
    step: int | None = None,
) -> Cost:
    """Of a plan without data: its `tasks` and how many (trajectories, frames) each has. A stage that stands on others
    must have them trained. A rank takes all its samples of a task at once, or `runtime.micro_batch` of them.
    """
    with fake_runtime(config, ranks, node) as runtime, Shapes():
        stage = STAGES[plan.kind].build(
            StageContext(
                plan.name, plan.settings, tuple(tasks.values()), plan.training, runtime.config, plan.seed, {}, {}
            )
        )
        return cost_of(stage, micro_batches(stage, plan, tasks, lengths, runtime, step), plan, runtime, node)


def recorded(cost: Cost, runtime: RuntimeConfig, lengths: int) -> Cost:
    """On a GPU, which records replicated steps, once for each length of rollout: every recording has its gradients."""
    if runtime.strategy != "ddp" or runtime.capture == "off":
        return cost
    return replace(cost, peak=max(cost.peak, cost.recording) + (lengths - 1) * cost.gradients)


def micro_batches(
    stage: Stage,
    plan: Plan,
    tasks: Mapping[str, TrainedTask],
    lengths: Mapping[str, tuple[int, int]],
    runtime: Runtime,
    step: int | None = None,
) -> list[MicroBatch]:
    """What rank 0 takes in a step of the training, the last one if not said, filled with ones."""
    training, ranks = plan.training, runtime.size
    step = training.steps if step is None else step
    sampler = sampler_of(tasks, lengths, plan.shares, training, plan.seed)
    check_ranks(sampler.batch_size, ranks)
    # Which samples it is does not matter, and an order of millions would be made for nothing.
    sampler = Sampler(tuple(t._replace(trajectories=1) for t in sampler.tasks), plan.seed, sampler.batch_size)
    dtype = torch.float64 if training.precision == "float64" else torch.float32
    return [
        _micro_batch(tasks[part.task], micro, dtype)
        for part in sampler.indices(step, *stage.window(step))
        for micro in part.padded(0, ranks).micro_batches(runtime.config.micro_batch)
    ]


def cost_of(stage: Stage, micros: Sequence[MicroBatch], plan: Plan, runtime: Runtime, node: int) -> Cost:
    """Within `Shapes` and a fake runtime: two steps, of which the first makes tables and the second is watched."""
    training = plan.training
    model = stage.trainable().train()
    if training.precision == "float64":
        model.double()
    parameters = sum(p.numel() for p in model.parameters())
    optimiser = parallelise(model, runtime, training.precision, lambda module: build_optimiser(module, training))
    ema = EMA(model, training.ema)
    step = Step(stage, optimiser, ema, training.clip, plan.seed)

    def whole_step() -> None:
        step.gradients(micros, runtime)
        reduce_gradients(step.of_tasks, runtime)
        step.update(0, 1e-3)

    whole_step()
    tensors = [*model.parameters(), *ema.averages.values()]
    tensors += [v for state in optimiser.state.values() for v in state.values() if isinstance(v, Tensor)]
    held = _bytes(model.parameters())
    state = _bytes([*tensors, *(p.grad for p in model.parameters() if p.grad is not None)])
    optimiser.zero_grad(set_to_none=True)
    with PeakBytes(local(tensor) for tensor in tensors) as watched, Sent(node) as sent, Counting() as work:
        step.gradients(micros, runtime)
        reduce_gradients(step.of_tasks, runtime)
        of_tasks = [g for gradients in step.of_tasks for g in gradients if g is not None]
        gradients = _bytes(of_tasks)
        with PeakBytes(local(tensor) for tensor in (*tensors, *of_tasks)) as updating:
            del of_tasks
            step.update(0, 1e-3)
    recording = updating.most + _bytes(tensors)
    sends = (sent.within, sent.beyond, sent.collectives)
    works = (work.flop, work.operations, work.moved)
    return Cost(parameters, held, state, watched.most, *sends, *works, gradients, recording)


def _micro_batch(task: TrainedTask, part: TaskIndices, dtype: torch.dtype) -> MicroBatch:
    """Samples of that many frames."""
    spec, space, count = task.spec, task.grid.shape, len(part)
    samples = Batch(
        task=spec.name,
        values=torch.ones(count, part.frames, *space, len(spec.channels), dtype=dtype),
        times=torch.ones(count, part.frames, dtype=torch.float64).cumsum(1),
        grid=task.grid,
        boundary=spec.boundary,
        parameters={name: torch.ones(count, dtype=dtype) for name in spec.parameters},
        static={name: torch.ones(count, *space, dtype=dtype) for name in spec.static},
        ids=torch.zeros(count, dtype=torch.long),
    )
    slots, number = torch.zeros(count, dtype=torch.long), torch.zeros((), dtype=torch.long)
    return MicroBatch(samples, torch.ones(count, dtype=dtype) / count, slots, number)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local(tensor).nbytes for tensor in tensors)
