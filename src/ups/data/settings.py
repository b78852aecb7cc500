"""What a run can be told about its tasks and their data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ups.config.settings import FileName, Positive, PositiveFloat, Seed, Strict, neutral


class MakeConfig(Strict):
    """Data from the package's own solvers: `trajectories` for each combination of `values`."""

    equation: str
    trajectories: Annotated[int, Field(ge=3)]
    values: dict[str, Annotated[list[float], Field(min_length=1)]] = Field(default={})
    settings: dict[str, Any] = Field(default={})


class FilesConfig(Strict):
    """Data from files under `data.root`: training files, trajectories held out for selection (so many of the training
    files', or a file of them), test files by name.

    Without `test`, the tenth of every training file that publications test on is the test set and the tenth beside it
    the validation set. `view: pdebench` takes the points and frames that PDEBench's results are published for.
    `trajectories` trains as if there were no more than so many: the validation set shrinks in proportion, and the test
    sets stay as they are.
    """

    train: Annotated[list[str], Field(min_length=1)]
    validation: Positive | str | None = None
    test: dict[FileName, str] = Field(default={})
    convention: Literal["cell_centred", "nodal"] | None = None
    view: Literal["pdebench"] | None = None
    trajectories: Positive | None = Field(default=None, description="trained on, spread evenly; all if not given")

    @model_validator(mode="after")
    def _held_out(self) -> FilesConfig:
        if bool(self.test) != (self.validation is not None):
            raise ValueError("give both test files and validation trajectories (their number, or a file), or neither")
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
    times: Literal["own", "resample"] | None = Field(
        default=None,
        description="of frames that are not equally spaced: each step has its own lead time, or all are resampled",
    )
    drop: list[str] = Field(
        default=[], description="parameters, static fields, forcings or mask to do without, by name"
    )
    known: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="share of the points at which static fields are told; all if not given"
    )

    @model_validator(mode="after")
    def _one_source(self) -> TaskConfig:
        if (self.make is None) == (self.files is None):
            raise ValueError("give either make (our solver) or files, not both and not neither")
        if self.make and self.define:
            raise ValueError("define goes with files; what make makes is defined by its equation")
        return self


class DataConfig(Strict):
    root: str | None = Field(default=None, description="folder of the data files; the run's own if not given")
    seed: Seed | None = Field(default=None, description="of data that are made; the run's seed if not given")
    workers: Positive | None = neutral(None, "processes that make and measure data; all cores if not given")
    store: Literal["float32", "float16"] = Field(
        default="float32", description="precision of the stored training fields; half of it takes half the room"
    )


class SamplingConfig(Strict):
    """How tasks share every batch: their `share` of its cost, counted in latent points; their `share` of its samples;
    all alike; by trajectories n; or by n^(1/temperature).
    """

    mode: Literal["cost", "shares", "balanced", "proportional", "temperature"] = "cost"
    points: Positive = Field(
        default=1536,
        description="latent points of a task of share 1 in a step, unless training.batch_size says how many",
    )
    temperature: PositiveFloat = Field(default=2.0, description="for that mode: 1 is proportional, larger is more even")
