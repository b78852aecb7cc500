"""Stem and spectral blocks without a head: features at the points of a task's frame, for what is no operator itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from ups.config.settings import Positive, PositiveFloat, Strict
from ups.fields import TaskSpec
from ups.models.conditions import ConditionEmbedding, Modulation
from ups.models.geometry import Frame, Geometry
from ups.models.network import matrices_of
from ups.models.operator.model import Stem, fixed_conditions, kept
from ups.models.operator.spectral import Spectral


class TrunkSettings(Strict):
    width: Positive = Field(default=32, description="channels of the features")
    depth: Positive = Field(default=2, description="blocks")
    modes: Positive = Field(default=32, description="kept along each axis, at most")
    expansion: PositiveFloat = Field(default=2.0, description="hidden width of a block's MLP, in widths")
    conditions: Positive = Field(default=32, description="width of the embedded conditions")


class Trunk(nn.Module):
    """Channels of a frame's cells in, features of the same cells out; blocks are modulated by named numbers, those of
    the task (spacing, boundary kinds) and those `told`.
    """

    def __init__(
        self,
        tasks: Mapping[str, TaskSpec],
        frames: Mapping[str, Frame],
        shape: TrunkSettings,
        told: Iterable[str] = (),
        stem: bool = True,
    ) -> None:
        """Without a `stem` its input has as many channels as it is wide."""
        super().__init__()
        width = shape.width
        self.frames = dict(frames)
        self.own = {name: fixed_conditions(task, frames[name]) for name, task in tasks.items()}
        self.spectral = Spectral(frames, width=width, modes=shape.modes, expansion=shape.expansion)
        self.stem = Stem(tasks, frames, width, 0) if stem else None
        self.blocks = self.spectral.body(shape.depth)
        names = {*told, *(name for own in self.own.values() for name in own)}
        self.conditions = ConditionEmbedding(names, shape.conditions)
        self.modulation = Modulation(shape.conditions, self.blocks.modulated)
        self._geometries: dict[tuple, tuple[Geometry, dict[str, Tensor]]] = {}

    def layers(self) -> list[nn.Module]:
        return self.blocks.layers()

    def matrices(self) -> list[nn.Parameter]:
        return [*self.blocks.matrices(), *matrices_of([self.modulation])]

    def forward(
        self, task: str, values: Float[Tensor, "B *space C"], told: Mapping[str, Float[Tensor, " B"]]
    ) -> Float[Tensor, "B *latent D"]:
        geometry, own = self._fixed(task, values)
        modulation = self.modulation(self.conditions({**told, **{n: v.expand(len(values)) for n, v in own.items()}}))
        x = values if self.stem is None else self.stem(task, values, geometry)
        return self.blocks(x, modulation, geometry.tables)

    def off_walls(self, task: str, like: Tensor) -> Tensor | float:
        """0 at points on walls with a prescribed value, 1 at all others."""
        factor = self._fixed(task, like)[0].wall_factor
        return 1.0 if factor is None else (factor != 0).to(like)

    def _fixed(self, task: str, like: Tensor) -> tuple[Geometry, dict[str, Tensor]]:
        """The task's tables and numbers, made on first use."""
        key = (task, like.device, like.dtype)
        if key not in self._geometries:
            with kept():
                tables = partial(self.spectral.tables, task)
                geometry = Geometry.build(self.frames[task], tables, like.device, like.dtype, 0)
                self._geometries[key] = geometry, {n: like.new_tensor(v) for n, v in self.own[task].items()}
        return self._geometries[key]
