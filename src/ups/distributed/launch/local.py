"""`ups train --gpus N`: start and supervise the ranks. It imports nothing of models or data, so it starts at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ups.config.load import load_config
from ups.config.schema import RunConfig
from ups.distributed.launch.run_directory import claimed_run
from ups.distributed.launch.supervisor import supervise
from ups.errors import GaveUp, Stopped, UserError
from ups.track.progress import Progress


def train_on_ranks(
    name: str,
    overrides: Sequence[str],
    runs: Path,
    ranks: int,
    nodes: str = "1",
    rendezvous: str | None = None,
    profile: int | None = None,
) -> None:
    """Data and the operator only, on `ranks` supervised processes of this node and those of other nodes."""
    refuse_launchers()
    config = load_config(name, overrides, RunConfig)
    directory = runs / config.name
    quiet = ["--quiet"] if Progress.silent else []
    work = ["train", name, *overrides, *([] if runs == Path("runs") else ["--runs", str(runs)])]
    work += [] if profile is None else ["--profile", str(profile)]
    command = [sys.executable, "-m", "ups", *quiet, *work]
    where = [] if rendezvous is None else ["--nodes", nodes, "--rendezvous", rendezvous]
    with claimed_run(directory, config, rendezvous):
        outcome = supervise(
            command,
            directory,
            ranks,
            config=config.runtime,
            nodes=nodes,
            address=rendezvous,
            shown=["ups", *work, "--gpus", str(ranks), *where],
        )
    if outcome.state != "finished":
        raise {"stopped": Stopped, "mistake": UserError, "gave_up": GaveUp}[outcome.state](outcome.reason)


def refuse_launchers() -> None:
    if "RANK" in os.environ:
        raise UserError(
            "RANK is set: this command was started by another launcher (torchrun, mpirun), but starts its own ranks; "
            "start it by itself, or use `ups train` without --gpus under that launcher"
        )
