"""`ups train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Config, Gpus, Overrides, Runs


def train(
    config: Config,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    gpus: Gpus = None,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N or MIN:MAX", help="Machines that train together, or how few may go on.")
    ] = "1",
    rendezvous: Annotated[
        str | None,
        typer.Option("--rendezvous", metavar="HOST:PORT", help="Where the machines meet; HOST is one of them."),
    ] = None,
    profile: Annotated[
        int | None,
        typer.Option("--profile", metavar="N", min=1, help="Trace N steps; a table says where their time went."),
    ] = None,
) -> None:
    """Train the stages only. Makes or opens the data; no comparisons, evaluation or report.

    With --gpus, one supervising process starts that many ranks, restarts them from the last checkpoint when one crashes
    or hangs, and says why (`ups explain RUN`). The result does not depend on the number of ranks.

    \b
    Example:
      ups train quickstart stages.operator.width=96
      ups train quickstart --profile 20
      ups train quickstart --gpus 8 runtime.strategy=fsdp2
      ups train quickstart --gpus 2 runtime.device=cpu
      ups train big.yaml --gpus 8 --nodes 2 --rendezvous node0:29500 --runs /shared/runs    (on each node)
      torchrun --nproc-per-node 8 -m ups train quickstart
    """
    if gpus is not None:
        from ups.distributed.launch.supervisor import import_torch

        import_torch()
    from ups import pipeline

    if gpus is not None:
        pipeline.train_on_ranks(config, overrides or [], runs, gpus, nodes, rendezvous, profile)
    else:
        pipeline.train(config, overrides or [], runs, profile)
