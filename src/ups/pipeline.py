"""What `ups run` does, in order: data, the operator, an FNO a task for the same time, evaluation, report.

Every phase leaves its result in the run directory and is skipped when it is there, so the same command goes on where an
interrupted one stopped. A run is finished only if `metrics.json` says so.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ups import checkpoint
from ups.config.load import config_hash, load_config
from ups.config.schema import RunConfig
from ups.data.inputs import check_inputs
from ups.data.prepare.cached import cached
from ups.data.sampler import check_ranks
from ups.data.sources import Source, check_source, open_source
from ups.distributed.faults import crash
from ups.distributed.faults.heartbeat import Heartbeat
from ups.distributed.launch.local import refuse_launchers, train_on_ranks
from ups.distributed.launch.outcome import Outcome, decide, forget, supervised
from ups.distributed.launch.run_directory import begun, check_same, claimed_run, config_of
from ups.distributed.runtime.start import Ranks, Runtime
from ups.durable import write
from ups.errors import GaveUp, Stopped, UserError
from ups.evaluation.evaluate import Evaluation
from ups.evaluation.evaluate import evaluate as judge
from ups.evaluation.labels import labels
from ups.evaluation.scores import check_finite, not_finite
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec
from ups.simulator import load
from ups.track.environment import environment
from ups.track.progress import Progress
from ups.training.data import TaskData, prepare
from ups.training.fit import Plan, fit


def run(name: str, overrides: Sequence[str], runs: Path, ranks: int | None = None) -> None:
    """Do whatever of the run is not done yet, then print its table."""
    refuse_launchers()
    config = load_config(name, overrides, RunConfig)
    directory = runs / config.name
    finished = _finished(directory, config)
    if finished is not None:
        print(f"{directory} is finished; nothing to do (remove it, or give another name=..., to run again)\n")
    else:
        command = " ".join(["ups run", name, *overrides, *([] if runs == Path("runs") else ["--runs", str(runs)])])
        if ranks is not None:
            command += f" --gpus {ranks}"
            train_on_ranks(name, overrides, runs, ranks)
        with claimed_run(directory, config):
            _guarded(directory, lambda rt: _everything(rt, config, directory, command), config)
        finished = json.loads((directory / "metrics.json").read_text())
    from ups.report.table import metrics_table

    print(metrics_table(finished))
    print(f"\nreport: {directory / 'report.html'}")


def train(name: str, overrides: Sequence[str], runs: Path, profile: int | None = None) -> None:
    """Data and the operator only: in this process, which may be one of several ranks. `profile` steps are traced."""
    config = load_config(name, overrides, RunConfig)
    directory = runs / config.name

    def work(runtime: Runtime) -> None:
        check_ranks(config.training.batch_size, runtime.size)  # before data are made for a job that cannot be
        tasks, _ = _timed_data(runtime, config, directory)
        seconds = fit(runtime, _operator(config, tasks, directory), profile=profile)
        if runtime.rank == 0:
            table = directory / "profile" / "profile.md"
            if profile is not None and table.is_file():
                print(f"{table.read_text()}\nprofile: {table} and, for ui.perfetto.dev, trace.json.gz beside it")
            print(f"trained for {seconds:.0f} s; checkpoints: {directory / 'checkpoints'}")

    ours = os.environ.get("RANK", "0") == "0" and not supervised()  # else it is claimed already, by rank 0 or above us
    with claimed_run(directory, config) if ours else nullcontext():
        _guarded(directory, work, config)


def build_stores(name: str, overrides: Sequence[str], runs: Path, workers: int) -> list[Path]:
    """Data and stores only, by worker processes: what training would begin with."""
    refuse_launchers()
    config = load_config(name, overrides, RunConfig)
    directory = runs / config.name
    host = config.runtime.model_copy(update={"device": "cpu"})  # stores are often built where no GPU is
    with claimed_run(directory, config), Runtime.start(host, config.seed) as runtime:
        tasks, _ = _timed_data(runtime, config, directory, workers)
    return [task.store.store.path for task in tasks.values()]


def evaluate(directory: Path) -> dict[str, Any]:
    """Judge a trained run (again) and write its `metrics.json`."""
    config = config_of(directory)
    done, wanted = _training(directory)["step"], config.training.steps
    if done < wanted:
        raise UserError(f"{directory} is trained to step {done} of {wanted}; finish it first, with its own command")
    details = directory / "evaluation" / "details.json"
    command = json.loads(details.read_text())["command"] if details.exists() else f"ups run {directory / 'config.yaml'}"
    with claimed_run(directory, config), Runtime.start(config.runtime, config.seed) as runtime:
        _, sources = _data(runtime, config, directory)
        metrics = _evaluate(runtime, config, directory, sources, command)
    check_finite(metrics["tasks"])
    return metrics


def report(directory: Path) -> Path:
    """Write the report of an evaluated run (again)."""
    from ups.report.assemble import assemble  # with matplotlib, which delays every start and restart of a rank
    from ups.report.html import write_report

    path = directory / "report.html"
    write_report(assemble(directory), path)
    return path


def _everything(runtime: Runtime, config: RunConfig, directory: Path, command: str) -> None:
    tasks, sources = _timed_data(runtime, config, directory)
    left = fit(runtime, _operator(config, tasks, directory))
    for number, name in enumerate(config.fno):  # what one FNO used more or less than its share, the next ones have
        share = left / (len(config.fno) - number)
        left -= fit(runtime, _fno(config, name, tasks[name], directory), seconds=share)
    metrics = _evaluate(runtime, config, directory, sources, command)
    runtime.check_stop("everything but the report is done")
    print("writing the report")
    report(directory)
    check_finite(metrics["tasks"])


def _operator(config: RunConfig, tasks: dict[str, TaskData], directory: Path) -> Plan:
    operator = config.operator
    model = ModelSpec(operator.architecture, operator.settings(), tuple(task.learned for task in tasks.values()))
    return Plan("training the operator", model, tasks, config.training, config.seed, directory)


def _fno(config: RunConfig, name: str, task: TaskData, directory: Path) -> Plan:
    settings = config.fno[name]
    model = ModelSpec("fno", settings.model_dump(include={"width", "modes", "depth", "padding"}), (task.learned,))
    training = config.training.model_copy(
        update=settings.model_dump(include={"batch_size", "learning_rate"}, exclude_none=True)
    )
    folder = directory / "baselines" / f"fno_{name}"
    return Plan(f"training an FNO on {name}", model, {name: task}, training, config.seed, folder)


def _timed_data(
    runtime: Runtime, config: RunConfig, directory: Path, workers: int | None = None
) -> tuple[dict[str, TaskData], dict[str, Source]]:
    """`_data`, its seconds added up over interruptions."""
    began = time.monotonic()

    def note() -> None:
        if runtime.rank == 0:
            _note_seconds(directory, data=_seconds(directory).get("data", 0.0) + time.monotonic() - began)

    try:
        data = _data(runtime, config, directory, workers)
    except Stopped:
        note()
        raise
    note()
    return data


def _data(
    runtime: Runtime, config: RunConfig, directory: Path, workers: int | None = None
) -> tuple[dict[str, TaskData], dict[str, Source]]:
    """Make or open every task's data and check them, then statistics and the store, which `workers` processes build."""
    sources, tasks = {}, {}
    unroll, stride = max(steps for _, steps in config.training.rollout), min(config.training.strides)
    looked = partial(check_inputs, config.tasks, config.data, directory / "data", seed=config.seed)
    runtime.in_turn("look at the inputs", partial(looked, unroll=unroll, stride=stride))
    with _displays() as show:
        for name, task in config.tasks.items():
            opened = partial(_opened, runtime, config, directory, name, show)
            sources[name] = runtime.in_turn(f"open {name}", opened)
            tasks[name] = prepare(
                runtime,
                sources[name],
                task.share,
                config.training.strides,
                directory / "store",
                config.data.store,
                workers or config.data.workers,
                lambda label, done, total: show(f"measuring {label}", done, total),
                lambda label, done, total: show(f"storing {label}", done, total, "MB", 10**6),
            )
            runtime.check_stop(f"the data of {name} are kept in {directory}")
    return tasks, sources


