"""What was learned, said in numbers and one honest sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ups.report.contents import SummaryRow, TaskPage

VIEW_NAMES = {"one_step": "one step", "rollout": "rollout"}
METRIC_NAMES = {"nrmse": "nRMSE", "vrmse": "VRMSE", "relative_l2": "relative L2"}


def summary_rows(tasks: Sequence[TaskPage], metric: str = "nrmse") -> list[SummaryRow]:
    """The table's rows from the tasks' metrics: every task in every view it has, by one metric."""
    rows = []
    for task in tasks:
        for view, entries in task.metrics.items():
            if metric in entries:
                rows.append(_row(task, view, metric, entries[metric]))
    return rows


def _row(task: TaskPage, view: str, metric: str, entry: Mapping[str, Any]) -> SummaryRow:
    ends = entry.get("ci95")
    return SummaryRow(
        task=task.name,
        view="steady" if task.steady else VIEW_NAMES.get(view, view),
        metric=METRIC_NAMES.get(metric, metric),
        ups=from_json(entry["model"]),
        fno=None if entry.get("fno") is None else from_json(entry["fno"]),
        persistence=None if entry.get("persistence") is None else from_json(entry["persistence"]),
        ci95=None if ends is None else (from_json(ends[0]), from_json(ends[1])),
    )


def from_json(value: float | None) -> float:
    """JSON has no NaN: a failed value arrives as null."""
    return math.nan if value is None else float(value)


def ratio(value: float, baseline: float | None) -> float | None:
    """value / baseline; None without a baseline, inf when only the baseline is finite, 0 when only the value is."""
    if baseline is None:
        return None
    if not math.isfinite(value):
        return math.inf if math.isfinite(baseline) else math.nan
    if not math.isfinite(baseline):
        return 0.0
    return value / baseline if baseline else (math.nan if value == 0 else math.inf)


def is_undecided(row: SummaryRow) -> bool:
    """Whether the FNO's error lies inside the interval of ours, so that the samples do not tell the two apart."""
    return row.fno is not None and row.ci95 is not None and row.ci95[0] <= row.fno <= row.ci95[1]


def judged_rows(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """One row a task, its hardest view: the rollout where there is one."""
    judged: dict[str, SummaryRow] = {}
    for row in rows:
        if row.task not in judged or row.view == VIEW_NAMES["rollout"]:
            judged[row.task] = row
    return list(judged.values())


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp⟨log v⟩, the fair mean of ratios; inf when one is inf, None when nothing is there."""
    if not values:
        return None
    if any(math.isnan(v) for v in values):
        return math.nan
    return math.exp(sum(math.log(v) if v > 0 else -math.inf for v in values) / len(values))


def headline(rows: Sequence[SummaryRow]) -> str:
    """One sentence: what one model learned, against persistence and the FNO, losses named."""
    judged = judged_rows(rows)
    if not judged:
        return "No task was evaluated."
    failed = [row.task for row in judged if not math.isfinite(row.ups)]
    if failed:
        return f"The model failed on {_named(failed)}: its error there is not a finite number."
    sentence = f"One model learned {_count(len(judged), 'physical system')}"
    against_rest = [r for row in judged if (r := ratio(row.ups, row.persistence)) is not None]
    mean = geometric_mean(against_rest)
    if mean is not None and all(r < 1 for r in against_rest):
        sentence += f" with {number(100 * mean, digits=2)}\N{NO-BREAK SPACE}% of the trivial guess's error"
    elif against_rest:
        worse = [row.task for row in judged if (ratio(row.ups, row.persistence) or 0) >= 1]
        sentence += f" but is no better than the trivial guess on {_named(worse)}"
    compared = [(row, r) for row in judged if (r := ratio(row.ups, row.fno)) is not None]
    if not compared:
        return sentence + "."
    better = [row.task for row, r in compared if r < 1 and not is_undecided(row)]
    even = [row.task for row, _ in compared if is_undecided(row)]
    worse = [f"{row.task} ({times(r)} its error)" for row, r in compared if not r < 1 and not is_undecided(row)]
    parts = []
    if better:
        parts.append(f"beats the FNO on {_named(better)}")
    if even:
        parts.append(f"is level with it on {_named(even)}" if better else f"is level with the FNO on {_named(even)}")
    if worse:
        parts.append(f"loses to {'it' if better or even else 'the FNO'} on {_named(worse)}")
    return f"{sentence}; it {_listed(parts)}."


def times(value: float | None) -> str:
    """A ratio as people read it: 0.045×, 1.30×, —."""
    if value is None or math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}×" if 0.1 <= value < 100 else f"{number(value, digits=2)}×"


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits, without an exponent where a person would not write one."""
    if value is None:
        return "—"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e4:
        return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def duration(seconds: float) -> str:
    """0.4 ms, 2.1 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 1:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def interval(ends: Sequence[float] | None) -> str:
    """0.0034 to 0.0043, or a dash where there is none."""
    if ends is None or not all(math.isfinite(end) for end in ends):
        return "—"
    return " to ".join(number(end, digits=2) for end in ends)


def _named(tasks: Sequence[str]) -> str:
    """Up to four by name, more by number: the table has them all."""
    return _listed(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
