"""AdamW's moments as named tensors, so that a checkpoint can hold them beside the weights they belong to.

Names are `optimiser.<parameter>.<moment>`. Hyperparameters are not saved: they follow from the config, and the learning
rate from the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ups.errors import UserError

PREFIX = "optimiser."


def allocate(optimiser: torch.optim.AdamW) -> None:
    """Give every parameter its moments now, zero as AdamW itself starts them at the first gradient.

    Then a parameter that no step has touched yet is saved and loaded like any other, and nothing is allocated later.
    """
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            state = optimiser.state[parameter]
            if state:
                continue
            on_device = group["capturable"] or group["fused"]
            wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
            state["step"] = torch.zeros(
                (), dtype=torch.float64 if wide else torch.float32, device=parameter.device if on_device else "cpu"
            )
            for moment in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])):
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


def optimiser_tensors(
    optimiser: torch.optim.AdamW, named_parameters: Iterable[tuple[str, nn.Parameter]]
) -> dict[str, Tensor]:
    """The moments and step counts by name: the optimiser's own tensors, not copies."""
    allocate(optimiser)
    return {
        f"{PREFIX}{name}.{moment}": value
        for name, parameter in _owned(optimiser, named_parameters)
        for moment, value in optimiser.state[parameter].items()
    }


def load_optimiser(
    optimiser: torch.optim.AdamW, named_parameters: Iterable[tuple[str, nn.Parameter]], tensors: Mapping[str, Tensor]
) -> None:
    """Copy saved moments into the optimiser in place, bit for bit; `tensors` may hold other things beside them.

    Call it before the first gradient: one computed from the weights before loading must not be applied to those after.
    """
    named = list(named_parameters)
    if any(parameter.grad is not None for _, parameter in named):
        raise RuntimeError("load the optimiser before any gradient is computed")
    wanted = optimiser_tensors(optimiser, named)
    saved = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    kinds = [{name: (t.shape, t.dtype) for name, t in each.items()} for each in (wanted, saved)]
    wrong = sorted(name for name in wanted.keys() | saved.keys() if kinds[0].get(name) != kinds[1].get(name))
    if wrong:
        raise UserError(
            f"the saved optimiser state does not fit the model ({', '.join(wrong[:3])}"
            f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}); use the config it was trained with"
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(saved[name])


def _owned(
    optimiser: torch.optim.AdamW, named_parameters: Iterable[tuple[str, nn.Parameter]]
) -> list[tuple[str, nn.Parameter]]:
    """The named parameters this optimiser trains; each of its parameters must have a name."""
    trained = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    owned = [(name, parameter) for name, parameter in named_parameters if id(parameter) in trained]
    if len(owned) != len(trained):
        raise ValueError(f"the optimiser has {len(trained)} parameters, {len(owned)} of them are among those named")
    return owned
