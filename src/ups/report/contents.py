"""What a report is made of: plain data, no models, no files.

Models are named "UPS", "FNO" and "persistence"; for a steady task "persistence" is the training set's mean solution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Num
from numpy import ndarray

REFERENCE = "truth"
MODELS = ("UPS", "FNO", "persistence")


@dataclass(frozen=True, eq=False)
class Sample:
    """One test trajectory and what each model made of it; `static` fields have the shape of space."""

    label: str
    truth: Float[ndarray, "T *space C"]
    predictions: Mapping[str, Float[ndarray, "T *space C"]]
    static: Mapping[str, Float[ndarray, "*space"]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for model, values in self.predictions.items():
            if values.shape != self.truth.shape:
                raise ValueError(f"sample {self.label!r}: {model} has shape {values.shape}, truth {self.truth.shape}")
        for name, values in self.static.items():
            if values.shape != self.truth.shape[1:-1]:
                raise ValueError(f"sample {self.label!r}: static field {name!r} has shape {values.shape}")


@dataclass(frozen=True)
class SolverRow:
    """The solver run coarser: its points per axis, its error against the fine solution, its seconds a trajectory."""

    points: int
    nrmse: float
    seconds: float


@dataclass(frozen=True)
class SolverComparison:
    """The model against coarse solvers.

    `equal` is the index of the cheapest row at least as accurate as the model (None: no row is), `breakeven` the number
    of simulations after which training has paid off against that row (None: never, the solver is faster).
    """

    rows: tuple[SolverRow, ...]
    model_nrmse: float
    model_seconds: float
    equal: int | None
    breakeven: float | None


@dataclass(frozen=True, eq=False)
class TaskPage:
    """One task: its equation, test samples in pictures, and its part of `metrics.json`.

    `axes[i]` are the point positions along axis i. `growth` is the mean nRMSE at each of `times` (values that are not
    positive, such as a given first frame, are not drawn); `spectra` are (wave numbers, power) at the final time, under
    the models' names and "truth". `metrics` is {"one_step"|"rollout": {"nrmse"|…: {"model", "persistence", "fno",
    "ci95"}}}.
    """

    name: str
    title: str
    equation: str
    steady: bool
    channels: tuple[str, ...]
    axes: tuple[Float[ndarray, "_"], ...]
    times: Float[ndarray, " T"]
    samples: list[Sample]
    growth: Mapping[str, Float[ndarray, " T"]]
    spectra: Mapping[str, tuple[Num[ndarray, " K"], Float[ndarray, " K"]]]
    metrics: Mapping[str, Mapping[str, Mapping[str, Any]]]
    solver: SolverComparison | None = None

    def __post_init__(self) -> None:
        if len(self.axes) not in (1, 2):
            raise ValueError(f"task {self.name!r}: a report draws 1D and 2D fields, not {len(self.axes)}D")
        if not self.samples:
            raise ValueError(f"task {self.name!r}: give at least one sample to draw")
        expected = (len(self.times), *(len(axis) for axis in self.axes), len(self.channels))
        for sample in self.samples:
            if sample.truth.shape != expected:
                raise ValueError(
                    f"task {self.name!r}: sample {sample.label!r} has shape {sample.truth.shape}, expected {expected}"
                )

    @property
    def dimension(self) -> int:
        return len(self.axes)

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose pictures are shown: those with predictions, persistence left to the curves and tables."""
        return tuple(model for model in self.samples[0].predictions if model != "persistence")


@dataclass(frozen=True)
class SummaryRow:
    """One line of the table: a task in one view, judged by one metric; None is a model that was not run."""

    task: str
    view: str
    metric: str
    ups: float
    fno: float | None
    persistence: float | None
    ci95: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Curve:
    """One training: loss and wall seconds at `steps`, validation error as (step, value), and whose it is."""

    label: str
    steps: Float[ndarray, " S"]
    seconds: Float[ndarray, " S"]
    loss: Float[ndarray, " S"]
    validation: list[tuple[int, float]]
    model: str


@dataclass(frozen=True, eq=False)
class Report:
    """A whole run. `seconds` are wall times by phase, `notes` sentences a reader should know."""

    name: str
    command: str
    config_yaml: str
    environment: Mapping[str, str]
    summary: list[SummaryRow]
    tasks: list[TaskPage]
    curves: list[Curve]
    seconds: Mapping[str, float]
    notes: list[str] = field(default_factory=list)


def values_of(sample: Sample, name: str) -> Float[ndarray, "T *space C"]:
    """The truth or one model's prediction, as float64."""
    return np.asarray(sample.truth if name == REFERENCE else sample.predictions[name], dtype=np.float64)
