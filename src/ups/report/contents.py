"""What a report is made of: plain data, no models, no files.

Predictors are known by their own names ("operator", "fno", "persistence"); the `Legend` has their titles and order. For
a steady task "persistence" is the training set's mean solution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num
from numpy import ndarray

from ups.evaluation.labels import PredictorLabel
from ups.evaluation.solver import SolverComparison
from ups.report.legend import REFERENCE, Legend


@dataclass(frozen=True, eq=False)
class Sample:
    """One test trajectory and what each predictor made of it; `static` fields have the shape of space, and so has the
    `mask`, true inside the domain. `times` are those of its frames, where trajectories differ in them.
    """

    label: str
    truth: Float[ndarray, "T *space C"]
    predictions: Mapping[str, Float[ndarray, "T *space C"]]
    static: Mapping[str, Float[ndarray, "*space"]] = field(default_factory=dict)
    mask: Bool[ndarray, "*space"] | None = None
    times: Float[ndarray, " T"] | None = None


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What members say: `fan` are their quantiles at each sample of the page, `spread` and `skill` root mean squares
    over the test set at each predicted time, `ranks` how often the truth had 0 … M members below it. `members` are a
    few at the samples' frames, of which those given are true.
    """

    fan: Float[ndarray, "S Q T *space C"]
    members: Float[ndarray, "S K F *space C"]
    spread: Float[ndarray, " T"]
    skill: Float[ndarray, " T"]
    ranks: Float[ndarray, " R"]


@dataclass(frozen=True, eq=False)
class TaskPage:
    """One task: its equation, test samples in pictures, and its part of `metrics.json`.

    `axes[i]` are the point positions along axis i, `times` those of the samples' frames. `growth` is (times, mean
    nRMSE), at all times (values that are not positive, such as a given first frame, are not drawn); `spectra` are (wave
    numbers, power) at the final time, under the predictors' names and "truth". `metrics` is {"one_step"|"rollout":
    {"nrmse"|…: {"model", own names …, "ci95", "ci95_of", "ratio95_of"}}}.
    """

    legend: Legend
    name: str
    title: str
    equation: str
    steady: bool
    channels: tuple[str, ...]
    axes: tuple[Float[ndarray, "_"], ...]
    times: Float[ndarray, " T"]
    samples: list[Sample]
    growth: Mapping[str, tuple[Float[ndarray, " F"], Float[ndarray, " F"]]]
    spectra: Mapping[str, tuple[Num[ndarray, " K"], Float[ndarray, " K"]]]
    metrics: Mapping[str, Mapping[str, Mapping[str, Any]]]
    solver: SolverComparison | None = None
    ensembles: Mapping[str, Ensemble] = field(default_factory=dict)

    @property
    def plane(self) -> TaskPage:
        """Of three dimensions the two that a picture has: x and y, in the middle of z. Of others the page as it is."""
        if self.dimension < 3:
            return self
        middle = len(self.axes[2]) // 2
        samples = [
            replace(
                sample,
                truth=sample.truth[..., middle, :],
                predictions={name: values[..., middle, :] for name, values in sample.predictions.items()},
                static={name: values[..., middle] for name, values in sample.static.items()},
                mask=None if sample.mask is None else sample.mask[..., middle],
            )
            for sample in self.samples
        ]
        return replace(self, axes=self.axes[:2], samples=samples)

    def of_members(self, name: str) -> TaskPage:
        """The page with a few members of this ensemble instead of predictors."""
        found = self.ensembles[name].members
        names = [f"member {place + 1}" for place in range(found.shape[1])]
        legend = Legend(tuple(PredictorLabel(member, member, "stage") for member in names), names[0])
        samples = [
            replace(sample, predictions=dict(zip(names, own, strict=True)))
            for sample, own in zip(self.samples, found, strict=True)
        ]
        return replace(self, legend=legend, samples=samples, ensembles={})

    @property
    def dimension(self) -> int:
        return len(self.axes)

    @property
    def predictors(self) -> tuple[str, ...]:
        """Who predicted the samples, in the order of the tables."""
        return tuple(name for name in self.legend.names if name in self.samples[0].predictions)

    @property
    def pictured(self) -> tuple[str, ...]:
        """Those of them whose fields are shown."""
        return tuple(name for name in self.legend.pictured if name in self.samples[0].predictions)


@dataclass(frozen=True)
class SummaryRow:
    """One line of the table: a task in one view, judged by one metric.

    `values` are by predictor, of those that were run on the task: a failed one is NaN. `intervals` are their 95 %
    bootstrap intervals; the model has the first word, so it must be among the values.
    """

    task: str
    view: str
    metric: str
    values: Mapping[str, float]
    model: str
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def own(self) -> float:
        return self.values[self.model]


@dataclass(frozen=True, eq=False)
class Curve:
    """One training of a predictor: loss and wall seconds at `steps`, validation error as (step, value)."""

    label: str
    steps: Float[ndarray, " S"]
    seconds: Float[ndarray, " S"]
    loss: Float[ndarray, " S"]
    validation: list[tuple[int, float]]
    predictor: str


@dataclass(frozen=True, eq=False)
class Report:
    """A whole run. `seconds` are wall times by phase, `notes` sentences a reader should know; `learning` is the
    `curve.json` of a fine-tuned one.
    """

    name: str
    command: str
    config_yaml: str
    environment: Mapping[str, str]
    legend: Legend
    summary: list[SummaryRow]
    tasks: list[TaskPage]
    curves: list[Curve]
    seconds: Mapping[str, float]
    notes: list[str] = field(default_factory=list)
    learning: Mapping[str, Any] | None = None


def values_of(sample: Sample, name: str) -> Float[ndarray, "T *space C"]:
    """The truth or one prediction, as float64; NaN outside the domain."""
    values = np.asarray(sample.truth if name == REFERENCE else sample.predictions[name], dtype=np.float64)
    return values if sample.mask is None else np.where(sample.mask[..., None], values, np.nan)


def static_of(sample: Sample, name: str) -> Float[ndarray, "*space"]:
    """The same of a static field."""
    values = np.asarray(sample.static[name], dtype=np.float64)
    return values if sample.mask is None else np.where(sample.mask, values, np.nan)


def times_of(task: TaskPage, sample: Sample) -> Float[ndarray, " T"]:
    return task.times if sample.times is None else sample.times
