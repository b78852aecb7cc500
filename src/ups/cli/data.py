"""`ups data`: make, fetch, inspect, stats and convert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import (
    Axes,
    Boundary,
    Channels,
    Convention,
    Dt,
    File,
    Json,
    Lengths,
    Settings,
    Task,
    Workers,
    parse_words,
    reading_options,
    told_options,
)
from ups.errors import Stopped, UserError


def make(
    equation: Annotated[
        str | None, typer.Argument(metavar="EQUATION", help="Its name, such as burgers; --list shows all.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write the file to.")] = Path("data"),
    count: Annotated[int, typer.Option(min=1, help="How many trajectories.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same data.")] = 0,
    points: Annotated[int | None, typer.Option(help="Grid points along each axis; else the equation's own.")] = None,
    frames: Annotated[int | None, typer.Option(help="Frames in time; else the equation's own.")] = None,
    end: Annotated[float | None, typer.Option(help="The last frame's time; else the equation's own.")] = None,
    settings: Settings = None,
    layout: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="The file's layout; else the published one.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda for every visible GPU, or cuda:0 for one.")] = "cpu",
    workers: Workers = None,
    plugins: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="FILE.py", help="A Python file that registers equations; its code is run."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Describe the equations, or the one named; make none.")
    ] = False,
) -> None:
    """Solve an equation for many random starts. Interrupted, the same command goes on where it stopped.

    \b
    The file has the layout and the name of the published data of that equation. Trajectory i of a seed is
    always the same; the number of workers changes nothing. Settings that are not given have values that work.

    \b
    Example:
      ups data make --list
      ups data make burgers --list
      ups data make burgers --set nu=0.001 --points 1024 --frames 201 --count 1000 --out data
      ups data make advection --set beta=0.4 --format well --device cuda
      ups data make heat --plugin examples/toy_equation.py
    """
    from ups.config.plugins import load_plugins
    from ups.equations.named import catalogue, described

    load_plugins(plugins or ())
    if listed:
        print(catalogue() if equation is None else described(equation))
        return
    if equation is None:
        raise UserError("give the name of an EQUATION; `ups data make --list` shows them")
    from ups.data.generate.make import file_name, generate
    from ups.data.generate.workers import all_cores
    from ups.equations.named import named_equation
    from ups.track.progress import Progress

    grid = {"points": points, "frames": frames, "duration": end}
    problem = named_equation(equation, {name: v for name, v in grid.items() if v is not None} | parse_words(settings))
    out.mkdir(parents=True, exist_ok=True)
    path = out / file_name(problem, layout)
    try:
        with Progress(equation, total=count, unit="trajectories") as progress:
            many = workers or all_cores()
            generate(problem, count, seed, path, many, progress.tick, device=device, layout=layout)
    except KeyboardInterrupt:
        raise Stopped(f"the finished parts of {path} are kept beside it") from None
    print(path)


def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="A published name, a pattern in quotes, or an address.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to bring files into.")] = Path("data"),
    listed: Annotated[bool, typer.Option("--list", help="List what the names match; fetch nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch published data files. Interrupted, it goes on where it stopped; every checksum that is known is checked.

    \b
    PDEBench:  the published file name, such as 1D_Burgers_Sols_Nu0.001.hdf5 (--list shows all)
    The Well:  well/DATASET/PATH, such as 'well/active_matter/data/test/*'
    PDEGym:    pdegym/DATASET/PATH, such as 'pdegym/NS-Sines/*'

    \b
    Example:
      ups data fetch --list '1D_Burgers_*'
      ups data fetch 1D_Burgers_Sols_Nu0.001.hdf5 --out data
    """
    from ups.data.fetch import fetch as fetch_file
    from ups.data.published import find_published
    from ups.track.progress import Progress

    if not names and not listed:
        raise UserError("give the NAME of a published file; `ups data fetch --list` shows them")
    files = [file for name in names or ["*"] for file in find_published(name)]
    if listed:
        if as_json:
            found = [{"name": f.name, "url": f.url, "checksum": f.checksum, "bytes": f.size} for f in files]
            print(json.dumps(found, indent=2))
            return
        for file in files:
            print(file.name if file.size is None else f"{file.name}  {file.size / 1e9:.2f} GB")
        return
    for file in files:
        try:
            with Progress(file.path.name, total=0, unit="MB", size=10**6) as progress:
                path = fetch_file(file, out, progress.tick)
        except KeyboardInterrupt:
            raise Stopped(f"what has arrived of {file.path.name} is kept in {out}") from None
        print(path)


