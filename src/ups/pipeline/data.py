"""A run's data: made or opened, checked, measured and stored, task by task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from ups.data.agreement import task_of
from ups.data.inputs import Outline, check_inputs
from ups.data.prepare.cached import cached
from ups.data.sources import Source, check_source, open_source
from ups.distributed.runtime.start import Runtime
from ups.errors import Stopped
from ups.models.architectures import ARCHITECTURES
from ups.models.network import refuse_conditions
from ups.models.predictor import PREDICTORS
from ups.pipeline.config import RunConfig
from ups.pipeline.memory import check_memory, check_trajectories
from ups.pipeline.phase_seconds import note_seconds, seconds_of
from ups.track.progress import Progress
from ups.training.data import TaskData, prepare
from ups.training.kinds import STAGES, longest_rollout


def timed_data(
    runtime: Runtime, config: RunConfig, directory: Path, workers: int | None = None
) -> tuple[dict[str, TaskData], dict[str, Source]]:
    """`data_of`, its seconds added up over interruptions."""
    began = time.monotonic()

    def note() -> None:
        if runtime.rank == 0:
            note_seconds(directory, data=seconds_of(directory).get("data", 0.0) + time.monotonic() - began)

    try:
        data = data_of(runtime, config, directory, workers)
    except Stopped:
        note()
        raise
    note()
    return data


def data_of(
    runtime: Runtime, config: RunConfig, directory: Path, workers: int | None = None
) -> tuple[dict[str, TaskData], dict[str, Source]]:
    """Look at the inputs of all tasks; then make or open each one's data and check them, then statistics and the store,
    which `workers` processes build.
    """
    sources, tasks = {}, {}
    trainings = [config.training_of(stage.training) for stage in config.each_stage().values()]
    strides = {stride for training in trainings for stride, _ in training.stride_table()}
    outlines = runtime.in_turn("look at the inputs", partial(look_at_inputs, config, directory))
    for name, outline in outlines.items():
        tests = () if outline.source is None else outline.source.tests.values()
        check_memory(config, outline.spec, outline.header.grid, runtime.device)
        check_trajectories(name, [outline.header, *(test.header for test in tests)], runtime.device)
    with _displays() as show:
        for name, task in config.tasks.items():
            opened = partial(_opened, runtime, config, directory, name, show)
            sources[name] = runtime.in_turn(f"open {name}", opened)
            tasks[name] = prepare(
                runtime,
                sources[name],
                task.share,
                strides,
                directory / "store",
                config.data.store,
                workers or config.data.workers,
                lambda label, done, total: show(f"measuring {label}", done, total),
                lambda label, done, total: show(f"storing {label}", done, total, "MB", 10**6),
            )
            runtime.check_stop(f"the data of {name} are kept in {directory}")
    return tasks, sources


def look_at_inputs(config: RunConfig, directory: Path) -> dict[str, Outline]:
    """Those of all tasks, for every training that is to come: each needs trajectories long enough for its rollouts."""
    _check_conditions(config)
    trained: dict[tuple[int, int], set[str]] = {}
    stages = {f"stages.{name}": stage for name, stage in config.each_stage().items()}
    for where, (training, tasks) in config.each_training().items():
        stage = stages.get(where)
        unroll = longest_rollout(stage, training) if stage is None else STAGES[stage.kind].steps(stage, training)
        stride = min(stride for stride, _ in training.stride_table())
        trained.setdefault((unroll, stride), set()).update(tasks)
    found: dict[str, Outline] = {}
    for (unroll, stride), names in trained.items():  # the first is a stage's, on all tasks
        tasks = {name: task for name, task in config.tasks.items() if name in names}
        folder, seed = directory / "data", config.data_seed
        found |= check_inputs(tasks, config.data, folder, seed=seed, unroll=unroll, stride=stride)
    for name, stage in config.each_stage().items():
        STAGES[stage.kind].check(name, stage, list(found.values()))
    return found


def _check_conditions(config: RunConfig) -> None:
    """Refuse tasks with conditions that a network or a predictor of the run cannot use."""
    specs = [task_of(name, task) for name, task in config.tasks.items()]
    for name, stage in config.each_stage().items():
        if (architecture := getattr(stage, "architecture", None)) is not None:  # of kinds that have one
            refuse_conditions(f"stages.{name} ({architecture})", ARCHITECTURES[architecture].takes, specs)
    for name, compared in config.each_compared().items():
        refuse_conditions(f"compare.{name}", ARCHITECTURES[compared.architecture].takes, specs)
    for name, compared in config.each_untrained().items():
        refuse_conditions(f"compare.{name}", PREDICTORS[compared.predictor].takes, specs)


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
    source = open_source(name, config.tasks[name], config.data, place, config.data_seed, making, device)
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
