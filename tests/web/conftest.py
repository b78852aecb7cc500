"""A model of two tasks with random weights, and servers of it that really listen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import uvicorn

from ups.data.prepare.statistics import Scale, Statistics
from ups.fields import Boundary, Channel, Grid, TaskSpec
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator
from ups.web.app import application
from ups.web.run import configured, listening
from ups.web.settings import ServerSettings

WAVES = TaskSpec("waves", 1, (Channel("u"),), Boundary.all("periodic", 1), 1 / 8, parameters=("beta",), dt=0.1)
FLOW = TaskSpec("flow", 2, (Channel("p"),), Boundary.all("value", 2), 1 / 4, static=("a",), steady=True)


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


class Served:
    """A server in a thread of this process, and where it listens."""

    def __init__(self, sim: Simulator, settings: ServerSettings) -> None:
        self.app = application(sim, settings)
        self.socket = listening(settings)
        self.host, self.port = self.socket.getsockname()[:2]
        self.url = f"http://{self.host}:{self.port}"
        self.server = uvicorn.Server(configured(self.app, settings))
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.socket.close()
        assert not self.thread.is_alive()


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
