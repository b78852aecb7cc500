"""What a checkpoint says of its model, enough to build it anew: architecture, sizes, tasks, grids, statistics; and
the model, built and loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups import checkpoint
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import Statistics
from ups.data.tasks import task_from_mapping
from ups.errors import UserError
from ups.fields import Grid, TaskSpec
from ups.models.baselines.fno import FNO
from ups.models.baselines.unet import UNet
from ups.models.geometry import Frame, averaged
from ups.models.interpolation import bringing_matrix, reader
from ups.models.operator.model import ARCHITECTURES, OperatorModel
from ups.models.propagator import Propagator


@dataclass(frozen=True, eq=False)
class TrainedTask:
    """One task as the model met it in training: its grid, its scales, the ranges it has seen, and the number of first
    frames that validation gave it to start from.
    """

    spec: TaskSpec
    grid: Grid
    statistics: Statistics
    ranges: Mapping[str, tuple[float, float]]
    leads: tuple[float, ...]
    given: int = 1

    @property
    def normaliser(self) -> Normaliser:
        return Normaliser(self.spec, self.statistics)

    @property
    def frame(self) -> Frame:
        return Frame(self.grid, self.spec.boundary, self.spec.patch(self.grid))

    def brought(
        self, frames: Float[Tensor, "B H *space C"], static: Float[Tensor, "B *space S"], grid: Grid
    ) -> tuple[Float[Tensor, "B H *own C"], Float[Tensor, "B *own S"]]:
        """Normalised fields from any grid of the domain to the task's own."""
        if grid.same_as(self.grid):
            return frames, static
        if grid.extent != self.grid.extent:
            raise UserError(f"the grid spans {grid.extent}, but the task was trained on {self.grid.extent}")
        periodic, walls = self.spec.boundary.periodic, self.normaliser.walls()
        lags = reader(grid, periodic, self.grid, walls, frames, bringing_matrix)(frames.flatten(0, 1))
        return lags.unflatten(0, frames.shape[:2]), averaged(static, grid, self.grid, periodic)

    def reader(
        self, target: Grid | Float[Tensor, "P dim"], like: Tensor, source: Grid | None = None
    ) -> Callable[[Float[Tensor, "B *own C"]], Tensor]:
        """What gives normalised states of the task's own grid, or of `source`, on a grid or at points."""
        return reader(source or self.grid, self.spec.boundary.periodic, target, self.normaliser.walls(), like)

    def to_dict(self) -> dict[str, Any]:
        return {
            "spec": asdict(self.spec) | {"boundary": asdict(self.spec.boundary)["sides"]},
            "grid": {"positions": [p.tolist() for p in self.grid.positions], "extent": self.grid.extent},
            "statistics": self.statistics.to_dict(),
            "ranges": dict(self.ranges),
            "leads": list(self.leads),
            "given": self.given,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainedTask:
        positions = tuple(torch.tensor(p, dtype=torch.float64) for p in data["grid"]["positions"])
        extent = tuple((float(a), float(b)) for a, b in data["grid"]["extent"])
        return cls(
            spec=task_from_mapping(data["spec"]),
            grid=Grid(positions, extent),
            statistics=Statistics.from_dict(data["statistics"]),
            ranges={name: (float(a), float(b)) for name, (a, b) in data["ranges"].items()},
            leads=tuple(float(v) for v in data["leads"]),
            given=data.get("given", 1),
        )


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """`architecture` is "spectral", "pdet_stack", "fno" or "unet"; `settings` are the network's keyword arguments.

    The baselines are for one task each, the first.
    """

    architecture: str
    settings: Mapping[str, Any]
    tasks: tuple[TrainedTask, ...]

    def build(self, seed: int = 0) -> Propagator:
        """The untrained model, the same for the same seed."""
        specs = [learned.spec for learned in self.tasks]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            units = None
            if self.architecture in ARCHITECTURES:
                frames = {t.spec.name: t.frame for t in self.tasks}
                network = OperatorModel(specs, frames, architecture=self.architecture, **self.settings)
                units = {t.spec.name: t.normaliser.units() for t in self.tasks if not t.spec.steady}
            elif self.architecture == "fno":
                network = FNO(specs[0], **self.settings)
            elif self.architecture == "unet":
                network = UNet(specs[0], self.tasks[0].grid.shape, **self.settings)
            else:
                names = ", ".join(ARCHITECTURES)
                raise UserError(f"architecture {self.architecture!r} is unknown; use {names}, fno or unet")
        scales: dict[str, tuple[Float[Tensor, " S"], Float[Tensor, "S C"]]] = {
            t.spec.name: t.normaliser.step_scales() for t in self.tasks if not t.spec.steady
        }
        return Propagator(network, specs, scales, units)

    def to_dict(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture,
            "settings": dict(self.settings),
            "tasks": [learned.to_dict() for learned in self.tasks],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelSpec:
        return cls(data["architecture"], data["settings"], tuple(TrainedTask.from_dict(t) for t in data["tasks"]))


def load_model(run: str | Path, device: str | torch.device = "cpu") -> tuple[Propagator, ModelSpec]:
    """The model of a run directory (its best checkpoint by validation error, averaged weights) or of an export."""
    directory = Path(run) / "checkpoints"
    best = Path(run) if checkpoint.is_one(Path(run)) else checkpoint.find(directory, "best")
    if best is None and not checkpoint.steps(directory):
        raise UserError(f"{run} holds no trained model (no checkpoint in {directory}); train it with `ups run`")
    tensors, manifest = checkpoint.load(best or directory, ("model.", "ema."))
    spec = ModelSpec.from_dict(manifest.content["model"])
    model = spec.build()
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    weights |= {name.removeprefix("ema."): t for name, t in tensors.items() if name.startswith("ema.")}
    if {weights[name].dtype for name, _ in model.named_parameters() if name in weights} == {torch.float64}:
        model.double()  # as it was trained
    own = {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}
    if own != {name: (tuple(t.shape), t.dtype) for name, t in weights.items()}:
        raise UserError(
            f"the checkpoint {manifest.path} does not fit the model it describes; use the version it was made with"
        )
    model.load_state_dict(weights)
    return model.to(device).eval().requires_grad_(False), spec