def _opened(runtime: Runtime, config: RunConfig, directory: Path, name: str, show: Callable[..., None]) -> Source:
    """One task's data, made or opened; rank 0 also checks them, unless it did before."""

    def making(label: str, done: int, total: int) -> None:
        show(f"making {label}", done, total)
        runtime.heartbeat.mark("data")
        runtime.check_stop(f"{done} of {total} trajectories of {label} are kept in {directory}")

    def checking(label: str, done: int, total: int) -> None:
        show(f"checking {label}", done, total)
        runtime.heartbeat.mark("data")
        runtime.check_stop(f"the data of {name} will be checked from the first trajectory on")

    place, device = directory / "data", str(runtime.device)
    source = open_source(name, config.tasks[name], config.data, place, config.seed, making, device)
    if runtime.rank == 0:
        data = [source.train, source.validation, *source.tests.values()]
        kept = directory / "store" / f"{name}.checked.json"
        cached(kept, data, repr(source.spec), lambda: check_source(source, checking))
    return source


@contextmanager
def _displays() -> Iterator[Callable[..., None]]:
    """One display after another: what is worked on gets its own when its first parts are reported, counted in units
    of `size`. What was there already, or is done at once, gets none.
    """
    with ExitStack() as stack:
        current: list[Progress] = []

        def show(title: str, done: int, total: int, unit: str = "trajectories", size: int = 1) -> None:
            done, total = -(-done // size), -(-total // size)
            same = current and (current[0].title, current[0].total) == (title, total) and current[0].done <= done
            if not same:
                stack.close()
                current.clear()
                if done < total:
                    current.append(stack.enter_context(Progress(title, total=total, unit=unit, start=done)))
            if current:
                current[0].update(done)

        yield show


def _evaluate(
    runtime: Runtime, config: RunConfig, directory: Path, sources: dict[str, Source], command: str
) -> dict[str, Any]:
    """Every view of every task, then `metrics.json` in one act."""
    began = time.monotonic()
    simulator = load(directory, runtime.device)
    if missing := [name for name in sources if name not in simulator.tasks]:
        raise UserError(f"the checkpoint in {directory} is of another model: not trained on {', '.join(missing)}")
    budgets = {name: directory / "baselines" / f"fno_{name}" for name in config.fno}
    done = {n: p for n, p in budgets.items() if _training_ended(p)}
    fnos: dict[str, Propagator] = {n: load(p, runtime.device).model for n, p in done.items()}
    trained = {"operator": _training(directory)} | {f"fno_{n}": _training(budgets[n]) for n in fnos}
    views = [(name, view) for name, source in sources.items() for view in source.tests]
    found: dict[str, Evaluation] = {}
    with Progress("evaluating", total=len(views), unit="test sets") as progress:
        for number, (name, view) in enumerate(views):
            fno = {"fno": fnos[name]} if name in fnos else {}
            found[view] = judge(
                {"operator": simulator.model} | fno,
                "operator",
                simulator.tasks[name],
                sources[name],
                view,
                seed=config.seed,
                resamples=config.evaluation.resamples,
                pictures=config.evaluation.pictures,
                training_seconds=trained["operator"]["seconds"],
                capture=runtime.config.capture != "off",
            )
            progress.update(number + 1, view)
            runtime.check_stop("training is finished and saved; evaluation starts again")
    folder = directory / "evaluation"
    folder.mkdir(exist_ok=True)
    for view, evaluation in found.items():
        temporary = folder / f".{view}.npz.tmp"
        with temporary.open("wb") as file:
            np.savez(file, **evaluation.arrays)  # pyright: ignore[reportArgumentType]
        os.replace(temporary, folder / f"{view}.npz")
    channels = {view: list(sources[name].spec.channel_names) for name, view in views}
    shown = {"model": "operator", "predictors": [asdict(p) for p in labels(["operator"], ["fno"] if fnos else [])]}
    details = {
        "command": command,
        **shown,
        "trainings": [
            {"label": "operator, all tasks", "predictor": "operator", "events": "events.jsonl"},
            *(
                {"label": f"FNO, {n}", "predictor": "fno", "events": f"baselines/fno_{n}/events.jsonl"}
                for n in sorted(fnos)
            ),
        ],
        "channels": channels,
        "solver": {view: e.solver for view, e in found.items() if e.solver},
        "notes": _notes(config, trained),
    }
    write(folder / "details.json", json.dumps(details, indent=1).encode())
    seconds = _note_seconds(
        directory,
        train=trained["operator"]["seconds"],
        fno=sum(t["seconds"] for n, t in trained.items() if n != "operator"),
        evaluate=time.monotonic() - began,
    )
    tasks = {view: evaluation.metrics for view, evaluation in found.items()}
    metrics = {
        "state": "finished" if fnos.keys() == config.fno.keys() and not not_finite(tasks) else "evaluated",
        "name": config.name,
        "seconds": seconds,
        **shown,
        "training": trained,
        "solver": details["solver"],
        "tasks": tasks,
    }
    write(directory / "metrics.json", (json.dumps(metrics, indent=1) + "\n").encode())
    return metrics


def _training_ended(fno: Path) -> bool:
    budget = fno / "budget.json"
    return budget.exists() and json.loads(budget.read_text())["steps"] in checkpoint.steps(fno / "checkpoints")


def _training(directory: Path) -> dict[str, Any]:
    """Steps and seconds of a training, and the step whose weights were chosen on validation."""
    content = checkpoint.load(directory / "checkpoints")[1].content["progress"]
    return {key: content[key] for key in ("step", "seconds", "best_step", "best")}


def _notes(config: RunConfig, trained: dict[str, Any]) -> list[str]:
    notes = [
        f"{name.replace('_', ' on ', 1).replace('fno', 'FNO')}: {t['step']} steps in {t['seconds']:.0f} s of training, "
        + (f"weights of step {t['best_step']} chosen on validation." if t["best_step"] >= 0 else "last weights.")
        for name, t in trained.items()
    ]
    if config.fno:
        notes.append(
            "The FNOs together had the operator's training time; their numbers of steps follow from their speed."
        )
    return notes


def _seconds(directory: Path) -> dict[str, float]:
    """Seconds of each phase so far, kept in the run directory; a damaged file is not worth a run's end."""
    try:
        known = json.loads((directory / "seconds.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {n: s for n, s in known.items() if isinstance(s, int | float)} if isinstance(known, dict) else {}


def _note_seconds(directory: Path, **seconds: float) -> dict[str, float]:
    known = _seconds(directory) | seconds
    write(directory / "seconds.json", json.dumps(known).encode())
    return known


def _finished(directory: Path, config: RunConfig) -> dict[str, Any] | None:
    """The metrics of a finished run; a run of another configuration is refused."""
    if begun(directory):
        check_same(directory, config)
    path = directory / "metrics.json"
    if not path.is_file() or not (directory / "report.html").is_file():
        return None
    metrics = json.loads(path.read_text())
    return metrics if metrics.get("state") == "finished" else None


def _guarded(directory: Path, work: Callable[[Runtime], None], config: RunConfig) -> None:
    """Run `work`; write how it ended to `outcome.json`, or what went wrong for the crash report."""
    ranks = Ranks.read()
    before = forget(directory) if not supervised() and ranks.rank == 0 else None
    runtime = None
    try:
        with Runtime.start(config.runtime, config.seed, directory) as runtime:
            runtime.agree("configuration", config_hash(config), "start every rank with the same command and files")
            Progress.silent = Progress.silent or runtime.rank > 0
            if runtime.rank == 0:
                content = environment() | {"attempt": ranks.attempt, "ranks": runtime.size, "notes": runtime.notes}
                write(directory / "env.json", (json.dumps(content, indent=1) + "\n").encode())
                for note in runtime.notes:
                    print(f"note: {note}")
            runtime.heartbeat.mark("data")
            work(runtime)
            runtime.heartbeat.mark("end")
    except Stopped as stopped:
        decide(directory, Outcome("stopped", str(stopped), ranks.rank))
        raise
    except UserError as error:
        decide(directory, Outcome("mistake", str(error), ranks.rank), before)
        raise
    except GaveUp as error:
        decide(directory, Outcome("gave_up", str(error), ranks.rank))
        raise
    except Exception as error:
        if ranks.launched:
            heartbeat = runtime.heartbeat if runtime else Heartbeat(None, ranks.rank, ranks.attempt)
            details = {"device": str(runtime.device), **runtime.doing} if runtime else {}
            try:
                crash.record_failure(directory, ranks.rank, ranks.attempt, error, heartbeat, details)
            except OSError as refused:  # the traceback still goes to the log
                error.add_note(f"what happened could not be recorded for the report: {refused}")
        raise
    decide(directory, Outcome("finished", "", ranks.rank))
