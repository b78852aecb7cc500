"""What a benchmark is: its equation, its data, and the sizes of every model. All of it is pinned here.

The same trajectories and split are everybody's. Learning rates are each model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations import Advection, Burgers, Compressible2D, DiffusionReaction, Equation
from ups.errors import UserError

DATA_SEED = 0
"""The family of initial states of all benchmarks; `--seed` changes weights and order of samples only."""


@dataclass(frozen=True)
class Model:
    """A network by its registered name, its keyword arguments, and how it is trained.

    `batch_size` is its own where it learns more in the same time than with the task's.
    """

    architecture: str
    settings: Mapping[str, Any]
    learning_rate: float
    optimiser: Literal["adamw", "muon"] = "adamw"
    precision: Literal["float32", "bfloat16"] = "float32"
    batch_size: int | None = None


@dataclass(frozen=True)
class Task:
    """`solver` makes the data on its own grid, the reference resolution; `points` an axis are stored, averages over its
    cells. Frames are at `first`, `first` + `dt`, …: a rollout starts from the first of them.
    """

    name: str
    solver: Equation
    points: int
    first: float
    dt: float
    frames: int
    train: int
    validation: int
    test: int
    models: Mapping[str, Model]
    latent_spacing: float
    batch_size: int = 64

    def batch(self, model: str) -> int:
        """Samples of one step of a model."""
        return self.models[model].batch_size or self.batch_size

    @property
    def times(self) -> Float[Tensor, " T"]:
        return self.first + self.dt * torch.arange(self.frames, dtype=torch.float64)

    @property
    def reference(self) -> int:
        """Points an axis of the grid that the data were solved on."""
        return self.solver.grid.shape[0]


def _models(ours: Model, width: int, modes: int, muon: float, adamw: float, unet: Model) -> dict[str, Model]:
    """Ours, and FNOs of so many channels and modes: ours by Muon, and as usual by AdamW, and neuraloperator's, each way
    to train them with a learning rate of its own.
    """
    settings = {"width": width, "modes": modes, "depth": 4}
    peer = Model("neuraloperator", {"hidden_channels": width, "modes": modes, "n_layers": 4}, adamw)
    fno, usual = Model("fno", settings, muon, "muon"), Model("fno", settings, adamw)
    return {"ours": ours, "fno": fno, "fno_usual": usual, "unet": unet, "neuraloperator": peer}


def _spectral(width: int, depth: int, modes: int, head: int, learning_rate: float) -> Model:
    settings = {"width": width, "depth": depth, "modes": modes, "head": head}
    return Model("spectral", settings, learning_rate, "muon")


def _line(name: str, solver: Equation) -> Task:
    """A task in one dimension; `small` is the quickstart's model."""
    models = _models(_spectral(64, 4, 48, 64, 3e-3), 64, 48, 1.5e-3, 4e-3, _UNET)
    # Its step takes about as long for 512 samples as for 64.
    models["neuraloperator"] = replace(models["neuraloperator"], batch_size=512)
    models |= {"small": _spectral(24, 3, 32, 32, 5e-3), "large": _spectral(128, 4, 40, 64, 2e-3)}
    return Task(name, solver, 256, 0.0, 0.05, 41, 9000, 200, 1000, models, latent_spacing=1 / 256)


def _transformer(settings: dict[str, Any], precision: Literal["float32", "bfloat16"], batch_size: int) -> Task:
    """The plain transformer, which is only timed: how much of a card's matrix products it reaches."""
    models = {"transformer": Model("pdet_stack", settings | {"expansion": 4.0}, 1e-4, precision=precision)}
    line = _line("transformer", Advection(points=256, beta=0.4))
    return replace(line, frames=5, train=8 * batch_size, validation=1, test=1, models=models, batch_size=batch_size)


_UNET = Model("unet", {"width": 32}, 1e-3)
TASKS = {
    task.name: task
    for task in (
        _line("burgers", Burgers(points=1024, nu=0.001)),
        _line("advection", Advection(points=256, beta=0.4)),
        # The first half time unit is the fading of white noise, which is the grid's and not the equation's.
        Task(
            name="diffusion_reaction",
            solver=DiffusionReaction(points=128),
            points=64,
            first=0.5,
            dt=0.25,
            frames=19,
            train=900,
            validation=50,
            test=100,
            models=_models(_spectral(64, 4, 24, 64, 3e-3), 32, 12, 8e-3, 2e-3, _UNET),
            latent_spacing=1 / 32,
        ),
        # Viscous and subsonic, so smooth: two points a latent cell lose nothing and make a rollout four times as cheap.
        # Solving a trajectory takes almost a second on a large GPU: there are few.
        Task(
            name="compressible_2d",
            solver=Compressible2D(points=128, eta=0.01, zeta=0.01, M=0.1),
            points=64,
            first=0.0,
            dt=0.05,
            frames=21,
            train=96,
            validation=16,
            test=64,
            models=_models(_spectral(64, 4, 16, 64, 3e-3), 32, 12, 8e-3, 2e-3, _UNET),
            latent_spacing=1 / 32,
        ),
    )
}
TASKS["transformer"] = _transformer(
    {"width": 1024, "depth": 8, "head": 64, "conditions": 64}, "bfloat16", batch_size=64
)
_QUICK = {
    "burgers": replace(
        TASKS["burgers"],
        solver=Burgers(points=256, nu=0.04),
        points=128,
        train=768,
        validation=16,
        test=64,
        models=_models(_spectral(40, 3, 32, 32, 5e-3), 40, 32, 8e-3, 4e-3, Model("unet", {"width": 16}, 2e-3)),
        latent_spacing=1 / 128,
        batch_size=16,
    ),
    "transformer": _transformer({"width": 64, "depth": 2, "head": 16, "conditions": 16}, "float32", batch_size=4),
}


def chosen(names: Sequence[str], quick: bool) -> list[Task]:
    """The tasks named, each once; all that are trained on if none is, and of the quick ones only the first."""
    known = _QUICK if quick else TASKS
    for name in names:
        if name not in known:
            raise UserError(f"there is no {'quick ' if quick else ''}benchmark {name!r}; use {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names or [name for name in known if name != "transformer"])]
