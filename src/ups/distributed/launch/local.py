"""`ups train --gpus N`: start and supervise the ranks. It imports nothing of models or data, so it starts at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ups.distributed.launch.supervisor import supervise
from ups.distributed.runtime.settings import RuntimeConfig
from ups.errors import GateFailed, GaveUp, Stopped, UserError
from ups.track.progress import Progress


def start_ranks(
    work: Sequence[str],
    directory: Path,
    ranks: int,
    config: RuntimeConfig,
    nodes: str = "1",
    rendezvous: str | None = None,
) -> None:
    """`ups WORK` on `ranks` supervised processes of this node and those of other nodes, until it ends by decision."""
    quiet = ["--quiet"] if Progress.silent else []
    where = [] if rendezvous is None else ["--nodes", nodes, "--rendezvous", rendezvous]
    outcome = supervise(
        [sys.executable, "-m", "ups", *quiet, *work],
        directory,
        ranks,
        config=config,
        nodes=nodes,
        address=rendezvous,
        shown=["ups", *work, "--gpus", str(ranks), *where],
    )
    if outcome.state != "finished":
        raise {"stopped": Stopped, "mistake": UserError, "gave_up": GaveUp, "gate_failed": GateFailed}[outcome.state](
            outcome.reason
        )


def refuse_launchers() -> None:
    if "RANK" in os.environ:
        raise UserError(
            "RANK is set: this command was started by another launcher (torchrun, mpirun), but starts its own ranks; "
            "start it by itself, or use `ups train` without --gpus under that launcher"
        )
