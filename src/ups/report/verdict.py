"""What was learned, said in numbers and one honest sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ups.evaluation.labels import PERSISTENCE
from ups.report.contents import SummaryRow, TaskPage
from ups.report.legend import Legend

VIEW_NAMES = {"one_step": "one step", "rollout": "rollout"}
METRIC_NAMES = {
    "nrmse": "nRMSE",
    "vrmse": "VRMSE",
    "crps": "CRPS",
    "mean_nrmse": "nRMSE of the members' mean",
    "spread_skill": "spread over skill",
    "coverage_50": "coverage of 50 % intervals",
    "coverage_90": "coverage of 90 % intervals",
    "relative_l2": "relative L2",
    "half_steps": "nRMSE of two half steps against one whole",
}


SUMMARY = ("nrmse", "crps")
"""The metrics of the tables; of a run without ensembles the first alone."""


def summary_rows(tasks: Sequence[TaskPage], metrics: Sequence[str] = SUMMARY) -> list[SummaryRow]:
    """The table's rows from the tasks' metrics: every task in every view it has, by each metric it has there."""
    found = [(task, view, metric) for task in tasks for view in task.metrics for metric in metrics]
    return [_row(t, view, metric, t.metrics[view][metric]) for t, view, metric in found if metric in t.metrics[view]]


def _row(task: TaskPage, view: str, metric: str, entry: Mapping[str, Any]) -> SummaryRow:
    model = task.legend.model
    ends = {**entry.get("ci95_of", {}), **({model: entry["ci95"]} if "ci95" in entry else {})}
    return SummaryRow(
        task=task.name,
        view="steady" if task.steady else VIEW_NAMES.get(view, view),
        metric=METRIC_NAMES.get(metric, metric),
        values={model: from_json(entry["model"])}
        | {name: from_json(entry[name]) for name in task.legend.names if name in entry},
        model=model,
        intervals={name: (from_json(low), from_json(high)) for name, (low, high) in ends.items()},
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


def against(row: SummaryRow, rival: str) -> float | None:
    """The model's error over a rival's, as `ratio`; None where the rival was not run."""
    return ratio(row.own, row.values.get(rival))


def is_undecided(row: SummaryRow, rival: str) -> bool:
    """Whether the rival's error lies inside the interval of ours, so that the samples do not tell the two apart."""
    if rival not in row.values or row.model not in row.intervals:
        return False
    low, high = row.intervals[row.model]
    return low <= row.values[rival] <= high


