"""What is asked of one model of many systems, bar by bar: a table in Markdown each, and its numbers as JSON in --out.

    python benchmarks/universal_bars.py joint --seconds 300 --seed 0
    python benchmarks/universal_bars.py after bench/joint-300s-seed0
    python benchmarks/universal_bars.py specialists --seconds 25 --task burgers --task vorticity
    python benchmarks/universal_bars.py ratios --seconds 300
    python benchmarks/universal_bars.py specialists --seconds 60
    python benchmarks/universal_bars.py scarce --task burgers --trajectories 32 --seconds 120

The first four are `ups bench --universal` in parts of some minutes each. What trains is a run in --out that goes on
where it stopped, and one whose NAME.json is there is not done again; `ratios` needs those files alone. `held_out`,
`resolution` and `horizon` are the parts of `after`, with other settings: they need a model (a run, or what `ups export`
made of one, with --config universal) and solve test trajectories themselves. Fine-tuning: `finetuning.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import unseen
from solved import judged_on, splits

from ups.bench.ratios import MODEL, Ratio, Result, average, compared, counted, markdown, ratio
from ups.bench.tables import table
from ups.config.load import read_config
from ups.data.convert import convert
from ups.data.joined import Joined, Subset
from ups.data.settings import MakeConfig
from ups.errors import STOPPED, Stopped, UserError
from ups.evaluation.labels import PERSISTENCE
from ups.pipeline.bench import UNIVERSAL, chosen, data_folder, finished, known, write_json

HELD = 8
"""One of so many scarce trajectories is not trained on but chooses the weights."""
SPECIALIST = "specialist"
AFTER = "-after"
"""What a file of `after` is called behind the name of its model."""


def specialists(options: argparse.Namespace) -> None:
    """One model a task and an FNO a task, so many seconds each."""
    results = []
    for task in options.task or _tasks([]):
        own = [word for word in options.overrides if _about(word) in (None, task)]
        asked = [f"training.seconds={options.seconds:g}", *chosen([task]), "compare={fno: {}}", *own]
        results.append(finished(f"{options.seconds:g}s-{task}-seed{options.seed}", asked, options.out, options.seed))
    whole = _merged(results)
    numbers = compared([whole])
    write_json(
        options.out / f"specialists-{options.seconds:g}s.json", {"tasks": numbers, "counts": counted(numbers, "fno")}
    )
    print(markdown([whole]))


def joint(options: argparse.Namespace) -> None:
    """One model of all tasks, or of those named, without anything beside it."""
    asked = [f"training.seconds={options.seconds:g}", *chosen(options.task), *options.overrides, "compare={}"]
    name = _joint_name(options.seconds, options.seed)
    print(markdown([finished(name, asked, options.out, options.seed, options.data_seed)]))


def ratios(options: argparse.Namespace) -> None:
    """The joint models of so many seconds, of any seed, beside specialists and FNOs of their share of the time."""
    wanted = re.compile(_joint_name(options.seconds, r"\d+"))
    joints = [known(path) for path in sorted(options.out.glob("joint-*.json")) if wanted.fullmatch(path.stem)]
    if not joints:
        raise UserError(f"{options.out} has no joint model of {options.seconds:g} s; train one with `joint` first")
    share, seed = options.seconds / len(joints[0].errors), joints[0].data_seed
    names = {task: f"{share:g}s-{task}-seed{seed}" for task in joints[0].errors}
    alone = {task: path for task, name in names.items() if (path := options.out / f"{name}.json").is_file()}
    if not alone:
        raise UserError(
            f"{options.out} has no {next(iter(names.values()))}.json; train `specialists` of {share:g} s first"
        )
    whole = [beside(joints[0], {task: known(path) for task, path in alone.items()}), *joints[1:]]
    numbers = compared(whole)
    shares = {
        one.name: json.loads(path.read_text())["parameters"]
        for one in joints
        if (path := options.out / f"{one.name}{AFTER}.json").is_file()
    }
    counts = {rival: counted(numbers, rival) for rival in whole[0].rivals}
    write_json(
        options.out / f"ratios-{options.seconds:g}s.json", {"tasks": numbers, "counts": counts, "parameters": shares}
    )
    print(markdown(whole))
    for name, part in shares.items():
        print(f"\n{name}: {_served(part)}")
    if missing := [task for task in names if task not in alone]:
        print(f"\nnot there yet: specialists of {share:g} s of {', '.join(missing)}")


def beside(joint: Result, alone: Mapping[str, Result]) -> Result:
    """The joint model as if what each task's own run trained had been trained beside it, on the same trajectories."""
    for task, own in alone.items():
        for kind, errors in own.errors[task].items():
            one, other = (torch.tensor(e[PERSISTENCE]) for e in (joint.errors[task][kind], errors))
            if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3):
                raise UserError(
                    f"{joint.name} and {own.name} were tested on other trajectories; make both with one seed"
                )
    theirs = {task: {SPECIALIST: MODEL, **{rival: rival for rival in own.rivals}} for task, own in alone.items()}
    training = dict(joint.training)
    for task, names in theirs.items():
        for who, of in names.items():
            training[who] = {**training.get(who, {}), task: next(iter(alone[task].training[of].values()))}
    return replace(
        joint,
        rivals=list(dict.fromkeys(who for names in theirs.values() for who in names)),
        training=training,
        errors={
            task: {
                kind: {**by, **{who: alone[task].errors[task][kind][of] for who, of in theirs.get(task, {}).items()}}
                for kind, by in kinds.items()
            }
            for task, kinds in joint.errors.items()
        },
    )


