"""The operator model: stem, operator, head, in scaled units, on the grid a task was trained on.

    increment = head( operator( stem(history, static fields, forcings, mask), conditions ) )

The head's last layer starts at zero, so the untrained model predicts no change at all. Where the equation conserves a
channel's mean, the increment has none, so a rollout keeps it to round-off (of a channel learned in logarithms, the
propagator keeps it). First and last layers are tables
of rows indexed by field name: a new field adds rows and leaves the others as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ups.errors import UserError
from ups.fields import Grid, TaskSpec
from ups.models.conditions import ConditionEmbedding, Modulation
from ups.models.geometry import Frame, Geometry, position_waves
from ups.models.given import cell_mean, inside
from ups.models.interpolation import apply_along
from ups.models.network import CONDITIONS, Architecture, matrices_of
from ups.models.operator.pdet_stack import PdetStack, PdetStackSettings
from ups.models.operator.pdet_unet import PdetUnet, PdetUnetSettings
from ups.models.operator.settings import OperatorSettings
from ups.models.operator.spectral import Experts, Spectral, SpectralSettings

if TYPE_CHECKING:
    from ups.models.saved import TrainedTask

ARCHITECTURES = {"spectral": Spectral, "pdet_stack": PdetStack, "pdet_unet": PdetUnet}
"""What stands between stem and head, by name: each gives a body of blocks, the tables they look up for a frame, and
whether every channel has latents of its own."""


def patchify(values: Float[Tensor, "B *space C"], patch: tuple[int, ...]) -> Float[Tensor, "B *latent CP"]:
    """Gather the points of every latent cell into channels."""
    if math.prod(patch) == 1:
        return values
    dimension = values.dim() - 2
    split = " ".join(f"(n{i} p{i})" for i in range(dimension))
    cells, parts = (" ".join(f"{s}{i}" for i in range(dimension)) for s in "np")
    return rearrange(values, f"b {split} c -> b {cells} (c {parts})", **{f"p{i}": n for i, n in enumerate(patch)})


class Stem(nn.Module):
    """Fields on their own points → latents. Rows per field name and patch; lags of the history are rows too, and so are
    static fields, forcings and the mask.

    On a periodic axis nothing tells where a point lies, and what blocks compute commutes with shifts; a force that is
    fixed in space does not. So each task with such an axis learns a field of its own there, zero at first, from the
    lowest waves of all axes.

    `separate`: every channel has latents of its own, (B, C, *latent, D), and a vector that tells it from the others;
    static fields and walls are added to all.
    """

    compiled = True

    def __init__(
        self,
        tasks: Mapping[str, TaskSpec],
        frames: Mapping[str, Frame],
        width: int,
        position_modes: int,
        separate: bool = False,
    ) -> None:
        super().__init__()
        self.tasks, self.separate = tasks, separate
        self.rows = nn.ParameterDict()
        self.bias = nn.Parameter(torch.zeros(width))
        self.positions = nn.ParameterDict()
        self.inputs: dict[str, list[str]] = {}
        for name, task in tasks.items():
            if waves := position_waves(frames[name], position_modes):
                self.positions[f"task_{name}"] = nn.Parameter(torch.zeros(*(table.shape[1] for table in waves), width))
            patch = frames[name].patch
            cells = math.prod(patch)
            # Rows belong to places in the cell: cells of other proportions have others.
            shape = str(cells) if len(set(patch)) == 1 else "x".join(map(str, patch))
            walls = 2 * sum(not wraps for wraps in task.boundary.periodic)
            fields = [(f"field_{c}", task.history) for c in task.channel_names]
            fields += [(given, 1) for given in task.given] + ([("wall", walls)] if walls else [])
            self.inputs[name] = []
            for field, lags in fields:
                key = f"{field}_{lags}x{shape}"
                self.inputs[name].append(key)
                if key not in self.rows:
                    self.rows[key] = nn.Parameter(torch.randn(lags * cells, width) / math.sqrt(len(fields) * cells))
        names = {c for task in tasks.values() for c in task.channel_names} if separate else ()
        self.names = nn.ParameterDict({f"field_{c}": nn.Parameter(torch.randn(width)) for c in sorted(names)})

    def forward(
        self, task: str, values: Float[Tensor, "B *space C"], geometry: Geometry
    ) -> Float[Tensor, "B *latent D"]:
        keys, patch = self.inputs[task], geometry.frame.patch
        domain = self.bias
        if geometry.walls.shape[-1]:
            domain = domain + patchify(geometry.walls[None], patch) @ self.rows[keys[-1]]
            keys = keys[:-1]
        if geometry.waves:
            own = self.positions[f"task_{task}"][None]
            for axis, table in enumerate(geometry.waves):
                own = apply_along(table, own, axis)
            domain = domain + own
        inputs, rows = patchify(values, patch), [self.rows[key] for key in keys]
        if not self.separate:
            return inputs @ torch.cat(rows) + domain
        latents = [part @ own for part, own in zip(inputs.split([len(own) for own in rows], -1), rows, strict=True)]
        names = self.tasks[task].channel_names
        own, common = latents[: len(names)], sum(latents[len(names) :], domain)
        return torch.stack([x + self.names[f"field_{c}"] + common for c, x in zip(names, own, strict=True)], 1)


class Head(nn.Module):
    """Latents → increments at the points: interpolated features, the place in the cell, the input fields at that point.

    Where the equation conserves a channel's mean, the increment on the whole grid has none. `separate`: every channel's
    increment is read from its own latents.
    """

    compiled = True

    def __init__(self, tasks: Mapping[str, TaskSpec], width: int, hidden: int, separate: bool = False) -> None:
        super().__init__()
        self.tasks, self.separate = tasks, separate
        self.inner = nn.Linear(width, hidden)
        self.place = nn.ParameterDict(
            {str(d): nn.Parameter(torch.zeros(4 * d, hidden)) for d in {task.dimension for task in tasks.values()}}
        )
        self.local = nn.ParameterDict()
        self.outer = nn.ParameterDict()
        self.inputs: dict[str, list[str]] = {}
        self.outputs: dict[str, list[str]] = {}
        self.conserving: dict[str, bool] = {}
        for name, task in tasks.items():
            self.inputs[name] = [*(f"field_{c}" for c in task.channel_names), *task.given]
            self.outputs[name] = list(task.channel_names)
            for key in self.inputs[name]:
                if key not in self.local:
                    self.local[key] = nn.Parameter(torch.randn(1, hidden) * 0.3)
            for key in self.outputs[name]:
                if key not in self.outer:
                    self.outer[key] = nn.Parameter(torch.zeros(hidden, 1))
            invariant = {invariant.channel for invariant in task.invariants}
            conserved = [c.name in invariant and c.transform != "log" for c in task.channels]
            self.conserving[name] = any(conserved)
            mask = torch.tensor(conserved, dtype=torch.get_default_dtype())
            self.register_buffer(f"conserved_{name}", mask, persistent=False)

    def forward(
        self, task: str, x: Float[Tensor, "B *latent D"], local: Float[Tensor, "B *space I"], geometry: Geometry
    ) -> Float[Tensor, "B *space C"]:
        features = self.inner(x)
        for axis, (matrix, points) in enumerate(zip(geometry.decode, geometry.frame.patch, strict=True), self.separate):
            if points > 1:
                features = apply_along(matrix, features, axis)
        out = self._values(task, features, geometry.offsets, local)
        out = out if geometry.wall_factor is None else out * geometry.wall_factor
        return out - self._drift(task, out, local) if self.conserving[task] else out

    def _values(
        self,
        task: str,
        features: Float[Tensor, "B *latent D"],
        place: Float[Tensor, "*points F"],
        local: Float[Tensor, "B *points I"],
    ) -> Float[Tensor, "B *points C"]:
        local_rows = torch.cat([self.local[key] for key in self.inputs[task]])
        outer = torch.cat([self.outer[key] for key in self.outputs[task]], -1)
        at_points = local @ local_rows
        h = features + place @ self.place[str(self.tasks[task].dimension)]
        if not self.separate:
            return F.silu(h + at_points) @ outer
        return torch.einsum("bc...h,hc->b...c", F.silu(h + at_points[:, None]), outer)

    def _drift(
        self, task: str, increment: Float[Tensor, "B *space C"], local: Float[Tensor, "B *space I"]
    ) -> Float[Tensor, "B *ones C"]:
        """The mean change of channels whose mean the equation conserves: what has to be taken off again."""
        mean = cell_mean(increment, inside(local) if self.tasks[task].masked else None)
        return mean * self.get_buffer(f"conserved_{task}").to(mean)


class OperatorModel(nn.Module):
    """One network for several tasks; fields come scaled, increments leave in units of the task's step scale.

    `settings` are the architecture's own: modes and expansion for `spectral`, heads and expansion for `pdet_stack`;
    these, levels, window and channels for `pdet_unet`.
    """

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        frames: Mapping[str, Frame],
        *,
        architecture: str = "spectral",
        width: int = 48,
        depth: int = 4,
        head: int = 32,
        conditions: int = 64,
        position_modes: int = 5,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.position_modes = position_modes
        self.tasks = {task.name: task for task in tasks}
        self.frames = {task.name: frames[task.name] for task in tasks}
        self.architecture: Spectral | PdetStack | PdetUnet = ARCHITECTURES[architecture](
            self.frames, width=width, **settings
        )
        names = {name for task in tasks for name in condition_names(task)}
        self.stem = Stem(self.tasks, self.frames, width, position_modes, self.architecture.separate)
        self.conditions = ConditionEmbedding(names, conditions)
        body = self.architecture.body(depth)
        self.modulation = Modulation(conditions, body.modulated)
        self.blocks = body
        self.head = Head(self.tasks, width, head, self.architecture.separate)
        self._geometries: dict[tuple, Geometry] = {}
        self._fixed: dict[tuple, Mapping[str, Float[Tensor, ""]]] = {}

    def layers(self) -> list[nn.Module]:
        return self.blocks.layers()

    def matrices(self) -> list[nn.Parameter]:
        return [*self.blocks.matrices(), *matrices_of([self.modulation])]

    def own(self) -> list[nn.Parameter]:
        """What belongs to a task, a field or a condition (gates, adapters, rows, positions), and the modulation."""
        experts = [module for module in self.blocks.modules() if isinstance(module, Experts)]
        tables = [self.stem.rows, self.stem.positions, self.head.place, self.head.local, self.head.outer]
        tables += [table for bank in experts for table in (bank.gates, bank.down, bank.up)]
        return [p for module in (*tables, self.conditions.rows, self.modulation) for p in module.parameters()]

    def geometry(self, task: str, grid: Grid, like: Tensor) -> Geometry:
        """The task's tables, made on first use; fields on any other grid are refused."""
        frame, key = self.frames[task], (task, like.device, like.dtype)
        if grid is not frame.grid and not grid.same_as(frame.grid):
            raise UserError(
                f"the fields are on {grid.shape} points of {grid.extent}, but task {task!r} was trained on "
                f"{frame.grid.shape} points of {frame.grid.extent}; bring them there (`Simulator.rollout` does)"
            )
        if key not in self._geometries:
            with kept():
                self._geometries[key] = Geometry.build(
                    frame, partial(self.architecture.tables, task), like.device, like.dtype, self.position_modes
                )
        return self._geometries[key]

    def fixed(self, task: str, like: Tensor) -> Mapping[str, Float[Tensor, ""]]:
        """The conditions that never change within a task, brought to the device on first use."""
        key = (task, like.device, like.dtype)
        if key not in self._fixed:
            values = fixed_conditions(self.tasks[task], self.frames[task])
            with kept():
                self._fixed[key] = {name: like.new_tensor(value) for name, value in values.items()}
        return self._fixed[key]

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        conditions: Mapping[str, Float[Tensor, " B"]],
        grid: Grid,
    ) -> Float[Tensor, "B *space C"]:
        """Increments on the task's own grid."""
        geometry = self.geometry(task, grid, history)
        lags = rearrange(history, "b h ... c -> b ... (c h)")
        fields = torch.cat([lags, static], -1)
        fixed = {name: value.expand(history.shape[0]) for name, value in self.fixed(task, history).items()}
        modulation = self.modulation(self.conditions({**conditions, **fixed}))
        x = self.stem(task, fields, geometry)
        x = self.blocks(x, modulation, geometry.tables)
        return self.head(task, x, torch.cat([history[:, -1], static], -1), geometry)


