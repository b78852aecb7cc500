"""Memory a rank and bytes it sends a step, for each strategy at 8 to 4,096 ranks, without any of those ranks.

    python benchmarks/scaling.py                      # the table of docs/scaling.md, some five minutes on one core
    python benchmarks/scaling.py --ranks 8 64 --models 10M

What is counted is the step of `ups plan` (`ups.ops.step_cost`): the real program on tensors without numbers and ranks
that do not exist. All blocks are alike, so models of two and of three blocks are measured, and a block's share is added
for each further one; `--check` compares this with a model of full depth.

Bytes sent are those of ring algorithms over a group of g ranks: n (g - 1)/g for an all-gather or a reduce-scatter of n
bytes, twice that for an all-reduce. State is parameters, gradients, moments and average; the peak is the most that
there is at once within a step of one sample. One task, one micro-batch, one unrolled step, float32, rank 0 (none has
more).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ups.config.load import made_config
from ups.ops.step_cost import Cost, step_cost
from ups.pipeline.check import stand_ins
from ups.pipeline.config import completed
from ups.pipeline.data import look_at_inputs
from ups.pipeline.trainings import stage_plans

MODELS = {"10M": (96, 4), "200M": (256, 12), "2B": (512, 28)}  # width, depth
STRATEGIES = ("ddp", "fsdp2", "hsdp")
RANKS = (8, 64, 512, 4096)
NODE = 8  # ranks that hsdp shards over
MODES, PATCH, POINTS = 32, 2, 128  # 64 x 64 latent points


def measure(strategy: str, ranks: int, width: int, depth: int) -> Cost:
    """One training step of the real program, with a sample a rank."""
    darcy = {"equation": "darcy", "trajectories": 1000, "settings": {"points": POINTS}}
    model = {"width": width, "depth": depth, "modes": MODES, "head": 64, "position_modes": 0}
    values = {
        "name": "scaling",
        "tasks": {"darcy": {"make": darcy, "latent_spacing": PATCH / POINTS}},
        "stages": {"operator": model},
        "training": {"batch_size": ranks, "optimiser": "adamw"},
        "runtime": {"strategy": strategy, "shard": NODE if strategy == "hsdp" else None},
    }
    config, nowhere = completed(made_config(values, [], "benchmarks/scaling.py"))[0], Path("scaling")
    plan = stage_plans(config, {}, nowhere)["operator"]
    tasks, lengths = stand_ins(config, plan, look_at_inputs(config, nowhere))
    return step_cost(plan, tasks, lengths, config.runtime, ranks, NODE)


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


def _gigabytes(count: float) -> str:
    value = count / 1e9
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 or value == 0 else f"{value:.5f}"


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
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        check()
    else:
        main(arguments.models, arguments.ranks)
