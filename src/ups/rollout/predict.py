"""What is predicted from what: one step from every frame, a rollout from the first, a steady solve from nothing.

Trajectories on another grid than the task's own are brought there, and predictions are interpolated back.
On a GPU the model's steps are replayed as CUDA graphs (`captured`), unless `capture` is false.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Batch, Dataset, Grid
from ups.models.interpolation import apply_along, axis_matrix
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask
from ups.rollout.captured import stepper
from ups.rollout.unroll import start_history, unroll

CHUNK = 64


def read_all(dataset: Dataset, most: int | None = None) -> Batch:
    """A whole split, or `most` trajectories spread evenly over it: every parameter value of joined files is there."""
    count = min(len(dataset), most or len(dataset))
    return dataset.read(torch.linspace(0, len(dataset) - 1, count).round().long().tolist(), slice(None))


@torch.no_grad()
def rollout(
    model: Propagator, learned: TrainedTask, batch: Batch, capture: bool = True
) -> Float[Tensor, "N T *space C"]:
    """Frames 1 … T−1 of every trajectory, predicted from frame 0 alone; physical units."""
    parts = []
    for inputs, static, parameters, lead in _chunks(model, learned, batch):
        history, read = start_history(inputs[:, :1], learned.spec.history), learned.reader(batch.grid, inputs)
        steps = batch.values.shape[1] - 1
        states = unroll(model, learned.spec.name, history, static, parameters, lead, learned.grid, steps, capture)
        parts.append(learned.normaliser.physical(torch.stack([read(state) for state in states], 1)).cpu())
    return torch.cat(parts)


@torch.no_grad()
def one_step(
    model: Propagator, learned: TrainedTask, batch: Batch, capture: bool = True
) -> Float[Tensor, "N T *space C"]:
    """Frames 1 … T−1, each predicted from the true frame (or frames) before it; physical units."""
    parts = []
    for inputs, static, parameters, lead in _chunks(model, learned, batch):
        before = [
            start_history(inputs[:, max(0, t - learned.spec.history) : t], learned.spec.history)
            for t in range(1, inputs.shape[1])
        ]
        step = stepper(model, learned.spec.name, before[0], static, parameters, lead, learned.grid, capture)
        read = learned.reader(batch.grid, inputs)
        frames = [read(step(history)) for history in before]
        parts.append(learned.normaliser.physical(torch.stack(frames, 1)).cpu())
    return torch.cat(parts)


@torch.no_grad()
def steady(
    model: Propagator, learned: TrainedTask, batch: Batch, capture: bool = True
) -> Float[Tensor, "N 1 *space C"]:
    """The solutions of a steady task; physical units."""
    parts = []
    for inputs, static, parameters, _ in _chunks(model, learned, batch):
        zero = torch.zeros_like(inputs[:, :1])
        state = stepper(model, learned.spec.name, zero, static, parameters, None, learned.grid, capture)(zero)
        state = learned.reader(batch.grid, state)(state)
        parts.append(learned.normaliser.physical(state[:, None]).cpu())
    return torch.cat(parts)


def _chunks(
    model: Propagator, learned: TrainedTask, batch: Batch
) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor], Tensor]]:
    """Normalised inputs on the task's own grid, a few trajectories at a time, where the model is."""
    weight = next(model.parameters())
    normaliser = learned.normaliser
    for lo in range(0, len(batch), CHUNK):
        part = slice(lo, lo + CHUNK)
        values = normaliser.normalise(batch.values[part]).to(weight)
        static = normaliser.static({n: f[part] for n, f in batch.static.items()}, batch.values[part]).to(weight)
        parameters = {n: batch.parameters[n][part].to(weight) for n in learned.spec.parameters}
        times = batch.times[part]
        lead = (times[:, 1] - times[:, 0]).to(weight) if times.shape[1] > 1 else times[:, 0].to(weight)
        yield *learned.brought(values, static, batch.grid), parameters, lead


def on_grid(values: Float[Tensor, "N *space C"], source: Grid, target: Grid, periodic: tuple[bool, ...]) -> Tensor:
    """Cubic interpolation from one grid to another."""
    for axis in range(source.dimension):
        matrix = axis_matrix(source.positions[axis], source.extent[axis], periodic[axis], target.positions[axis], 3).to(
            values
        )
        values = apply_along(matrix, values, axis)
    return values
