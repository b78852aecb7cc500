r"""States from sensors: a trained model's assimilation beside radial basis functions and gappy POD.

    ups train benchmarks/assimilation.yaml                                (two CPU cores)
    python benchmarks/assimilation.py runs/assimilation --samples 8 --layouts 2
    ups train benchmarks/assimilation_2d.yaml
    python benchmarks/assimilation.py runs/assimilation_2d --samples 6 --layouts 1

    ups run universal                                                     (one H200)
    python benchmarks/assimilation.py runs/universal --device cuda \
        --tasks burgers kuramoto_sivashinsky diffusion_reaction vorticity
    ups run generative
    python benchmarks/assimilation.py runs/generative --device cuda --members 16

Sensors stand at random places, one for 5 % of the points, and read all channels in 10 frames of test trajectories,
with Gaussian noise of 5 % of each channel's standard deviation. What is recovered are these 10 frames. Errors are
nRMSE, means over samples, frames and channels; `ratio` is the model's over the better of the other two, to be at most
0.5. `known` is the model's rollout from the true start: its own error.

- Radial basis functions (scipy): each frame by itself or space and time together, points repeated beyond periodic
  sides; kernel, smoothing and the length of a frame are chosen on validation trajectories.
- Gappy POD: least squares of the sensors in principal components of the training data, of frames or of all 10 together;
  which, and how many, is chosen on validation trajectories.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import ups
from ups.data.sources import open_source
from ups.fields import Batch, Dataset
from ups.metrics import nrmse
from ups.models.saved import TrainedTask
from ups.pipeline.config import load_run
from ups.rollout.predict import conditions_of, read_all
from ups.simulator import Simulator

MOST_STATES = 2048
"""Frames, or windows of them, that principal components are taken of."""
BEYOND = 0.25
"""Of a periodic axis is repeated on either side of it."""


@dataclass(frozen=True, eq=False)
class Case:
    """Windows of trajectories, and what sensors of one layout read of them."""

    batch: Batch
    points: Float[Tensor, "P dim"]
    read: Float[Tensor, "N T P C"]
    noise: Float[Tensor, " C"]

    @property
    def truth(self) -> Float[Tensor, "N T *space C"]:
        return self.batch.values

    def error(self, found: Tensor) -> float:
        return float(nrmse(found, self.truth.double()).mean())


Method = Callable[[Case], Float[Tensor, "N T *space C"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", nargs="*", default=[])
    parser.add_argument("--samples", type=int, default=32, help="test trajectories")
    parser.add_argument("--layouts", type=int, default=4, help="of sensors, which share the samples")
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--stride", type=int, default=1, help="from one of these frames to the next")
    parser.add_argument("--sensors", type=float, default=0.05, help="for each point")
    parser.add_argument("--noise", type=float, default=0.05, help="in standard deviations of a channel")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if importlib.util.find_spec("scipy") is None:
        parser.error("radial basis functions are those of scipy, which is not installed; use pip install scipy")
    sim, told = ups.load(options.run, device=options.device), load_run(options.run / "config.yaml", [])
    print(
        f"{'task':22} {'model':>7} {'known':>7} {'RBF':>7} {'POD':>7} {'ratio':>6} {'misfit':>7} {'s each':>7}  chosen"
    )
    for name in options.tasks or [name for name, learned in sim.tasks.items() if not learned.spec.steady]:
        source = open_source(name, told.tasks[name], told.data, options.run / "data", told.data_seed, lambda *_: None)
        print(row(sim, sim.tasks[name], source.train, source.validation, source.tests[name], options), flush=True)


def row(sim: Simulator, learned: TrainedTask, train: Dataset, validation: Dataset, test: Dataset, options: Any) -> str:
    cases, tried = (list(made(learned, data, options, salt)) for salt, data in enumerate((test, validation)))
    rbf_name, rbf = best(rbf_methods(learned), tried)
    pod_name, pod = best(pod_methods(learned, train, options.frames, options.stride), tried)
    others = [sum(case.error(method(case)) for case in cases) / len(cases) for method in (rbf, pod)]
    own, known, misfit, began = 0.0, 0.0, 0.0, time.perf_counter()
    for case in cases:
        found = assimilated(sim, learned, case, options)
        own, misfit = own + case.error(found.mean.cpu()) / len(cases), misfit + float(found.misfit.mean()) / len(cases)
    seconds = (time.perf_counter() - began) / sum(len(case.batch) for case in cases)
    for case in cases:
        known += case.error(from_truth(sim, learned, case)) / len(cases)
    return (
        f"{learned.spec.name:22} {own:7.4f} {known:7.4f} {others[0]:7.4f} {others[1]:7.4f} {own / min(others):7.2f} "
        f"{misfit:7.2f} {seconds:7.2f}  {rbf_name}; {pod_name}"
    )


def made(learned: TrainedTask, data: Dataset, options: Any, salt: int) -> Iterable[Case]:
    """A layout after another, each with its share of the trajectories, from a frame of their own on."""
    generator = torch.Generator().manual_seed(2 * options.seed + salt)
    whole = read_all(data, options.samples)
    places = math.ceil(options.sensors * math.prod(whole.grid.shape))
    stds = torch.tensor([learned.statistics.channels[c.name].std for c in learned.spec.channels])
    assert all(c.transform != "log" for c in learned.spec.channels), "the std of a logarithm is not a sensor's noise"
    for layout in range(options.layouts):
        part = whole.select(range(layout, len(whole), options.layouts))
        span = (options.frames - 1) * options.stride + 1
        first = int(torch.randint(part.values.shape[1] - span + 1, (), generator=generator))
        part = frames_of(part, slice(first, first + span, options.stride))
        low, high = torch.tensor(part.grid.extent, dtype=torch.float64).T
        points = low + (high - low) * torch.rand(places, len(low), generator=generator, dtype=torch.float64)
        read = at_points(learned, part.values, points)
        noise = options.noise * stds
        yield Case(part, points, read + noise * torch.randn(read.shape, generator=generator), noise)


def frames_of(batch: Batch, span: slice) -> Batch:
    return replace(batch, values=batch.values[:, span], times=batch.times[:, span])


def at_points(learned: TrainedTask, values: Float[Tensor, "N T *space C"], points: Tensor) -> Float[Tensor, "N T P C"]:
    own = learned.normaliser.normalise(values.flatten(0, 1))
    return learned.normaliser.physical(learned.reader(points, own)(own)).unflatten(0, values.shape[:2])


def assimilated(sim: Simulator, learned: TrainedTask, case: Case, options: Any) -> Any:
    times = (case.batch.times[0] - case.batch.times[0, 0]).tolist()
    return sim.assimilate(
        case.read,
        case.points,
        times,
        conditions_of(case.batch),
        task=learned.spec.name,
        noise=case.noise.tolist(),
        members=options.members,
        seed=options.seed,
    )


def from_truth(sim: Simulator, learned: TrainedTask, case: Case) -> Float[Tensor, "N T *space C"]:
    """The model's rollout from the true start; of a history only its newest frame is known."""
    times = (case.batch.times[0] - case.batch.times[0, 0]).tolist()
    of = conditions_of(case.batch)
    return sim.rollout(case.truth[:, :1], times=times, conditions=of, task=learned.spec.name).values.detach().cpu()


