"""What makes a run, and what is done with one: run, train, evaluate, report, explain and export."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Config, Gpus, Json, Overrides, Run, Runs, Stage
from ups.errors import UserError


def run(
    config: Config, overrides: Overrides = None, runs: Runs = Path("runs"), gpus: Gpus = None, stage: Stage = None
) -> None:
    """Make or open data, train, evaluate and write a report. Interrupted, it goes on where it was when run again.

    With --gpus that many supervised ranks train the stages and share the evaluation; all else is done by one process.
    With --stage one stage is trained again, from the best of those it stands on, and all else is kept; what it had
    waits in RUN/before until the new one is trained. Stages that stand on it are trained again by the next `ups run`.

    \b
    Example:
      ups run quickstart
      ups run quickstart stages.operator.width=96 name=wide --runs /tmp/runs
      ups run quickstart compare.unet.width=16 name=both
      ups run quickstart --gpus 8
      ups run generative --stage corrector
    """
    if gpus is not None:
        from ups.distributed.launch.supervisor import import_torch

        import_torch()

    from ups import pipeline

    pipeline.run(config, overrides or [], runs, gpus, stage=stage)


def train(
    config: Config,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    gpus: Gpus = None,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N or MIN:MAX", help="Machines that train together, or how few may go on.")
    ] = "1",
    rendezvous: Annotated[
        str | None,
        typer.Option("--rendezvous", metavar="HOST:PORT", help="Where the machines meet; HOST is one of them."),
    ] = None,
    profile: Annotated[
        int | None,
        typer.Option("--profile", metavar="N", min=1, help="Trace N steps; a table says where their time went."),
    ] = None,
    stage: Stage = None,
) -> None:
    """Train the stages only. Makes or opens the data; no comparisons, evaluation or report. --stage: as of `ups run`.

    With --gpus, one supervising process starts that many ranks, restarts them from the last checkpoint when one crashes
    or hangs, and says why (`ups explain RUN`). The result does not depend on the number of ranks.

    \b
    Example:
      ups train quickstart stages.operator.width=96
      ups train quickstart --profile 20
      ups train generative --stage corrector stages.corrector.width=32
      ups train quickstart --gpus 8 runtime.strategy=fsdp2
      ups train quickstart --gpus 2 runtime.device=cpu
      ups train big.yaml --gpus 8 --nodes 2 --rendezvous node0:29500 --runs /shared/runs    (on each node)
      torchrun --nproc-per-node 8 -m ups train quickstart
    """
    if gpus is None and (nodes != "1" or rendezvous is not None):
        raise UserError("--nodes and --rendezvous go with --gpus; say how many ranks each machine has")
    if stage is not None and nodes != "1":
        raise UserError(f"--stage {stage} is trained on one machine; leave --nodes out")
    if gpus is not None:
        from ups.distributed.launch.supervisor import import_torch

        import_torch()
    from ups import pipeline

    if gpus is not None:
        pipeline.train_on_ranks(config, overrides or [], runs, gpus, nodes, rendezvous, profile, stage)
    else:
        pipeline.train(config, overrides or [], runs, profile, stage)


def evaluate(run: Run, gpus: Gpus = None, as_json: Json = False) -> None:
    """Measure a trained run on its test data. Persistence and what the run compares with stand beside it.

    With --gpus that many supervised ranks share the test trajectories; no digit depends on how many they are.

    \b
    Example:
      ups evaluate runs/quickstart
      ups evaluate runs/quickstart --gpus 8
      ups evaluate runs/quickstart --json > metrics.json
    """
    from ups import pipeline
    from ups.report.verdict import metrics_table
    from ups.track.progress import Progress

    Progress.silent = Progress.silent or as_json  # progress lines would break the JSON
    metrics = pipeline.evaluate(run) if gpus is None else pipeline.evaluate_on_ranks(run, gpus)
    if "RANK" not in os.environ:  # else who started the ranks prints
        print(json.dumps(metrics, indent=2) if as_json else metrics_table(metrics))


def report(run: Run) -> None:
    """Write the report of an evaluated run again. It is one HTML file, whose path is printed.

    \b
    Example:
      ups report runs/quickstart
    """
    from ups import pipeline

    print(pipeline.report(run))


def explain(
    what: Annotated[str, typer.Argument(metavar="RUN or CONFIG", help="A run's folder, or what `ups run` would take.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Say why a run ended, or what a configuration leaves open and what is chosen for it on this machine.

    Of a run: the report of its last crash, or how it ended if it never crashed.

    \b
    Example:
      ups explain runs/quickstart
      ups explain quickstart training.steps=6000
    """
    if Path(what).is_dir():
        from ups.distributed.faults.explain import explanation

        text, content = explanation(Path(what))
    else:
        from ups.pipeline.config import explained

        config, chosen = explained(what, overrides or [])
        text = "".join(f"{choice}\n" for choice in chosen) or f"{config.name} leaves nothing open\n"
        content = {".".join(choice.key): {"value": choice.value, "why": choice.why} for choice in chosen}
    sys.stdout.write(json.dumps(content, indent=1) + "\n" if as_json else text)


def config(
    section: Annotated[
        str, typer.Option("--explain", metavar="SECTION", help="Such as training, tasks.NAME.files, stages.operator.")
    ] = "",
) -> None:
    """Explain the keys of a configuration: what each takes, what it is if it is not given, what it is for.

    \b
    Example:
      ups config
      ups config --explain training
      ups config --explain stages.pdet_stack
    """
    from ups.pipeline.config import keys_of

    print(keys_of(section))


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder or file to make.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FORM", help="safetensors, torch, onnx, aoti or html; else as OUT ends."),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Of a program: the task, if the run has several.")
    ] = None,
) -> None:
    """Hand over a trained run: its averaged weights, or one step of a task as a program that needs no ups.

    \b
    --to safetensors  a folder of weights and JSON that says what they are, loaded like a run (OUT has no ending)
    --to torch        a program for torch: torch.export.load(OUT).module() (OUT ends in .pt2)
    --to onnx         a program for ONNX Runtime and others (.onnx)
    --to aoti         a program compiled for this machine's kind of processor by AOTInductor (.pt2)
    --to html         a page to play with the model in a browser, without a server or a network (.html)

    A program is one step on the task's own grid, in physical units and for any batch size.

    \b
    Example:
      ups export runs/quickstart quickstart-model
      ups export runs/quickstart advection.pt2 --task advection
      ups export runs/quickstart burgers.onnx --task burgers
      ups export runs/quickstart quickstart.html
    """
    from ups.pipeline.export import export as hand_over

    for path in hand_over(run, out, to, task):
        print(path)


def push(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The model's name on Hugging Face.")],
    private: Annotated[bool, typer.Option("--private", help="For you alone, if it is made now.")] = False,
) -> None:
    """Publish a trained run on Hugging Face: what `ups export` makes of it, with its card, in one commit.

    Anybody can use it then: ups.load("hf://OWNER/NAME"). The token comes from HF_TOKEN or `hf auth login`. RUN may also
    be an export, whose README.md you have edited.

    \b
    Example:
      ups push runs/quickstart me/quickstart
    """
    from ups.pipeline.export import push as publish

    print(publish(run, name, private))
