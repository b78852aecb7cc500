"""What a checkpoint says of its model, enough to build it anew: architecture, sizes, tasks, grids, statistics; and
the model, built and loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import Statistics
from ups.data.tasks import task_from_mapping
from ups.errors import UserError
from ups.fields import Grid, TaskSpec
from ups.models.architectures import ARCHITECTURES
from ups.models.geometry import Frame, averaged
from ups.models.interpolation import bringing_matrix, reader
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
        self._refuse_masked()
        if grid.extent != self.grid.extent:
            raise UserError(f"the grid spans {grid.extent}, but the task was trained on {self.grid.extent}")
        periodic, walls = self.spec.boundary.periodic, self.normaliser.walls()
        lags = reader(grid, periodic, self.grid, walls, frames, bringing_matrix)(frames.flatten(0, 1))
        return lags.unflatten(0, frames.shape[:2]), averaged(static, grid, self.grid, periodic)

    def brought_forcing(self, field: Float[Tensor, "B ..."], grid: Grid) -> Float[Tensor, "B ..."]:
        """A normalised forcing, with an axis of time or without, like the static fields."""
        if grid.same_as(self.grid):
            return field
        frames = field.reshape(-1, *grid.shape, 1)
        brought = averaged(frames, grid, self.grid, self.spec.boundary.periodic)
        return brought.reshape(*field.shape[: field.dim() - grid.dimension], *self.grid.shape)

    def reader(
        self, target: Grid | Float[Tensor, "P dim"], like: Tensor, source: Grid | None = None
    ) -> Callable[[Float[Tensor, "B *own C"]], Tensor]:
        """What gives normalised states of the task's own grid, or of `source`, on a grid or at points."""
        if not (isinstance(target, Grid) and target.same_as(source or self.grid)):
            self._refuse_masked()
        return reader(source or self.grid, self.spec.boundary.periodic, target, self.normaliser.walls(), like)

    def _refuse_masked(self) -> None:
        if self.spec.masked:
            raise UserError(
                f"task {self.spec.name!r} has a mask, beyond which there is nothing to interpolate from; give fields "
                f"on the grid of its data, {self.grid.shape} points, and ask for them there"
            )

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
    """`architecture` is a registered name, such as "spectral"; `settings` are its own. One that is not `joint` is for
    one task, the first.
    """

    architecture: str
    settings: Mapping[str, Any]
    tasks: tuple[TrainedTask, ...]

    def build(self, seed: int = 0) -> Propagator:
        """The untrained model, the same for the same seed."""
        chosen = ARCHITECTURES[self.architecture]
        settings = chosen.settings.model_validate(dict(self.settings))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = chosen.build(self.tasks, settings)
        moving = [t for t in self.tasks if not t.spec.steady]
        units = {t.spec.name: t.normaliser.units() for t in moving} if chosen.keeps_means else None
        scales: dict[str, tuple[Float[Tensor, " S"], Float[Tensor, "S C"]]] = {
            t.spec.name: t.normaliser.step_scales() for t in moving
        }
        limits = {t.spec.name: ends for t in moving if (ends := t.normaliser.limits()) is not None}
        return Propagator(network, [t.spec for t in self.tasks], scales, units, limits)


def description(
    name: str, kind: str, settings: Mapping[str, Any], tasks: Iterable[TrainedTask], seed: int
) -> dict[str, Any]:
    """What a checkpoint says of the stage in it, enough to build it anew."""
    stage = {"name": name, "kind": kind, "settings": dict(settings), "seed": seed}
    return {"stage": stage, "tasks": [task.to_dict() for task in tasks]}