def _architecture(name: str, settings: type[OperatorSettings]) -> Architecture:
    def build(tasks: Sequence[TrainedTask], chosen: OperatorSettings) -> OperatorModel:
        frames = {task.spec.name: task.frame for task in tasks}
        return OperatorModel([task.spec for task in tasks], frames, architecture=name, **chosen.model_dump())

    return Architecture(name, settings, build, keeps_means=True, takes=CONDITIONS)


SPECTRAL = _architecture("spectral", SpectralSettings)
PDET_STACK = _architecture("pdet_stack", PdetStackSettings)
PDET_UNET = _architecture("pdet_unet", PdetUnetSettings)


def kept() -> AbstractContextManager[Any]:
    """Within, tensors are made that autograd may use later, also where inference mode is on now."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def fixed_conditions(task: TaskSpec, frame: Frame) -> dict[str, float]:
    """What never changes within a task: its grid's spacing, lengths, boundary kinds, and the steady token."""
    values: dict[str, float] = {}
    for axis, (lower, upper) in enumerate(task.boundary.sides):
        values[f"spacing_{axis}"] = frame.grid.spacing[axis]
        values[f"length_{axis}"] = frame.grid.lengths[axis]
        values[f"lower_{axis}_{lower.kind}"] = values[f"upper_{axis}_{upper.kind}"] = 1.0
    if task.steady:
        values["steady"] = 1.0
    return values


def condition_names(task: TaskSpec) -> list[str]:
    """Every condition the task's model is given, by name."""
    names = [f"parameter_{p}" for p in task.parameters]
    names += [f"spacing_{a}" for a in range(task.dimension)] + [f"length_{a}" for a in range(task.dimension)]
    for axis, (lower, upper) in enumerate(task.boundary.sides):
        names += [f"lower_{axis}_{lower.kind}", f"upper_{axis}_{upper.kind}"]
    return [*names, "steady" if task.steady else "lead"]
