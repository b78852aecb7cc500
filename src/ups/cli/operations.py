"""What surrounds runs: check, runs, compare, watch, clean, sweep."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import (
    Cloud,
    Config,
    Gpu,
    Gpus,
    Install,
    Json,
    Nodes,
    Overrides,
    Run,
    Runs,
    Secrets,
    Slurm,
    Spot,
    Storage,
)
from ups.errors import UserError


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


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds runs.")] = Path("runs"),
    live: Annotated[bool, typer.Option("--live", help="Go on showing them, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """List runs: state, where training stands, error over the trivial one, age and size.

    \b
    Example:
      ups runs
      ups runs /shared/runs --live
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.live import Live

    from ups.ops.runs import all_runs, table

    found = all_runs(folder)
    if as_json:
        print(json.dumps([asdict(run) for run in found], indent=1))
        return
    console = Console(soft_wrap=True)
    if not live:
        console.print(table(found))
        return
    with Live(table(found), console=console, auto_refresh=False) as display:
        while True:
            time.sleep(_REFRESH)
            display.update(table(all_runs(folder)), refresh=True)


def watch(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as where the output is no terminal.")] = False,
) -> None:
    """Show a run while it works: curves, rate, time left, what each rank does and its memory. Ends with the run.

    \b
    Example:
      ups watch runs/quickstart
    """
    from rich.console import Console
    from rich.live import Live

    from ups.ops.watch import frame

    console = Console(highlight=False)
    shown, working = frame(run)
    if once or not console.is_terminal:
        console.print(shown)
        return
    with Live(shown, console=console, auto_refresh=False) as display:
        while working:
            time.sleep(_REFRESH)
            shown, working = frame(run)
            display.update(shown, refresh=True)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Finished runs; the first is the reference.")],
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Also draw errors and intervals (.png, .svg, .pdf), or all of it (.html)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set finished runs beside one another: errors with intervals, which differences are beyond noise, and settings.

    \b
    Example:
      ups compare runs/quickstart runs/wide --plot both.html
    """
    from rich.console import Console

    from ups.ops import compare as comparison

    if plot is not None:
        from ups.rollout.pictures import KINDS, check_path

        check_path(plot, (*KINDS, ".html"))
    rows, changed = comparison.compare(runs), comparison.differences(runs)
    if plot is not None and plot.suffix == ".html":
        from ups.ops.compare_page import write_page

        write_page(runs, rows, changed, plot)
    elif plot is not None:
        comparison.draw(rows, plot)
    if as_json:
        print(json.dumps(comparison.as_plain(rows, changed), indent=1))
        return
    width = None if sys.stdout.isatty() else 140
    Console(soft_wrap=True, highlight=False, width=width).print(comparison.error_table(rows))
    print("\nconfigured otherwise" if changed else "\nthe configurations are the same")
    for key, values in changed.items():
        print(f"  {key}: {' | '.join(map(str, values))}")


def clean(
    folder: Annotated[Path, typer.Argument(metavar="DIR or RUN", help="A folder of runs, or one run.")] = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False,
    as_json: Json = False,
) -> None:
    """List what of runs may go, and remove it if you say so. What is at work keeps everything.

    \b
    Of any run: files half written and damaged checkpoints. Of a finished one also checkpoints that are neither the
    best nor the last, its stores, and data that were made for it: the run makes these again when it needs them.

    \b
    Example:
      ups clean runs
    """
    from ups.ops.clean import leftovers, remove

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name one that holds runs, or a run")
    found = leftovers(folder)
    if as_json:
        print(json.dumps([{"path": str(left.path), "why": left.why, "bytes": left.bytes} for left in found], indent=1))
    else:
        for left in found:
            print(f"{left.bytes / 1e6:10,.1f} MB  {left.path}: {left.why}")
        print(f"{sum(left.bytes for left in found) / 1e6:10,.1f} MB may go")
    try:
        going = bool(found) and (yes or (not as_json and typer.confirm("remove it?", default=False)))
    except typer.Abort:  # no terminal, and nothing else that answers
        raise UserError("nothing was removed, as nobody answered; give --yes to remove it") from None
    if going:
        freed = remove(found, folder)
        if not as_json:
            print(f"{freed / 1e6:,.1f} MB are free")


def sweep(
    config: Config,
    overrides: Annotated[list[str], typer.Argument(metavar="KEY=A,B...", help="Settings, and values to try.")],
    runs: Runs = Path("runs"),
    on: Annotated[str | None, typer.Option("--on", metavar="PLACE", help="Launch them: slurm or sky.")] = None,
    gpus: Gpus = None,
    nodes: Nodes = 1,
    options: Slurm = None,
    cloud: Cloud = None,
    gpu: Gpu = None,
    storage: Storage = None,
    spot: Spot = False,
    install: Install = None,
    secrets: Secrets = None,
    as_json: Json = False,
) -> None:
    """Run all combinations of some settings, one after another, and set them in one table.

    \b
    Interrupted, the same command goes on: what is finished stays. A run that fails does not end the others; the exit
    code is 1 then. With --on each run is a job elsewhere (`ups launch`), and the same command, given again, launches
    those that have failed and shows the table.

    \b
    Example:
      ups sweep quickstart training.learning_rate=0.003,0.01 seed=0,1,2
      ups sweep big.yaml training.learning_rate=0.003,0.01 --on slurm --gpus 8 --slurm partition=gpu
    """
    from dataclasses import asdict

    from rich.console import Console

    from ups.ops.runs import table
    from ups.pipeline import sweep as sweeping

    failed: dict[str, str] = {}
    made: list[Path] = []
    if on is None:
        found, failed = sweeping.sweep(config, overrides, runs)
    else:
        from ups.pipeline.launch import asked

        wanted = asked(on, gpus, nodes, (), secrets, options, cloud, gpu, storage, spot, install)
        found, made = sweeping.launch_sweep(config, overrides, runs, wanted)
    if as_json:
        said = {"runs": [asdict(run) for run in found], "failed": failed, "launched": [str(path) for path in made]}
        print(json.dumps(said, indent=1))
    else:
        for directory in made:
            print(f"launched: ups launch status {directory}")
        Console(soft_wrap=True).print(table(found))
    if failed:
        raise typer.Exit(1)


_REFRESH = 2.0
"""Seconds between looks at a run."""