def judged_rows(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """One row a task, its hardest view: the rollout where there is one; by its CRPS, where it is an ensemble's."""
    judged: dict[str, SummaryRow] = {}
    for row in rows:
        if row.task not in judged or row.view in (VIEW_NAMES["rollout"], judged[row.task].view):
            judged[row.task] = row
    return list(judged.values())


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp⟨log v⟩, the fair mean of ratios; inf when one is inf, None when nothing is there."""
    if not values:
        return None
    if any(math.isnan(v) for v in values):
        return math.nan
    return math.exp(sum(math.log(v) if v > 0 else -math.inf for v in values) / len(values))


def mean_against(rows: Sequence[SummaryRow], rival: str) -> float | None:
    """The geometric mean of the ratios to a rival, over the rows where it gave a number."""
    found = [against(row, rival) for row in rows if math.isfinite(row.values.get(rival, math.nan))]
    return geometric_mean([r for r in found if r is not None])


def headline(rows: Sequence[SummaryRow], legend: Legend) -> str:
    """One sentence: what one model learned, against the trivial guess and each predictor it is compared with."""
    judged = judged_rows(rows)
    if not judged:
        return "No task was evaluated."
    failed = [row.task for row in judged if not math.isfinite(row.own)]
    if failed:
        return f"The model failed on {_named(failed)}: its error there is not a finite number."
    sentence = f"One model learned {_count(len(judged), 'physical system')}"
    trivial = {row.task: r for row in judged if (r := against(row, PERSISTENCE)) is not None}
    mean = geometric_mean(list(trivial.values()))
    if mean is not None and all(r < 1 for r in trivial.values()):
        sentence += f" with {number(100 * mean, digits=2)}\N{NO-BREAK SPACE}% of the trivial guess's error"
    elif trivial:
        worse = [task for task, r in trivial.items() if r >= 1]
        sentence += f" but is no better than the trivial guess on {_named(worse)}"
    rivals: dict[tuple, list[str]] = {}  # those with the same outcome share a clause
    for name in legend.compared:
        rivals.setdefault(_outcome(judged, rows, name), []).append(legend.called(name))
    return "; it ".join([sentence, *(clause for o, who in rivals.items() if (clause := _clause(o, who)))]) + "."


def _outcome(judged: Sequence[SummaryRow], rows: Sequence[SummaryRow], rival: str) -> tuple[tuple, tuple, tuple, tuple]:
    """The tasks a rival is beaten on, level on, and ahead on (with its lead, as people read it); and of those it is
    beaten on, where it is ahead in one step.
    """
    compared = [(row, r) for row in judged if (r := against(row, rival)) is not None]
    decided = [(row.task, r) for row, r in compared if not is_undecided(row, rival)]
    won = [task for task, r in decided if r < 1]
    metrics = {row.task: row.metric for row in judged if row.task in won}
    steps = [row for row in rows if row.view == VIEW_NAMES["one_step"] and metrics.get(row.task) == row.metric]
    ahead = [(row.task, r) for row in steps if (r := against(row, rival)) is not None and not is_undecided(row, rival)]
    return (
        tuple(won),
        tuple(row.task for row, _ in compared if is_undecided(row, rival)),
        tuple((task, times(r)) for task, r in decided if not r < 1),
        tuple((task, times(r)) for task, r in ahead if not r < 1),
    )


def _clause(outcome: tuple, rivals: Sequence[str]) -> str:
    """What follows "it": beats the FNO on advection and loses to it on burgers (1.50× its error)."""
    them, their = ("it", "its") if len(rivals) == 1 else ("them", "their")
    who, (better, even, worse, ahead) = listed(rivals), outcome
    parts = []
    if better:
        steps = _named([f"{task}, {lead} {their} error" for task, lead in ahead]) if ahead else ""
        parts.append(f"beats {who} on {_named(better)}" + (f" (but not in one step on {steps})" if ahead else ""))
    if even:
        parts.append(f"is level with {them if parts else who} on {_named(even)}")
    if worse:
        lost = [f"{task} ({lead} {their} error)" for task, lead in worse]
        parts.append(f"loses to {them if parts else who} on {_named(lost)}")
    return listed(parts) if parts else ""


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
        return "not finite"
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
    return listed(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks"


def listed(words: Sequence[str]) -> str:
    """One, one and another, or one, two and a third."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """One line a task and view: the error of every predictor, and the model's over each of its rivals'; then what is to
    be known of the test data.
    """
    legend = Legend.read(metrics)
    own = legend.title(legend.model)
    titles = [legend.title(name) for name in legend.names]
    rows = [("nRMSE", "", *titles, *(f"{own} / {legend.title(name)}" for name in legend.rivals))]
    for task, views in metrics["tasks"].items():
        for view, metric in ((view, metric) for view in views for metric in SUMMARY if metric in views[view]):
            values = views[view][metric]
            model = values["model"]
            numbers = [_decimals(values[name]) if name in values else "-" for name in legend.names]
            ratios = [_decimals(model / values[name]) if model and values.get(name) else "-" for name in legend.rivals]
            shown = view.replace("_", " ") + ("" if metric == SUMMARY[0] else f", {METRIC_NAMES[metric]}")
            rows.append((task, shown, *numbers, *ratios))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            c.ljust(w) if n < 2 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in metrics.get("notes", []))])


def _decimals(value: float | None) -> str:
    """Four decimals, or an exponent where nobody would read so many digits; JSON has null for what is not finite."""
    if value is None:
        return "not finite"
    return f"{value:.4f}" if value < 1e4 else f"{value:.1e}"
