"""One optimiser step as two functions: `gradients(micro_batches)` and `update(step)`.

    g = mean over tasks of  g_t · min(1, clip / ‖g_t‖)

Each task's gradient is clipped by its own norm: one hard batch of one task must not shrink what the others learn in
that step. Between the two functions lie the vote and the reduction over ranks, so tasks' gradients are kept apart until
then. Neither function waits for the device: a gradient that is not finite is skipped by a flag that stays there.
`capture` records both and replays them; tasks are branches of the graph then, which a GPU computes side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ups.data.draws import Draws
from ups.distributed.runtime.start import Runtime
from ups.fields import Batch
from ups.graphs import branches
from ups.store.place import Window
from ups.training.ema import EMA
from ups.training.stage import Stage

Sums = dict[str, Float[Tensor, ""]]
Gradients = list[Tensor | None]
"""Of each trained parameter; None where a task does not use it."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples of one task that are computed at once: their fields in the host's memory, or where to gather them.

    `weights` are each sample's share of the task's mean over the global batch: 1 / count, and 0 for padding. `slots`
    are their places in the global batch of training step `step`: what is drawn depends on both.
    """

    samples: Batch | Window
    weights: Float[Tensor, " B"]
    slots: Int[Tensor, " B"]
    step: Int[Tensor, ""]

    @property
    def nbytes(self) -> int:
        """Of the fields that are in the host's memory."""
        return self.samples.values.nbytes if isinstance(self.samples, Batch) else 0

    def mapped(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        """The same with `change` applied to each tensor that a step computes from, always in the same order."""
        return MicroBatch(self.samples.mapped(change), change(self.weights), change(self.slots), change(self.step))

    def read(self) -> Batch:
        return self.samples.read() if isinstance(self.samples, Window) else self.samples


class Step:
    replayed = False
    """Whether the last step only replayed graphs, so that nothing in it could fail on one rank alone."""

    def __init__(self, stage: Stage, optimiser: torch.optim.Optimizer, ema: EMA, clip: float, seed: int) -> None:
        self.stage, self.optimiser, self.ema, self.clip, self.seed = stage, optimiser, ema, clip, seed
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.device = self.parameters[0].device
        self.of_tasks: list[Gradients] = []
        self.rate: float | Float[Tensor, ""] = 0.0
        self.share: float | Float[Tensor, ""] = 0.0
        if self.device.type == "cuda":  # where a graph finds new values in every replay
            self.rate = torch.zeros((), dtype=torch.float32, device=self.device)
            self.share = torch.zeros((), dtype=torch.float32, device=self.device)

    def gradients(self, micro_batches: Iterable[MicroBatch], runtime: Runtime) -> Sums:
        """Each task's gradient of its mean loss, for `update`; this rank's part of the mean losses.

        Replicated parameters: no communication in here, so a rank that fails in here can still vote. Sharded ones:
        every rank must run the same micro-batches.
        """
        self.optimiser.zero_grad(set_to_none=True)
        sums: Sums = {}
        found: list[Gradients] = []

        def task(micros: Iterable[MicroBatch]) -> None:
            gradients: Gradients = [None] * len(self.parameters)
            for micro in micros:
                values, part = self._pass(micro, runtime)
                gradients = [_sum(before, new) for before, new in zip(gradients, part, strict=True)]
                for name, value in values.items():
                    sums[name] = sums[name] + value if name in sums else value
            found.append(gradients)

        parts = groupby(micro_batches, key=lambda micro: micro.samples.task)
        branches((partial(task, micros) for _, micros in parts), self.device)
        self.of_tasks = found
        return sums

    def _pass(self, micro: MicroBatch, runtime: Runtime) -> tuple[Sums, Sequence[Tensor | None]]:
        """The losses and gradients of one micro-batch. Nothing of its autograd graph outlives it: the next task's, on
        another stream, would meet its nodes.
        """
        micro = micro.mapped(lambda tensor: tensor.to(self.device))
        batch, task = micro.read(), micro.samples.task
        runtime.doing.update(task=task)
        runtime.inject_fault("forward")
        loss = self.stage.loss(batch, Draws(self.seed, self.stage.name, micro.step, micro.slots))
        total = loss.total @ micro.weights
        runtime.inject_fault("loss", [total])
        if runtime.mesh is None:
            part = torch.autograd.grad(total, self.parameters, allow_unused=True)
            part = [None if g is None else g.contiguous() for g in part]
        else:  # what shards parameters also shards their gradients, and adds up ranks', where they accumulate
            total.backward()
            part = [parameter.grad for parameter in self.parameters]
            self.optimiser.zero_grad(set_to_none=True)
        values = {task: total} | {f"{task}.{name}": part @ micro.weights for name, part in loss.parts.items()}
        return {name: value.detach() for name, value in values.items()}, part

    def forget(self) -> None:
        """Drop what is kept for the update, or from step to step."""
        self.of_tasks = []

    def update(self, step: int, learning_rate: float) -> Float[Tensor, ""]:
        """Clip, step, average. A gradient that is not finite changes nothing; its norm, returned, tells."""
        self.schedule(step, learning_rate)
        norm = self.apply()
        self.forget()
        return norm

    def schedule(self, step: int, learning_rate: float) -> None:
        """Set what `apply` takes from the schedule."""
        share = self.ema.share(step)
        if isinstance(self.rate, Tensor) and isinstance(self.share, Tensor):
            self.rate.fill_(learning_rate)
            self.share.fill_(share)
        else:
            self.rate, self.share = learning_rate, share

    def apply(self) -> Float[Tensor, ""]:
        """`update`, once its numbers are set. A GPU is not waited for: what it does depends on a flag that stays there.
        A CPU knows the norm, and so does nothing that would change nothing.
        """
        norm = self._clip_and_add()
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        if norm.device.type == "cuda":
            # Torch's fused optimisers leave everything as it was, their step count too, where this flag is 1.
            skipped = (norm - norm).ne(0).float()  # infinity less itself is no number, and that is not 0
            self.optimiser.found_inf, self.optimiser.grad_scale = skipped, None  # pyright: ignore[reportAttributeAccessIssue]
            self.optimiser.step()
            self.ema.update(self.share, skipped)
        elif math.isfinite(float(norm)):
            self.optimiser.step()
            self.ema.update(self.share)
        return norm

    def _clip_and_add(self) -> Float[Tensor, ""]:
        """The mean of the tasks' gradients, each clipped, as that of the parameters; the mean of their norms."""
        norms, count = [], len(self.of_tasks)
        for gradients in self.of_tasks:
            touched = [(p, g) for p, g in zip(self.parameters, gradients, strict=True) if g is not None]
            norm = nn.utils.get_total_norm([gradient for _, gradient in touched])
            share = (self.clip / (norm + 1e-6)).clamp(max=1.0) / count
            # Not in place: autograd may give the same memory as the gradients of two parameters.
            clipped = torch._foreach_mul([gradient for _, gradient in touched], share)  # pyright: ignore[reportPrivateImportUsage]
            sums, parts = [], []
            for (parameter, _), part in zip(touched, clipped, strict=True):
                if parameter.grad is None:
                    parameter.grad = part
                else:
                    sums.append(parameter.grad)
                    parts.append(part)
            if sums:
                torch._foreach_add_(sums, parts)  # pyright: ignore[reportPrivateImportUsage]
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        return torch.stack(norms).mean()


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
