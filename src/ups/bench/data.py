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

from ups.bench.ceilings import synchronise
from ups.bench.tasks import DATA_SEED, Task
from ups.data.prepare.splits import check_disjoint
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.start import Runtime
from ups.equations import Equation
from ups.equations.schemes.marching import block_means
from ups.fields import Batch, Dataset, Grid, Header, TaskSpec
from ups.models.saved import TrainedTask
from ups.rollout.predict import read_all
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

    def __init__(self, header: Header, values: Float[Tensor, "N T *space C"], first_id: int) -> None:
        self.header, self.values, self.first_id = header, values, first_id

    def __len__(self) -> int:
        return len(self.values)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        rows = torch.tensor(list(indices), dtype=torch.long)
        times = self.header.times[frames]
        return Batch(
            task=self.task,
            values=self.values[rows][:, frames],
            times=times.expand(len(rows), -1),
            grid=self.grid,
            boundary=self.boundary,
            parameters={
                name: torch.full((len(rows),), value, dtype=torch.float64)
                for name, value in self.header.parameters.items()
                if value is not None
            },
            static={},
            ids=self.first_id + rows,
        )


@dataclass(frozen=True, eq=False)
class Data:
    """One benchmark's data. `seconds` is what it took to make them, `solver_seconds` what the solver then took from the
    first frame of a trajectory to its last, in the fastest of its chunks.
    """

    task: Task
    learned: TrainedTask
    store: FieldStore
    train: Held
    validation: Batch
    test: Batch
    test_ids: range
    fields: Float[Tensor, "N T *space C"]
    """The training trajectories, normalised, in the host's memory."""
    seconds: float
    solver_seconds: float


def prepare(task: Task, runtime: Runtime, folder: Path) -> Data:
    """Make the data of a task; the store that the Trainer reads lies in `folder`."""
    began = time.perf_counter()
    ids = range(task.train + task.validation + task.test)
    values, fastest = solved(task, ids, runtime)
    seconds = time.perf_counter() - began
    starting = _solve(task, ids[: _rows(task, runtime)], task.times[:1], runtime)[1]
    spec = task_spec(task)
    grid = Grid.cell_centred((task.points,) * spec.dimension, task.solver.grid.extent)
    header = Header(
        spec.name, task.solver.channels, grid, task.times, task.solver.boundary, dict(task.solver.parameters)
    )
    ends = (0, task.train, task.train + task.validation, len(values))
    train, validation, test = (Held(header, values[lo:hi], lo) for lo, hi in pairwise(ends))
    check_disjoint(train, validation, {"test": test})
    learned = TrainedTask(
        spec,
        grid,
        statistics(train, spec),
        {name: (value, value) for name, value in task.solver.parameters.items() if name in spec.parameters},
        (task.dt,),
    )
    store = FieldStore.build(folder / f"{task.name}-{task.points}", train, learned.normaliser)
    return Data(
        task=task,
        learned=learned,
        store=store,
        train=train,
        validation=read_all(validation),
        test=read_all(test),
        test_ids=range(ends[2], ends[3]),
        fields=learned.normaliser.normalise(train.values),
        seconds=seconds,
        solver_seconds=fastest - starting,
    )


def task_spec(task: Task) -> TaskSpec:
    return replace(task.solver.task(), dt=task.dt, latent_spacing=task.latent_spacing)


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
