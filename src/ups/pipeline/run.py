"""What `ups run` does, in order: data, the stages, what they are compared with, evaluation, report.

Every phase leaves its result in the run directory and is skipped when it is there, so the same command goes on where an
interrupted one stopped. A run is finished only if `metrics.json` says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ups.config.load import config_hash
from ups.data.sources import Source
from ups.distributed.faults import crash
from ups.distributed.faults.heartbeat import Heartbeat
from ups.distributed.launch.claim import gone
from ups.distributed.launch.local import refuse_launchers, start_ranks
from ups.distributed.launch.outcome import Outcome, decide, forget, supervised
from ups.distributed.launch.run_directory import begun, claimed_run
from ups.distributed.runtime.start import Ranks, Runtime
from ups.durable import read_json, write
from ups.errors import GateFailed, GaveUp, Stopped, UserError
from ups.evaluation.scores import check_finite
from ups.ops.gates import Verdict, references
from ups.pipeline.again import check_alone, set_aside, standing_on
from ups.pipeline.config import RunConfig, load_run, run_config
from ups.pipeline.data import data_of, timed_data
from ups.pipeline.judge import fingerprint, judge, look
from ups.pipeline.trainings import (
    check_batches,
    check_trained,
    compared_plans,
    device_seconds,
    stage_plans,
    train_compared,
    train_stages,
)
from ups.track.environment import environment
from ups.track.open import check_tensorboard
from ups.track.progress import Progress
from ups.track.tracked import check_trackers, tracked
from ups.training.capture import check_capture
from ups.training.data import TaskData
from ups.training.fit import Plan, progress_of
from ups.training.latents import latents_of
from ups.training.restore import note_order, restored
from ups.training.stages.codec import CodecStage


def run(
    name: str,
    overrides: Sequence[str],
    runs: Path,
    ranks: int | None = None,
    *,
    page: bool = True,
    stage: str | None = None,
) -> None:
    """Do whatever of the run is not done yet, then print its table. Without its `page` no report is written. Of a
    `stage`, nothing but its training is done.
    """
    refuse_launchers()
    if stage is not None:
        if ranks is None:
            train(name, overrides, runs, stage=stage)
        else:
            train_on_ranks(name, overrides, runs, ranks, stage=stage)
        return
    config = load_run(name, overrides, runs)
    if _finished(runs / config.name, config, page) is None:
        from ups.pipeline.check import check_quickly  # which ranks do not need

        check_quickly(config, runs / config.name, ranks or 1)
    command = " ".join(["ups run", str(name), *overrides, *([] if runs == Path("runs") else ["--runs", str(runs)])])
    if ranks is None:
        finished = finish(config, runs, command, page=page)
    else:
        on_ranks = OnRanks(ranks, _train_command(name, overrides, runs))
        finished = finish(config, runs, f"{command} --gpus {ranks}", on_ranks, page=page)
    from ups.report.verdict import metrics_table

    print(metrics_table(finished))
    for gate in finished.get("gates", []):
        print(gate["says"])
    if page:
        print(f"\nreport: {runs / config.name / 'report.html'}")


@dataclass(frozen=True)
class OnRanks:
    """So many supervised ranks of this machine train the stages, by the command `train`, and evaluate."""

    count: int
    train: Sequence[str]


def finish(
    config: RunConfig, runs: Path, command: str, ranks: OnRanks | None = None, *, page: bool = True
) -> dict[str, Any]:
    """Do whatever of a run is not done yet; its metrics. `command` is what made it."""
    directory = runs / config.name
    references(config.gates, config.tasks, config.data_seed)
    finished = _finished(directory, config, page)
    if finished is not None:
        print(f"{directory} is finished; nothing to do (remove it, or give another name=..., to run again)\n")
        return finished
    with _claimed(directory, config):
        if ranks is None:
            _guarded(directory, lambda rt: _everything(rt, config, directory, command, page), config)
        else:
            start_ranks(ranks.train, directory, ranks.count, config.runtime)
            _guarded(directory, lambda rt: _before_evaluation(rt, config, directory), config)
            start_ranks(_evaluate_command(directory, command), directory, ranks.count, config.runtime)
            _guarded(directory, lambda rt: _after_evaluation(rt, directory, page), config)
    return read_json(directory / "metrics.json")


def train(
    name: str, overrides: Sequence[str], runs: Path, profile: int | None = None, stage: str | None = None
) -> None:
    """Data and the stages only, or one `stage` alone, again: in this process, which may be one of several ranks.
    `profile` steps are traced.
    """
    config = load_run(name, overrides, runs)
    directory = runs / config.name

    def work(runtime: Runtime) -> None:
        check_batches(config, runtime.size)  # before data are made for a job that cannot be
        if stage is None:
            check_trained(config, directory)
        tasks, _ = timed_data(runtime, config, directory)
        _note_order(runtime, config, directory)
        plans = stage_plans(config, tasks, directory)
        progress = train_stages(runtime, plans if stage is None else {stage: plans[stage]}, profile)
        if runtime.rank == 0:
            for trained, state in progress.items():
                table = directory / "stages" / trained / "profile" / "profile.md"
                if profile is not None and table.is_file():
                    print(f"{table.read_text()}\nprofile: {table} and, for ui.perfetto.dev, trace.json.gz beside it")
                where = directory / "stages" / trained / "checkpoints"
                print(f"{trained} is trained, in {state['seconds']:.0f} s; checkpoints: {where}")
            if stage is not None:
                stale = standing_on(config, stage)
                others = f"trains what stands on it ({', '.join(stale)}) and " if stale else ""
                print(f"`ups run` without --stage {others}evaluates it")

    ours = os.environ.get("RANK", "0") == "0" and not supervised()  # else it is claimed already, by rank 0 or above us
    with _claimed(directory, config, stage=stage) if ours else nullcontext():
        _guarded(directory, work, config)


def train_on_ranks(
    name: str,
    overrides: Sequence[str],
    runs: Path,
    ranks: int,
    nodes: str = "1",
    rendezvous: str | None = None,
    profile: int | None = None,
    stage: str | None = None,
) -> None:
    """The same on `ranks` supervised processes of this node and those of other nodes."""
    refuse_launchers()
    config = load_run(name, overrides, runs)
    directory = runs / config.name
    work = _train_command(name, overrides, runs) + ([] if profile is None else ["--profile", str(profile)])
    work += [] if stage is None else ["--stage", stage]
    with _claimed(directory, config, rendezvous, stage):
        if stage is None:
            check_trained(config, directory)
        start_ranks(work, directory, ranks, config.runtime, nodes, rendezvous)


def build_stores(name: str, overrides: Sequence[str], runs: Path, workers: int, latents: bool = False) -> list[Path]:
    """Data and stores only, by worker processes: what training would begin with; or the `latents` of its codecs."""
    refuse_launchers()
    config = load_run(name, overrides, runs)
    directory = runs / config.name
    plans = stage_plans(config, {}, directory)
    codecs = [plan for plan in plans.values() if plan.kind == "codec"]
    if latents and not codecs:
        raise UserError(
            f"{name} has no stage of kind codec, so there are no latents to be stored; add one, or leave out --latents"
        )
    for plan in codecs if latents else ():
        _refuse_unfinished(directory, plan)
    host = config.runtime.model_copy(update={"device": "cpu"})  # stores are often built where no GPU is
    with claimed_run(directory, config, _before(directory)), Runtime.start(host, config.seed) as runtime:
        tasks, _ = timed_data(runtime, config, directory, workers)
        if latents:
            found = [
                latents_of(runtime, task, cast(CodecStage, restored(plan.directory)), workers)
                for plan in codecs
                for task in tasks.values()
            ]
            return [task.store.store.path for task in found]
    return [task.store.store.path for task in tasks.values()]


def _refuse_unfinished(directory: Path, plan: Plan) -> None:
    progress, wanted = progress_of(plan.directory), plan.training.steps
    done = 0 if progress is None else progress["step"]
    if done < wanted:
        raise UserError(
            f"{directory}: {plan.name} is trained to step {done} of {wanted}; finish it first, with its own command"
        )


def evaluate(directory: Path) -> dict[str, Any]:
    """Judge a trained run (again) and write its `metrics.json`."""
    config = run_config(directory)
    for plan in stage_plans(config, {}, directory).values():
        _refuse_unfinished(directory, plan)
    details = directory / "evaluation" / "details.json"
    command = read_json(details)["command"] if details.exists() else f"ups run {directory / 'config.yaml'}"

    def work(runtime: Runtime) -> None:
        judge(runtime, config, directory, *data_of(runtime, config, directory), command)
        runtime.gather("judged")  # rank 0 has written

    if "RANK" in os.environ:  # one of several: who started them has claimed the run, and judges what came of it
        _guarded(directory, work, config)
        return read_json(directory / "metrics.json")
    with _claimed(directory, config):
        with Runtime.start(config.runtime, config.seed) as runtime:
            work(runtime)
        return _judged(directory)


def evaluate_on_ranks(directory: Path, ranks: int) -> dict[str, Any]:
    """The same by `ranks` supervised processes, which share the test trajectories: the same numbers, sooner."""
    refuse_launchers()
    config = run_config(directory)
    with _claimed(directory, config):
        start_ranks(["evaluate", str(directory)], directory, ranks, config.runtime)
        return _judged(directory)


def _judged(directory: Path) -> dict[str, Any]:
    """The metrics, where they are numbers that its gates let pass."""
    metrics = read_json(directory / "metrics.json")
    check_finite(metrics["tasks"])
    _hold([Verdict(**verdict) for verdict in metrics.get("gates", [])], "on all test data")
    return metrics


def report(directory: Path) -> Path:
    """Write the report of an evaluated run (again)."""
    from ups.report.assemble import assemble  # with matplotlib, which delays every start and restart of a rank
    from ups.report.html import write_report

    path = directory / "report.html"
    write_report(assemble(directory), path)
    return path


def _everything(runtime: Runtime, config: RunConfig, directory: Path, command: str, page: bool) -> None:
    judge(runtime, config, directory, *_before_evaluation(runtime, config, directory), command)
    _after_evaluation(runtime, directory, page)


def _before_evaluation(
    runtime: Runtime, config: RunConfig, directory: Path
) -> tuple[dict[str, TaskData], dict[str, Source]]:
    """Data and stages, what gates make of a few test trajectories, and what the model is compared with."""
    tasks, sources = timed_data(runtime, config, directory)
    _note_order(runtime, config, directory)
    progress = train_stages(runtime, stage_plans(config, tasks, directory))
    if config.gates:
        few = f"on {config.evaluation.small} test trajectories of each set"
        _hold(look(runtime, config, directory, tasks, sources), few)
    train_compared(runtime, compared_plans(config, tasks, directory), device_seconds(config, progress))
    return tasks, sources


def _after_evaluation(runtime: Runtime, directory: Path, page: bool) -> None:
    """The report, and whether what was found is good enough."""
    if page:
        runtime.check_stop("everything but the report is done")
        print("writing the report")
        report(directory)
    _judged(directory)


def _hold(verdicts: Sequence[Verdict], where: str) -> None:
    """End a run that failed a gate."""
    if failed := [verdict.says for verdict in verdicts if not verdict.holds]:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise GateFailed(f"{failed[0]}{more} ({where})")


@contextmanager
def _claimed(
    directory: Path, config: RunConfig, rendezvous: str | None = None, stage: str | None = None
) -> Iterator[None]:
    """The run directory, ours alone while we work in it, and followed by what the configuration tells of it; ready for
    its `stage` to be trained alone.
    """
    check_trackers(config.runtime)
    if stage is not None:
        check_alone(config, directory, stage)
    with claimed_run(directory, config, _before(directory), rendezvous):
        if stage is not None:
            set_aside(config, directory, stage)
        with tracked(directory, config.runtime):
            yield


def _train_command(name: str, overrides: Sequence[str], runs: Path) -> list[str]:
    return ["train", name, *overrides, *([] if runs == Path("runs") else ["--runs", str(runs)])]


def _evaluate_command(directory: Path, command: str) -> list[str]:
    """What evaluates; `command` is what the run was made with, which ranks read where an evaluation keeps it."""
    details = directory / "evaluation" / "details.json"
    details.parent.mkdir(exist_ok=True)
    known = read_json(details) if details.is_file() else {}
    write(details, json.dumps(known | {"command": command}).encode())
    return ["evaluate", str(directory)]


def _note_order(runtime: Runtime, config: RunConfig, directory: Path) -> None:
    if runtime.rank == 0:
        note_order(directory, list(config.each_stage()), config.plugins)


def _before(directory: Path) -> RunConfig | None:
    """The configuration that the run directory has, if its run led to anything."""
    return run_config(directory) if begun(directory) else None


def _finished(directory: Path, config: RunConfig, page: bool) -> dict[str, Any] | None:
    """The metrics of a finished run of this very configuration; one that cannot be trained is refused."""
    check_trained(config, directory)
    path = directory / "metrics.json"
    if not path.is_file() or (page and not (directory / "report.html").is_file()):
        return None
    metrics = read_json(path)
    done = metrics.get("state") == "finished" and metrics.get("configuration") == fingerprint(config)
    return metrics if done else None


def _guarded(directory: Path, work: Callable[[Runtime], object], config: RunConfig) -> None:
    """Run `work`; write how it ended to `outcome.json`, or what went wrong for the crash report."""
    ranks = Ranks.read()
    before = forget(directory) if not supervised() and ranks.rank == 0 else None
    runtime = None
    try:
        with Runtime.start(config.runtime, config.seed, directory) as runtime:
            runtime.check_shared(directory)
            runtime.agree("configuration", config_hash(config), "start every rank with the same command and files")
            Progress.silent = Progress.silent or runtime.rank > 0
            if runtime.rank == 0:
                content = environment() | {"attempt": ranks.attempt, "ranks": runtime.size, "notes": runtime.notes}
                write(directory / "env.json", (json.dumps(content, indent=1) + "\n").encode())
                for note in runtime.notes:
                    print(f"note: {note}")
            runtime.heartbeat.mark("data")
            runtime.inject_fault("data")
            check_capture(runtime)
            check_tensorboard(config.runtime.tracking)
            work(runtime)
            runtime.heartbeat.mark("end")
    except Stopped as stopped:
        decide(directory, Outcome("stopped", str(stopped), ranks.rank))
        raise
    except UserError as error:
        if not directory.is_dir():  # whatever is missing, it is not the user's to mend
            raise gone(directory) from error
        decide(directory, Outcome("mistake", str(error), ranks.rank), before)
        raise
    except GaveUp as error:
        decide(directory, Outcome("gave_up", str(error), ranks.rank))
        raise
    except GateFailed as error:
        decide(directory, Outcome("gate_failed", str(error), ranks.rank))
        raise
    except Exception as error:
        if not directory.is_dir():
            raise gone(directory) from error
        if ranks.launched:
            heartbeat = runtime.heartbeat if runtime else Heartbeat(None, ranks.rank, ranks.attempt)
            details = {"device": str(runtime.device), **runtime.doing} if runtime else {}
            try:
                crash.record_failure(directory, ranks.rank, ranks.attempt, error, heartbeat, details)
            except OSError as refused:  # the traceback still goes to the log
                error.add_note(f"what happened could not be recorded for the report: {refused}")
        raise
    decide(directory, Outcome("finished", "", ranks.rank))
