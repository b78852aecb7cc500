"""How good an ensemble of M members is: proper scores, and whether its spread is what it should be.

With members uᵢ, their mean ū, the truth y, and ⟨⟩ a mean over space; each is one number a sample, time and channel:

    CRPS           ⟨ meanᵢ |uᵢ − y| − ½ mean_{i≠j} |uᵢ − uⱼ| ⟩ / √⟨y²⟩       fair: no bias by M; of one member the MAE
    energy score   ( meanᵢ ‖uᵢ − y‖ − ½ mean_{i≠j} ‖uᵢ − uⱼ‖ ) / ‖y‖         the same of whole fields
    spread         √( ⟨Σ (uᵢ − ū)² / (M − 1)⟩ · (M + 1) / M )                 equals skill √⟨(ū − y)²⟩ where members
                                                                            and truth are draws of one distribution
    rank           the number of members below the truth; all 0 … M are equally frequent then
    coverage       how often the truth lies within a central interval of the members

(Gneiting and Raftery 2007; Ferro 2014; Fortin et al. 2014.)
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ups.metrics.layout import Fields, Mask, cells, mean, space_axes

Members = Float[Tensor, "M N T *space C"]
LEVELS = (0.5, 0.9)
"""Of the intervals whose coverage is reported."""


def crps(members: Members, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """By sorting: Σ_{i<j} |uᵢ − uⱼ| = Σᵢ (2i − M − 1) u₍ᵢ₎, i from 1 on."""
    members, truth, space = _aligned(members, truth)
    count = len(members)
    error = (members - truth).abs().mean(0)
    if count > 1:
        weights = 2 * torch.arange(1, count + 1, dtype=members.dtype, device=members.device) - count - 1
        apart = torch.einsum("m,m...->...", weights, members.sort(0).values)
        error = error - apart / (count * (count - 1))
    return mean(error, space, mask) / mean(truth.square(), space, mask).sqrt()


def energy_score(members: Members, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    members, truth, space = _aligned(members, truth)
    count = len(members)

    def size(field: Fields) -> Float[Tensor, "N T C"]:
        return mean(field.square(), space, mask).sqrt()

    error = torch.stack([size(member - truth) for member in members]).mean(0)
    if count > 1:
        apart = torch.stack([size(one - other) for i, one in enumerate(members) for other in members[:i]]).mean(0)
        error = error - apart / 2
    return error / size(truth)


def spread_and_skill(
    members: Members, truth: Fields, mask: Mask = None
) -> tuple[Float[Tensor, "N T C"], Float[Tensor, "N T C"]]:
    """The squares of both, ⟨variance⟩ (M + 1) / M and ⟨(ū − y)²⟩: their means over samples are to be compared."""
    members, truth, space = _aligned(members, truth)
    count = len(members)
    skill = mean((members.mean(0) - truth).square(), space, mask)
    if count == 1:
        return torch.zeros_like(skill), skill
    return mean(members.var(0), space, mask) * ((count + 1) / count), skill


def coverage(members: Members, truth: Fields, level: float, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """The share of points whose truth lies in the members' central interval of so much probability.

    Its ends are quantiles at (1 ∓ level)/2, the i-th smallest of M members being that at i / (M + 1): so often is
    the truth below it where it is one more draw. Where M is too small for that, below 19 for 0.9, they are the
    outermost members, between which the truth is with probability (M − 1) / (M + 1).
    """
    members, truth, space = _aligned(members, truth)
    ordered, tail = members.sort(0).values, (1 - level) / 2
    low, high = _quantile(ordered, tail), _quantile(ordered, 1 - tail)
    return mean(((low <= truth) & (truth <= high)).double(), space, mask)


def rank_histogram(members: Members, truth: Fields, mask: Mask = None) -> Float[Tensor, " ranks"]:
    """How many points have 0 … M members below the truth; a member equal to it is below it half of the time."""
    members, truth, _ = _aligned(members, truth)
    count = len(members)
    below, equal = (members < truth).sum(0), (members == truth).sum(0)
    counted = torch.ones_like(below, dtype=torch.bool) if mask is None else cells(mask, truth).expand_as(below)
    low, high = (torch.bincount(ranks[counted], minlength=count + 1) for ranks in (below, below + equal))
    return (low + high).double() / 2


def _quantile(ordered: Members, share: float) -> Fields:
    """Between the two order statistics around it."""
    place = min(max(share * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    first = math.floor(place)
    return torch.lerp(ordered[first], ordered[min(first + 1, len(ordered) - 1)], place - first)


def _aligned(members: Members, truth: Fields) -> tuple[Members, Fields, tuple[int, ...]]:
    """Both in float64, and the axes of space of the truth. A NaN among members is one of their scores."""
    if members.shape[1:] != truth.shape:
        raise ValueError(f"members have shape {tuple(members.shape)}, truth has {tuple(truth.shape)}")
    return members.double(), truth.double(), space_axes(truth)
