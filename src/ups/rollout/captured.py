"""A model's step recorded as a CUDA graph and replayed: in a rollout, in the next one, and in the next validation.

A step of a small model is a hundred kernels of a few microseconds, and handing them over one by one takes longer than
computing them. On a GPU the first steps of a shape (task, batch size, grid, dtypes) run eagerly, which also loads
kernels and makes tables; then the step is recorded once, and every later one is three launches: its inputs are copied
to where the graph reads, the graph is replayed, and the state is copied out. The result is the eager one, bit for bit.

A graph reads the parameters where they lie, so weights that are changed in place (an optimiser's, an average's) are the
ones it computes with; where parameters were moved, or products are rounded otherwise, graphs are dropped. Steps on a
CPU, steps that autograd has to follow, and those of sharded models run eagerly; so do all of a model whose step cannot
be recorded, after one warning.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ups.fields import Grid
from ups.graphs import first_cause, record, replay
from ups.models.propagator import Propagator

EAGER_STEPS = 2
"""So many steps of a shape run eagerly before it is recorded: a shape that is met once or twice would not pay."""
MOST = 16
"""So many graphs are kept for a model; before another one is recorded, all of them go."""

StepFunction = Callable[
    [Float[Tensor, "B H *space C"], Float[Tensor, "B *space G"], Float[Tensor, " B"] | None],
    Float[Tensor, "B *space C"],
]
"""From the history, what is given beside it, and the lead time to the next state."""


def stepper(
    model: Propagator,
    task: str,
    history: Float[Tensor, "B H *space C"],
    static: Float[Tensor, "B *space G"],
    parameters: Mapping[str, Float[Tensor, " B"]],
    lead: Float[Tensor, " B"] | None,
    grid: Grid,
    capture: bool = True,
) -> StepFunction:
    """The model's step as a function of what changes from step to step, for tensors of these shapes; `capture=False`:
    eager.
    """
    names = tuple(parameters)

    def inputs(history: Tensor, static: Tensor, lead: Tensor | None) -> list[Tensor]:
        return [history, static, *parameters.values(), *([] if lead is None else [lead])]

    def compute(tensors: list[Tensor]) -> Tensor:
        """The step from `inputs`, wherever these lie."""
        history, static, *rest = tensors
        values = dict(zip(names, rest[: len(names)], strict=True))
        return model(task, history, static, values, None if lead is None else rest[-1], grid)

    like = inputs(history, static, lead)
    if not capture or not _capturable(model, like):
        return lambda *changing: compute(inputs(*changing))
    graphs = _GRAPHS.get(model)
    if graphs is None or graphs.device != history.device:
        graphs = _GRAPHS[model] = Graphs(history.device)
    graphs.check(bound_to(model))
    domain = (grid.extent, *(tuple(p.tolist()) for p in grid.positions))
    shape = (task, names, domain, *((t.shape, t.dtype) for t in like))
    return lambda *changing: graphs.run(shape, compute, inputs(*changing))


def bound_to(model: nn.Module) -> list[Any]:
    """What a recorded step goes on using, whatever the model uses by then: where parameters and buffers lie, and how
    products and convolutions are rounded.
    """
    places = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    return [*places, *rounding(), *(getattr(module, "products", None) for module in model.modules())]


def rounding() -> tuple[Any, ...]:
    """How torch rounds factors of products and of convolutions in float32 at this moment, and the memory cuBLAS has."""
    # Not torch.get_float32_matmul_precision(), which refuses to answer where a user has set one of these.
    convolutions = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    memory = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    return torch.backends.cuda.matmul.fp32_precision, convolutions.fp32_precision, memory


def _capturable(model: nn.Module, inputs: list[Tensor]) -> bool:
    if not all(tensor.is_cuda for tensor in inputs):
        return False
    if torch.is_autocast_enabled("cuda") or torch.cuda.is_current_stream_capturing():
        return False
    weights = list(model.parameters())
    if any(type(weight) is not nn.Parameter for weight in weights):  # sharded: ranks communicate within a pass
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in [*inputs, *weights]))


@dataclass(frozen=True, eq=False)
class RecordedRollout:
    """The graph of a step, where it reads and where it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    state: Tensor


class Graphs:
    """The graphs of one model, one a shape. They share one pool of memory, because no two of them run at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.recordings: dict[tuple, RecordedRollout] = {}
        self.possible = True
        self._met: Counter[tuple] = Counter()
        self._bound: list[Any] = []
        self._lock = threading.Lock()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def check(self, bound: list[Any]) -> None:
        """Forget everything that was recorded when the model was `bound_to` something else."""
        if bound != self._bound:
            self._bound = bound
            self._forget()

    def run(self, shape: tuple, compute: Callable[[list[Tensor]], Tensor], inputs: list[Tensor]) -> Tensor:
        with self._lock:
            if self.possible and shape not in self.recordings and self._met[shape] >= EAGER_STEPS:
                self._record(shape, compute, inputs)
            recording = self.recordings.get(shape)
            if recording is None:
                self._met[shape] += 1
                return compute(inputs)
            torch._foreach_copy_(recording.inputs, inputs)  # pyright: ignore[reportPrivateImportUsage]
            replay(recording.graph, ("rollout", *shape))
            return recording.state.clone()

    def _record(self, shape: tuple, compute: Callable[[list[Tensor]], Tensor], inputs: list[Tensor]) -> None:
        if len(self.recordings) == MOST:
            self._forget()
        try:
            with torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad():
                places = [tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs]
                stream, outside = self._stream, torch.cuda.current_stream()
                stream.wait_stream(outside)
                try:
                    with torch.cuda.stream(stream):
                        compute(places)  # workspaces belong to a stream: those of this one are made now
                finally:
                    outside.wait_stream(stream)
                with record(stream, self._pool) as graph:
                    state = compute(places)
        except Exception as error:
            self.possible = False
            self._forget()
            cause = str(first_cause(error)).partition("\n")[0]
            warnings.warn(
                f"a step could not be captured: {cause}; rollouts run eagerly, which is slower and computes the same",
                stacklevel=2,
            )
            return
        self.recordings[shape] = RecordedRollout(graph, places, state)

    def _forget(self) -> None:
        if self.recordings:
            torch.cuda.synchronize(self.device)  # replays may be under way
        self.recordings.clear()
        self._met.clear()
        self._pool = torch.cuda.graph_pool_handle()  # torch refuses one that has lost its graphs, not its tensors


_GRAPHS: WeakKeyDictionary[nn.Module, Graphs] = WeakKeyDictionary()
