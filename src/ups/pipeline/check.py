"""`ups check`: what would fail, before it costs anything. Looks at configuration, machine, data, memory and disks, and
tries the job's first steps on its ranks if asked to. Nothing is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ups.config.load import save_config
from ups.data.inputs import Outline
from ups.data.prepare.row_ranges import trajectory_bytes
from ups.data.sources import data_root, open_source, with_equation
from ups.distributed.launch.claim import in_use, is_claimed
from ups.distributed.launch.run_directory import begun, refuse_foreign, refuse_other
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime, wants_cuda
from ups.durable import read_json
from ups.errors import UserError
from ups.evaluation.evaluate import PICTURE_BYTES
from ups.models.saved import TrainedTask
from ups.ops import machine_checks as machine
from ups.ops.data_checks import check_files, check_to_be_made
from ups.ops.findings import Finding, guarded
from ups.ops.gates import references
from ups.ops.rehearsal import all_reduce, rehearse
from ups.ops.stand_in import stand_in_data, stand_in_task
from ups.ops.step_cost import Cost, recorded, step_cost
from ups.pipeline.config import RunConfig, load_run, run_config
from ups.pipeline.data import look_at_inputs
from ups.pipeline.trainings import check_batches, check_trained, compared_plans, stage_plans
from ups.training.fit import Plan
from ups.training.restore import restored, stage_folder
from ups.training.settings import TrainingConfig

REHEARSAL = 300.0
"""Seconds that a rehearsal may take."""
NODE = 8
"""Ranks of a machine, of those that are not all here."""
_KEPT = 4
"""Checkpoints that may lie on the disk at once: the last two, the best, and one that is being written."""
_SHARE = 0.92
"""Of the free memory, so much may be used."""
_GB = 1e9

Note = Callable[[Finding], None]


def check(
    name: str, overrides: Sequence[str], runs: Path, ranks: int | None, bisect: bool, note: Note = lambda finding: None
) -> list[Finding]:
    """All findings, each told as it is found."""
    if bisect and ranks is None:
        raise UserError("--bisect repeats what --ranks tries; give --ranks N too")
    findings = []
    for finding in findings_of(name, overrides, runs, ranks or 1):
        findings.append(finding)
        note(finding)
    if ranks is not None and not any(finding.level == "red" for finding in findings):
        for finding in _rehearsal(load_run(name, overrides, runs), runs, ranks, bisect):
            findings.append(finding)
            note(finding)
    return findings


def findings_of(name: str, overrides: Sequence[str], runs: Path, ranks: int) -> Iterator[Finding]:
    yield from guarded("packages", partial(machine.check_launcher, os.environ))
    try:
        config = load_run(name, overrides, runs)
    except UserError as error:
        yield Finding("red", "configuration", str(error))
        return
    directory = runs / config.name
    compared = ", ".join(config.compared_names()) or "nothing"
    yield Finding(
        "green", "configuration", f"{', '.join(config.each_stage())} on {', '.join(config.tasks)}; beside it {compared}"
    )
    yield from guarded("run", lambda: _check_run(config, directory))
    yield from _around(config, directory, ranks)
    outlines: dict[str, Outline] = {}
    try:
        outlines = look_at_inputs(config, directory)
    except UserError as error:
        yield Finding("red", "data", str(error))
        return
    for task, outline in outlines.items():
        yield from guarded(task, partial(_check_task, config, directory, task, outline))
    costs: list[Cost] = []
    for plan in _plans(config, directory):
        yield from guarded(
            f"memory of {plan.title.removeprefix('training ')}",
            partial(_check_memory, config, plan, outlines, ranks, costs),
        )
    needs = _needs(config, directory, outlines, costs, ranks)
    yield from guarded("limits", lambda: machine.check_limits(config.runtime, ranks, max(size for *_, size in needs)))
    yield from guarded("disk", lambda: machine.check_disks(needs))


def check_job(config: RunConfig, directory: Path, ranks: int, node: int) -> None:
    """Refuse a run that cannot be on any machine: in the directory of another, or on so many ranks, so many a node."""
    refuse_foreign(directory)
    if begun(directory):
        refuse_other(directory, config, run_config(directory))
    check_batches(config, ranks)
    if ranks > 1:  # one process has no ranks to share with, and evaluates what many trained
        config.runtime.sharing(ranks, node)


def check_quickly(config: RunConfig, directory: Path, ranks: int) -> None:
    """What `ups run` looks at before it begins, in a moment: its directory, machine, trackers, gates, headers of the
    data, disks. What would fail is refused, what is worth knowing is said.
    """
    check_job(config, directory, ranks, ranks)
    needs = _needs(config, directory, look_at_inputs(config, directory), [], ranks)
    for found in (_around(config, directory, ranks), guarded("disk", lambda: machine.check_disks(needs))):
        for finding in found:
            if finding.level == "red":
                raise UserError(finding.says)
            if finding.level == "amber":
                print(f"note: {finding.about}: {finding.says}")


def _around(config: RunConfig, directory: Path, ranks: int) -> Iterator[Finding]:
    """What is found around a run, in no time: the machine, what it tells and is compared with, where it writes."""
    yield from guarded("device", lambda: machine.check_device(config.runtime, ranks))
    yield from guarded("network", lambda: machine.check_network(ranks))
    yield from guarded("tracking", lambda: machine.check_trackers_of(config.runtime))
    yield from guarded("gates", lambda: _check_gates(config))
    yield from guarded("directory", lambda: machine.check_directory(directory))


def stand_in_tasks(config: RunConfig, outlines: Mapping[str, Outline]) -> dict[str, TrainedTask]:
    found = {}
    for name, outline in outlines.items():
        if (make := config.tasks[name].make) is not None:
            outline = replace(outline, spec=with_equation(outline.spec, make))
        found[name] = stand_in_task(outline, _strides(config))
    return found


def stand_ins(
    config: RunConfig, plan: Plan, outlines: Mapping[str, Outline]
) -> tuple[dict[str, TrainedTask], dict[str, tuple[int, int]]]:
    """The tasks of a plan, and how many (trajectories, frames) each has."""
    tasks = {name: task for name, task in stand_in_tasks(config, outlines).items() if name in plan.shares}
    return tasks, {name: (outlines[name].trained, len(outlines[name].header.times)) for name in tasks}


def _trainings(config: RunConfig) -> list[TrainingConfig]:
    return [config.training_of(stage.training) for stage in config.each_stage().values()]


def _strides(config: RunConfig) -> set[int]:
    return {stride for training in _trainings(config) for stride, _ in training.stride_table()}


def _check_run(config: RunConfig, directory: Path) -> Iterator[Finding]:
    refuse_foreign(directory)
    if is_claimed(directory):
        raise in_use(directory)
    if begun(directory):
        refuse_other(directory, config, run_config(directory))
        check_trained(config, directory)
        metrics = directory / "metrics.json"
        state = read_json(metrics)["state"] if metrics.is_file() else "begun"
        yield Finding("green", "run", f"{directory} is {state}; `ups run` goes on with it")
    else:
        yield Finding("green", "run", f"{directory} is free")
    for stage, settings in config.each_stage().items():
        if settings.start is not None:
            restored(stage_folder(Path(settings.start).expanduser()))
            yield Finding("green", stage, f"starts from {settings.start}, which can be read")


def _check_gates(config: RunConfig) -> Iterator[Finding]:
    references(config.gates, config.tasks, config.data_seed)
    if config.gates:
        yield Finding("green", "gates", ", ".join(config.gates))


def _check_task(config: RunConfig, directory: Path, name: str, outline: Outline) -> Iterator[Finding]:
    if outline.source is None and outline.missing:
        yield from check_to_be_made(name, outline)
        return
    task, place = config.tasks[name], directory / "data"
    source = open_source(name, task, config.data, place, config.data_seed, lambda label, done, total: None)
    yield from check_files(name, outline, source, directory / "store" / name, config.data.store)


def _plans(config: RunConfig, directory: Path) -> list[Plan]:
    families = compared_plans(config, {}, directory).values() if len(config.each_compared()) else ()
    return [*stage_plans(config, {}, directory).values(), *(plan for plans in families for plan in plans.values())]


def _check_memory(
    config: RunConfig, plan: Plan, outlines: Mapping[str, Outline], ranks: int, costs: list[Cost]
) -> Iterator[Finding]:
    if plan.on:
        says = f"it stands on {', '.join(plan.on)}, so what it needs is known once that is trained"
        yield Finding("amber", plan.name, says)
        return
    tasks, lengths = stand_ins(config, plan, outlines)
    one = plan.directory.parent.parent.name == "compare"  # which one process trains
    count, runtime = (1, config.runtime.model_copy(update={"strategy": "ddp"})) if one else (ranks, config.runtime)

    def needed(runtime: RuntimeConfig) -> Cost:
        cost = step_cost(plan, tasks, lengths, runtime, count, NODE)
        return recorded(cost, runtime, len(plan.training.rollout)) if wants_cuda(runtime) else cost

    cost = needed(runtime)
    costs.append(cost)
    free, where = machine.memory_free(config.runtime, count)
    about = f"{plan.title.removeprefix('training ')}"
    says = f"{cost.parameters / 1e6:.3g}M parameters; a step needs {cost.peak / _GB:.3g} GB of {free / _GB:.3g} {where}"
    if cost.peak <= _SHARE * free:
        yield Finding("green", f"memory of {about}", says)
        return
    least = needed(runtime.model_copy(update={"micro_batch": 1}))
    if least.peak > _SHARE * free:
        raise UserError(
            f"{says}, and {least.peak / _GB:.3g} with one sample at a time; choose a smaller model or more GPUs"
        )
    remedy = "give runtime.micro_batch=1 or a little more: less memory, the same result"
    yield Finding(
        "amber", f"memory of {about}", f"{says}, but {least.peak / _GB:.3g} with one sample at a time; {remedy}"
    )


def _needs(
    config: RunConfig, directory: Path, outlines: Mapping[str, Outline], costs: Sequence[Cost], ranks: int
) -> list[tuple[Path, str, float]]:
    """(where, what, bytes) of all that the run will write."""
    root = data_root(config.data, directory / "data")
    made = stored = pictured = 0.0
    predictors = 2 + len(config.each_stage()) + len(config.compared_names())  # with the truth and persistence
    for name, outline in outlines.items():
        one = trajectory_bytes(outline.header)
        made += 2 * one * outline.trajectories * outline.missing  # in chunks, then in one file
        if not (directory / "store" / name).exists():
            stored += store_bytes(config, outline)
        for tested in [outline.trajectories] if outline.source is None else map(len, outline.source.tests.values()):
            shown = min(config.evaluation.pictures, tested) * one
            pictured += predictors * min(PICTURE_BYTES, shown)
    saved = sum(_KEPT * (cost.state - cost.held) * 4 * cost.parameters / max(1, cost.held) for cost in costs)
    own = {"store": stored, "checkpoints": saved, "fields to draw": pictured}
    return [(root, "data", made), *((directory, what, size) for what, size in own.items())]


def store_bytes(config: RunConfig, outline: Outline) -> float:
    """Of what training reads again and again."""
    numbers = trajectory_bytes(outline.header) * outline.trained / outline.header.dtype.itemsize
    return numbers * (2 if config.data.store == "float16" else 4)


def _rehearsal(config: RunConfig, runs: Path, ranks: int, bisect: bool) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(dir=machine.existing(runs), prefix=".ups-check.") as folder:
        path = Path(folder) / "config.yaml"
        save_config(config, path)
        found, failure = _on_ranks(path, [], ranks)
        yield from found
        if failure is None:
            return
        yield Finding("red", "rehearsal", failure)
        if not bisect:
            return
        parts = _parts(config)
        guilty = [part for part, changes in parts.items() if _on_ranks(path, changes, ranks)[1] is None]
        if guilty:
            yield Finding("red", "bisection", f"without {' or '.join(guilty)} the rehearsal succeeds")
            return
        together = [change for changes in parts.values() for change in changes]
        whole = bool(together) and _on_ranks(path, together, ranks)[1] is None
        tried = ", ".join(parts) or "no part is on that could be left out"
        says = f"only without all of {tried}" if whole else f"it fails without each of them too: {tried}"
        yield Finding("red", "bisection", says)


def _parts(config: RunConfig) -> dict[str, list[str]]:
    """What may be left out of a rehearsal one by one, and the overrides that do so."""
    runtime, plain = config.runtime, {}
    plain["compile"] = ["runtime.compile=false"] if runtime.compile else []
    plain["capture"] = ["runtime.capture=off"] if runtime.capture != "off" else []
    plain["placement"] = ["runtime.placement=mapped"] if runtime.placement != "mapped" else []
    plain["strategy"] = ["runtime.strategy=ddp"] if runtime.strategy != "ddp" else []
    stages = config.each_stage().items()
    precise = ["training.precision=float32"] if config.training.precision != "float32" else []
    precise += [f"stages.{n}.training.precision=float32" for n, s in stages if s.training and s.training.precision]
    plain["precision"] = precise
    plain["recomputation"] = ["runtime.checkpoint_activations=false"] if runtime.checkpoint_activations else []
    return {part: changes for part, changes in plain.items() if changes}


def _on_ranks(path: Path, changes: list[str], ranks: int) -> tuple[list[Finding], str | None]:
    """What ranks that torchrun starts find, and why they failed if they did."""
    work = path.parent / "work"
    try:
        said, failure = said_by_ranks(["check", str(path), *changes, "--runs", str(work), "--json"], ranks)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [] if said is None else [Finding(**finding) for finding in said["findings"]], failure


def said_by_ranks(command: list[str], ranks: int) -> tuple[Any, str | None]:
    """What a command of ours prints as JSON on ranks that torchrun starts, and why they failed if they did."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    process = subprocess.Popen(
        [*launcher, "-m", "ups", "--quiet", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=REHEARSAL)
    except subprocess.TimeoutExpired:
        late = f"{ranks} ranks had not done their first steps after {REHEARSAL:.0f} s; they may wait for one another"
        return None, late
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return json.loads(said.splitlines()[-1]), None
    return None, _last_error(errors)


