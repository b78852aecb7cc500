"""What a run can be told. Every key is checked: an unknown one is refused with the nearest valid key named."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def _file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", name):
        raise ValueError("it names files: begin with a letter or digit, go on with these, '.', '_', '-' and '@' alone")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]
"""What becomes the name of a file or folder of the run, and must not leave it."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MakeConfig(Strict):
    """Data from the package's own solvers: `trajectories` for each combination of `values`."""

    equation: str
    trajectories: Annotated[int, Field(ge=3)]
    values: dict[str, Annotated[list[float], Field(min_length=1)]] = {}
    settings: dict[str, Any] = {}


class FilesConfig(Strict):
    """Data from files under `data.root`: training files, trajectories held out for selection, test files by name.

    Without `test`, the tenth of every training file that publications test on is the test set and the tenth beside it
    the validation set. `view: pdebench` takes the points and frames that PDEBench's results are published for.
    """

    train: Annotated[list[str], Field(min_length=1)]
    validation: Positive | None = None
    test: dict[FileName, str] = {}
    convention: Literal["cell_centred", "nodal"] | None = None
    view: Literal["pdebench"] | None = None

    @model_validator(mode="after")
    def _held_out(self) -> FilesConfig:
        if bool(self.test) != (self.validation is not None):
            raise ValueError("give both test files and the number of validation trajectories, or neither")
        if twice := {file for file in self.train if self.train.count(file) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))} is listed twice in train; list every file once")
        return self


class TaskConfig(Strict):
    """One task: where its data come from, its share of every batch, and its definition if the registry lacks it."""

    make: MakeConfig | None = None
    files: FilesConfig | None = None
    define: dict[str, Any] | None = None
    share: PositiveFloat = 1.0
    latent_spacing: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TaskConfig:
        if (self.make is None) == (self.files is None):
            raise ValueError("give either make (our solver) or files, not both and not neither")
        if self.make and self.define:
            raise ValueError("define goes with files; what make makes is defined by its equation")
        return self


class DataConfig(Strict):
    root: str | None = Field(default=None, description="folder of the data files; the run's own if not given")
    workers: Positive | None = Field(
        default=None, description="processes that make and measure data; all cores if not given"
    )
    store: Literal["float32", "float16"] = Field(
        default="float32", description="precision of the stored training fields; half of it takes half the room"
    )


class OperatorConfig(Strict):
    """The operator model: width and depth of the latent blocks, modes per axis, hidden width of MLP and head."""

    architecture: Literal["spectral", "pdet_stack"] = "spectral"
    width: Positive = 48
    depth: Positive = 4
    modes: Positive = Field(default=32, description="of spectral, along each axis")
    heads: Positive | None = Field(default=None, description="of pdet_stack; one for every 64 of width if not given")
    expansion: PositiveFloat = 2.0
    head: Positive = 32
    conditions: Positive = 64

    def settings(self) -> dict[str, Any]:
        """The network's keyword arguments, without what only the other architecture has."""
        return self.model_dump(exclude={"architecture", "heads" if self.architecture == "spectral" else "modes"})


class FNOConfig(Strict):
    """The FNO trained beside the model on one task."""

    width: Positive = 32
    modes: Positive = 16
    depth: Positive = 4
    padding: Share = Field(default=0.125, description="zeros beyond a wall, as a share of the axis")
    batch_size: Positive = 16
    learning_rate: PositiveFloat | None = Field(default=None, description="that of `training` if not given")


class SamplingConfig(Strict):
    """How tasks share every batch: by their `share`, all alike, by trajectories n, or by n^(1/temperature)."""

    mode: Literal["shares", "balanced", "proportional", "temperature"] = "shares"
    temperature: PositiveFloat = Field(default=2.0, description="for that mode: 1 is proportional, larger is more even")


class TrainingConfig(Strict):
    """One optimisation path. `batch_size` is global: what the optimiser sees, on any number of ranks."""

    steps: Positive = 2000
    batch_size: Positive = 40
    sampling: SamplingConfig = SamplingConfig()
    optimiser: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="muon: for matrices of blocks and of their modulation, the FNO's too; all else stays with adamw",
    )
    learning_rate: PositiveFloat = 4e-3
    warmup: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    clip: PositiveFloat = 1.0
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.99
    noise: Annotated[float, Field(ge=0)] = Field(default=0.0, description="input noise, in units of the sample's rms")
    rollout: list[tuple[Share, Positive]] = Field(default=[(0.0, 1)], description="[share of training, steps unrolled]")
    strides: dict[Positive, PositiveFloat] = Field(default={1: 1.0}, description="frames a step spans: weight")
    precision: Literal["float32", "float64", "bfloat16"] = Field(
        default="float32",
        description="bfloat16: attention and the blocks' products but the spectral ones; all else is float32. It is "
        "for wide pdet_stack; with spectral it may cost a few per cent of the accuracy",
    )
    validate_every: Positive = 500
    checkpoint_every: Positive = 500

    @model_validator(mode="after")
    def _rollout_starts_at_zero(self) -> TrainingConfig:
        starts = [start for start, _ in self.rollout]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise ValueError("rollout must list increasing shares of the training, the first of them 0")
        return self


class RuntimeConfig(Strict):
    """Where and how a run is computed; nothing here changes what it computes beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Positive | None = Field(default=None, description="CPU threads a rank; the cores shared out if not given")
    strategy: Literal["ddp", "fsdp2", "hsdp"] = "ddp"
    shard: Positive | None = Field(
        default=None, description="hsdp: ranks that share one copy; those of a node if not given"
    )
    micro_batch: Positive | None = Field(
        default=None, description="samples of a task a rank takes at once; all if not given"
    )
    checkpoint_activations: bool = Field(
        default=False, description="recompute blocks in the backward pass to save memory"
    )
    compile: bool = Field(default=False, description="torch.compile the model, part by part, and the loss")
    capture: Literal["auto", "on", "off"] = Field(
        default="auto", description="replay steps as CUDA graphs: where possible, or else fail, or never"
    )
    placement: Literal["auto", "device", "mapped"] = Field(
        default="auto",
        description="where training fields are: on every GPU where they fit, else fail, or in mapped files",
    )
    tf32: bool = Field(
        default=False, description="let a GPU round factors of float32 products to 10 bits: much faster, Muon above all"
    )
    deterministic: bool = Field(default=False, description="only operations that repeat bit for bit, at some speed")
    deadline: PositiveFloat = Field(
        default=12.0, description="seconds without a sign of life in a step before it hangs"
    )
    restarts: Annotated[int, Field(ge=0)] = Field(
        default=3, description="crashes in a row without progress, then give up"
    )
    replica_check_every: Positive = Field(default=100, description="steps between comparisons of the ranks' parameters")
    tracking: list[Literal["tensorboard"]] = Field(
        default=[], description="where events go besides events.jsonl; tensorboard is an optional extra"
    )


class EvaluationConfig(Strict):
    pictures: Positive = Field(default=4, description="test trajectories shown in the report, per task")
    resamples: Annotated[int, Field(ge=100)] = 2000


class RunConfig(Strict):
    name: FileName
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    tasks: Annotated[dict[FileName, TaskConfig], Field(min_length=1)]
    data: DataConfig = DataConfig()
    operator: OperatorConfig = OperatorConfig()
    fno: dict[str, FNOConfig] = Field(default={}, description="an FNO for each task named here, trained as long in all")
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _fno_tasks(self) -> RunConfig:
        for name in self.fno:
            if name not in self.tasks:
                raise ValueError(f"fno names the task {name!r}, which is not among the tasks {', '.join(self.tasks)}")
        return self
