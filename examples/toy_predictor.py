"""A predictor that needs no training, to stand beside the model: the exact solution of the heat equation.

    plugins: [toy_equation.py, toy_predictor.py]
    compare: {heat_kernel: {}}

Every wave of k periods shrinks by exp(−ν (2πk/L)² Δ) in a step of Δ. It knows the tasks of that equation and no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

import ups
from ups.config.settings import Strict
from ups.fields import Conditions, Grid
from ups.models.predictor import Persistence, State, UntrainedPredictor
from ups.models.saved import TrainedTask


class HeatKernel(Persistence):
    """Persistence keeps and decodes the last frame; here steps change it."""

    def __init__(self, tasks: Mapping[str, TrainedTask], settings: Strict) -> None:
        super().__init__(task for task in tasks.values() if task.spec.source.get("equation") == "heat")

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        nu = torch.as_tensor(conditions.parameters["nu"]).to(frames.device, torch.float64).expand(len(frames))
        return replace(super().start(task, frames, conditions, grid), parameters={"nu": nu})

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        assert lead is not None, "the heat equation is not steady"
        u, nu = state.history[:, -1], state.parameters["nu"]
        spectrum = torch.fft.rfft(u.double(), dim=1)
        k = torch.arange(spectrum.shape[1], dtype=torch.float64, device=u.device)
        exponent = (nu * lead.to(nu))[:, None] * (2 * math.pi * k / state.grid.lengths[0]) ** 2
        after = torch.fft.irfft(spectrum * torch.exp(-exponent)[..., None], n=u.shape[1], dim=1)
        return replace(state, history=after[:, None].to(u.dtype))


ups.register_predictor(UntrainedPredictor("heat_kernel", HeatKernel))
