"""Memory a rank and bytes it sends a step, for each strategy at 8 to 4,096 ranks, without any of those ranks.

    python benchmarks/scaling.py                      # the table of docs/scaling.md, some five minutes on one core
    python benchmarks/scaling.py --ranks 8 64 --models 10M

The program is the real one: `parallelise`, `Step`, `Reduction` and `EMA` on the operator model. Only the tensors have
no numbers (torch's FakeTensorMode) and the process group no peers (torch's `fake` backend). All blocks are alike, so
models of two and of three blocks are measured, and a block's share is added for each further one; `--check` compares
this with a model of full depth.

Bytes sent are those of ring algorithms over a group of g ranks: n (g - 1)/g for an all-gather or a reduce-scatter of n
bytes, twice that for an all-reduce. State is parameters, gradients, moments, average and buckets; the peak adds what
forward and backward of one sample need. One task, one micro-batch, one unrolled step, float32, rank 0 (none has more).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor.debug import CommDebugMode

from ups.distributed.parallel import local, parallelise, reduce_gradients
from ups.distributed.runtime.settings import RuntimeConfig
from ups.equations import Darcy
from ups.fields import Batch, Grid
from ups.models.geometry import Frame, Geometry
from ups.models.operator.model import OperatorModel
from ups.models.operator.spectral import Spectral
from ups.models.propagator import Propagator
from ups.ops.fake import Sent, fake_runtime
from ups.training.ema import EMA
from ups.training.optimisers import build_optimiser
from ups.training.settings import TrainingConfig
from ups.training.stages.operator import OperatorStage
from ups.training.step import MicroBatch, Step

MODELS = {"10M": (96, 4), "200M": (256, 12), "2B": (512, 28)}  # width, depth
STRATEGIES = ("ddp", "fsdp2", "hsdp")
RANKS = (8, 64, 512, 4096)
NODE = 8  # ranks that hsdp shards over
MODES, PATCH = 32, 2
PROBLEM = Darcy(points=128)  # 64 x 64 latent points
SPACING = PROBLEM.grid.spacing
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cost:
    """Of one rank: bytes of state, of the step's peak, sent within a node's worth of ranks, and beyond."""

    parameters: float
    state: float
    peak: float
    within: float
    beyond: float

    def line_to(self, other: Cost, steps: int) -> Cost:
        """`other` plus `steps` times what it has more than this."""
        return Cost(*(b + steps * (b - a) for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


class Known(Grid):
    """A grid whose spacing needs no numbers of a tensor."""

    @property
    def spacing(self) -> tuple[float, ...]:
        return SPACING


FRAME = Frame(Known(PROBLEM.grid.positions, PROBLEM.grid.extent), PROBLEM.boundary, (PATCH,) * PROBLEM.grid.dimension)
SPECTRAL = Spectral({PROBLEM.task().name: FRAME}, width=1, modes=MODES)
TABLES = Geometry.build(FRAME, partial(SPECTRAL.tables, PROBLEM.task().name), CPU, torch.float32, position_modes=0)


class Network(OperatorModel):
    """The operator model with tables made in advance, while there still are numbers."""

    def geometry(self, task: str, grid: Grid, like: Tensor) -> Geometry:
        return TABLES


# On a CPU the update asks whether the gradient's norm is finite, and whether it is to be clipped. Without numbers: yes.
FakeTensor.__float__ = lambda self: 1e9


def measure(strategy: str, ranks: int, width: int, depth: int) -> Cost:
    """One training step of the real program."""
    spec, training = PROBLEM.task(), TrainingConfig()
    config = RuntimeConfig.model_validate({"strategy": strategy, "shard": NODE if strategy == "hsdp" else None})
    with fake_runtime(config, ranks, NODE) as rt, FakeTensorMode(allow_non_fake_inputs=True):
        network = Network([spec], {spec.name: FRAME}, width=width, depth=depth, modes=MODES, head=64)
        model = Propagator(network, [spec], {})
        parameters = sum(p.numel() for p in model.parameters())
        optimiser = parallelise(model, rt, "float32", lambda module: build_optimiser(module, training))
        ema = EMA(model, training.ema)
        step = Step(OperatorStage(model, training, rt.config), optimiser, ema, training.clip, 0)
        micro = MicroBatch(_sample(), torch.ones(1), torch.zeros(1, dtype=torch.long), torch.tensor(0))

        def whole_step() -> None:
            step.gradients([micro], rt)
            reduce_gradients(step.of_tasks, rt)
            step.update(0, 1e-3)

        whole_step()
        with CommDebugMode() as torchs_own:
            whole_step()
        with Sent(NODE) as sent:
            whole_step()
        if sent.collectives != torchs_own.get_total_counts():
            raise AssertionError(f"{sent.collectives} collectives, torch counts {torchs_own.get_total_counts()}")
        kept = list(ema.averages.values())
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        moments = [value for state in optimiser.state.values() for value in state.values()]
        state = _bytes([*model.parameters(), *gradients, *moments, *kept])
        tracker = MemTracker() if rt.mesh is None else FSDPMemTracker(model, optimiser)
        if isinstance(tracker, FSDPMemTracker):
            tracker.track_inputs((micro.samples.values,))
        else:
            tracker.track_external(model, optimiser)
        optimiser.zero_grad(set_to_none=True)
        with tracker:
            step.gradients([micro], rt)
        peak = tracker.get_tracker_snapshot("peak")[CPU]["Total"] + _bytes(kept)
    return Cost(parameters, state, max(peak, state), sent.within, sent.beyond)


def extended(strategy: str, ranks: int, width: int, depth: int) -> Cost:
    """The cost of `depth` equal blocks, from two and from three of them."""
    return measure(strategy, ranks, width, 2).line_to(measure(strategy, ranks, width, 3), depth - 3)


def by_hand(strategy: str, ranks: int, parameters: float) -> tuple[float, float]:
    """State and bytes sent as one would work them out on paper, if every parameter could be divided evenly.

    Parameters, gradients, two moments and average, 20 bytes a parameter; sharded, of the shard: there parameters are
    gathered for the forward and for the backward pass and gradients scattered. (A step holds each task's gradients
    besides, until they are added up; replicated ones are sent task by task. Here is one task.)
    """
    group = {"ddp": 1, "fsdp2": ranks, "hsdp": NODE}[strategy]
    copies, part = ranks // group, 4 * parameters / group
    reduced = 2 * part * (copies - 1) / copies
    return 5 * part, 3 * part * (group - 1) + reduced


def _sample() -> Batch:
    spec, shape = PROBLEM.task(), PROBLEM.grid.shape
    return Batch(
        task=spec.name,
        values=torch.randn(1, 1, *shape, len(spec.channels)),
        times=torch.zeros(1, 1),
        grid=PROBLEM.grid,
        boundary=PROBLEM.boundary,
        parameters={name: torch.ones(1) for name in spec.parameters},
        static={name: torch.randn(1, *shape) for name in spec.static},
        ids=torch.arange(1),
    )


def _gigabytes(count: float) -> str:
    value = count / 1e9
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 or value == 0 else f"{value:.5f}"


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local(tensor).nbytes for tensor in tensors)


def check() -> None:
    """Two and three blocks give the whole: the smallest model, measured at full depth."""
    width, depth = MODELS["10M"]
    for strategy in STRATEGIES:
        line, whole = extended(strategy, 16, width, depth), measure(strategy, 16, width, depth)
        for name, value in vars(whole).items():
            error = abs(vars(line)[name] - value) / max(value, 1.0)
            print(f"{strategy}, {name}: {value:.4g}, from two and three blocks {error:+.2%}")


def main(models: list[str], all_ranks: list[int]) -> None:
    print(f"torch {torch.__version__}\n")
    print("| model | strategy | ranks | state | by hand | peak | sent, same node | sent, beyond | all sent by hand |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in models:
        width, depth = MODELS[name]
        for ranks in all_ranks:
            for strategy in STRATEGIES:
                cost = extended(strategy, ranks, width, depth)
                state, sent = by_hand(strategy, ranks, cost.parameters)
                cells = [cost.state, state, cost.peak, cost.within, cost.beyond, sent]
                label = f"{name} ({cost.parameters / 1e6:.0f}M, width {width}, depth {depth})"
                print(f"| {label} | {strategy} | {ranks} | {' | '.join(map(_gigabytes, cells))} |", flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Full backward hook")  # of torch's memory tracker
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        check()
    else:
        main(arguments.models, arguments.ranks)
