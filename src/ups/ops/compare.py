"""Finished runs beside one another: errors, which differences are beyond noise, and what was configured otherwise.

The first run is what the others are compared with. Where two runs have the same test trajectories, as the errors of
persistence show, which do not depend on any training, the trajectories are drawn again together: some are hard for
everybody, and their difference is known better than either. Else each run's are drawn by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from ups.bench.ratios import MODEL, Ratio, Result, average, ratio
from ups.config.load import read_mapping
from ups.distributed.launch.run_directory import leaves
from ups.errors import UserError
from ups.evaluation.labels import PERSISTENCE
from ups.metrics.bootstrap import bootstrap_interval, central, draws, resampled_means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OWN = {"name"}
"""Keys in which runs always differ."""


@dataclass(frozen=True)
class ErrorRow:
    """nRMSE of a run's model on a test set, its 95 % interval, and its ratio to the first run's."""

    task: str
    kind: str
    run: str
    error: float
    low: float
    high: float
    ratio: Ratio | None = None
    paired: bool = False

    @property
    def decided(self) -> bool:
        """Whether the ratio to the first run is beyond the noise of the test trajectories."""
        return self.ratio is not None and not self.ratio.low <= 1.0 <= self.ratio.high


def compare(runs: Sequence[Path]) -> list[ErrorRow]:
    """All rows of the test sets that every run has, grouped by test set."""
    if len(runs) < 2:
        raise UserError("give two runs or more to compare")
    names = [str(run) for run in runs]
    results = [Result.of(run) for run in runs]
    common = [task for task in results[0].errors if all(task in result.errors for result in results)]
    if not common:
        raise UserError(f"{', '.join(names)} have no test set in common; compare runs of the same tasks")
    rows = []
    for task in common:
        for kind, first in results[0].errors[task].items():
            for name, result in zip(names, results, strict=True):
                errors = result.errors[task].get(kind)
                if errors is not None:
                    rows.append(_row(task, kind, name, errors, None if result is results[0] else first))
    return rows


def _row(
    task: str,
    kind: str,
    run: str,
    errors: Mapping[str, Sequence[float | None]],
    first: Mapping[str, Sequence[float | None]] | None,
) -> ErrorRow:
    own = errors[MODEL]
    low, high = bootstrap_interval(_tensor(own), seed=0)
    if first is None:
        return ErrorRow(task, kind, run, average(own), float(low), float(high))
    paired = errors[PERSISTENCE] == first[PERSISTENCE]
    found = ratio(own, first[MODEL]) if paired else _unpaired(own, first[MODEL])
    return ErrorRow(task, kind, run, average(own), float(low), float(high), found, paired)


def _unpaired(errors: Sequence[float | None], others: Sequence[float | None]) -> Ratio:
    both = [_tensor(values) for values in (errors, others)]
    means = [resampled_means(values, draws(len(values), seed)) for seed, values in enumerate(both)]
    low, high = central(means[0] / means[1])
    return Ratio(float(both[0].mean() / both[1].mean()), float(low), float(high))


def _tensor(values: Sequence[float | None]) -> torch.Tensor:
    return torch.tensor([math.inf if value is None else value for value in values], dtype=torch.float64)


def short_names(runs: Sequence[str | Path]) -> list[str]:
    """Their folders' names, or whole paths where two have the same."""
    names = [Path(run).name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def differences(runs: Sequence[Path]) -> dict[str, list[Any]]:
    """The keys in which configurations differ, and each run's value."""
    flat = [leaves(read_mapping(run / "config.yaml")) for run in runs]
    keys = sorted({key for values in flat for key in values} - _OWN)
    told = {key: [values.get(key) for values in flat] for key in keys}
    return {key: values for key, values in told.items() if any(value != values[0] for value in values)}


def error_table(rows: Sequence[ErrorRow]) -> Table:
    found = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("test set", "of", "run", "nRMSE (95 %)", "of the first run's (95 %)", ""):
        found.add_column(heading)
    for row in rows:
        says = ("paired, " if row.paired else "") + ("beyond noise" if row.decided else "within noise")
        beside = ("", "") if row.ratio is None else (str(row.ratio), says)
        error = f"{row.error:.3g} ({row.low:.3g} to {row.high:.3g})"
        found.add_row(row.task, row.kind.replace("_", " "), row.run, error, *beside)
    return found


def as_plain(rows: Sequence[ErrorRow], changed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "errors": [
            asdict(row) | {"ratio": row.ratio and row.ratio._asdict(), "beyond_noise": row.decided} for row in rows
        ],
        "configuration": dict(changed),
    }


def draw(rows: Sequence[ErrorRow], path: Path) -> None:
    from ups.rollout.pictures import Picture

    Picture(figure(rows)).save(path)


def figure(rows: Sequence[ErrorRow]) -> Figure:
    """The errors with their intervals, a panel a test set, four beside one another."""
    from matplotlib.figure import Figure

    from ups.report.drawing import plain

    panels = list(dict.fromkeys((row.task, row.kind) for row in rows))
    runs = list(dict.fromkeys(row.run for row in rows))
    columns, lines = min(len(panels), 4), math.ceil(len(panels) / 4)
    found = Figure(figsize=(3.2 * columns, (0.45 * len(runs) + 1.2) * lines), layout="constrained")
    for number, (task, kind) in enumerate(panels, 1):
        axes = found.add_subplot(lines, columns, number)
        for row in (row for row in rows if (row.task, row.kind) == (task, kind)):
            ends = [[row.error - row.low], [row.high - row.error]]
            axes.errorbar([row.error], [runs.index(row.run)], xerr=ends, fmt="o", capsize=3)
        axes.set_yticks(
            range(len(runs)),
            [plain(name) for name in short_names(runs)] if number % 4 == 1 or columns == 1 else [""] * len(runs),
        )
        axes.set(title=plain(f"{task}, {kind.replace('_', ' ')}"), xlabel="nRMSE", ylim=(len(runs) - 0.5, -0.5))
    return found
