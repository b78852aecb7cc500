"""`ups bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ups.cli.arguments import Json
from ups.errors import UserError


def bench(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK",
            help="burgers, advection, diffusion_reaction, compressible_2d (all of them); transformer. With --universal "
            "tasks of that configuration, and overrides such as training.noise=0.",
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
    universal: Annotated[
        bool, typer.Option("--universal", help="One model of twelve systems beside all that share its training time.")
    ] = False,
    rivals_once: Annotated[
        bool, typer.Option("--rivals-once", help="With --universal: other seeds train the joint model alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure our step and our models beside the usual ways. One table: speed, error at equal time, solvers.

    With --universal: the configuration `universal` with each seed (0, 1, 2), for 300 seconds, and the joint model's
    ratios to its specialists, FNOs and U-Nets (docs/universal.md). Its runs lie in --out; interrupted, they go on.

    Contestants: ours, eager, dataloader, fno, fno_usual, unet_usual, neuraloperator (where it is installed), and the
    operator at two other widths: small, small_eager, small_dataloader, large, large_eager, large_dataloader. Results
    are written after each and replace those there were of it. docs/performance.md says how to read the table.

    \b
    Example:
      ups bench --quick
      ups bench burgers --only ours --only fno --seconds 60 --seed 0 --seed 1 --seed 2
      ups bench --seconds 0
      ups bench transformer --compile
      ups bench --universal --rivals-once --out universal
      ups bench --universal advection burgers --seconds 900 --seed 0 --out two
    """
    if universal:
        given = {"--quick": quick, "--only": only, "--device": device != "auto", "--threads": threads}
        given |= {"--no-tf32": not tf32, "--compile": compiled}
        if unused := [option for option, value in given.items() if value]:
            raise UserError(f"--universal takes no {unused[0]}; give overrides instead, such as runtime.threads=1")
        from ups.pipeline.bench import universal as bench_universal

        bench_universal(
            300.0 if seconds is None else seconds,
            seed or (0, 1, 2),
            out,
            tasks or (),
            rivals_once=rivals_once,
            as_json=as_json,
        )
        return
    if rivals_once:
        raise UserError("--rivals-once goes with --universal")
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
