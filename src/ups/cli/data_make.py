"""`ups data make`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Settings, Workers, parse_words
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
    from ups.equations.catalogue import catalogue, described

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
            generate(
                problem,
                count,
                seed,
                path,
                workers or all_cores(),
                lambda done, _: progress.update(done),
                device=device,
                layout=layout,
            )
    except KeyboardInterrupt:
        raise Stopped(f"the finished parts of {path} are kept beside it") from None
    print(path)