def inspect(
    file: File,
    task: Task = None,
    convention: Convention = None,
    dt: Dt = None,
    lengths: Lengths = None,
    boundary: Boundary = None,
    axes: Axes = None,
    channels: Channels = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Also draw the first trajectories as a picture.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say and show what is in a data file. Axes, boundaries, parameters, ranges, and problems: NaN, duplicates.

    \b
    Example:
      ups data inspect data/1D_Advection_Sols_beta0.4.hdf5 --plot advection.png
      ups data inspect darcy_train_16.pt --convention nodal --json
    """
    from ups.data.inspect import describe, inspect_dataset, layout_name
    from ups.data.open import open_dataset
    from ups.data.sketch import sketch

    told = told_options(dt, lengths, boundary, axes, channels)
    dataset = open_dataset(file, task, **reading_options(convention), **told)
    found = {"layout": layout_name(file)} | inspect_dataset(dataset)
    print(json.dumps(found, indent=2) if as_json else describe(found), flush=True)
    if not as_json:
        print(f"\n{sketch(dataset)}", flush=True)
    if plot is not None:
        from ups.data.picture import draw

        draw(dataset, plot)


def stats(
    file: File,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write; else stats.yaml beside the data.")
    ] = None,
    task: Task = None,
    convention: Convention = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Mean, std and rms of every field, and of its change from frame to frame; written in The Well's form.

    \b
    Example:
      ups data stats data/1D_Burgers_Sols_Nu0.001.hdf5
    """
    from ups.data.generate.workers import all_cores
    from ups.data.open import open_dataset
    from ups.data.prepare.moments import by_kind, moments, moments_table, statistics_path, well_stats, write_statistics
    from ups.track.progress import Progress

    dataset = open_dataset(file, task, **reading_options(convention))
    with Progress(file.name, total=0, unit="pieces", quiet=as_json) as progress:
        found = moments(dataset, workers or all_cores(), progress.tick)
    form = well_stats(dataset.header, by_kind(found))
    path = out or statistics_path(file)
    write_statistics(form, path)
    print(json.dumps(form, indent=2) if as_json else f"{moments_table(found)}\n{path}")


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A data file that ups can read.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The new file; an existing one is refused.")],
    layout: Annotated[str | None, typer.Option("--format", metavar="NAME", help="The new file's layout.")] = None,
    task: Task = None,
    convention: Convention = None,
    dt: Dt = None,
    lengths: Lengths = None,
    boundary: Boundary = None,
    axes: Axes = None,
    channels: Channels = None,
) -> None:
    """Write a data file in another layout. What the new layout does not keep is said; what it cannot hold is refused.

    \b
    Example:
      ups data convert 1D_Burgers_Sols_Nu0.001.hdf5 burgers.hdf5 --format well
      ups data convert u.npy u.nc --format netcdf --dt 0.05 --boundary periodic
    """
    from ups.data.convert import convert as convert_data
    from ups.data.convert import layout_for
    from ups.data.open import open_dataset
    from ups.track.progress import Progress

    name = layout_for(target, layout)
    told = told_options(dt, lengths, boundary, axes, channels)
    dataset = open_dataset(source, task, **reading_options(convention), **told)
    with Progress(target.name, total=len(dataset), unit="trajectories") as progress:
        lost = convert_data(dataset, target, name, progress.tick)
    for what in lost:
        print(f"not kept: {what}")
    print(target)
