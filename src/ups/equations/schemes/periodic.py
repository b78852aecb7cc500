"""Fields on a periodic square or cube in Fourier space: waves, random fields, averages over cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from ups.equations.uniforms import uniforms


@dataclass(frozen=True, eq=False)
class Waves:
    """The waves (k_x, k_y) of n × n points on a periodic square, as `rfft2` orders them.

    `resolved` are those into which a product of two of them is not aliased: |k| up to a third of the points an axis.
    """

    x: Float[Tensor, "K 1"]
    y: Float[Tensor, " L"]
    square: Float[Tensor, "K L"]
    resolved: Bool[Tensor, "K L"]

    @classmethod
    def build(cls, n: int, length: float, device: torch.device) -> Waves:
        x = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=device)[:, None]
        y = torch.fft.rfftfreq(n, 1 / n, dtype=torch.float64, device=device)
        scale = 2 * math.pi / length
        # The wave of n/2 has no derivative of its own sign; it is never among the resolved.
        resolved = (x.abs() <= (n - 1) // 3) & (y <= (n - 1) // 3)
        return cls(scale * x, scale * y, squared_waves(n, length, 2, device), resolved)


@lru_cache(maxsize=16)
def waves(n: int, length: float, device: torch.device) -> Waves:
    return Waves.build(n, length, device)


def squared_waves(n: int, length: float, dimension: int, device: torch.device) -> Float[Tensor, "*K"]:
    """|k|² of the waves of n points an axis on a periodic square or cube, as `rfftn` orders them."""
    axis = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=device)
    last = torch.fft.rfftfreq(n, 1 / n, dtype=torch.float64, device=device)
    return (2 * math.pi / length) ** 2 * _squares([axis] * (dimension - 1) + [last])


def _squares(axes: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, "*K"]:
    """Σ kₐ² over the axes, on the grid that they span."""
    total = axes[0] ** 2
    for k in axes[1:]:
        total = total[..., None] + k**2
    return total


def cell_averages(u: Float[Tensor, "B C *n"], cells: int) -> Float[Tensor, "B C *m"]:
    """Averages over m cells an axis of the field whose values at the points (i + ½)/n, or at the cells' centres, are u.

    With as many points as cells these are averages too: what finite volumes mean by a value. The spatial mean is kept
    to rounding, which samples of a field with finer detail do not.
    """
    n = u.shape[-1]
    frequency = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=u.device)
    # From the fine points' half-cell offset to the coarse one's, in the direction of larger coordinates.
    shift = math.pi * frequency * (1 / cells - 1 / n)
    factor = torch.polar(torch.sinc(frequency / cells), shift)
    if n % 2 == 0:
        factor[n // 2] = factor[n // 2].real.clone()
    space = u.shape[2:]
    spectrum = torch.fft.rfftn(u, dim=list(range(2, u.dim())))
    for after in reversed(range(1, len(space))):
        spectrum = spectrum * factor.view(-1, *(1,) * after)
    spectrum = spectrum * factor[: n // 2 + 1]
    averages = torch.fft.irfftn(spectrum, s=space, dim=list(range(2, u.dim())))
    return averages[(..., *(slice(None, None, n // cells),) * len(space))]


def random_fields(
    seed: int,
    ids: Sequence[int],
    count: int,
    largest: int,
    amplitude: Callable[[Float[Tensor, "*K"]], Float[Tensor, "*K"]],
    n: int,
    device: torch.device | str = "cpu",
    skip: int = 0,
    dimension: int = 2,
) -> Float[Tensor, "B count *n"]:
    """Gaussian random fields Σ a(|k|) (ξ cos(2π k·x) + η sin(2π k·x)), ξ and η standard normal, on (0, 1)² or (0, 1)³.

    The sum runs over half of the whole-number waves with |kₐ| ≤ `largest` on every axis (the other half are the same
    waves), so a draw is one function on every grid. Values at the cell centres of n cells an axis. `skip` of the
    trajectory's numbers are left to others.
    """
    k = torch.arange(-largest, largest + 1, dtype=torch.float64, device=device)
    axes = [k] * (dimension - 1) + [k[largest:]]
    weight = amplitude(_squares(axes).sqrt())
    half = torch.zeros_like(weight, dtype=torch.bool)  # those whose last wave number that is not zero is positive
    for own in torch.meshgrid(*axes, indexing="ij"):
        half = (own > 0) | ((own == 0) & half)
    weight = torch.where(half, weight, 0.0)
    shape = (count, 2, *weight.shape)
    draws = uniforms(seed, ids, skip + math.prod(shape))[:, skip:].to(device).unflatten(1, shape)
    normal = torch.polar((-2 * torch.log1p(-draws[:, :, 0])).sqrt(), 2 * math.pi * draws[:, :, 1])
    x = (torch.arange(n, dtype=torch.float64, device=device) + 0.5) / n
    return _synthesis(weight * normal, [torch.exp(2j * math.pi * own * x[:, None]) for own in axes])


def _synthesis(
    coefficients: Complex[Tensor, "B C *K"], along: Sequence[Complex[Tensor, "n _"]]
) -> Float[Tensor, "B C *n"]:
    """Re Σ c exp(2πi k·x), field by field: a product over all at once might round differently."""
    fields = []
    for one in coefficients.flatten(0, 1):
        for axis, waves_of in enumerate(along):
            one = torch.movedim(torch.tensordot(waves_of, one, ([1], [axis])), 0, axis)  # pyright: ignore[reportArgumentType]
        fields.append(one)
    return torch.stack(fields).real.unflatten(0, coefficients.shape[:2])
