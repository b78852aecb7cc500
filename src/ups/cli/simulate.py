"""`ups simulate`."""

from __future__ import annotations

import io
import zipfile
import zlib
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
    """Simulate with a trained run. The start comes from an .npz file: u0; static fields and forcings by name; mask.

    \b
    Example:
      ups simulate runs/quickstart start.npz --task advection --steps 40 --set beta=0.4 --out result.npz
      ups simulate runs/quickstart start.npz --task burgers --times 0.1,0.25 --set nu=0.01 --out result.npz
    """
    if steps is not None and times is not None:
        raise UserError("give --steps or --times, not both")
    parameters, instants = parse_settings(settings), parse_times(times)
    if out.exists() or not out.absolute().parent.is_dir():
        why = "exists" if out.exists() else "is in a folder that is not there"
        raise UserError(f"{out} {why}; choose another --out")
    import numpy as np
    import torch

    from ups.durable import write
    from ups.simulator import load

    try:
        with start.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no archive of arrays")
            with np.load(start, allow_pickle=False) as arrays:
                fields = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{start} is not a readable .npz file ({error}); .npz with named arrays is expected; "
            "numpy.savez(FILE, u0=...) makes one"
        ) from error
    u0 = fields.pop("u0", None)
    sim = load(run)
    known = {name for learned in sim.tasks.values() for name in learned.spec.forcings}
    forcings = {name: fields.pop(name) for name in known & fields.keys()}
    mask = fields.pop("mask", None) if any(learned.spec.masked for learned in sim.tasks.values()) else None
    conditions = {**parameters, **fields}
    result = sim.rollout(u0, steps, instants, conditions, task=task, forcings=forcings, mask=mask)
    found = {"values": result.values.numpy(), "times": result.times.numpy(), "channels": np.array(result.channels)}
    content = io.BytesIO()
    np.savez(content, **found, warnings=np.array(result.warnings))  # pyright: ignore[reportArgumentType]
    write(out, content.getbuffer())
    for note in result.warnings:
        print(f"warning: {note}")
    print(out)
