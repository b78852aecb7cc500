"""The trajectories of a benchmark: solved on the device, averaged to the stored grid, split, normalised."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ups.bench.roofline import synchronise
from ups.bench.tasks import DATA_SEED, Task
from ups.data.prepare.splits import check_disjoint
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.start import Runtime
from ups.equations import Equation
from ups.equations.schemes.marching import block_means
from ups.fields import Batch, Dataset, Grid, Header
from ups.models.saved import TrainedTask
from ups.store.fields import FieldStore
from ups.track.progress import Progress

KEPT = "results of finished contestants are kept"
"""What one who stops the benchmark is told."""
_CHUNK = {"cpu": 32, "cuda": 1024}
"""Trajectories solved at once, at most."""
_CELLS = 2**22
"""Points of them all: enough to fill a GPU, and a chunk takes seconds, so progress is seen."""


class Held(Dataset):
    """Trajectories in the host's memory, as a Dataset."""

    def __init__(self, header: Header, batch: Batch) -> None:
        self.header, self.batch = header, batch

    def __len__(self) -> int:
        return len(self.batch)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        part = self.batch.select(indices)
        return replace(part, values=part.values[:, frames], times=part.times[:, frames])


@dataclass(frozen=True, eq=False)
class Data:
    """One benchmark's data. `fields` are the training trajectories, normalised, in the host's memory; `seconds` is what
    it took to make all of them, `solver_seconds` what the solver then took from the first frame of a trajectory to its
    last, in the fastest of its chunks.
    """

    task: Task
    learned: TrainedTask
    store: FieldStore
    train: Held
    validation: Batch
    test: Batch
    fields: Float[Tensor, "N T *space C"]
    seconds: float
    solver_seconds: float


def prepare(task: Task, runtime: Runtime, folder: Path) -> Data:
    """Make the data of a task; the store that the Trainer reads lies in `folder`."""
    began = time.perf_counter()
    ids = range(task.train + task.validation + task.test)
    values, fastest = solved(task, ids, runtime)
    seconds = time.perf_counter() - began
    starting = _solve(task, ids[: _rows(task, runtime)], task.times[:1], runtime)[1]
    spec = replace(task.solver.task(), dt=task.dt, latent_spacing=task.latent_spacing)
    grid = Grid.cell_centred((task.points,) * spec.dimension, task.solver.grid.extent)
    header = Header(
        spec.name, task.solver.channels, grid, task.times, task.solver.boundary, dict(task.solver.parameters)
    )
    parameters = {name: torch.full((len(ids),), v, dtype=torch.float64) for name, v in task.solver.parameters.items()}
    times = task.times.expand(len(ids), -1)
    whole = Batch(spec.name, values, times, grid, header.boundary, parameters, {}, torch.arange(len(ids)))
    parts = [slice(lo, hi) for lo, hi in pairwise((0, task.train, task.train + task.validation, len(ids)))]
    train, validation, test = (
        Held(header, whole.mapped(lambda tensor, part=part: tensor[part], whole.ids[part])) for part in parts
    )
    check_disjoint(train, validation, {"test": test})
    learned = TrainedTask(
        spec,
        grid,
        statistics(train, spec),
        {name: (value, value) for name, value in task.solver.parameters.items() if name in spec.parameters},
        (task.dt,),
    )
    store = FieldStore.build(folder / f"{task.name}-{task.points}", train, learned.normaliser)
    fields = learned.normaliser.normalise(train.batch.values)
    return Data(task, learned, store, train, validation.batch, test.batch, fields, seconds, fastest - starting)


def solved(task: Task, ids: range, runtime: Runtime) -> tuple[Float[Tensor, "N T *space C"], float]:
    """The given trajectories on the stored grid, in the host's memory; the solver's seconds for one, at best."""
    rows = _rows(task, runtime)
    spec = task.solver.task()
    out = torch.empty(len(ids), task.frames, *(task.points,) * spec.dimension, len(task.solver.channels))
    fastest = math.inf
    with Progress(f"solving {task.name}", total=len(ids), unit="trajectories") as progress:
        for lo in range(0, len(ids), rows):
            part, seconds = _solve(task, ids[lo : lo + rows], task.times, runtime)
            fastest = min(fastest, seconds)
            out[lo : lo + rows] = averaged(task.solver, part.values, task.points)
            progress.update(min(lo + rows, len(ids)))
            runtime.check_stop(KEPT)
    return out, fastest


def _rows(task: Task, runtime: Runtime) -> int:
    """Trajectories of a chunk."""
    return min(_CHUNK[runtime.device.type], max(1, _CELLS // math.prod(task.solver.grid.shape)))


def _solve(task: Task, ids: range, times: Float[Tensor, " T"], runtime: Runtime) -> tuple[Batch, float]:
    """Some trajectories, drawn and solved, and the seconds of each."""
    began = time.perf_counter()
    part = task.solver.solve(DATA_SEED, ids, times, runtime.device)
    synchronise(runtime.device)
    return part, (time.perf_counter() - began) / len(part)


def averaged(solver: Equation, values: Float[Tensor, "N T *space C"], points: int) -> Float[Tensor, "N T *space2 C"]:
    """Means over the cells of a coarser grid; the same numbers where the grid is the same."""
    if values.shape[2] == points:
        return values
    means = block_means(solver.name, values.flatten(0, 1).double(), points, range(1, values.dim() - 2))
    return means.unflatten(0, values.shape[:2]).to(values.dtype)
