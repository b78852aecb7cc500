"""`ups export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Run


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    programs: Annotated[
        list[str] | None,
        typer.Option("--program", metavar="TASK", help="Add a program of this task's step; repeat it for several."),
    ] = None,
) -> None:
    """Hand over a trained run: averaged weights in one safetensors file, and JSON that says what they are.

    OUT is loaded like a run. A program (TASK.pt2) is one step on the task's own grid, in physical units and for any
    batch size; it needs torch alone: torch.export.load("OUT/TASK.pt2").module().

    \b
    Example:
      ups export runs/quickstart quickstart-model
      ups export runs/quickstart quickstart-model --program advection --program burgers
    """
    from ups.models.export import export_model
    from ups.training.restore import load_model

    for path in export_model(*load_model(run), out, tuple(programs or ())):
        print(path)
