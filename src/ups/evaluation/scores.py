"""Numbers of each trajectory → the numbers of `metrics.json`, with 95 % bootstrap intervals over test trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.errors import GaveUp
from ups.evaluation.labels import PERSISTENCE
from ups.evaluation.numbers import Numbers
from ups.metrics.bootstrap import central, draws, resampled_means
from ups.track.jsonl import plain

RESERVED = ("model", "truth", "ci95", "ci95_of", "ratio95_of")


def score(found: Mapping[str, Numbers], seed: int, resamples: int, *, model: str) -> dict[str, dict[str, Any]]:
    """{metric: {"model", "persistence", own names …, "ci95", "ci95_of", "ratio95_of"}} for one view, from the numbers
    of every predictor's trajectories.

    `model` is the name of the predictor that also stands under "model", and whose interval is "ci95"; "ci95_of" has
    the interval of every predictor by its own name, "ratio95_of" that of the model's value over each other's: both of
    the same trajectories, since some are hard for everybody.
    """
    if model not in found:
        raise ValueError(f"the model is {model!r}, predictions are there of {', '.join(found)}")
    if taken := [name for name in found if name in RESERVED]:
        raise ValueError(f"a predictor cannot be called {taken[0]!r}: metrics.json has another meaning for it")
    table = {who: numbers.metrics for who, numbers in found.items()}
    drawn = draws(len(found[model].growth), seed, resamples)
    result: dict[str, dict[str, Any]] = {}
    for name in table[model]:
        result[name] = mean_entry(model, {who: values[name] for who, values in table.items()}, drawn)
    errors = {who: values["nrmse"] for who, values in table.items()}
    result["nrmse_median"] = entry(
        model,
        {who: values.quantile(0.5) for who, values in errors.items()},
        {who: values[drawn].quantile(0.5, dim=1) for who, values in errors.items()},
    )
    every = torch.arange(len(found[model].growth))[None]
    result["nrmse_pooled"] = entry(
        model,
        {who: _pooled(numbers, every)[0] for who, numbers in found.items()},
        {who: _pooled(numbers, drawn) for who, numbers in found.items()},
    )
    return result


def mean_entry(model: str, found: Mapping[str, Float[Tensor, " N"]], drawn: Int[Tensor, "R N"]) -> dict[str, Any]:
    """One metric of `metrics.json` from every predictor's number a sample."""
    means = {who: values.mean() for who, values in found.items()}
    return entry(model, means, {who: resampled_means(values, drawn) for who, values in found.items()})


def entry(
    model: str, values: Mapping[str, Float[Tensor, ""]], resampled: Mapping[str, Float[Tensor, " R"]]
) -> dict[str, Any]:
    """One metric of `metrics.json`: the model and persistence first, then all by their own names."""
    entry: dict[str, Any] = {"model": plain(values[model])}
    entry |= {who: plain(values[who]) for who in (PERSISTENCE, *values) if who in values}
    intervals = {who: _ends(found) for who, found in resampled.items()}
    ratios = {who: _ends(resampled[model] / found) for who, found in resampled.items() if who != model}
    return entry | {"ci95": intervals[model], "ci95_of": intervals, "ratio95_of": ratios}


def _ends(resampled: Float[Tensor, " R"]) -> list[float | None]:
    return [plain(end) for end in central(resampled)]


def _pooled(numbers: Numbers, drawn: Int[Tensor, "R N"]) -> Float[Tensor, " R"]:
    """The pooled nRMSE of every resample, the mean over times and channels."""
    weights = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones(drawn.shape, dtype=torch.float64)
    )
    return ((weights @ numbers.squared_error) / (weights @ numbers.squared_truth)).sqrt().mean(1)


def not_finite(tasks: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Where the model's own error is no finite number, of the tasks of `metrics.json`: "burgers (rollout)"."""
    return [
        f"{task} ({view.replace('_', ' ')})"
        for task, views in tasks.items()
        for view, entries in views.items()
        if entries["nrmse"]["model"] is None
    ]


def check_finite(tasks: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """A model that predicts infinities is no success; what was measured of it stays."""
    if failed := not_finite(tasks):
        raise GaveUp(
            f"the model's error is not finite on {', '.join(failed)}; lower training.learning_rate, train longer or on "
            "longer rollouts, and give another name=..."
        )
