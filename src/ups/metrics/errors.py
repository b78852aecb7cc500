"""Errors at points, and of what the exact solution keeps: the spatial mean of a channel (mass, momentum, energy).

With e = prediction − truth and y = truth:

    nRMSE  = √⟨e²⟩ₓ / √⟨y²⟩ₓ          per sample, time and channel (PDEBench)
    VRMSE  = √⟨e²⟩ₓ / √Var(y)ₓₜ       the variance of the whole trajectory, so a large mean does not flatter

Zero denominators follow floating point and nothing is added to hide them: any error against a truth that is zero
everywhere gives inf, no error against it gives 0/0 = NaN. Where a field decays to zero, read `pooled_nrmse`. With a
mask only the cells of the domain count.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ups.metrics.layout import Fields, Mask, aligned, filled, mean


def nrmse(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """√⟨(prediction − truth)²⟩ₓ / √⟨truth²⟩ₓ: 0 is exact, 1 is as bad as predicting zero."""
    prediction, truth, space = aligned(prediction, truth)
    return mean((prediction - truth).square(), space, mask).sqrt() / mean(truth.square(), space, mask).sqrt()


def pooled_nrmse(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "T C"]:
    """√⟨e²⟩ / √⟨y²⟩ with both means over samples and space, so one sample near zero cannot rule the result."""
    prediction, truth, space = aligned(prediction, truth)
    pooled = (0, *space)
    return mean((prediction - truth).square(), pooled, mask).sqrt() / mean(truth.square(), pooled, mask).sqrt()


def vrmse(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """√⟨e²⟩ₓ / √Var(truth), the variance over space and time (divided by the count): 1 is predicting the mean."""
    prediction, truth, space = aligned(prediction, truth)
    if mask is None:
        variance = truth.var((1, *space), correction=0, keepdim=True)
    else:
        centred = truth - mean(truth, (1, *space), mask, keepdim=True)
        variance = mean(centred.square(), (1, *space), mask, keepdim=True)
    return mean((prediction - truth).square(), space, mask).sqrt() / variance.sqrt().flatten(1, -2)


def max_error(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """max over space of |e|, in the channel's own unit."""
    prediction, truth, space = aligned(prediction, truth)
    return filled((prediction - truth).abs(), mask).amax(space)


def boundary_rmse(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """√⟨e²⟩ over the outermost points (first or last along any axis) of the box, in the channel's own unit."""
    prediction, truth, space = aligned(prediction, truth)
    interior = torch.ones(truth.shape[2:-1], dtype=torch.bool, device=truth.device)
    for axis in range(len(space)):
        interior.select(axis, 0).fill_(False)
        interior.select(axis, -1).fill_(False)
    edge = ~interior.flatten()
    on_edge = (prediction - truth).flatten(2, -2)[:, :, edge]
    counted = None if mask is None else mask.flatten(1)[:, edge.to(mask.device)]
    return mean(on_edge.square(), (2,), counted).sqrt()


def relative_l2(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, " N"]:
    """‖e‖ / ‖y‖ with norms over time, space and channels together: the number of the operator-learning papers."""
    prediction, truth, _ = aligned(prediction, truth)
    return filled(prediction - truth, mask).flatten(1).norm(dim=1) / filled(truth, mask).flatten(1).norm(dim=1)


def conserved_error(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """|⟨prediction⟩ₓ − ⟨truth⟩ₓ|: what was created or lost, in the channel's own unit."""
    prediction, truth, space = aligned(prediction, truth)
    return mean(prediction - truth, space, mask).abs()


def conserved_rmse(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N C"]:
    """√⟨(⟨prediction⟩ₓ − ⟨truth⟩ₓ)²⟩ₜ: the same over a whole trajectory."""
    return conserved_error(prediction, truth, mask).square().mean(1).sqrt()
