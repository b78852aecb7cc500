"""The optimiser and its schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from ups.checkpoint.optimiser_state import allocate
from ups.distributed.runtime.start import Runtime
from ups.models.network import Layered
from ups.training.muon import Muon
from ups.training.settings import TrainingConfig


def build_optimiser(module: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW, or Muon with it, their moments allocated at once; weight decay on matrices only, never on biases."""
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() > 1]
    vectors = [p for p in trained if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    if config.optimiser == "muon":
        # What a module says are its matrices; one that says nothing is left to AdamW.
        hidden = {id(p) for p in module.matrices()} if isinstance(module, Layered) else set()
        inside = {"params": [p for p in matrices if id(p) in hidden], "weight_decay": config.weight_decay}
        groups[0]["params"] = [p for p in matrices if id(p) not in hidden]
        groups = [{**inside, "orthogonal": True}, *({**group, "orthogonal": False} for group in groups)]
        return Muon([g for g in groups if g["params"]], lr=config.learning_rate)
    optimiser = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.learning_rate, fused=True)
    allocate(optimiser)
    return optimiser


def agree_on_kernels(optimiser: torch.optim.Optimizer, runtime: Runtime) -> None:
    """Refuse ranks that would compute the same update in different ways: their replicas would drift apart."""
    if isinstance(optimiser, Muon):
        remedy = "give every node the same GPUs, the same torch and a C compiler"
        runtime.agree("number of parameters that Muon's kernel updates", optimiser.kernels(), remedy)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Linear warm-up, then half a cosine down to zero at the last step."""
    warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / config.steps))
