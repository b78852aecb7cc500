"""An equation of one's own, with its solver: data are made from it, and the report shows its title and formula.

plugins: [toy_equation.py]
tasks:
  heat: {make: {equation: heat, trajectories: 100, values: {nu: [0.002, 0.005]}}}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

import ups
from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.initial import RandomWaves


@dataclass(frozen=True)
class Heat(Equation):
    """∂u/∂t = ν ∂²u/∂x² on the periodic interval (0, 1): waves shrink, the faster the shorter they are.

    Exact in Fourier space for the trigonometric polynomial through the sampled start, at any time and ν ≥ 0.
    ν = 0.002 to 0.01 leaves the longest waves some of their height after the default duration.
    """

    points: int = 64
    nu: float = 0.005
    frames: int = 21
    duration: float = 1.0

    name: ClassVar[str] = "heat"
    title: ClassVar[str] = "Heat"
    formula: ClassVar[str] = "∂u/∂t = ν ∂²u/∂x², periodic"
    method: ClassVar[str] = "exact: Fourier modes of the sampled start times exp(-nu k^2 t)"
    file: ClassVar[str] = "1D_Heat_Sols_nu{nu}.hdf5"
    named: ClassVar[tuple[str, ...]] = ("nu",)
    conserved: ClassVar[tuple[str, ...]] = ("u",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("nu", 0 <= self.nu < math.inf, "give a finite number that is not negative")

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        u0 = RandomWaves.draw(seed, ids, device)(self.grid.positions[0].to(device))
        return self.roll(u0, times)[..., None], {}

    def rate(self, state: Float[Tensor, "B X C"], static: Static) -> Float[Tensor, "B X C"]:
        """ν ∂²u/∂x² by central differences: it sums to zero."""
        return self.nu * state.shape[1] ** 2 * (state.roll(1, 1) - 2 * state + state.roll(-1, 1))

    def roll(self, u0: Float[Tensor, "B X"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T X"]:
        spectrum = torch.fft.rfft(u0)
        k = 2 * math.pi * torch.arange(spectrum.shape[-1], dtype=torch.float64, device=u0.device)
        shrunk = torch.exp(-self.nu * times.to(u0.device)[:, None] * k**2)
        return torch.fft.irfft(spectrum[:, None] * shrunk, n=u0.shape[-1])


ups.register_equation(Heat)