def scarce(options: argparse.Namespace) -> None:
    """Joint models with few trajectories of one task each, or --together of all that are named, beside specialists of
    the same few with a share of the time each.
    """
    rest = [word for word in options.overrides if _about(word) is None]
    there = _tasks([word for word in options.overrides if _about(word) is not None])
    names = dict.fromkeys([*options.task, *(options.among or there)])
    if unknown := [task for task in names if task not in there]:
        raise UserError(f"there is no task {unknown[0]!r}; {UNIVERSAL} has {', '.join(there)}")
    tasks = {name: task for name, task in there.items() if name in names}
    few = {task: {"files": _few(task, tasks[task], options)} for task in options.task}
    suffix = f"{options.trajectories}-{options.seconds:g}s-seed{options.seed}"

    def trained(name: str, told: Mapping[str, Any], seconds: float) -> Result:
        asked = [f"training.seconds={seconds:g}", f"tasks={json.dumps(told)}", "compare={}", *rest]
        return finished(f"scarce-{name}-{suffix}", asked, options.out, options.seed)

    path = options.out / f"scarce-{suffix}{'-together' if options.together else ''}.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())["tasks"] if path.is_file() else {}
    for group in [options.task] if options.together else [[task] for task in options.task]:
        # The specialists first: they are short, and what is done is kept.
        alone = {task: trained(f"alone-{task}", {task: few[task]}, options.seconds / len(tasks)) for task in group}
        among = trained("-".join(group), {**tasks, **{task: few[task] for task in group}}, options.seconds)
        for task, specialist in alone.items():
            errors, own = (list(result.errors[task].values())[-1] for result in (among, specialist))
            found[task] = {
                PERSISTENCE: average(errors[PERSISTENCE]),
                SPECIALIST: average(own[MODEL]),
                "joint": average(errors[MODEL]),
                "ratio": list(ratio(errors[MODEL], own[MODEL], options.seed)),
            }
            write_json(path, {"tasks": found})
    columns = (PERSISTENCE, SPECIALIST, "joint")
    lines = [[task, *(f"{e[who]:.3g}" for who in columns), str(Ratio(*e["ratio"]))] for task, e in found.items()]
    _print(["task", *columns, "joint / specialist"], lines)
    better = sum(entry["ratio"][0] < 1 for entry in found.values())
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


def after(options: argparse.Namespace) -> None:
    """All that a trained model is asked without more training: how many of its parameters serve several tasks,
    `held_out`, `resolution` and `horizon`, in one file named after it. What that file has is not done again.
    """
    path = options.out / f"{options.model.name}{AFTER}.json"
    content = json.loads(path.read_text()) if path.is_file() else {}
    for part in (serving, held_out, resolution, horizon):
        name = "parameters" if part is serving else part.__name__
        if name not in content:
            content[name] = part(options)
            write_json(path, content)


def alone(options: argparse.Namespace) -> None:
    """One of its parts."""
    found = options.part(options)
    write_json(options.out / f"{options.model.name}-{options.part.__name__}.json", found)


def serving(options: argparse.Namespace) -> dict[str, Any]:
    """How many parameters serve several tasks."""
    with _model(options) as model:
        found = unseen.serving_several(model)
    print(_served(found))
    return found


