"""What is in a dataset: axes, times, parameters, ranges, and what would harm training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ups.fields import AXES, Dataset

CHUNK_BYTES = 1 << 26  # of one read: 64 MiB


def inspect_dataset(dataset: Dataset) -> dict[str, Any]:
    """Reads the whole dataset once, in chunks; every value in the answer is plain, so it can be printed as JSON."""
    count, frames, grid = len(dataset), len(dataset.times), dataset.grid
    sample_bytes = 4 * frames * max(1, torch.Size(grid.shape).numel()) * len(dataset.channels)
    step = max(1, CHUNK_BYTES // sample_bytes)
    ranges: dict[str, _Range] = {}
    parameters: dict[str, list[float]] = {}
    for first in range(0, count, step):
        batch = dataset.read(range(first, min(count, first + step)), slice(0, frames))
        for n, channel in enumerate(dataset.channels):
            ranges.setdefault(channel, _Range(channel)).add(batch.values[..., n], first)
        for name, field in batch.static.items():
            ranges.setdefault(name, _Range(name)).add(field, first)
        for name, values in batch.parameters.items():
            parameters[name] = sorted({*parameters.get(name, []), *values.tolist()})
    names = AXES[: grid.dimension]
    axes = {
        name: {"points": len(p), "from": float(p[0]), "to": float(p[-1]), "domain": list(extent)}
        for name, p, extent in zip(names, grid.positions, grid.extent, strict=True)
    }
    for name, sides in zip(names, dataset.boundary.sides, strict=True):
        axes[name]["sides"] = [side.kind for side in sides]
    space = dict(zip(names, grid.shape, strict=True))
    return {
        "task": dataset.task,
        "shape": {"samples": count, "time": frames, **space, "channels": len(dataset.channels)},
        "axes": axes,
        "times": {"frames": frames, "from": float(dataset.times[0]), "to": float(dataset.times[-1])},
        "parameters": parameters,
        "fields": {name: found.summary() for name, found in ranges.items()},
        "problems": [problem for found in ranges.values() for problem in found.problems()],
    }


class _Range:
    """Running range of one field over chunks of samples."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.least, self.most = float("inf"), float("-inf")
        self.total = self.squares = 0.0
        self.number = self.bad = 0
        self.bad_samples: list[int] = []

    def add(self, values: Tensor, first: int) -> None:
        finite = torch.isfinite(values)
        good = values[finite].double()
        if len(good):
            self.least, self.most = min(self.least, good.min().item()), max(self.most, good.max().item())
        self.total += good.sum().item()
        self.squares += good.square().sum().item()
        self.number += len(good)
        self.bad += values.numel() - len(good)
        broken = (~finite).reshape(len(values), -1).any(1).nonzero().flatten()
        self.bad_samples += [first + n for n in broken.tolist()]

    def summary(self) -> dict[str, float | None]:
        if not self.number:
            return {"min": None, "max": None, "mean": None, "rms": None}
        mean, rms = self.total / self.number, (self.squares / self.number) ** 0.5
        return {"min": self.least, "max": self.most, "mean": mean, "rms": rms}

    def problems(self) -> list[str]:
        if self.bad:
            shown = ", ".join(map(str, self.bad_samples[:5])) + (", …" if len(self.bad_samples) > 5 else "")
            return [f"{self.name}: {self.bad} values are NaN or infinite, in samples {shown}"]
        if self.least == self.most:
            return [f"{self.name}: every value is {self.least:g}"]
        return []


def describe(found: dict[str, Any]) -> str:
    """The same for people."""
    shape = found["shape"]
    lines = [f"task        {found['task']}", f"shape       {tuple(shape.values())} ({', '.join(shape)})"]
    for name, axis in found["axes"].items():
        low, high = axis["domain"]
        lines.append(
            f"axis {name}      {axis['points']} points from {axis['from']:g} to {axis['to']:g} "
            f"in ({low:g}, {high:g}), {' / '.join(dict.fromkeys(axis['sides']))}"
        )
    times = found["times"]
    lines.append(f"times       {times['frames']} from {times['from']:g} to {times['to']:g}")
    for name, values in found["parameters"].items():
        shown = ", ".join(f"{v:g}" for v in values[:8]) + (f", … ({len(values)} values)" if len(values) > 8 else "")
        lines.append(f"parameter   {name} = {shown}")
    for name, summary in found["fields"].items():
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in summary.items() if value is not None)
        lines.append(f"field       {name}: {numbers or 'no finite value'}")
    lines += [f"problem     {problem}" for problem in found["problems"]] or ["problems    none found"]
    return "\n".join(lines)