def _last_error(errors: str) -> str:
    """The sentence that a rank ended with, else the last line of its traceback."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    sentences = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    raised = [line for line in lines if "Error" in line and not line.startswith(("File", "raise", "["))]
    return (sentences or raised or lines or ["the ranks ended without a word"])[0]


def rehearsal_of_rank(name: str, overrides: Sequence[str], runs: Path) -> list[Finding]:
    """What one rank of a rehearsal does and finds; it is started by torchrun, and all ranks find the same."""
    config = load_run(name, overrides, runs)
    directory = runs / config.name
    (directory / "heartbeats").mkdir(parents=True, exist_ok=True)
    with Runtime.start(config.runtime, config.seed, directory) as runtime:
        found = [all_reduce(runtime)]
        outlines = look_at_inputs(config, directory)
        learned = stand_in_tasks(config, outlines)
        window = max(t.rollout[-1][1] for t in _trainings(config)) * max(_strides(config)) + 1
        tasks = runtime.in_turn(
            "stand-in data",
            lambda: {
                task: stand_in_data(
                    outline, learned[task], config.tasks[task].share, directory / "store", window + outline.spec.history
                )
                for task, outline in outlines.items()
            },
        )
        for plan in stage_plans(config, tasks, directory).values():
            plan.directory.mkdir(parents=True, exist_ok=True)
            found += rehearse(plan, runtime)
    return found
