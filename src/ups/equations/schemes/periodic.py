"""Fields on a periodic square in Fourier space: waves, random fields, averages over cells."""

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
        return cls(scale * x, scale * y, scale**2 * (x**2 + y**2), resolved)


@lru_cache(maxsize=16)
def waves(n: int, length: float, device: torch.device) -> Waves:
    return Waves.build(n, length, device)


def cell_averages(u: Float[Tensor, "B C n n"], cells: int) -> Float[Tensor, "B C m m"]:
    """Averages over m × m cells of the field whose values at the points (i + ½)/n, or at the cells' centres, are u.

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
    spectrum = torch.fft.rfft2(u) * factor[:, None] * factor[: n // 2 + 1]
    return torch.fft.irfft2(spectrum, s=(n, n))[..., :: n // cells, :: n // cells]


def random_fields(
    seed: int,
    ids: Sequence[int],
    count: int,
    largest: int,
    amplitude: Callable[[Float[Tensor, "K L"]], Float[Tensor, "K L"]],
    n: int,
    device: torch.device | str = "cpu",
    skip: int = 0,
) -> Float[Tensor, "B count n n"]:
    """Gaussian random fields Σ a(|k|) (ξ cos(2π k·x) + η sin(2π k·x)), ξ and η standard normal, on (0, 1)².

    The sum runs over half of the whole-number waves with 0 < |k_x|, |k_y| ≤ `largest` or 0 on one axis (the other half
    are the same waves), so a draw is one function on every grid. Values at the cell centres of n × n cells. `skip` of
    the trajectory's numbers are left to others.
    """
    k = torch.arange(-largest, largest + 1, dtype=torch.float64, device=device)
    kx, ky = k[:, None], k[largest:]
    weight = amplitude((kx**2 + ky**2).sqrt())
    half = (ky > 0) | ((ky == 0) & (kx > 0))
    weight = torch.where(half, weight, 0.0)
    shape = (count, 2, *weight.shape)
    draws = uniforms(seed, ids, skip + math.prod(shape))[:, skip:].to(device).unflatten(1, shape)
    normal = torch.polar((-2 * torch.log1p(-draws[:, :, 0])).sqrt(), 2 * math.pi * draws[:, :, 1])
    x = (torch.arange(n, dtype=torch.float64, device=device) + 0.5) / n
    return _synthesis(
        weight * normal, torch.exp(2j * math.pi * kx.mT * x[:, None]), torch.exp(2j * math.pi * ky * x[:, None])
    )


def _synthesis(
    coefficients: Complex[Tensor, "B C K L"], along_x: Complex[Tensor, "n K"], along_y: Complex[Tensor, "n L"]
) -> Float[Tensor, "B C n n"]:
    """Re Σ c exp(i(k_x x + k_y y)), field by field: a product over all at once might round differently."""
    fields = [along_x @ one @ along_y.T for one in coefficients.flatten(0, 1)]
    return torch.stack(fields).real.unflatten(0, coefficients.shape[:2])
