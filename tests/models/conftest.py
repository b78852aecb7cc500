"""A model to hand over."""

from __future__ import annotations

import pytest
import small
import torch

from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Propagator, ModelSpec]:
    """Both small tasks, with weights that do something."""
    spec = small.prepared(tmp_path_factory.mktemp("exported"))[0]
    model = spec.build(0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if not parameter.detach().any():
            parameter.data.normal_(std=0.3, generator=generator)
    return model.eval().requires_grad_(False), spec  # as models are loaded: in training nothing is cut off


@pytest.fixture(scope="package")
def simulator(trained) -> Simulator:
    return Simulator(OperatorPredictor(trained[0], trained[1].tasks))
