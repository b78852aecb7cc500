"""`ups launch`: a run for another machine, or for later; and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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

_START = "start"


class Launching(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What is no command of its own begins with a configuration, or with an option: it is to be launched."""
        return super().resolve_command(ctx, args if args[0] in self.commands else [_START, *args])


launching = typer.Typer(
    cls=Launching, no_args_is_help=True, rich_markup_mode=None, context_settings={"ignore_unknown_options": True}
)


@launching.callback()
def launched() -> None:
    """Hand a run to this machine's background, to SLURM or to rented machines: `ups launch CONFIG --on PLACE`.

    \b
    Example:
      ups launch quickstart --on local
      ups launch big.yaml --on slurm --gpus 8 --nodes 4 --slurm partition=gpu --slurm time=24:00:00
      ups launch big.yaml --on slurm --gpus 8 --seeds 0,1,2 --dry-run
      ups launch big.yaml --on sky --gpus 8 --cloud runpod --gpu H200 --storage s3://bucket/runs --spot
      ups launch status runs/big
      ups launch logs runs/big
      ups launch stop runs/big
    `ups launch start --help` has all options.
    """


@launching.command(name=_START, hidden=True)
def start(
    config: Config,
    overrides: Overrides = None,
    on: Annotated[str, typer.Option("--on", metavar="PLACE", help="local, slurm or sky.")] = "local",
    runs: Runs = Path("runs"),
    gpus: Gpus = None,
    nodes: Nodes = 1,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N,N", help="slurm: an array of runs, one a seed.")
    ] = None,
    options: Slurm = None,
    cloud: Cloud = None,
    gpu: Gpu = None,
    storage: Storage = None,
    spot: Spot = False,
    install: Install = None,
    secrets: Secrets = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted, and submit nothing.")] = False,
) -> None:
    """Launch `ups run CONFIG` elsewhere."""
    from ups.pipeline import launch

    try:
        numbers = tuple(int(seed) for seed in (seeds or "").split(",") if seed.strip())
    except ValueError:
        raise UserError(f"--seeds {seeds}: give whole numbers, such as 0,1,2") from None
    wanted = launch.asked(on, gpus, nodes, numbers, secrets, options, cloud, gpu, storage, spot, install)
    if dry:
        print(launch.dry_run(config, overrides or [], runs, wanted), end="")
        return
    for directory in launch.launch(config, overrides or [], runs, wanted):
        print(f"launched: ups launch status {directory}")


@launching.command()
def status(run: Run, as_json: Json = False) -> None:
    """Say what has become of a launched run."""
    import json

    from ups.pipeline import launch

    there, own = launch.status(run)
    print(json.dumps({"launched": there, "run": own}) if as_json else f"{there}\nrun: {own}")


@launching.command()
def logs(run: Run) -> None:
    """Print the end of what a launched run has printed."""
    from ups.pipeline import launch

    print(launch.logs(run))


@launching.command()
def stop(run: Run) -> None:
    """Ask a launched run to save and leave. Launched again, it goes on."""
    from ups.pipeline import launch

    print(launch.stop(run))