def best(methods: Iterable[tuple[str, Method]], cases: list[Case]) -> tuple[str, Method]:
    scored = [(sum(case.error(method(case)) for case in cases), name, method) for name, method in methods]
    _, name, method = min(scored, key=lambda found: found[0] if math.isfinite(found[0]) else math.inf)
    return name, method


def rbf_methods(learned: TrainedTask) -> Iterable[tuple[str, Method]]:
    kernels = [("thin_plate_spline", 1.0), ("gaussian", 0.5), ("gaussian", 1.0)]
    for (kernel, width), smoothing in itertools.product(kernels, (1e-2, 1.0)):
        named = f"RBF {kernel} {width:g} {smoothing:g}"
        yield f"{named} a frame", rbf(learned, kernel, width, smoothing, None)
        for stretch in (0.25, 1.0, 4.0):
            yield f"{named} {stretch:g} in time", rbf(learned, kernel, width, smoothing, stretch)


def rbf(learned: TrainedTask, kernel: str, width: float, smoothing: float, stretch: float | None) -> Method:
    """Lengths are in units of the sensors' mean distance; a frame lasts `stretch` of them, if frames count together."""
    from scipy.interpolate import RBFInterpolator  # pyright: ignore[reportMissingImports]  # so that --help needs none

    def method(case: Case) -> Tensor:
        grid, (samples, frames) = learned.grid, case.read.shape[:2]
        length = (math.prod(grid.lengths) / len(case.points)) ** (1 / grid.dimension)
        stds = case.read.std((0, 1, 2))
        points, index = repeated(case.points.numpy(), grid.extent, learned.spec.boundary.periodic)
        read = (case.read / stds).numpy()[:, :, index]
        query, options = grid.points().numpy() / length, {"kernel": kernel, "epsilon": width, "smoothing": smoothing}
        points = points / length
        if stretch is None:
            values = np.moveaxis(read, 2, 0).reshape(len(points), -1)
            found = RBFInterpolator(points, values, **options)(query).reshape(len(query), samples, frames, -1)
            found = np.moveaxis(found, 0, 2)
        else:
            when = stretch * np.arange(frames)
            both = np.concatenate([np.repeat(when, len(points))[:, None], np.tile(points, (frames, 1))], 1)
            wanted = np.concatenate([np.repeat(when, len(query))[:, None], np.tile(query, (frames, 1))], 1)
            values = read.reshape(samples, len(both), -1).transpose(1, 0, 2).reshape(len(both), -1)
            near = {"neighbors": 100} if len(both) > 5000 else {}
            found = RBFInterpolator(both, values, **options, **near)(wanted).reshape(frames, len(query), samples, -1)
            found = found.transpose(2, 0, 1, 3)
        return torch.from_numpy(found).reshape(case.truth.shape) * stds

    return method


