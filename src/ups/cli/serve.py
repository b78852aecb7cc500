"""`ups serve`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from ups.cli.arguments import Run
from ups.errors import UserError


def serve(
    run: Run,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; others than this machine need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", envvar="UPS_TOKEN", help="What every request must bring. Better in UPS_TOKEN."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="A name under which clients know the server; repeat for several."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda.")] = "cpu",
) -> None:
    """Serve a trained run: a page to play with it, and rollouts over HTTP for programs. Ctrl-C ends it.

    \b
    Only this machine can reach it unless --host says otherwise, and then every request needs the token.

    \b
    Example:
      ups serve runs/quickstart
      UPS_TOKEN=$(cat token) ups serve runs/quickstart --host 0.0.0.0 --port 8080 --name simulator.example.org
    """
    if missing := [package for package in ("starlette", "uvicorn") if find_spec(package) is None]:
        raise UserError(f"serving needs {missing[0]}; pip install 'universal-physics-stack[web]'")
    from ups.web.run import serve as answer
    from ups.web.settings import ServerSettings

    answer(run, ServerSettings(host=host, port=port, token=token, names=tuple(names or ())), device)
