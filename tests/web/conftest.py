"""A model of two tasks with random weights, and servers of it that really listen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from serving import Served

from ups.data.prepare.statistics import Scale, Statistics
from ups.fields import Boundary, Channel, Grid, Invariant, Side, TaskSpec
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator
from ups.web.settings import ServerSettings

WAVES = TaskSpec("waves", 1, (Channel("u"),), Boundary.all("periodic", 1), 1 / 8, parameters=("beta",), dt=0.1)
FLOW = TaskSpec("flow", 2, (Channel("p"),), Boundary.all("value", 2), 1 / 4, static=("a",), steady=True)


WALLED = TaskSpec(
    "walled",
    1,
    (Channel("rho", "log"), Channel("v", "standardised")),
    Boundary(((Side("value", (1.0,)), Side("flux")),)),
    1 / 8,
    parameters=("mach",),
    history=2,
    dt=0.1,
    invariants=(Invariant("rho"), Invariant("v")),
)
OBSTACLE = TaskSpec(
    "obstacle",
    2,
    (Channel("u"),),
    Boundary.all("periodic", 2),
    static=("a",),
    forcings=("f",),
    masked=True,
    dt=0.1,
    invariants=(Invariant("u"),),
)


@pytest.fixture(scope="session")
def unlike() -> tuple[TrainedTask, ...]:
    """Two tasks with everything that a task can have."""
    rho, v = Scale(0.0, 0.3, 0.3, (0.1,), (-1.0, 1.0)), Scale(5.0, 1.0, 5.1, (0.1,), (2.0, 8.0))
    u, a = Scale(0.0, 1.0, 1.0, (0.1,), (-2.0, 2.0)), Scale(0.5, 0.4, 0.6)
    fields = {"a": a, "f": a}
    walled = Statistics("walled", 1, 0.1, (1,), {"rho": rho, "v": v})
    obstacle = Statistics("obstacle", 1, 0.1, (1,), {"u": u}, fields)
    return (
        TrainedTask(WALLED, Grid.cell_centred((16,)), walled, {"mach": (0.1, 1.0)}, (0.1,)),
        TrainedTask(OBSTACLE, Grid.cell_centred((8, 12)), obstacle, {}, (0.1,)),
    )


@pytest.fixture(scope="session")
def sim() -> Simulator:
    scale = Scale(0.0, 1.3, 1.3, (0.4,))
    tasks = (
        TrainedTask(
            WAVES,
            Grid.cell_centred((16,)),
            Statistics("waves", 1, 0.1, (1,), {"u": scale}),
            {"beta": (0.1, 1.0)},
            (0.1,),
        ),
        TrainedTask(
            FLOW,
            Grid.cell_centred((8, 8)),
            Statistics("flow", 1, None, (), {"p": Scale(0.1, 0.1, 0.2)}, {"a": Scale(0.5, 0.4, 0.6)}),
            {},
            (),
        ),
    )
    settings = {"width": 8, "depth": 1, "modes": 4, "head": 4, "conditions": 4}
    model = ModelSpec("spectral", settings, tasks).build(0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return Simulator(OperatorPredictor(model.requires_grad_(False), tasks))


@pytest.fixture
def serve(sim: Simulator) -> Iterator[Callable[..., Served]]:
    """Starts servers: `serve(token=...)`."""
    started = []

    def start(**settings) -> Served:
        started.append(Served(sim, ServerSettings(port=0, **settings)))
        return started[-1]

    yield start
    for server in started:
        server.stop()
