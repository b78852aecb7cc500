"""Initial states of compressible flow: the random and turbulent ones in two dimensions, waves and shocks in one.

All are functions of position: their numbers are fixed on a lattice of their own, so the same draw is the same flow on
every grid. States are `(B, 2 + d, *space)`: density, pressure, velocity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations.schemes.euler import GAMMA
from ups.equations.uniforms import uniforms

_MODES = 4
_WAVES = 3
_LATTICE = 64
_WINDOW_WIDTH = 0.01
_LEAST = 0.1


def random_planes(
    seed: int, ids: Sequence[int], n: int, mach: float, device: torch.device | str = "cpu"
) -> Float[Tensor, "B 4 X Y"]:
    """Random density, pressure and velocity on the unit square.

        f(x, y) = Σ cos(2π(ix + jy) + φᵢⱼ)/√|k|,   |k|² = i² + j²,   i, j ∈ {±1 … ±4}
        ρ = ρ₀(1 + δ f/⟨|f|⟩),   p likewise around ρ₀T₀,   ⟨|v|⟩ = M √(γT₀)

    ρ₀, T₀ ~ U(0.1, 10), δ ~ U(0.01, 0.2) for density and pressure each, φ ~ U(0, 2π). In half of the samples what is
    added to the uniform gas at rest is confined to a box with sides ½[tanh((x − x_L)/0.01) − tanh((x − x_R)/0.01)],
    x_L ~ U(0.1, 0.45), x_R ~ U(0.55, 0.9) for each axis; the means ⟨·⟩ are those before. A draw that would come below a
    tenth of ρ₀ (or of p₀) has its δ reduced until it does not.
    """
    modes = 4 * _MODES**2
    draws = uniforms(seed, ids, 9 + 4 * modes).to(device)
    density0, temperature = (0.1 + 9.9 * draws[:, i] for i in (0, 1))
    contrast = 0.01 + 0.19 * draws[:, 2:4]
    boxed = draws[:, 4] < 0.5
    lower, upper = 0.1 + 0.35 * draws[:, 5:7], 0.55 + 0.35 * draws[:, 7:9]
    phase = 2 * math.pi * draws[:, 9:].reshape(-1, 4, modes)
    amplitude = _weights(device) * phase.cos(), _weights(device) * phase.sin()
    x, lattice = _centres(n, device), _centres(_LATTICE, device)
    field, probe = _superposed(*amplitude, x), _superposed(*amplitude, lattice)

    sides = [_window(x, lower[:, a], upper[:, a]) for a in (0, 1)]
    box = torch.where(boxed[:, None, None], sides[0][:, :, None] * sides[1][:, None, :], 1.0)
    size = _mean(probe[:, :2].abs())
    depth = -probe[:, :2].flatten(2).amin(-1) / size
    contrast = torch.minimum(contrast, (1 - _LEAST) / depth)
    level = torch.stack((density0, density0 * temperature), 1)
    thermal = level[..., None, None] * (1 + (contrast / size)[..., None, None] * field[:, :2] * box[:, None])
    speed = mach * (GAMMA * temperature).sqrt() / _mean(probe[:, 2:].square().sum(1).sqrt())
    return torch.cat((thermal, speed[:, None, None, None] * field[:, 2:] * box[:, None]), 1)


def turbulent_planes(
    seed: int, ids: Sequence[int], n: int, mach: float, device: torch.device | str = "cpu"
) -> Float[Tensor, "B 4 X Y"]:
    """Solenoidal random velocity of mean speed 1 in a uniform gas: ρ = 1, p = 1/(γM²), so that of sound is 1/M.

    The velocity is that of `random_planes`, each mode projected on the direction across its wave vector.
    """
    modes = 4 * _MODES**2
    phase = 2 * math.pi * uniforms(seed, ids, 2 * modes).to(device).reshape(-1, 2, modes)
    i, j = _wave_numbers(device)
    across = torch.stack((-j, i)) / (i.square() + j.square()).sqrt()
    cosine, sine = (
        _weights(device) * (across * part).sum(1, keepdim=True) * across for part in (phase.cos(), phase.sin())
    )
    speed = _mean(_superposed(cosine, sine, _centres(_LATTICE, device)).square().sum(1).sqrt())
    velocity = _superposed(cosine, sine, _centres(n, device)) / speed[:, None, None, None]
    density = torch.ones_like(velocity[:, :1])
    return torch.cat((density, density / (GAMMA * mach**2), velocity), 1)


def random_lines(seed: int, ids: Sequence[int], n: int, device: torch.device | str = "cpu") -> Float[Tensor, "B 3 X"]:
    """Random density, pressure and velocity on the interval (−1, 1).

    Each is a sum f = Σ Aₖ sin(πkx + φₖ), k = 1 … 3, A ~ U(0, 1). Density is f stretched to between two numbers drawn
    log-uniformly from [1, 10], pressure from [10, 100]; velocity is f scaled to a largest speed of U(0, 1) times that
    of sound in the (geometric) middle of both ranges.
    """
    draws = uniforms(seed, ids, 5 + 6 * _WAVES).to(device)
    bounds = torch.pow(10.0, draws[:, :4].reshape(-1, 2, 2)).sort(-1).values
    bounds = bounds * torch.tensor([[1.0], [10.0]], dtype=torch.float64, device=device)
    height = draws[:, 5 : 5 + 3 * _WAVES].reshape(-1, 3, _WAVES)
    phase = 2 * math.pi * draws[:, 5 + 3 * _WAVES :].reshape(-1, 3, _WAVES)

    def waves(x: Float[Tensor, " n"]) -> Float[Tensor, "B 3 n"]:
        total = torch.zeros(len(ids), 3, len(x), dtype=torch.float64, device=device)
        for k in range(_WAVES):
            total = total + height[..., k, None] * (math.pi * (k + 1) * x + phase[..., k, None]).sin()
        return total

    field, probe = waves(2 * _centres(n, device) - 1), waves(2 * _centres(16 * _LATTICE, device) - 1)
    low, high = probe.amin(-1), probe.amax(-1)
    unit = ((field[:, :2] - low[:, :2, None]) / (high - low)[:, :2, None]).clamp(0.0, 1.0)
    thermal = bounds[..., :1] + bounds.diff(dim=-1) * unit
    middle = bounds.prod(-1).sqrt()
    speed = draws[:, 4] * (GAMMA * middle[:, 1] / middle[:, 0]).sqrt() / torch.maximum(high[:, 2], -low[:, 2])
    return torch.cat((thermal, speed[:, None, None] * field[:, 2:]), 1)


def shock_lines(seed: int, ids: Sequence[int], n: int, device: torch.device | str = "cpu") -> Float[Tensor, "B 3 X"]:
    """Riemann problems on (−1, 1): two uniform states that meet at x₀ ~ U(−½, ½).

    Densities are log-uniform in [1, 10], pressures in [10, 100]; velocities are U(−1, 1) times half the speed of sound
    of the slower side, so that no vacuum can open. The cell that x₀ cuts holds the mean of both states by their shares.
    """
    draws = uniforms(seed, ids, 7).to(device)
    density, pressure = torch.pow(10.0, draws[:, 0:2]), 10 * torch.pow(10.0, draws[:, 2:4])
    sound = (GAMMA * pressure / density).sqrt().amin(1, keepdim=True)
    sides = torch.stack((density, pressure, (2 * draws[:, 4:6] - 1) * sound / 2), 1)
    edge = (0.25 + draws[:, 6] / 2) * n  # in cells from the lower end
    share = (edge[:, None] - torch.arange(n, dtype=torch.float64, device=device)).clamp(0.0, 1.0)[:, None]
    return share * sides[..., :1] + (1 - share) * sides[..., 1:]


def _centres(n: int, device: torch.device | str) -> Float[Tensor, " n"]:
    return (torch.arange(n, dtype=torch.float64, device=device) + 0.5) / n


def _mean(field: Float[Tensor, "*B X Y"]) -> Float[Tensor, "*B"]:
    return field.flatten(-2).mean(-1)


def _wave_numbers(device: torch.device | str) -> tuple[Float[Tensor, " modes"], Float[Tensor, " modes"]]:
    """i and j of all modes, i slow and j fast."""
    orders = [k for k in range(-_MODES, _MODES + 1) if k != 0]
    pairs = torch.tensor([(i, j) for i in orders for j in orders], dtype=torch.float64, device=device)
    return pairs[:, 0], pairs[:, 1]


def _weights(device: torch.device | str) -> Float[Tensor, " modes"]:
    i, j = _wave_numbers(device)
    return (i.square() + j.square()).pow(-0.25)


def _superposed(
    cosine: Float[Tensor, "B C modes"], sine: Float[Tensor, "B C modes"], x: Float[Tensor, " n"]
) -> Float[Tensor, "B C n n"]:
    """Σ a cos θ − b sin θ with θ = 2π(ix + jy): a cos φ and a sin φ give a cos(θ + φ).

    Summed first over j, then over i, by plain sums: a matrix product's rounding may depend on the size of the batch.
    """
    total = torch.zeros(*cosine.shape[:2], len(x), len(x), dtype=torch.float64, device=x.device)
    orders = [k for k in range(-_MODES, _MODES + 1) if k != 0]
    waves = [((2 * math.pi * k * x).cos(), (2 * math.pi * k * x).sin()) for k in orders]
    for i, (cos_x, sin_x) in enumerate(waves):
        even = torch.zeros(*cosine.shape[:2], len(x), dtype=torch.float64, device=x.device)
        odd = torch.zeros_like(even)
        for j, (cos_y, sin_y) in enumerate(waves):
            a, b = (part[..., i * len(orders) + j, None] for part in (cosine, sine))
            even = even + (a * cos_y - b * sin_y)
            odd = odd + (a * sin_y + b * cos_y)
        total = total + (cos_x[:, None] * even[:, :, None] - sin_x[:, None] * odd[:, :, None])
    return total


def _window(x: Float[Tensor, " n"], lower: Float[Tensor, " B"], upper: Float[Tensor, " B"]) -> Float[Tensor, "B n"]:
    return (((x - lower[:, None]) / _WINDOW_WIDTH).tanh() - ((x - upper[:, None]) / _WINDOW_WIDTH).tanh()) / 2
