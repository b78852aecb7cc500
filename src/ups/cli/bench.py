"""`ups bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ups.cli.arguments import Json


def bench(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK", help="burgers, advection, diffusion_reaction, compressible_2d (all of them); transformer."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small data and models: minutes on two CPU cores.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0, help="Training time of each; 60, or 8 with --quick; 0: throughput only."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option("--seed", min=0, max=2**31 - 1, help="Of weights and order of samples; repeat it for several."),
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device")] = "auto",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results go.")] = Path("bench"),
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="A contestant, such as ours; repeat for several.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; all cores.")] = None,
    tf32: Annotated[
        bool, typer.Option("--tf32/--no-tf32", help="Let a GPU round factors of float32 products, for everyone.")
    ] = True,
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="Compile our models, in plain loops too; that is training time."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure our step and our models beside the usual ways. One table: speed, error at equal time, solvers.

    Contestants: ours, eager, dataloader, fno, fno_usual, unet_usual, neuraloperator (where it is installed), and the
    operator at two other widths: small, small_eager, small_dataloader, large, large_eager, large_dataloader. Results
    are written after each and replace those there were of it. docs/performance.md says how to read the table.

    \b
    Example:
      ups bench --quick
      ups bench burgers --only ours --only fno --seconds 60 --seed 0 --seed 1 --seed 2
      ups bench --seconds 0
      ups bench transformer --compile
    """
    from ups.bench.run import Options, measure
    from ups.track.progress import Progress

    Progress.silent = Progress.silent or as_json  # progress lines would break the JSON
    options = Options(
        tasks=tasks or (),
        quick=quick,
        seconds=(8.0 if quick else 60.0) if seconds is None else seconds,
        seeds=seed or (0,),
        device=device,
        out=out,
        only=only or (),
        threads=threads,
        tf32=tf32,
        compile=compiled,
        command=" ".join(["ups", *sys.argv[1:]]),
    )
    raise typer.Exit(measure(options, as_json=as_json))
