"""How good a run must be to count: limits on metrics of its test data, or on their ratio to another run's.

    gates:
      accurate: {metric: nrmse, at_most: 0.2}
      conserves: {metric: conserved_rmse, at_most: 0.01, task: burgers}
      no_worse: {metric: nrmse, reference: runs/before, at_most: 1.05}

A gate fails where the whole 95 % interval is beyond its limit, in any of its test sets: what the test trajectories do
not decide, no gate does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ups.bench.ratios import MODEL, Ratio, Result, ratio
from ups.config.load import read_mapping
from ups.config.settings import PositiveFloat, Strict
from ups.data.settings import TaskConfig
from ups.durable import read_json
from ups.errors import UserError
from ups.evaluation.labels import PERSISTENCE

SAME = 1e-5
"""Relative; errors of persistence that are as near are of the same trajectory, in the digits that a run keeps."""
Metrics = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
"""As in metrics.json: by test set, kind of prediction and name."""


class GateConfig(Strict):
    """A limit that a run's model has to keep on its test data."""

    metric: str = Field(default="nrmse", description="one of those in metrics.json")
    of: Literal["rollout", "one_step"] = Field(
        default="rollout", description="kind of prediction; a steady task has one alone"
    )
    task: str | None = Field(default=None, description="a task or one of its test sets; all that have it if not given")
    reference: str | None = Field(
        default=None, description="a finished run of the same tasks: the limits are of the ratio to its value"
    )
    at_most: PositiveFloat | None = Field(default=None, description="fails where it is surely more")
    at_least: PositiveFloat | None = Field(default=None, description="fails where it is surely less")

    @model_validator(mode="after")
    def _limited(self) -> GateConfig:
        if self.at_most is None and self.at_least is None:
            raise ValueError("it has no limit; give at_most or at_least")
        return self


@dataclass(frozen=True)
class Verdict:
    """Of one gate on one test set: the value (or its ratio to the reference's) and its 95 % interval."""

    gate: str
    test_set: str
    holds: bool
    value: float | None
    low: float | None
    high: float | None
    says: str


@dataclass(frozen=True)
class ReferenceRun:
    """What gates need of another run."""

    metrics: Metrics
    result: Result


def references(
    gates: Mapping[str, GateConfig], tasks: Mapping[str, TaskConfig], data_seed: int
) -> dict[str, ReferenceRun]:
    """The runs that gates refer to, by the path given. One that is not finished, or of other tasks, is refused."""
    found = {}
    for name, gate in gates.items():
        if gate.reference is None or gate.reference in found:
            continue
        where, run = f"gates.{name}.reference", Path(gate.reference).expanduser()
        if not (run / "metrics.json").is_file():
            raise UserError(f"{where} is {run}, which is no finished run; give the folder of one")
        metrics = read_json(run / "metrics.json")
        if metrics["state"] != "finished":
            raise UserError(f"{where} is {run}, which is {metrics['state']}, not finished; finish it, or give another")
        theirs = read_mapping(run / "config.yaml")
        result = Result.of(run)
        known = {task: TaskConfig.model_validate(told) for task, told in theirs["tasks"].items()}
        for task, config in tasks.items():
            if task not in known or _data(known[task]) != _data(config):
                how = "has other data there" if task in known else "is not among them"
                raise UserError(f"{where} is {run}, a run of other tasks: {task} {how}; give one of the same tasks")
        if result.data_seed != data_seed:
            raise UserError(
                f"{where} is {run}, whose data have the seed {result.data_seed}, not {data_seed}; give one of the same"
                " data, or this one data.seed"
            )
        found[gate.reference] = ReferenceRun(metrics["tasks"], result)
    return found


