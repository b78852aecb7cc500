"""The kinds of stages by name: ours, and those that users register."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ups.config.named import Registry
from ups.config.settings import Strict
from ups.distributed.runtime.settings import RuntimeConfig
from ups.fields import TaskSpec
from ups.models.architectures import ARCHITECTURES
from ups.models.codec import numbers_of_cell
from ups.models.corrector import CorrectorSettings
from ups.models.saved import ModelSpec, TrainedTask
from ups.training.settings import TrainingConfig
from ups.training.stage import Stage
from ups.training.stages.cached import (
    CachedStage,
    CachedStageSettings,
    cached_settings,
    cached_tasks,
    check_cached_tasks,
    codec_among,
)
from ups.training.stages.codec import CodecStage, CodecStageSettings, build_codec, check_codec_tasks
from ups.training.stages.corrector import CorrectorStage, build_corrector, check_corrector_tasks
from ups.training.stages.distilled import DistilledSettings, DistilledStage, build_distilled
from ups.training.stages.operator import OperatorStage, OperatorStageSettings, freeze_shared, operator_settings
from ups.training.stages.steady import SteadySettings, SteadyStage, build_steady, check_steady_tasks

if TYPE_CHECKING:  # who only loads a model does not wait for data
    from ups.data.inputs import Outline
    from ups.distributed.runtime.start import Runtime
    from ups.training.data import TaskData


@dataclass(frozen=True, eq=False)
class StageContext:
    """What a stage is made from. `settings` are its kind's own; `parents` are trained, by name, `checksums` theirs."""

    name: str
    settings: Any
    tasks: tuple[TrainedTask, ...]
    training: TrainingConfig
    runtime: RuntimeConfig
    seed: int
    parents: Mapping[str, Stage]
    checksums: Mapping[str, str]


Reads: TypeAlias = (
    "Callable[[str, Runtime, Mapping[str, TaskData], Mapping[str, Stage], int | None], Mapping[str, TaskData]]"
)
"""From a stage's name, the run's tasks, the stage's trained parents and a number of worker processes to what it is
trained on."""


def _fields(
    name: str, runtime: Runtime, tasks: Mapping[str, TaskData], parents: Mapping[str, Stage], workers: int | None
) -> Mapping[str, TaskData]:
    return tasks


def _any_task(name: str, settings: Any, outlines: Iterable[Outline]) -> None:
    """A stage that serves all."""


Check: TypeAlias = "Callable[[str, Any, Sequence[Outline]], None]"
"""Of a stage's name, its settings, and what is known of the run's tasks before their data are made or read."""


def _of_specs(check: Callable[[str, Iterable[TaskSpec]], None]) -> Check:
    return lambda name, settings, outlines: check(name, [outline.spec for outline in outlines])


def _check_codec(name: str, settings: CodecStageSettings, outlines: Sequence[Outline]) -> None:
    check_codec_tasks(name, [outline.spec for outline in outlines])
    for outline in outlines:
        numbers_of_cell(outline.spec, outline.header.grid, settings)


def longest_rollout(settings: Any, training: TrainingConfig) -> int:
    return max(steps for _, steps in training.rollout)


@dataclass(frozen=True)
class StageKind:
    """`settings(given)` is the model that checks what a configuration gives, which may depend on what it gives;
    `build` gives the untrained stage. One that does not predict cannot be the last of a run. `stands_on`: how many
    stages it does, if that is known. `reads`: what it is trained on, if not the fields of the run's tasks. `physics`:
    False where it learns from something else than fields one step after another, or knows no equation, so that
    `training.physics` is refused. `check` refuses tasks that a stage of that name and settings cannot serve, before any
    is trained. `steps(settings, training)`: the most that a sample of it holds; trajectories must be longer.
    """

    name: str
    settings: Callable[[Mapping[str, Any]], type[Strict]]
    build: Callable[[StageContext], Stage]
    predicts: bool = True
    stands_on: int | None = None
    reads: Reads = _fields
    physics: bool = True
    check: Check = _any_task
    steps: Callable[[Any, TrainingConfig], int] = longest_rollout


def _operator(context: StageContext) -> OperatorStage:
    settings = context.settings.model_dump(exclude=set(OperatorStageSettings.model_fields))
    model = ModelSpec(context.settings.architecture, settings, context.tasks).build(context.seed)
    if context.settings.freeze == "shared":
        freeze_shared(model)
    keeps = ARCHITECTURES[context.settings.architecture].keeps_means
    return OperatorStage(model, context.training, context.runtime, context.tasks, context.name, keeps)


def _codec(context: StageContext) -> CodecStage:
    return build_codec(context.tasks, context.settings, context.seed, context.name)


def _corrector(context: StageContext) -> CorrectorStage:
    c = context
    return build_corrector(c.name, c.settings, c.training, c.tasks, c.seed, c.parents, c.checksums)


def _distilled(context: StageContext) -> DistilledStage:
    return build_distilled(context.name, context.settings, context.training, context.parents, context.checksums)


def _steady(context: StageContext) -> SteadyStage:
    c = context
    return build_steady(c.name, c.settings, c.training, c.tasks, c.seed, c.parents, c.checksums)


def _cached(context: StageContext) -> CachedStage:
    codec = codec_among(context.name, context.parents)
    own = context.settings.model_dump(exclude=set(CachedStageSettings.model_fields))
    model = ModelSpec(context.settings.architecture, own, context.tasks).build(context.seed)
    training = context.training.model_copy(update={"physics": {}})  # which is of fields
    operator = OperatorStage(model, training, context.runtime, context.tasks, context.name)
    return CachedStage(operator, codec, context.checksums[codec.name])


STAGES = Registry[StageKind](
    "kind of stage",
    {
        "operator": StageKind("operator", operator_settings, _operator, stands_on=0),
        "codec": StageKind(
            "codec",
            lambda given: CodecStageSettings,
            _codec,
            predicts=False,
            stands_on=0,
            physics=False,
            check=_check_codec,
        ),
        "cached": StageKind(
            "cached",
            cached_settings,
            _cached,
            stands_on=1,
            reads=cached_tasks,
            physics=False,
            check=_of_specs(check_cached_tasks),
        ),
        "corrector": StageKind(
            "corrector",
            lambda given: CorrectorSettings,
            _corrector,
            stands_on=2,
            physics=False,
            check=_of_specs(check_corrector_tasks),
            steps=lambda settings, training: settings.horizon,
        ),
        "distilled": StageKind("distilled", lambda given: DistilledSettings, _distilled, stands_on=1, physics=False),
        "steady": StageKind(
            "steady",
            lambda given: SteadySettings,
            _steady,
            stands_on=2,
            physics=False,
            check=_of_specs(check_steady_tasks),
        ),
    },
)


def register_stage(kind: StageKind) -> StageKind:
    """Make a kind of stage known by its name, which no other may have."""
    return STAGES.add(kind.name, kind)
