"""What is asked of one model of many systems, bar by bar: a table in Markdown each, and its numbers as JSON in --out.

    python benchmarks/universal_bars.py specialists --seconds 60
    python benchmarks/universal_bars.py scarce --task burgers --task vorticity --trajectories 32 --seconds 300
    python benchmarks/universal_bars.py held_out bench/300s-seed0
    python benchmarks/universal_bars.py resolution bench/300s-seed0
    python benchmarks/universal_bars.py horizon bench/300s-seed0

The joint model beside specialists, FNOs and U-Nets is `ups bench --universal`. The first two train: every training is a
run in --out that goes on where it stopped, and one whose NAME.json is there is not done again. The others need a model
alone (a run, or what `ups export` made of one, with --config universal) and solve test trajectories themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import unseen
from solved import judged_on, splits

from ups.bench.ratios import MODEL, Result, average, compared, counted, markdown, ratio
from ups.bench.tables import table
from ups.config.load import read_config
from ups.data.convert import convert
from ups.data.joined import Joined, Subset
from ups.data.settings import MakeConfig
from ups.errors import STOPPED, Stopped, UserError
from ups.evaluation.labels import PERSISTENCE
from ups.pipeline.bench import UNIVERSAL, chosen, data_folder, finished, write_json

HELD = 8
"""One of so many scarce trajectories is not trained on but chooses the weights."""


def specialists(options: argparse.Namespace) -> None:
    """One model a task and an FNO a task, so many seconds each."""
    results = []
    for task in options.task or _tasks([]):
        own = [word for word in options.overrides if _about(word) in (None, task)]
        asked = [f"training.seconds={options.seconds:g}", *chosen([task]), "compare={fno: {}}", *own]
        results.append(finished(f"{options.seconds:g}s-{task}-seed{options.seed}", asked, options.out, options.seed))
    whole = _merged(results)
    numbers = compared([whole])
    write_json(options.out / "specialists.json", {"tasks": numbers, "counts": counted(numbers, "fno")})
    print(markdown([whole]))


def scarce(options: argparse.Namespace) -> None:
    """The joint model with few trajectories of some tasks, beside specialists of the same few with a share of its time
    each.
    """
    rest = [word for word in options.overrides if _about(word) is None]
    known = _tasks([word for word in options.overrides if _about(word) is not None])
    names = dict.fromkeys([*options.task, *(options.among or known)])
    if unknown := [task for task in names if task not in known]:
        raise UserError(f"there is no task {unknown[0]!r}; {UNIVERSAL} has {', '.join(known)}")
    tasks = {name: task for name, task in known.items() if name in names}
    few = {task: {"files": _few(task, tasks[task], options)} for task in options.task}
    suffix = f"{options.trajectories}-seed{options.seed}"

    def trained(name: str, told: Mapping[str, Any], seconds: float) -> Result:
        asked = [f"training.seconds={seconds:g}", f"tasks={json.dumps(told)}", "compare={}", *rest]
        return finished(f"scarce-{name}-{suffix}", asked, options.out, options.seed)

    # The specialists first: they are short, and what is done is kept.
    alone = {task: trained(task, {task: told}, options.seconds / len(tasks)) for task, told in few.items()}
    joint = trained(f"joint-{len(few)}", tasks | few, options.seconds)
    found: dict[str, dict[str, Any]] = {}
    for task, specialist in alone.items():
        errors, own = (list(result.errors[task].values())[-1] for result in (joint, specialist))
        found[task] = {
            PERSISTENCE: average(errors[PERSISTENCE]),
            "specialist": average(own[MODEL]),
            "joint": average(errors[MODEL]),
            "ratio": ratio(errors[MODEL], own[MODEL], options.seed),
        }
    write_json(options.out / f"scarce-{suffix}.json", {"tasks": found})
    columns = (PERSISTENCE, "specialist", "joint")
    lines = [[task, *(f"{e[who]:.3g}" for who in columns), str(e["ratio"])] for task, e in found.items()]
    _print(["task", *columns, "joint / specialist"], lines)
    better = sum(entry["ratio"].value < 1 for entry in found.values())
    print(f"\n{options.trajectories} trajectories: joint better than the specialist on {better} of {len(found)} tasks")


def _few(task: str, told: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The files of a task of which little is known: so many trajectories, spread over its training set, and its whole
    test set.
    """
    root, folder = data_folder(options.out, options.seed), f"scarce-{options.trajectories}"
    files = {part: f"{folder}/{task}_{part}.hdf5" for part in ("train", "test")}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = splits(task, MakeConfig.model_validate(told["make"]), options.seed, device)
    train = Joined([part.train for _, part in parts])
    if options.trajectories > len(train):
        raise UserError(f"--trajectories {options.trajectories}: {task} has {len(train)} to train on; ask for fewer")
    rows = torch.linspace(0, len(train) - 1, options.trajectories).round().long().tolist()
    for part, data in (("train", Subset(train, rows)), ("test", judged_on(parts))):
        path = root / files[part]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            convert(data, path, "well")
    held = max(1, options.trajectories // HELD)
    return {"train": [files["train"]], "validation": held, "test": {task: files["test"]}}


def held_out(options: argparse.Namespace) -> None:
    """Errors at a parameter value between those trained, over errors at these."""
    parameter, _, value = options.value.partition("=")
    with _model(options) as model:
        found = unseen.held_out(model, options.task, parameter, float(value))
    write_json(options.out / "held_out.json", {options.task: {options.value: found}})
    lines = [[label, "yes", f"{error:.3g}", ""] for label, error in found["trained"].items()]
    lines += [[f"{options.task}, {options.value}", "no", f"{found['held out']:.3g}", str(found["ratio"])]]
    _print(["", "trained", "rollout nRMSE", "over the mean of those trained"], lines)


def resolution(options: argparse.Namespace) -> None:
    """Errors on a finer grid than the trained one, for the same trajectories."""
    with _model(options) as model:
        found = unseen.resolution(model, options.task, options.points)
    write_json(options.out / "resolution.json", {"tasks": found})
    columns = ("trained grid", "floor", "finer grid")
    lines = [
        [
            task,
            " → ".join(map(str, e["points"])),
            *(f"{e[name]:.3g}" for name in columns),
            f"{e['ratio']} of {e['larger']}",
        ]
        for task, e in found.items()
    ]
    _print(["task", "points", "trained grid", "interpolated truth (floor)", "finer grid", "over the larger"], lines)


def horizon(options: argparse.Namespace) -> None:
    """Rollouts of several times the trained horizon: values that are no number, and late spectra."""
    with _model(options) as model:
        found = unseen.horizon(model, options.task, options.times, options.spectra)
    write_json(options.out / "horizon.json", {"times": options.times, "tasks": found})
    lines = []
    for task, e in found.items():
        bands = [f"{o['first']} to {o['last']}: {o['ratio']:.2f}" for o in e.get("octaves", [])]
        since = "" if e["first step"] is None else f", from step {e['first step']} on"
        lines.append(
            [task, str(e["steps"]), f"{e['not finite']} of {e['trajectories']}{since}", ", ".join(bands) or "–"]
        )
    _print(["task", "steps", "trajectories not finite", "late energy over the truth's, by wave number"], lines)


def _tasks(overrides: Sequence[str]) -> dict[str, Any]:
    """Those of the packaged configuration, by name; the sizes of them that overrides change."""
    return read_config(UNIVERSAL, overrides).values["tasks"]


def _about(override: str) -> str | None:
    """The task that an override changes, if one alone; `tasks={...}` changes all, and is nobody's."""
    words = override.partition("=")[0].split(".")
    return words[1] if words[0] == "tasks" and len(words) > 1 else None


def _merged(results: Sequence[Result]) -> Result:
    """Runs of one task each as if they were one of all."""
    families = {family for result in results for family in result.training}
    return Result(
        name=f"{len(results)} runs",
        seed=results[0].seed,
        data_seed=results[0].data_seed,
        rivals=results[0].rivals,
        errors={task: kinds for result in results for task, kinds in result.errors.items()},
        training={
            family: {task: part for r in results for task in r.errors for part in r.training[family].values()}
            for family in sorted(families, key=lambda family: family != MODEL)
        },
        seconds={phase: sum(result.seconds[phase] for result in results) for phase in results[0].seconds},
        machine=results[0].machine,
    )


def _model(options: argparse.Namespace) -> AbstractContextManager[unseen.Model]:
    return unseen.loaded(options.model, options.config, options.seed)


def _print(header: Sequence[str], lines: list[list[str]]) -> None:
    print("\n".join(table(header, lines)))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True)
    for work in (specialists, scarce):
        command = commands.add_parser(work.__name__, description=work.__doc__)
        command.set_defaults(work=work)
        command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as in `ups run universal`")
        command.add_argument("--task", action="append", default=[], required=work is scarce, help="repeat for several")
        command.add_argument("--seconds", type=float, default=60.0 if work is specialists else 300.0)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--out", type=Path, default=Path("bench"))
        if work is scarce:
            command.add_argument("--trajectories", type=int, default=32)
            command.add_argument(
                "--among", action="append", default=[], metavar="TASK", help="others; all if not given"
            )
    for work in (held_out, resolution, horizon):
        command = commands.add_parser(work.__name__, description=work.__doc__)
        command.set_defaults(work=work)
        command.add_argument("model", type=Path, help="a run, or a model made by `ups export`")
        command.add_argument("--config", help="how data are made; that of the run if not given")
        command.add_argument("--seed", type=int, help="of the data; that of the configuration if not given")
        command.add_argument("--out", type=Path, default=Path("bench"))
        if work is held_out:
            command.add_argument("--task", default="burgers")
            command.add_argument("--value", default="nu=0.003")
        else:
            command.add_argument("--task", action="append", default=[], help="repeat for several; all if not given")
    commands.choices["resolution"].add_argument("--points", type=int, default=1024)
    commands.choices["horizon"].add_argument("--times", type=int, default=4)
    commands.choices["horizon"].add_argument(
        "--spectra", action="append", default=["kuramoto_sivashinsky", "vorticity"], help="more tasks with late spectra"
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        options.work(options)
    except Stopped as stopped:
        print(f"\nstopped: {stopped}; start the same command again to go on", file=sys.stderr)
        return STOPPED
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