def judged(
    gates: Mapping[str, GateConfig],
    metrics: Metrics,
    errors: Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]],
    model: str,
    of: Mapping[str, ReferenceRun],
    rows: Mapping[str, Sequence[int]] | None = None,
) -> list[Verdict]:
    """Every gate on each of its test sets. `errors`: the nRMSE of every trajectory, as evaluation gives it; `rows`:
    those of the whole test sets that they are, if not all.
    """
    found = []
    for name, gate in gates.items():
        own = list(_entries(gate, metrics))
        if not own:
            known = sorted({metric for kinds in metrics.values() for entries in kinds.values() for metric in entries})
            what = f"{gate.metric} of {gate.task or 'any test set'}"
            raise UserError(f"gates.{name} finds no {what}; there are {', '.join(known)} of {', '.join(metrics)}")
        for view, kind, entry in own:
            value = _value(entry)
            if gate.reference is not None:
                reference = of[gate.reference]
                chosen = None if rows is None else rows[view]
                value = _beside(value, gate.metric, errors[view][kind], model, reference, view, kind, chosen)
            found.append(_verdict(name, gate, view, value))
    return found


def _entries(gate: GateConfig, metrics: Metrics) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for view, kinds in metrics.items():
        kind = gate.of if gate.of in kinds else next(iter(kinds))
        if gate.metric in kinds[kind] and gate.task in (None, view, view.partition("@")[0]):
            yield view, kind, kinds[kind][gate.metric]


def _value(entry: Mapping[str, Any]) -> Ratio:
    """The model's number and its interval; what is no number is infinitely wrong."""
    value, *ends = (math.inf if v is None else v for v in (entry[MODEL], *entry["ci95"]))
    return Ratio(value, *ends)


def _beside(
    own: Ratio,
    metric: str,
    errors: Mapping[str, Sequence[float | None]],
    model: str,
    reference: ReferenceRun,
    view: str,
    kind: str,
    rows: Sequence[int] | None,
) -> Ratio:
    """The ratio to the reference's. Of errors of the same trajectories, whose difference is known better than either;
    of other metrics from both intervals, which is wider.
    """
    theirs = reference.result.errors.get(view, {}).get(kind)
    if metric == "nrmse" and theirs is not None:
        count = len(theirs[MODEL])
        chosen = [row for row in (range(count) if rows is None else rows) if row < count]
        both = {who: [values[row] for row in chosen] for who, values in theirs.items()}
        if _same(both[PERSISTENCE], errors[PERSISTENCE]):
            return ratio(errors[model], both[MODEL])
    entry = reference.metrics.get(view, {}).get(kind, {}).get(metric)
    if entry is None:
        raise UserError(f"the reference run has no {metric} of {view}; evaluate it again with `ups evaluate`")
    other = _value(entry)
    return Ratio(own.value / other.value, own.low / other.high, own.high / other.low)


def _same(some: Sequence[float | None], others: Sequence[float | None]) -> bool:
    return len(some) == len(others) and all(
        a is not None and b is not None and math.isclose(a, b, rel_tol=SAME) for a, b in zip(some, others, strict=True)
    )


def _verdict(name: str, gate: GateConfig, view: str, value: Ratio) -> Verdict:
    above = gate.at_most is not None and not value.low <= gate.at_most
    below = gate.at_least is not None and not value.high >= gate.at_least
    holds = not (above or below) and math.isfinite(value.value)
    what = gate.metric if gate.reference is None else f"{gate.metric} over that of {gate.reference}"
    limits = [(word, limit) for word, limit in (("at most", gate.at_most), ("at least", gate.at_least)) if limit]
    asked = " and ".join(f"{word} {limit:g}" for word, limit in limits)
    number = f"{value.value:.3g} ({value.low:.3g} to {value.high:.3g})" if math.isfinite(value.value) else "not finite"
    within = gate.at_most is None or value.high <= gate.at_most
    within = within and (gate.at_least is None or value.low >= gate.at_least)
    word = ("holds" if within else "holds within the noise of the test data") if holds else "FAILS"
    value_, low, high = (number if math.isfinite(number) else None for number in value)
    return Verdict(name, view, holds, value_, low, high, f"gate {name} {word}: {what} of {view} is {number}, {asked}")


def _data(task: TaskConfig) -> dict[str, Any]:
    """Of a task's settings, what decides its data."""
    return task.model_dump(exclude={"share", "latent_spacing"})
