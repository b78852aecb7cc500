"""The solver that made a task's data, beside the model: from any field, on any grid, a frame at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from ups.data.settings import MakeConfig
from ups.equations import Equation
from ups.equations.named import named_equation
from ups.equations.schemes.marching import block_means
from ups.fields import Batch, Grid
from ups.models.interpolation import reader
from ups.models.saved import TrainedTask

AHEAD = 4
"""So many frames are solved at first where a solver has to begin at the start, and then twice as many each time."""


@dataclass(frozen=True)
class Reference:
    """The equation of a task, as the run's configuration made its data."""

    make: MakeConfig

    def equation(self, points: int, parameters: Mapping[str, float]) -> Equation:
        first = {name: values[0] for name, values in self.make.values.items()}
        own = named_equation(self.make.equation, {**self.make.settings, **first})
        known = {setting.name for setting in fields(own)}  # pyright: ignore[reportArgumentType]  (all are dataclasses)
        given = {name: value for name, value in parameters.items() if name in known}
        return named_equation(self.make.equation, {**self.make.settings, **first, **given, "points": points})

    def frames(
        self,
        start: Float[Tensor, "*space C"],
        static: Mapping[str, Float[Tensor, "*space"]],
        parameters: Mapping[str, float],
        dt: float,
        steps: int,
    ) -> Iterator[Float[Tensor, "*space C"]]:
        """The solution after 1 … `steps` times dt, or the one solution of a steady task; as means over the start's own
        cells, of a solution on as many points as the solver needs.
        """
        points = start.shape[0]
        equation = self.equation(points, parameters)
        axes, fine = range(1, 1 + equation.dimension), points * equation.refinement
        state = _finer(start.double(), fine, equation)
        media = {name: _repeated(field.double(), equation.refinement)[None] for name, field in static.items()}

        def solved(state: Tensor, times: Tensor) -> Tensor:
            grid = Grid.cell_centred((fine,) * equation.dimension, equation.extent)
            named = {name: torch.tensor([value], dtype=torch.float64) for name, value in parameters.items()}
            ids = torch.zeros(1, dtype=torch.int64)
            frames = state.expand(1, len(times), *state.shape)  # of which solvers take the first
            batch = Batch(equation.name, frames, times[None], grid, equation.boundary, named, media, ids)
            return equation.coarse(batch, fine)[0]

        def seen(state: Tensor) -> Tensor:
            return block_means(equation.name, state[None], points, axes)[0]

        if equation.steady:
            yield seen(solved(state, torch.zeros(1, dtype=torch.float64))[0])
        elif equation.closed:
            for _ in range(steps):
                state = solved(state, torch.tensor([0.0, dt], dtype=torch.float64))[1]
                yield seen(state)
        else:  # the field alone does not say how it goes on
            done, count = 0, AHEAD
            while done < steps:
                count = min(count, steps)
                later = solved(state, torch.arange(count + 1, dtype=torch.float64) * dt)[done + 1 :]
                yield from map(seen, later)
                done, count = count, 2 * count


def references(run: Path | None, tasks: Mapping[str, TrainedTask]) -> dict[str, Reference]:
    """Those of a run's tasks whose data were made here, on the grid that the model was trained on."""
    path = None if run is None else run / "config.yaml"
    if path is None or not path.is_file():
        return {}
    said: Mapping[str, Any] = yaml.safe_load(path.read_text()).get("tasks") or {}
    found = {}
    for name, learned in tasks.items():
        if (make := (said.get(name) or {}).get("make")) is None:
            continue
        reference, space = Reference(MakeConfig.model_validate(make)), learned.grid
        fixed = [p for p, (low, high) in learned.ranges.items() if low == high]
        equation = reference.equation(space.shape[0], {})
        known = {setting.name for setting in fields(equation)}  # pyright: ignore[reportArgumentType]
        if equation.grid.same_as(space) and {*learned.spec.parameters} <= {*known, *fixed}:
            found[name] = reference
    return found


def _finer(field: Float[Tensor, "*space C"], points: int, equation: Equation) -> Float[Tensor, "*fine C"]:
    """By cubics, with the means over the cells that are given."""
    given, factor = field.shape[0], points // field.shape[0]
    if factor == 1:
        return field
    coarse, fine = (Grid.cell_centred((n,) * equation.dimension, equation.extent) for n in (given, points))
    smooth = reader(coarse, equation.boundary.periodic, fine, {}, field[None])(field[None])
    means = block_means(equation.name, smooth, given, range(1, 1 + equation.dimension))[0]
    return smooth[0] + torch.stack([_repeated(each, factor) for each in (field - means).unbind(-1)], -1)


def _repeated(field: Float[Tensor, "*space"], factor: int) -> Float[Tensor, "*fine"]:
    for axis in range(field.dim()):
        field = field.repeat_interleave(factor, axis)
    return field
