"""Errors and energy by wave number.

The wave number of a mode counts waves per domain: with integer indices kᵢ along the axes, |k| = √Σ kᵢ², rounded to the
nearest integer. Sums over modes are Parseval sums: over all |k| they give the mean of the square over space.

Cells that a mask excludes are zero here, in errors and in fields: the sums over all |k| stay those of the domain's
cells, but the edge of the domain has waves of its own. Compare masked spectra with each other.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.metrics.layout import Fields, Mask, aligned, filled, space_axes

BANDS: tuple[tuple[str, int, float], ...] = (("low", 0, 5), ("middle", 5, 13), ("high", 13, math.inf))
"""Name, first |k| and the |k| before which it ends: PDEBench's bands, 0 to 4, 5 to 12, 13 and above."""


def spectral_error(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C 3"]:
    """√(Σ_{|k| in band} |êₖ|²) / √⟨y²⟩ₓ in the three `BANDS`: where in scale the nRMSE sits.

    The three squares sum to nRMSE². A band the grid has no waves for (16 points know none above 8) is NaN, so that it
    is not taken for a perfect score; zero truths are treated as in `nrmse`.
    """
    prediction, truth, space = aligned(prediction, truth)
    power, shell = _modes(filled(prediction - truth, mask))
    scale = filled(truth, mask).square().mean(space).sqrt()
    bands = []
    for _, start, end in BANDS:
        inside = (shell >= start) & (shell < end)
        energy = power[:, :, inside].sum(2) if inside.any() else torch.full_like(scale, math.nan)
        bands.append(energy.sqrt() / scale)
    return torch.stack(bands, -1)


def power_spectrum(field: Fields, mask: Mask = None) -> tuple[Int[Tensor, " K"], Float[Tensor, "N T K C"]]:
    """Wave numbers k = 0, 1, … and the energy Σ_{|k'| ≈ k} |ûₖ'|² of each shell, for spectra in plots.

    Shells past half the points of the shortest axis are incomplete (corners of the mode box) and are left out.
    """
    power, shell = _modes(filled(field.double(), mask))
    count = min(field.shape[2:-1]) // 2 + 1
    shells = torch.zeros(
        *power.shape[:2], int(shell.max()) + 1, power.shape[-1], dtype=power.dtype, device=field.device
    )
    return torch.arange(count, device=field.device), shells.index_add(2, shell, power)[:, :, :count]


def _modes(field: Fields) -> tuple[Float[Tensor, "N T M C"], Int[Tensor, " M"]]:
    """|û|² of every mode of the real transform and its rounded |k|; a mode that stands for its mirror counts twice."""
    space = space_axes(field)
    sizes = field.shape[2:-1]
    power = torch.fft.rfftn(field, dim=space, norm="forward").abs().square()
    last = torch.arange(sizes[-1] // 2 + 1, device=field.device)
    weight = torch.where((last == 0) | (2 * last == sizes[-1]), 1.0, 2.0).to(power.dtype)
    indices = [torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=field.device) for n in sizes[:-1]]
    squared = sum(k.square() for k in torch.meshgrid(*indices, last.double(), indexing="ij"))
    assert isinstance(squared, Tensor)
    return (power * weight[:, None]).flatten(2, -2), squared.sqrt().round().long().flatten()
