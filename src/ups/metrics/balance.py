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
    from ups.equations.base import balance

    ratios = []
    for i in range(len(prediction)):
        own = {name: float(values[i]) for name, values in parameters.items() if name in equation.named}
        judge = replace(equation, **own)  # pyright: ignore[reportArgumentType]  (all are dataclasses)
        fields = {name: field[i : i + 1] for name, field in static.items()}
        apart = balance(judge, prediction[i : i + 1], times[i : i + 1], fields)
        if equation.steady:
            trivial = balance(judge, torch.zeros_like(truth[i : i + 1]), times[i : i + 1], fields)
        else:
            trivial = truth[i : i + 1].double().diff(dim=1)
        ratios.append(_norm(apart) / _norm(trivial))
    return torch.cat(ratios)


def _norm(field: Fields) -> Float[Tensor, "N C"]:
    return field.flatten(1, -2).norm(dim=1)
