"""`ups plan`: what a run takes, before it is paid for."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Config, Gpus, Json, Nodes, Overrides, Runs
from ups.errors import UserError


def plan(
    config: Config,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    gpus: Gpus = None,
    nodes: Nodes = 1,
    price: Annotated[float | None, typer.Option("--price", help="Of one GPU for an hour, in any currency.")] = None,
    measuring: Annotated[
        bool, typer.Option("--measure", help="First measure steps of this configuration, and links, on this machine.")
    ] = False,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Of which rates are kept, if not the one here.")
    ] = None,
    within: Annotated[
        float | None, typer.Option("--within", metavar="GB/S", help="What a rank sends within its machine.")
    ] = None,
    beyond: Annotated[
        float | None, typer.Option("--beyond", metavar="GB/S", help="What a rank sends to other machines.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw it against the ranks: .png, .svg or .pdf.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run will need and take on so many GPUs: memory, step, bytes sent, days and cost, for each strategy.

    \b
    Steps are counted on tensors without numbers and ranks that do not exist; how long they take follows from rates
    that --measure takes on one device and keeps. What is not known is left out, and said.

    \b
    Example:
      ups plan quickstart --measure
      ups plan big.yaml --gpus 8 --nodes 16 --price 2.5 --within 200 --beyond 25 --plot plan.png
      ups plan big.yaml --gpus 8 --device "NVIDIA H200"
    """
    from rich.console import Console

    from ups.ops import plan as plans
    from ups.ops.findings import counted
    from ups.ops.rates import Links
    from ups.pipeline import plan as planning
    from ups.track.progress import Progress

    if measuring and "RANK" in os.environ:  # one of the ranks whose links are measured
        links = planning.measure_links(config, overrides or [], runs)
        if os.environ["RANK"] == "0":
            print(json.dumps(asdict(links)))
        return
    Progress.silent = Progress.silent or as_json
    for option, rate in (("--within", within), ("--beyond", beyond)):
        if rate is not None and not 0 < rate < math.inf:
            raise UserError(f"{option} is {rate:g}; give a rate above 0, in GB/s a rank")
    if plot is not None:
        from ups.rollout.pictures import check_path

        check_path(plot)
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 140)
    if measuring:
        if device is not None:
            raise UserError("--measure is of the device here; leave --device out")
        rates, path = planning.measure(config, overrides or [], runs, gpus or 1)
        if not as_json:
            console.print(f"rates of {rates.device} are kept in {path}\n")
    told = Links(within and 1e9 * within, beyond and 1e9 * beyond)
    found = planning.plan(config, overrides or [], runs, gpus or 1, nodes, price, device, told, plot is not None)
    if plot is not None:
        stage = next(reversed(found.best))
        plans.draw([row for row in found.rows if row.stage == stage], found.best[stage], found.memory, plot)
    if as_json:
        print(planning.as_json(found))
        return
    ranks = counted(found.ranks, "rank")
    for stage, best in found.best.items():
        rows = found.on_all(stage)
        work = f"{rows[0].flop:.3g} FLOP a step and rank"
        console.print(f"{stage}: {rows[0].parameters / 1e6:.3g}M parameters on {ranks}, {work}")
        console.print(plans.table(rows, best))
        console.print(plans.verdict(rows, best))
    console.print(f"store: {plans.in_bytes(found.store)}\n\nassumed")
    for line in found.assumptions:
        console.print(f"  {line}")
