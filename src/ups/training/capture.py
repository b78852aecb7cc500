"""Training steps recorded as CUDA graphs and replayed: the GPU is handed a whole step at once, not kernel by kernel.

A step of a small model is hundreds of kernels of a few microseconds, and handing them over one by one takes longer than
computing them. `CapturedStep` does what `Step` does, bit for bit: for each shape of a step (tasks, micro-batches,
length of the rollout, and how products are rounded) it runs both functions eagerly, takes back what they changed, and
records each as a graph; the reduction over ranks runs between the two replays. All graphs share one pool of memory.
What changes from step to step is copied to where the graphs read it: fields (or, where the GPU holds them, the samples'
numbers), weights, the step's number (from which they draw the noise), the learning rate and the averages' share.

Memory can run out only while a step is recorded, which every rank does in the same steps. If a step cannot be recorded,
all steps from then on run eagerly, and the reason is noted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ups.distributed.faults import injection
from ups.distributed.runtime.start import Runtime
from ups.distributed.vote import is_out_of_memory
from ups.errors import UserError
from ups.graphs import first_cause, launches, record, replay
from ups.rollout.captured import rounding
from ups.training.step import Gradients, MicroBatch, Step, Sums

WARM_UP = 2
"""Eager passes before a step is recorded: the first one loads kernels, makes tables and plans, and fills caches."""
_ALIGNMENT = 256
_INSIDE = ("forward", "loss", "backward", "vote")
"""Places of injected faults that a replayed step does not pass; the others are injected between its graphs."""


def check_capture(runtime: Runtime) -> None:
    """Refuse `runtime.capture=on` where steps cannot be captured."""
    obstacle = obstacle_to_capture(runtime)
    if obstacle is not None and runtime.config.capture == "on":
        raise UserError(f"runtime.capture is on, but {obstacle}; use runtime.capture=auto")


def captured(step: Step, runtime: Runtime, note: Callable[[str], None]) -> Step | CapturedStep:
    """The step, captured where that is possible and wanted; where it is not on a GPU, `note` is told why."""
    obstacle = obstacle_to_capture(runtime)
    if obstacle is None:
        return CapturedStep(step, note)
    check_capture(runtime)
    if runtime.device.type == "cuda":
        note(obstacle)
    return step


def obstacle_to_capture(runtime: Runtime) -> str | None:
    """Why steps cannot be captured, if they cannot."""
    if runtime.config.capture == "off":
        return "runtime.capture is off"
    if runtime.device.type != "cuda":
        return "only steps on a GPU can be captured"
    if runtime.mesh is not None:
        return f"runtime.strategy {runtime.config.strategy} communicates within a pass, which is not captured"
    if injection.awaits(_INSIDE):
        return "a fault is to be injected within a pass, which a captured one would not meet"
    return None


class Later:
    """A number that a GPU is still computing; `float()` waits for it, and for nothing that was asked for after it."""

    def __init__(self, value: Float[Tensor, ""]) -> None:
        self._host = torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
        self._there = torch.cuda.Event()
        self._there.record()

    def __float__(self) -> float:
        self._there.synchronize()
        return float(self._host)


class StepInputs:
    """The fixed place on the device that graphs read a step's micro-batches from: one buffer, filled by one copy.

    The copy comes from pinned memory in the background, so there are two of those buffers, used in turn.
    """

    def __init__(self, micro_batches: Sequence[MicroBatch]) -> None:
        tensors = _tensors(micro_batches)
        starts, end = [], 0
        for tensor in tensors:
            starts.append(end)
            end += math.ceil(tensor.nbytes / _ALIGNMENT) * _ALIGNMENT
        self._device = torch.zeros(end, dtype=torch.uint8, device="cuda")
        self._hosts = [torch.zeros(end, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in self._hosts]
        self._turn = 0

        def views(flat: Tensor) -> list[Tensor]:
            return [
                flat[start : start + like.nbytes].view(like.dtype).view(like.shape)
                for start, like in zip(starts, tensors, strict=True)
            ]

        self._views = [views(host) for host in self._hosts]
        places = iter(views(self._device))
        self.micro_batches = [micro.mapped(lambda _: next(places)) for micro in micro_batches]

    def fill(self, micro_batches: Sequence[MicroBatch]) -> None:
        self._turn = 1 - self._turn
        self._copied[self._turn].synchronize()
        for view, tensor in zip(self._views[self._turn], _tensors(micro_batches), strict=True):
            view.copy_(tensor)
        self._device.copy_(self._hosts[self._turn], non_blocking=True)
        self._copied[self._turn].record()


def _tensors(micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
    """Every tensor that a step computes from, in the order of `mapped`."""
    tensors: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    for micro in micro_batches:
        micro.mapped(take)
    return tensors


def _signature(micro_batches: Sequence[MicroBatch]) -> tuple:
    """What two steps must share to be replays of the same graphs."""
    shapes = ((m.samples.task, *((t.shape, t.dtype) for t in _tensors([m]))) for m in micro_batches)
    return *rounding(), *shapes


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """The two graphs of one shape of step, where they read, and where they write."""

    inputs: StepInputs
    gradients: torch.cuda.CUDAGraph
    update: torch.cuda.CUDAGraph
    of_tasks: list[Gradients]
    sums: Sums
    norm: Float[Tensor, ""]


class CapturedStep:
    """`Step`'s two functions on a GPU, replayed. `note` is told why, should that turn out to be impossible.

    What `gradients` returns is overwritten by the next step.
    """

    def __init__(self, step: Step, note: Callable[[str], None]) -> None:
        self.eager, self.note = step, note
        self.parameters = step.parameters
        self.replayed = False
        self.recordings: dict[tuple, RecordedStep] = {}
        self._possible = True
        self._current: RecordedStep | None = None
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    @property
    def of_tasks(self) -> list[Gradients]:
        return self.eager.of_tasks

    def gradients(self, micro_batches: Iterable[MicroBatch], runtime: Runtime) -> Sums:
        if not self._possible:
            return self.eager.gradients(micro_batches, runtime)
        micros = list(micro_batches)
        signature = _signature(micros)
        self.replayed = signature in self.recordings
        if not self.replayed:
            recording = self._record(micros, runtime)
            if recording is None:
                return self.eager.gradients(micros, runtime)
            self.recordings[signature] = recording
        recording = self._current = self.recordings[signature]
        self.eager.of_tasks = recording.of_tasks
        recording.inputs.fill(micros)
        replay(recording.gradients, ("gradients", *signature))
        return recording.sums

    def update(self, step: int, learning_rate: float) -> Float[Tensor, ""] | Later:
        if self._current is None:
            return self.eager.update(step, learning_rate)
        self.eager.schedule(step, learning_rate)
        replay(self._current.update, "an update")
        return Later(self._current.norm)

    def _record(self, micros: Sequence[MicroBatch], runtime: Runtime) -> RecordedStep | None:
        """Both functions as graphs for steps of this shape; None where they cannot be captured."""
        runtime.heartbeat.mark("first step")  # its deadline: like the first of all, it is much slower than later ones
        launches.last = ("eager passes before a recording", *_signature(micros))
        inputs = StepInputs(micros)
        inputs.fill(micros)
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self._stream):
                self._warm_up(inputs.micro_batches, runtime)
        finally:
            outside.wait_stream(self._stream)
        try:
            with self._capturing() as gradients:
                sums = self.eager.gradients(inputs.micro_batches, runtime)
            of_tasks = self.eager.of_tasks
            with self._capturing() as update:
                norm = self.eager.apply()
        except Exception as error:
            cause = first_cause(error)
            self._pool = torch.cuda.graph_pool_handle()  # torch refuses one that has lost its graphs, not its tensors
            if is_out_of_memory(cause) or runtime.config.capture == "on":
                raise cause from None
            self._give_up(f"a step could not be captured: {str(cause).partition(chr(10))[0]}")
            return None
        finally:
            runtime.heartbeat.mark("gradients")
        return RecordedStep(inputs, gradients, update, of_tasks, sums, norm)

    def _warm_up(self, micros: Sequence[MicroBatch], runtime: Runtime) -> None:
        """Both functions, eagerly, on the stream they are captured on; then everything is as it was before."""
        for _ in range(WARM_UP):
            self.eager.gradients(micros, runtime)
        moments = [tensor for state in self.eager.optimiser.state.values() for tensor in state.values()]
        changed = [*(p.detach() for p in self.parameters), *self.eager.ema.averages.values(), *moments]
        kept = [tensor.clone() for tensor in changed]
        try:
            self.eager.apply()
        finally:
            for tensor, before in zip(changed, kept, strict=True):
                tensor.copy_(before)
        self.eager.optimiser.zero_grad(set_to_none=True)

    @contextmanager
    def _capturing(self) -> Iterator[torch.cuda.CUDAGraph]:
        groups = self.eager.optimiser.param_groups
        for group in groups:
            group["capturable"] = True
        try:
            with record(self._stream, self._pool) as graph:
                yield graph
        finally:
            for group in groups:
                group["capturable"] = False

    def forget(self) -> None:
        """Drop every graph; all ranks do so in the same step, for they must record, and vote, in the same ones."""
        torch.cuda.synchronize()  # replays may be under way
        self._current = None
        self.eager.forget()
        self.recordings.clear()
        self._pool = torch.cuda.graph_pool_handle()

    def _give_up(self, reason: str) -> None:
        self._possible = False
        self.forget()
        self.eager.optimiser.zero_grad(set_to_none=True)
        warnings.warn(f"{reason}; steps run eagerly, which is slower and computes the same", stacklevel=2)
        self.note(reason)
