"""An optimiser's moments as named tensors, so that a checkpoint can hold them beside the weights they belong to.

Names are `optimiser.<parameter>.<moment>`. Hyperparameters are not saved: they follow from the config, and the learning
rate from the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

PREFIX = "optimiser."


def allocate(optimiser: Optimizer) -> None:
    """Give every parameter its moments now, zero as the optimiser itself starts them; DTensors for DTensors.

    Then a parameter that no step has touched yet is saved and loaded like any other, and nothing is allocated later.
    Optimisers other than torch's AdamW and SGD must have allocated theirs.
    """
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            state = optimiser.state[parameter]
            if not state:
                for moment in _moments(optimiser, group):
                    state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                if isinstance(optimiser, AdamW):
                    state["step"] = _count(group, parameter)


def optimiser_tensors(optimiser: Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """The moments and step counts by name: the optimiser's own tensors, so that what fills them is loaded."""
    allocate(optimiser)
    return {
        f"{PREFIX}{name}.{moment}": value
        for name, parameter in _owned(optimiser, named_parameters)
        for moment, value in optimiser.state[parameter].items()
    }


def refuse_gradients(optimiser: Optimizer) -> None:
    """Call it before loading: a gradient computed from the weights before must not be applied to those after."""
    if any(parameter.grad is not None for group in optimiser.param_groups for parameter in group["params"]):
        raise RuntimeError("load the optimiser before any gradient is computed")


def _moments(optimiser: Optimizer, group: Mapping[str, Any]) -> list[str]:
    if isinstance(optimiser, AdamW):
        return ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
    if not isinstance(optimiser, SGD):
        raise TypeError(f"{type(optimiser).__name__} has not allocated its moments, and how is not known here")
    if group["momentum"] and group["dampening"]:
        raise ValueError("SGD with dampening does not start from a momentum of zero, so it cannot be allocated early")
    return ["momentum_buffer"] if group["momentum"] else []


def _count(group: Mapping[str, Any], parameter: nn.Parameter) -> Tensor:
    on_device = group["capturable"] or group["fused"]
    wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
    return torch.zeros(
        (), dtype=torch.float64 if wide else torch.float32, device=parameter.device if on_device else "cpu"
    )


def _owned(
    optimiser: Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]
) -> list[tuple[str, nn.Parameter]]:
    """The named parameters this optimiser trains; each of its parameters must have a name."""
    trained = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    owned = [(name, parameter) for name, parameter in named_parameters if id(parameter) in trained]
    if len(owned) != len(trained):
        raise ValueError(f"the optimiser has {len(trained)} parameters, {len(owned)} of them are among those named")
    return owned
