"""What a run can be told, assembled from the settings of its components.

    tasks:                                   # alone, this is a whole configuration
      burgers: {files: {train: [...]}}
    stages:                                  # in order; the default is one `operator`
      operator: {width: 64, training: {steps: 9000}}
    compare: [fno]                           # or {fno: {width: 64, tasks: {darcy: {modes: 8}}}}; a predictor, too,
                                             # that needs no training

The keys of a stage are those of its kind (of `operator`: those of its architecture), so the schema of a run follows
from what the run says: `load_run` reads it first, then checks every key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, create_model, field_validator, model_validator

from ups.config.keys import key_page
from ups.config.load import Written, read_config
from ups.config.plugins import load_plugins
from ups.config.settings import FileName, Seed, Strict, changed, changes_of
from ups.config.text import parse_yaml
from ups.data.settings import DataConfig, TaskConfig
from ups.data.sources import data_root
from ups.distributed.runtime.settings import RuntimeConfig
from ups.errors import UserError
from ups.evaluation.labels import PERSISTENCE
from ups.evaluation.scores import RESERVED
from ups.evaluation.settings import EvaluationConfig
from ups.models.architectures import ARCHITECTURES
from ups.models.predictor import PREDICTORS
from ups.ops.gates import GateConfig
from ups.pipeline.defaults import Choice, complete
from ups.training.kinds import STAGES
from ups.training.settings import TrainingConfig

TrainingChanges = changes_of(TrainingConfig)
COMMON = {"kind", "on", "start", "like", "training"}
"""The keys of a stage that are not its kind's own."""
TAKEN = {*RESERVED, PERSISTENCE, "data", "train", "evaluate"}
"""Names that mean something else in metrics.json."""


class StageConfig(Strict):
    """One stage. Its other keys are those of its kind."""

    kind: str = Field(default="operator", description="what is trained")
    on: list[str] = Field(default=[], description="the stages it stands on, which stay as they are")
    start: str | None = Field(default=None, description="a run or a stage's folder whose weights it starts from")
    like: str | None = Field(
        default=None, description="the task of `start` that a new task begins as; the most alike if not given"
    )
    training: TrainingChanges | None = None  # pyright: ignore[reportInvalidTypeForm]


class ComparedConfig(Strict):
    """What is trained beside the model, on the same data and for the same device-seconds. Its other keys are those of
    its architecture; `tasks` overrides any of them, and `training`, for single tasks.
    """

    architecture: str
    per_task: bool = Field(default=False, description="one network for each task, where one could serve all")
    training: TrainingChanges | None = None  # pyright: ignore[reportInvalidTypeForm]
    tasks: dict[str, Any] = Field(default={})

    @property
    def joint(self) -> bool:
        """One network for all tasks."""
        return ARCHITECTURES[self.architecture].joint and not self.per_task


class UntrainedConfig(Strict):
    """What stands beside the model without any training. Its other keys are those of its predictor."""

    predictor: str


