"""What surrounds a run: check."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Config, Json, Overrides, Runs


def check(
    config: Config,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    ranks: Annotated[
        int | None, typer.Option("--ranks", "--gpus", min=1, help="Also try the first steps on so many ranks.")
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="If that fails: which part of the configuration it fails for.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what of a run would fail, before it costs anything. Exit code 1 if anything would.

    \b
    Looks at the configuration, the machine, the data, memory and disks, in under a minute; nothing is left behind.
    With --ranks, torchrun starts so many, which try collectives, steps, a checkpoint and a rank out of memory.

    \b
    Example:
      ups check quickstart
      ups check big.yaml --ranks 8 --bisect
      ups check quickstart --ranks 2 runtime.device=cpu --json
    """
    from rich.console import Console

    from ups.ops.findings import as_plain, line, summary
    from ups.pipeline import check as checks

    if "RANK" in os.environ and ranks is None:  # a rank of a rehearsal
        findings = checks.rehearsal_of_rank(config, overrides or [], runs)
        if os.environ["RANK"] == "0":
            print(json.dumps(as_plain(findings)))
        return
    console = Console(soft_wrap=True, highlight=False)
    findings = checks.check(
        config, overrides or [], runs, ranks, bisect, lambda f: None if as_json else console.print(line(f))
    )
    print(json.dumps(as_plain(findings), indent=1) if as_json else f"\n{summary(findings)}")
    if any(finding.level == "red" for finding in findings):
        raise typer.Exit(1)
