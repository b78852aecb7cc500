"""What is in a dataset: axes, times, parameters, ranges, and what would harm training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.formats.layouts import layout_of
from ups.data.prepare.row_ranges import row_ranges
from ups.data.prepare.splits import content_hash
from ups.errors import UserError
from ups.fields import AXES, Batch, Dataset

CHUNK_BYTES = 1 << 26  # of one read: 64 MiB


def layout_name(path: Path) -> str:
    return "a folder of files" if path.is_dir() else layout_of(path).name


def inspect_dataset(dataset: Dataset) -> dict[str, Any]:
    """Reads the whole dataset once, in chunks; every value in the answer is plain, so it can be printed as JSON."""
    count, frames, grid, header = len(dataset), len(dataset.times), dataset.grid, dataset.header
    ranges: dict[str, _Range] = {}
    parameters: dict[str, set[float]] = {name: set() for name in header.parameters}
    starts: dict[str, int] = {}
    times = dataset.times[None] if header.own_times is None else header.own_times
    problems = _uneven(times)
    for batch in _readable(dataset, problems):
        fields = {channel: batch.values[..., n] for n, channel in enumerate(dataset.channels)}
        for name, field in {**fields, **batch.static, **batch.forcings}.items():
            found = ranges.setdefault(name, _Range(name))
            if batch.mask is None:
                found.add(field, batch.ids)
            else:  # a sample at a time: each has cells of its own
                inside = zip(field, batch.mask, batch.ids, strict=True)
                for own, mask, sample in inside:
                    found.add(own[..., mask][None], sample[None])
        for name, values in batch.parameters.items():
            parameters.setdefault(name, set()).update(values.tolist())
        for row, sample in enumerate(batch.ids.tolist()):
            first = starts.setdefault(content_hash(batch, row), sample)
            if first != sample:
                problems.append(f"samples {first} and {sample} are the same: they start equal, under equal conditions")
    names = AXES[: grid.dimension]
    axes = {
        name: {"points": len(p), "from": float(p[0]), "to": float(p[-1]), "domain": list(extent)}
        for name, p, extent in zip(names, grid.positions, grid.extent, strict=True)
    }
    for name, sides in zip(names, dataset.boundary.sides, strict=True):
        axes[name]["sides"] = [str(side) for side in sides]
    space = dict(zip(names, grid.shape, strict=True))
    return {
        "task": dataset.task,
        "shape": {"samples": count, "time": frames, **space, "channels": len(dataset.channels)},
        "dtype": str(header.dtype).removeprefix("torch."),
        "axes": axes,
        "times": {"frames": frames, "from": float(times.min()), "to": float(times.max()), "own": len(times) > 1},
        "parameters": {name: sorted(values) for name, values in parameters.items()},
        "masked": header.masked,
        "licence": header.licence,
        "notes": {
            name: value if isinstance(value, str | int | float) else str(value) for name, value in header.notes.items()
        },
        "fields": {name: found.summary() for name, found in ranges.items()},
        "problems": _shortened(problems) + [problem for found in ranges.values() for problem in found.problems()],
    }


def _readable(dataset: Dataset, problems: list[str]) -> Iterator[Batch]:
    """The dataset in chunks. Readers refuse samples with NaN or damage: these are noted and left out."""
    for rows in row_ranges(dataset, len(dataset.times), CHUNK_BYTES):
        try:
            yield dataset.read(rows, slice(None))
        except UserError:
            for row in rows:
                try:
                    yield dataset.read([row], slice(None))
                except UserError as error:
                    problems.append(str(error))


def _uneven(times: Float[Tensor, "*N T"]) -> list[str]:
    steps = times.diff()
    if not steps.numel() or float(steps.max() - steps.min()) <= 1e-4 * float(steps.abs().mean()):
        return []
    ends = f"{float(steps.min()):g} to {float(steps.max()):g}"
    return [f"times are uneven: steps from {ends}; a run needs tasks.NAME.times=resample or times=own"]


def _shortened(problems: list[str], most: int = 5) -> list[str]:
    return problems if len(problems) <= most else [*problems[:most], f"… and {len(problems) - most} more of this kind"]


class _Range:
    """Running range of one field over chunks of samples."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.least, self.most = float("inf"), float("-inf")
        self.total = self.squares = 0.0
        self.number = self.bad = 0
        self.bad_samples: list[int] = []

    def add(self, values: Tensor, ids: Int[Tensor, " B"]) -> None:
        finite = torch.isfinite(values)
        good = values[finite].double()
        if len(good):
            self.least, self.most = min(self.least, good.min().item()), max(self.most, good.max().item())
        self.total += good.sum().item()
        self.squares += good.square().sum().item()
        self.number += len(good)
        self.bad += values.numel() - len(good)
        self.bad_samples += ids[(~finite).reshape(len(values), -1).any(1)].tolist()

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
    shape = found["shape"]
    lines = [f"layout      {found['layout']}"] if "layout" in found else []
    lines += [f"task        {found['task']}", f"shape       {tuple(shape.values())} ({', '.join(shape)})"]
    for name, axis in found["axes"].items():
        low, high = axis["domain"]
        lines.append(
            f"axis {name}      {axis['points']} points from {axis['from']:g} to {axis['to']:g} "
            f"in ({low:g}, {high:g}), {' / '.join(dict.fromkeys(axis['sides']))}"
        )
    times = found["times"]
    whose = ", each trajectory its own" if times["own"] else ""
    lines.append(f"times       {times['frames']} from {times['from']:g} to {times['to']:g}{whose}")
    for name, values in found["parameters"].items():
        shown = ", ".join(f"{v:g}" for v in values[:8]) + (f", … ({len(values)} values)" if len(values) > 8 else "")
        lines.append(f"parameter   {name} = {shown or 'not given'}")
    for name, summary in found["fields"].items():
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in summary.items() if value is not None)
        lines.append(f"field       {name}: {numbers or 'no finite value'}")
    lines += [f"precision   {found['dtype']}"]
    lines += ["mask        the field does not live everywhere"] if found["masked"] else []
    lines += [f"licence     {found['licence']}"] if found["licence"] else []
    lines += [f"note        {name}: {value}" for name, value in found["notes"].items()]
    lines += [f"problem     {problem}" for problem in found["problems"]] or ["problems    none found"]
    return "\n".join(lines)