class RunConfig(Strict):
    """`stages` and `compare` hold an entry a name; see `load_run`."""

    name: FileName
    seed: Seed = 0
    plugins: list[str] = Field(default=[], description="Python files that register what this configuration uses")
    tasks: Annotated[dict[FileName, TaskConfig], Field(min_length=1)]
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    stages: Any
    compare: Any
    evaluation: EvaluationConfig = EvaluationConfig()
    gates: dict[FileName, GateConfig] = Field(default={}, description="what its model must be as good as, to count")
    runtime: RuntimeConfig = Field(default=RuntimeConfig(), json_schema_extra={"neutral": True})

    @field_validator("compare", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return {name: {} for name in value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _names(self) -> RunConfig:
        earlier: list[str] = []
        for name, stage in self.each_stage().items():
            for parent in stage.on:
                if parent not in earlier:
                    raise ValueError(f"stages.{name} is on {parent!r}, which is not among the stages before it")
            wanted = STAGES[stage.kind].stands_on
            if wanted is not None and len(stage.on) != wanted:
                what = "stands on no other: leave `on` out" if wanted == 0 else f"needs {wanted} in `on`"
                raise ValueError(f"stages.{name} is on {stage.on}, and a stage of kind {stage.kind} {what}")
            if stage.like is not None and stage.start is None:
                raise ValueError(
                    f"stages.{name}.like is {stage.like!r}, a task of `start`, which is not given; give it"
                )
            architecture = getattr(stage, "architecture", "")  # of kinds that have one
            if architecture in ARCHITECTURES and not ARCHITECTURES[architecture].joint and len(self.tasks) > 1:
                raise ValueError(
                    f"stages.{name} has the architecture {architecture!r}, whose networks serve one task each, but "
                    f"there are {len(self.tasks)}; put it under compare: (a network a task), or keep one task"
                )
            earlier.append(name)
        if not STAGES[self.each_stage()[earlier[-1]].kind].predicts:
            raise ValueError(f"stages.{earlier[-1]} is the last one and predicts nothing; put one that does after it")
        for name, gate in self.gates.items():
            if gate.task is not None and gate.task.partition("@")[0] not in self.tasks:
                raise ValueError(f"gates.{name}.task is {gate.task!r}, which is not among the tasks; name one")
        for name in self.compared_names():
            if name in earlier:
                raise ValueError(f"compare.{name} has the name of a stage; choose another")
        if taken := sorted(TAKEN & {*earlier, *self.compared_names()}):
            raise ValueError(
                f"{taken[0]!r} cannot be the name of a stage or of what it is compared with; choose another"
            )
        for name, compared in self.each_compared().items():
            for task in compared.tasks:
                if task not in self.tasks:
                    raise ValueError(f"compare.{name}.tasks names {task!r}, which is not among the tasks")
            if compared.tasks and compared.joint:
                raise ValueError(
                    f"compare.{name}.tasks is of networks of one task each, and {compared.architecture!r} serves all; "
                    f"give compare.{name}.per_task=true, or leave it out"
                )
        for name, stage in self.each_stage().items():
            if stage.training is not None and stage.training.physics and not STAGES[stage.kind].physics:
                raise ValueError(f"stages.{name}.training.physics has no effect on a {stage.kind}; leave it out")
        for where, (training, tasks) in self.each_training().items():
            if strangers := sorted(set(training.physics) - set(self.tasks)):
                raise ValueError(f"{where} has physics of {strangers[0]!r}, which is not among the tasks")
            if training.batch_size is not None and training.batch_size < len(tasks):
                raise ValueError(
                    f"{where} has the batch_size {training.batch_size} for {len(tasks)} tasks; every task needs a "
                    f"sample a step, so make it {len(tasks)} or more"
                )
        return self

    @property
    def data_seed(self) -> int:
        """Of the data that it makes."""
        return self.seed if self.data.seed is None else self.data.seed

    def each_stage(self) -> dict[str, StageConfig]:
        """In order."""
        return {name: getattr(self.stages, name) for name in type(self.stages).model_fields}

    def compared_names(self) -> list[str]:
        """Of all that the model is compared with, in order."""
        return list(type(self.compare).model_fields)

    def each_compared(self) -> dict[str, ComparedConfig]:
        """Those that are trained."""
        found = {name: getattr(self.compare, name) for name in self.compared_names()}
        return {name: compared for name, compared in found.items() if isinstance(compared, ComparedConfig)}

    def each_untrained(self) -> dict[str, UntrainedConfig]:
        found = {name: getattr(self.compare, name) for name in self.compared_names()}
        return {name: compared for name, compared in found.items() if isinstance(compared, UntrainedConfig)}

    def each_training(self) -> dict[str, tuple[TrainingConfig, tuple[str, ...]]]:
        """That of every stage and of every network beside them, and the tasks that it is on."""
        tasks = tuple(self.tasks)
        found = {
            f"stages.{name}": (self.training_of(stage.training), tasks) for name, stage in self.each_stage().items()
        }
        for name, compared in self.each_compared().items():
            if compared.joint:
                found[f"compare.{name}"] = self.training_of(compared.training), tasks
                continue
            for task in tasks:
                own = compared.tasks.get(task)
                training = self.training_of(compared.training, None if own is None else own.training)
                found[f"compare.{name}.tasks.{task}"] = training, (task,)
        return found

    def training_of(self, *changes: Strict | None) -> TrainingConfig:
        """The common training with what a stage, a compared family and its task change."""
        training = self.training
        for change in changes:
            training = changed(training, change)
        return training


def load_run(name: str | Path, overrides: Sequence[str], runs: Path | None = None) -> RunConfig:
    """The configuration of that name or file, with overrides, and what it leaves open chosen (`defaults.py`): as it was
    chosen before where `runs` holds a run of its name.
    """
    return explained(name, overrides, runs)[0]


def explained(name: str | Path, overrides: Sequence[str], runs: Path | None = None) -> tuple[RunConfig, list[Choice]]:
    """The same, and what was chosen."""
    return completed(read_config(name, overrides), runs)


def completed(written: Written, runs: Path | None = None) -> tuple[RunConfig, list[Choice]]:
    """What is written, checked and with what it leaves open; and what was chosen. Without a `name` it has its file's;
    plugins are looked for beside the file.
    """
    values = written.values
    values.setdefault("name", written.path.stem)
    plugins = values.get("plugins") or []
    if not isinstance(plugins, list) or not all(isinstance(plugin, str) for plugin in plugins):
        raise UserError(f"plugins is {plugins!r}; give a list of paths of Python files")
    values["plugins"] = [str((written.path.parent / Path(plugin).expanduser()).resolve()) for plugin in plugins]
    load_plugins(values["plugins"])
    config = written.checked(schema_of(values))
    begun = None if runs is None else runs / config.name / "config.yaml"
    root = data_root(config.data, (runs or Path("runs")) / config.name / "data")
    before = parse_yaml(begun.read_text()) if begun is not None and begun.is_file() else None
    whole, chosen = complete(values, config, root, before)
    return replace(written, values=whole).checked(schema_of(whole)), chosen


def run_config(directory: Path) -> RunConfig:
    """That of a run."""
    path = directory / "config.yaml"
    if not path.is_file():
        raise UserError(f"{directory} is not a run (it has no config.yaml); name a directory that `ups run` made")
    return load_run(path, [])


def keys_of(section: str) -> str:
    """The page of a section's keys; of stages and what they are compared with, of any name of a kind."""
    first, _, rest = section.partition(".")
    name = rest.partition(".")[0]
    given = {"architecture": name} if first == "stages" and name in ARCHITECTURES else {}
    return key_page(schema_of({first: {name: given}} if first in ("stages", "compare") and name else {}), section)


def schema_of(values: Mapping[str, Any]) -> type[RunConfig]:
    """The schema for what a configuration says: a field for each stage and each compared family, of its own type."""
    stages, compare = values.get("stages", {"operator": {}}), values.get("compare", {})
    compare = {name: {} for name in compare} if isinstance(compare, list) else compare
    if not isinstance(stages, Mapping) or not isinstance(compare, Mapping) or not stages:
        raise UserError("stages is a mapping of names to settings, compare a mapping or a list of names; see --help")
    of_stages = {name: _defaulted(_stage(name, given)) for name, given in stages.items()}
    compared = {name: _defaulted(_compared(name, given)) for name, given in compare.items()}
    return create_model(
        "RunConfig",
        __base__=RunConfig,
        stages=_defaulted(create_model("Stages", __base__=Strict, **of_stages), names=list(STAGES)),
        compare=_defaulted(create_model("Compared", __base__=Strict, **compared), names=list(ARCHITECTURES)),
    )


def _stage(name: str, given: Any) -> type[Strict]:
    given = given if isinstance(given, Mapping) else {}
    kind = given.get("kind", name if name in STAGES else "operator")
    own = STAGES[kind].settings(given)
    return create_model(f"{name} stage", __base__=(StageConfig, own), kind=(str, kind))


def _compared(name: str, given: Any) -> type[Strict]:
    given = given if isinstance(given, Mapping) else {}
    architecture = given.get("architecture", name)
    if "predictor" in given or (architecture not in ARCHITECTURES and architecture in PREDICTORS):
        predictor = given.get("predictor", name)
        base = (UntrainedConfig, PREDICTORS[predictor].settings)
        return create_model(f"{name} compared", __base__=base, predictor=(str, predictor))
    settings = ARCHITECTURES[architecture].settings
    training: Any = (TrainingChanges | None, None)
    changes: Any = create_model(f"{name} on a task", __base__=changes_of(settings), training=training)
    return create_model(
        f"{name} compared",
        __base__=(ComparedConfig, settings),
        architecture=(str, architecture),
        tasks=(dict[str, changes], Field(default={})),  # pyright: ignore[reportInvalidTypeForm]
    )


def _defaulted(model: type[Strict], **extra: Any) -> Any:
    """`names`: what belongs here, for one who writes it elsewhere."""
    return (model, Field(default_factory=model, json_schema_extra=extra or None))