def held_out(options: argparse.Namespace) -> dict[str, Any]:
    """Errors at a parameter value between those trained, over errors at these."""
    parameter, _, value = options.value.partition("=")
    task = options.task[0] if options.task else "burgers"
    with _model(options) as model:
        found = unseen.held_out(model, task, parameter, float(value))
    lines = [[label, "yes", f"{error:.3g}", ""] for label, error in found["trained"].items()]
    lines += [[f"{task}, {options.value}", "no", f"{found['held out']:.3g}", str(found["ratio"])]]
    _print(["", "trained", "rollout nRMSE", "over the mean of those trained"], lines)
    return {task: {options.value: found}}


def resolution(options: argparse.Namespace) -> dict[str, Any]:
    """Errors on a finer grid than the trained one, for the same trajectories."""
    with _model(options) as model:
        found = unseen.resolution(model, options.task, options.points)
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
    return {"tasks": found}


def horizon(options: argparse.Namespace) -> dict[str, Any]:
    """Rollouts of several times the trained horizon: errors, values that are no number or cut off, and late spectra."""
    with _model(options) as model:
        found = unseen.horizon(model, options.task, options.times, options.spectra)
    lines = []
    for task, e in found.items():
        bands = [f"{o['first']} to {o['last']}: {o['ratio']:.2f}" for o in e.get("octaves", [])]
        since = "" if e["first step"] is None else f", from step {e['first step']} on"
        lines.append(
            [
                task,
                str(e["steps"]),
                *(f"{error:.3g}" for error in [*e["error"].values(), e[PERSISTENCE]]),
                f"{100 * e['clamped']:.2g} %",
                f"{e['not finite']} of {e['trajectories']}{since}",
                ", ".join(bands) or "–",
            ]
        )
    header = ["task", "steps", "nRMSE at the horizon", f"at {options.times} times it", "persistence there"]
    header += ["values cut off", "trajectories not finite", "late energy over the truth's, by wave number"]
    _print(header, lines)
    return {"times": options.times, "tasks": found}


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


def _joint_name(seconds: float, seed: int | str) -> str:
    return f"joint-{seconds:g}s-seed{seed}"


def _served(part: Mapping[str, float]) -> str:
    return f"{100 * part['share']:.1f} % of {part['parameters'] / 1e6:.3g}M parameters serve several tasks"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True)
    for work, seconds in ((joint, 300.0), (specialists, 60.0), (scarce, 300.0), (ratios, 300.0)):
        command = commands.add_parser(work.__name__, description=work.__doc__)
        command.set_defaults(work=work)
        command.add_argument("--seconds", type=float, default=seconds)
        command.add_argument("--out", type=Path, default=Path("bench"))
        if work is ratios:
            continue
        command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as in `ups run universal`")
        command.add_argument("--task", action="append", default=[], required=work is scarce, help="repeat for several")
        command.add_argument("--seed", type=int, default=0)
    commands.choices["joint"].add_argument("--data-seed", type=int, default=0, help="of the data, and of the rivals'")
    few = commands.choices["scarce"]
    few.add_argument("--trajectories", type=int, default=32)
    few.add_argument("--among", action="append", default=[], metavar="TASK", help="others; all if not given")
    few.add_argument("--together", action="store_true", help="all that are named are scarce in one joint model")
    for work in (after, held_out, resolution, horizon):
        command = commands.add_parser(work.__name__, description=work.__doc__)
        command.set_defaults(work=after if work is after else alone, part=work)
        command.add_argument("model", type=Path, help="a run, or a model made by `ups export`")
        command.add_argument("--config", help="how data are made; that of the run if not given")
        command.add_argument("--seed", type=int, help="of the data; that of the configuration if not given")
        command.add_argument("--out", type=Path, default=Path("bench"))
        if work is not after:
            command.add_argument("--task", action="append", default=[], help="repeat for several; all if not given")
        if work in (after, held_out):
            command.add_argument("--value", default="nu=0.003", help="of Burgers, unless another --task is named")
        if work in (after, resolution):
            command.add_argument("--points", type=int, default=1024)
        if work in (after, horizon):
            command.add_argument("--times", type=int, default=4)
            spectral = ["kuramoto_sivashinsky", "vorticity"]
            command.add_argument("--spectra", action="append", default=spectral, help="more tasks with late spectra")
    commands.choices["after"].set_defaults(task=[])
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
