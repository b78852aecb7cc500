"""`ups data make`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Settings, parse_settings


def make(
    equation: Annotated[str, typer.Argument(metavar="EQUATION", help="advection, burgers or darcy.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write the file to.")],
    count: Annotated[int, typer.Option(min=1, help="How many trajectories.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same data.")] = 0,
    points: Annotated[int | None, typer.Option(help="Grid points along each axis; else the equation's own.")] = None,
    frames: Annotated[int | None, typer.Option(help="Frames in time; else the equation's own.")] = None,
    end: Annotated[float | None, typer.Option(help="The last frame's time; else the equation's own.")] = None,
    settings: Settings = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; the data do not depend on it.")] = 1,
) -> None:
    """Solve an equation for many random starts. The file has PDEBench's layout.

    \b
    Example:
      ups data make advection --points 128 --frames 41 --end 2.0 --count 100 --set beta=0.4 --out data
    """
    parameters = parse_settings(settings)
    from ups.data.generate import generate
    from ups.equations.named import named_equation
    from ups.track.progress import Progress

    grid = {"points": points, "frames": frames, "duration": end}
    problem = named_equation(equation, {name: v for name, v in grid.items() if v is not None} | parameters)
    out.mkdir(parents=True, exist_ok=True)
    path = out / problem.published_name
    with Progress(equation, total=count, unit="trajectories") as progress:
        generate(problem, count, seed, path, workers=workers, progress=lambda done, _: progress.update(done))
    print(path)
