"""`ups simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Run, Settings, parse_settings, parse_times
from ups.errors import UserError


def simulate(
    run: Run,
    start: Annotated[Path, typer.Argument(metavar="INPUT", help="A file with the initial fields.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the result.")],
    task: Annotated[str | None, typer.Option(metavar="NAME", help="The task; needed if the run has several.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the task's own length.")] = None,
    times: Annotated[str | None, typer.Option(metavar="T,T,...", help="Or the times you want.")] = None,
    settings: Settings = None,
) -> None:
    """Simulate with a trained run. The start comes from an .npz file: u0, and static fields by name.

    \b
    Example:
      ups simulate runs/quickstart start.npz --task advection --steps 40 --set beta=0.4 --out result.npz
      ups simulate runs/quickstart start.npz --task burgers --times 0.1,0.25 --set nu=0.01 --out result.npz
    """
    if steps is not None and times is not None:
        raise UserError("give --steps or --times, not both")
    parameters, instants = parse_settings(settings), parse_times(times)
    from ups.simulator import simulate_file

    simulate_file(run, start, out, task=task, steps=steps, times=instants, parameters=parameters)
    print(out)
