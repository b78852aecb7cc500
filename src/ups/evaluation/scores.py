"""Predictions and truth → the numbers of `metrics.json`, with 95 % bootstrap intervals over test trajectories."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import TaskSpec
from ups.metrics import (
    boundary_rmse,
    conserved_rmse,
    correlation_time,
    max_error,
    nrmse,
    pooled_nrmse,
    relative_l2,
    spectral_error,
    vrmse,
)
from ups.metrics.bootstrap import bootstrap_interval, central, draws

Fields = Float[Tensor, "N T *space C"]


def per_sample(spec: TaskSpec, prediction: Fields, truth: Fields, times: Float[Tensor, " T"]) -> dict[str, Tensor]:
    """Every metric that is a mean over samples, as one number a sample."""
    values = {
        "nrmse": nrmse(prediction, truth),
        "relative_l2": relative_l2(prediction, truth),
        "max_error": max_error(prediction, truth),
        "boundary_rmse": boundary_rmse(prediction, truth),
    }
    bands = spectral_error(prediction, truth)
    values |= {f"spectral_{band}": bands[..., i] for i, band in enumerate(("low", "middle", "high"))}
    values["vrmse"] = vrmse(prediction, truth)
    if spec.invariants:
        names = spec.channel_names
        columns = [names.index(invariant.channel) for invariant in spec.invariants]
        values["conserved_rmse"] = conserved_rmse(prediction, truth)[:, columns]
    if not spec.steady:
        values["correlation_time"] = correlation_time(prediction, truth, times)
    return {name: value.reshape(len(truth), -1).mean(1) for name, value in values.items()}


def score(
    spec: TaskSpec,
    predictions: Mapping[str, Fields],
    truth: Fields,
    times: Float[Tensor, " T"],
    seed: int,
    resamples: int,
) -> dict[str, dict[str, Any]]:
    """{metric: {"model", "persistence", "fno", "ci95"}} for one view; the interval is the model's."""
    table = {who: per_sample(spec, values, truth, times) for who, values in predictions.items()}
    result: dict[str, dict[str, Any]] = {}
    for name, own in table["model"].items():
        low, high = bootstrap_interval(own, seed, resamples)
        entry: dict[str, Any] = {who: plain(values[name].mean()) for who, values in table.items()}
        result[name] = entry | {"ci95": [plain(low), plain(high)]}
    drawn = draws(len(truth), seed, resamples)
    medians = table["model"]["nrmse"][drawn].quantile(0.5, dim=1)
    result["nrmse_median"] = {who: plain(values["nrmse"].quantile(0.5)) for who, values in table.items()}
    result["nrmse_median"] |= {"ci95": [plain(end) for end in central(medians)]}
    result["nrmse_pooled"] = {who: plain(pooled_nrmse(values, truth).mean()) for who, values in predictions.items()}
    result["nrmse_pooled"] |= {"ci95": [plain(end) for end in central(_pooled(predictions["model"], truth, drawn))]}
    return result


def _pooled(prediction: Fields, truth: Fields, drawn: Tensor) -> Float[Tensor, " R"]:
    """The pooled nRMSE of every resample."""
    space = tuple(range(2, truth.dim() - 1))
    error = (prediction.double() - truth.double()).square().mean(space).flatten(1)
    size = truth.double().square().mean(space).flatten(1)
    weights = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones(drawn.shape, dtype=torch.float64)
    )
    return ((weights @ error) / (weights @ size)).sqrt().mean(1)


def plain(value: Float[Tensor, ""] | float) -> float | None:
    """A JSON number; what is not finite is null."""
    number = float(value)
    return number if math.isfinite(number) else None
