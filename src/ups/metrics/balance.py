"""Whether frames obey the equation that made them, whatever the truth is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ups.metrics.layout import Fields

if TYPE_CHECKING:  # who only simulates does not wait for the solvers
    from ups.equations import Equation


def balance_error(
    prediction: Fields,
    truth: Fields,
    times: Float[Tensor, "N T"],
    equation: Equation,
    parameters: Mapping[str, Float[Tensor, " N"]],
    static: Mapping[str, Float[Tensor, "N *space"]],
) -> Float[Tensor, "N C"]:
    """‖u(t₁) − u(t₀) − ∫ rate dt‖ / ‖change of the truth‖, norms over the steps between frames and over space.

    About 1 for frames that stay where they are. The integral is a trapezoidal rule, so the truth has a balance too:
    compare predictions with it. Of a steady equation it is ‖residual‖ / ‖residual of zero‖. Each sample is judged by
    the equation at its own parameters.
    """
    apart = imbalance(prediction, times, equation, parameters, static)
    if equation.steady:
        return apart / imbalance(torch.zeros_like(truth), times, equation, parameters, static)
    return apart / _norm(truth.double().diff(dim=1))


def imbalance(
    prediction: Fields,
    times: Float[Tensor, "N T"],
    equation: Equation,
    parameters: Mapping[str, Float[Tensor, " N"]],
    static: Mapping[str, Float[Tensor, "N *space"]],
) -> Float[Tensor, "N C"]:
    """‖u(t₁) − u(t₀) − ∫ rate dt‖, or the norm of a steady equation's residual: what needs no truth."""
    from ups.equations.base import balance

    named = [name for name in equation.named if name in parameters]
    own = torch.stack([parameters[name].double() for name in named], -1) if named else times.new_zeros(len(times), 1)
    found = prediction.new_zeros(len(prediction), prediction.shape[-1], dtype=torch.float64)
    for values in own.unique(dim=0):
        rows = (own == values).all(1)
        judge = replace(equation, **dict(zip(named, values.tolist(), strict=False)))  # pyright: ignore[reportArgumentType]  (all are dataclasses)
        fields = {name: field[rows] for name, field in static.items()}
        found[rows] = _norm(balance(judge, prediction[rows], times[rows], fields))
    return found


def _norm(field: Fields) -> Float[Tensor, "N C"]:
    return field.flatten(1, -2).norm(dim=1)
