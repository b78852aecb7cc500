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


def _fno(width: int, modes: int, learning_rate: float, usual: float) -> dict[str, Model]:
    """The FNO by Muon, and as usual by AdamW, each with a learning rate of its own."""
    settings = {"width": width, "modes": modes, "depth": 4}
    return {"fno": Model("fno", settings, learning_rate, "muon"), "fno_usual": Model("fno", settings, usual)}


def _line(ours: Model, large: Model) -> dict[str, Model]:
    """The models of a task in one dimension; `small` is the quickstart's."""
    return {
        "ours": ours,
        "small": Model("spectral", {"width": 24, "depth": 3, "modes": 32, "head": 32}, 5e-3, "muon"),
        "large": large,
        **_fno(64, 48, 1.5e-3, 4e-3),
        "unet": Model("unet", {"width": 32}, 1e-3),
        # Its step takes about as long for 512 samples as for 64.
        "neuraloperator": Model(
            "neuraloperator", {"hidden_channels": 64, "modes": 48, "n_layers": 4}, 4e-3, batch_size=512
        ),
    }


_OURS = Model("spectral", {"width": 64, "depth": 4, "modes": 48, "head": 64}, 3e-3, "muon")
_LARGE = Model("spectral", {"width": 128, "depth": 4, "modes": 40, "head": 64}, 2e-3, "muon")

TASKS = {
    task.name: task
    for task in (
        Task(
            name="burgers",
            solver=Burgers(points=1024, nu=0.001),
            points=256,
            first=0.0,
            dt=0.05,
            frames=41,
            train=9000,
            validation=200,
            test=1000,
            models=_line(_OURS, _LARGE),
            latent_spacing=1 / 256,
        ),
        Task(
            name="advection",
            solver=Advection(points=256, beta=0.4),
            points=256,
            first=0.0,
            dt=0.05,
            frames=41,
            train=9000,
            validation=200,
            test=1000,
            models=_line(_OURS, _LARGE),
            latent_spacing=1 / 256,
        ),
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
            models={
                "ours": Model("spectral", {"width": 64, "depth": 4, "modes": 24, "head": 64}, 3e-3, "muon"),
                **_fno(32, 12, 8e-3, 2e-3),
                "unet": Model("unet", {"width": 32}, 1e-3),
                "neuraloperator": Model("neuraloperator", {"hidden_channels": 32, "modes": 12, "n_layers": 4}, 2e-3),
            },
            latent_spacing=1 / 32,
        ),
        # Viscous and subsonic, so smooth: two points a latent cell lose nothing and make a rollout four times as cheap.
        # Solving a trajectory takes almost a second on a large GPU: there are few.
        Task(
            name="compressible_2d",
            solver=Compressible2D(points=128, eta=0.01, zeta=0.01, mach=0.1),
            points=64,
            first=0.0,
            dt=0.05,
            frames=21,
            train=96,
            validation=16,
            test=64,
            models={
                "ours": Model("spectral", {"width": 64, "depth": 4, "modes": 16, "head": 64}, 3e-3, "muon"),
                **_fno(32, 12, 8e-3, 2e-3),
                "unet": Model("unet", {"width": 32}, 1e-3),
                "neuraloperator": Model("neuraloperator", {"hidden_channels": 32, "modes": 12, "n_layers": 4}, 2e-3),
            },
            latent_spacing=1 / 32,
        ),
    )
}


def _quick_line(name: str, solver: Equation) -> Task:
    """A task in one dimension, small."""
    return replace(
        TASKS[name],
        solver=solver,
        points=128,
        train=768,
        validation=16,
        test=64,
        models={
            "ours": Model("spectral", {"width": 40, "depth": 3, "modes": 32, "head": 32}, 5e-3, "muon"),
            **_fno(40, 32, 8e-3, 4e-3),
            "unet": Model("unet", {"width": 16}, 2e-3),
            "neuraloperator": Model("neuraloperator", {"hidden_channels": 40, "modes": 32, "n_layers": 4}, 4e-3),
        },
        latent_spacing=1 / 128,
        batch_size=16,
    )


_QUICK = {
    "burgers": _quick_line("burgers", Burgers(points=256, nu=0.04)),
    "advection": _quick_line("advection", Advection(points=128, beta=0.4)),
    "diffusion_reaction": replace(
        TASKS["diffusion_reaction"],
        solver=DiffusionReaction(points=64),
        points=32,
        train=64,
        validation=8,
        test=16,
        models={
            "ours": Model("spectral", {"width": 24, "depth": 3, "modes": 12, "head": 32}, 4e-3, "muon"),
            **_fno(24, 8, 8e-3, 4e-3),
            "unet": Model("unet", {"width": 16}, 2e-3),
            "neuraloperator": Model("neuraloperator", {"hidden_channels": 24, "modes": 8, "n_layers": 4}, 4e-3),
        },
        latent_spacing=1 / 16,
        batch_size=8,
    ),
}


def chosen(names: Sequence[str], quick: bool) -> list[Task]:
    """The tasks named, each once; all of them if none is, and of the quick ones only the first."""
    known = _QUICK if quick else TASKS
    for name in names:
        if name not in known:
            raise UserError(f"there is no benchmark {name!r}; use {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names or (["burgers"] if quick else known))]
