"""`ups simulate`."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ups.cli.arguments import Run, Settings, parse_settings, parse_times
from ups.errors import UserError

if TYPE_CHECKING:
    from ups.fields import Dataset, Grid
    from ups.simulator import Simulator

ATTRIBUTE = "ups"
"""By which archives that hold data describe themselves."""


def simulate(
    run: Run,
    start: Annotated[Path, typer.Argument(metavar="INPUT", help="A file with the initial fields, or with data.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the result: .npz or .nc.")],
    task: Annotated[str | None, typer.Option(metavar="NAME", help="The task; needed if the run has several.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the task's own length.")] = None,
    times: Annotated[str | None, typer.Option(metavar="T,T,...", help="Or the times you want.")] = None,
    settings: Settings = None,
    trajectory: Annotated[
        int, typer.Option("--trajectory", min=0, help="Of a data file, the one whose first frame to start from.")
    ] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Also draw the result.")] = None,
    gif: Annotated[
        Path | None, typer.Option("--gif", metavar="FILE.gif", help="Also make a film (.gif, .mp4).")
    ] = None,
) -> None:
    """Simulate with a trained run. The start comes from an .npz file (u0; static fields and forcings by name; mask), or
    from data.

    \b
    A data file (any that `ups data inspect` reads) gives the first frame of a trajectory, and its conditions.

    \b
    Example:
      ups simulate runs/quickstart start.npz --task advection --steps 40 --set beta=0.4 --out result.npz
      ups simulate runs/quickstart start.npz --task burgers --times 0.1,0.25 --set nu=0.01 --out result.nc --gif u.gif
      ups simulate runs/fit runs/fit/data/test.hdf5 --trajectory 2 --steps 40 --out result.nc --plot result.png
    """
    if steps is not None and times is not None:
        raise UserError("give --steps or --times, not both")
    parameters, instants = parse_settings(settings), parse_times(times)
    kinds = {
        "--out": (out, (".npz", ".nc")),
        "--plot": (plot, (".png", ".pdf", ".svg")),
        "--gif": (gif, (".gif", ".mp4")),
    }
    for option, (path, ends) in kinds.items():
        if path is not None and path.suffix not in ends:
            raise UserError(f"{option} {path}: the name ends in {' or '.join(ends)}")
        if path is not None and (path.exists() or not path.absolute().parent.is_dir()):
            why = "exists" if path.exists() else "is in a folder that is not there"
            raise UserError(f"{path} {why}; choose another {option}")
    from ups.simulator import load

    fields, grid, named, dataset = _archived(start), None, None, None
    if fields is None:
        from ups.data.open import open_dataset  # which knows all formats

        dataset = open_dataset(start)
    sim = load(run)
    if dataset is not None:
        fields, grid, named = _from_data(sim, dataset, str(start), task, trajectory)
    given = fields or {}
    u0, mask = given.pop("u0", None), given.pop("mask", None)
    known = {name for learned in sim.tasks.values() for name in learned.spec.forcings}
    forcings = {name: given.pop(name) for name in known & given.keys()}
    conditions = {**given, **parameters}
    result = sim.rollout(u0, steps, instants, conditions, task=task or named, grid=grid, forcings=forcings, mask=mask)
    for note in result.warnings:
        print(f"warning: {note}")
    print(result.save(out))
    if plot is not None:
        print(result.plot().save(plot))
    if gif is not None:
        print(result.animate().save(gif))


def _archived(start: Path) -> dict[str, Any] | None:
    """The arrays of an .npz file by name, or that of an .npy file as u0; None of what is no such file."""
    import numpy as np
    import torch

    try:
        if start.is_file():
            with start.open("rb") as file:
                begins = file.read(6)
            if begins == b"\x93NUMPY":
                return {"u0": torch.from_numpy(np.load(start, allow_pickle=False))}
        if not zipfile.is_zipfile(start):
            if start.suffix == ".npz":
                raise ValueError("it is no archive of arrays")
            return None
        with np.load(start, allow_pickle=False) as arrays:
            if ATTRIBUTE in arrays.files:
                return None
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{start} is not a readable .npz file ({error}); .npz with named arrays is expected; "
            "numpy.savez(FILE, u0=...) makes one"
        ) from error


def _from_data(
    sim: Simulator, dataset: Dataset, source: str, task: str | None, trajectory: int
) -> tuple[dict[str, Any], Grid, str]:
    """The start and its conditions by name, their grid and the task."""
    name = task or (dataset.task if dataset.task in sim.tasks else next(iter(sim.tasks)))
    if name not in sim.tasks:
        raise UserError(f"this model has no task {name!r}; it has {', '.join(sim.tasks)}")
    spec = sim.tasks[name].spec
    if dataset.channels != spec.channel_names:
        raise UserError(
            f"{source} has the channels {', '.join(dataset.channels)}, task {name!r} {', '.join(spec.channel_names)}; "
            "start from data of the task (--task NAME)"
        )
    batch = dataset.read([trajectory], slice(None) if spec.forcings else slice(0, 1))
    from ups.rollout.domain import in_time

    given: dict[str, Any] = {each: values[0] for each, values in {**batch.parameters, **batch.static}.items()}
    forcings = {each: values[0] for each, values in batch.forcings.items()}
    given |= in_time(forcings, batch.times[0], dataset.grid.dimension)
    known = {*spec.parameters, *spec.static, *spec.forcings}
    fields = {each: value for each, value in given.items() if each in known}
    if spec.masked and batch.mask is not None:
        fields["mask"] = batch.mask[0]
    return (fields if spec.steady else fields | {"u0": batch.values[0, 0]}), dataset.grid, name