def repeated(points: np.ndarray, extent: Any, periodic: Iterable[bool]) -> tuple[np.ndarray, np.ndarray]:
    """The points and those of their images that lie near the domain, and whose images these are."""
    index = np.arange(len(points))
    for axis, ((low, high), around) in enumerate(zip(extent, periodic, strict=True)):
        if around:
            shifts = [0.0, low - high, high - low]
            index = np.tile(index, 3)
            points = np.concatenate([points + shift * np.eye(len(extent))[axis] for shift in shifts])
            margin = BEYOND * (high - low)
            near = (points[:, axis] >= low - margin) & (points[:, axis] <= high + margin)
            points, index = points[near], index[near]
    return points, index


def pod_methods(learned: TrainedTask, train: Dataset, frames: int, stride: int) -> Iterable[tuple[str, Method]]:
    normaliser = learned.normaliser
    for length in (1, frames):
        states = windows(train, length, stride)
        states = normaliser.normalise(states).flatten(1).double()
        mean = states.mean(0)
        modes = torch.linalg.svd(states - mean, full_matrices=False).Vh
        for count in sorted({round(2 ** (k / 2)) for k in range(17)}):
            if count <= len(modes):
                what = "a frame" if length == 1 else "in time"
                yield f"POD of {count} {what}", gappy(learned, mean, modes[:count], length)


def windows(data: Dataset, length: int, stride: int) -> Float[Tensor, "S T *space C"]:
    span = (length - 1) * stride + 1
    starts = len(data.times) - span + 1
    each = max(1, min(starts, MOST_STATES // len(data)))
    whole = data.read(range(min(len(data), MOST_STATES)), slice(None)).values
    firsts = torch.linspace(0, starts - 1, each).round().long().tolist()
    return torch.cat([whole[:, first : first + span : stride] for first in firsts])


def gappy(learned: TrainedTask, mean: Tensor, modes: Float[Tensor, "K D"], length: int) -> Method:
    def method(case: Case) -> Tensor:
        space, channels = learned.grid.shape, len(learned.spec.channels)
        count = case.read.shape[1] // length
        fields = torch.cat([mean[None], modes]).reshape(-1, *space, channels)
        seen = learned.reader(case.points, fields)(fields).reshape(1 + len(modes), -1)  # (1 + K, T P C)
        if len(modes) > seen.shape[1]:
            return torch.full_like(case.truth, torch.nan)
        read = learned.normaliser.normalise(case.read).double().reshape(-1, seen.shape[1])
        weights = torch.linalg.lstsq(seen[1:].T, (read - seen[0]).T).solution.T
        found = (mean + weights @ modes).reshape(-1, count * length, *space, channels)
        return learned.normaliser.physical(found)

    return method


if __name__ == "__main__":
    main()
