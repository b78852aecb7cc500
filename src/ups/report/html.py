"""The page: header with the verdict, the table, a section a task, training, how to repeat it; one file, no network."""

from __future__ import annotations

import math
from html import escape
from importlib.resources import files
from pathlib import Path

from ups.durable import write
from ups.evaluation.labels import PERSISTENCE
from ups.report.animation import colour_tables
from ups.report.contents import Report, SummaryRow
from ups.report.gallery import gallery
from ups.report.legend import Legend
from ups.report.plots import learning_figure, training_figure
from ups.report.sections import column_head, embedded_json, figure_html, slug, task_section
from ups.report.verdict import (
    against,
    duration,
    headline,
    interval,
    is_undecided,
    judged_rows,
    listed,
    mean_against,
    number,
    times,
)

PLAYER_BYTES = 3_500_000
"""Of embedded fields in the whole page, before base64: with pictures it stays under 8 MB."""
LONG_HEADLINE = 170
"""Characters; more are set smaller, so that the numbers stay on the first screen."""
PHASES = {"data": "making data", "evaluate": "evaluation"}


def write_report(report: Report, path: Path) -> None:
    """Write the page in one act, so that no reader ever sees half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, page(report).encode())


def page(report: Report) -> str:
    """The whole document as text."""
    budget = PLAYER_BYTES // max(1, len(report.tasks))
    links = [("summary", "Summary"), *((slug(task.name), task.title) for task in report.tasks)]
    links += [("learning", "Error against data")] if report.learning else []
    links += [("training", "Training")] if report.curves else []
    links += [("reproduce", "Reproduce")]
    items = "".join(f'<li><a href="#{key}">{escape(text)}</a></li>' for key, text in links)
    body = f"""{_header(report)}
<nav aria-label="Sections"><ul>{items}</ul></nav>
<main>
{gallery(report.tasks, report.summary)}
{_summary(report)}
{"".join(task_section(task, budget) for task in report.tasks)}
{_learning(report)}
{_training(report)}
{_reproduce(report)}
</main>
<footer>Written by UPS, the Universal Physics Stack. Errors are in physical space, on samples no training saw.</footer>
{embedded_json("colour-tables", colour_tables())}
<script>{files("ups.report").joinpath("report.js").read_text(encoding="utf-8")}</script>"""
    return document(f"{report.name} · UPS report", body)


def document(title: str, body: str) -> str:
    """A whole page in the report's style, which asks for nothing from elsewhere."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{files("ups.report").joinpath("report.css").read_text(encoding="utf-8")}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _header(report: Report) -> str:
    judged, legend = judged_rows(report.summary), report.legend
    tiles = []
    for name in legend.rivals:
        if (mean := mean_against(judged, name)) is not None:
            what = f"{legend.called(name)}'s error (geometric mean over the tasks)"
            if name == PERSISTENCE:
                what = "the error of the trivial guess (persistence; training mean if steady)"
            tiles.append((times(mean), what, mean))
    tiles += [(duration(value), _phase(phase, legend), 0) for phase, value in report.seconds.items()]
    items = "".join(
        f"<li{'' if math.isfinite(value) else ' class=failed'}><b>{escape(text)}</b><span>{escape(what)}</span></li>"
        for text, what, value in tiles
    )
    said = headline(report.summary, legend)
    return f"""<header class="top">
<p class="overline">Run report · {escape(report.name)}</p>
<h1 class="headline{" long" if len(said) > LONG_HEADLINE else ""}">{escape(said)}</h1>
<ul class="tiles">{items}</ul>
</header>"""


def _phase(phase: str, legend: Legend) -> str:
    """What the seconds were spent on: a predictor's name stands for its training."""
    trained = legend.model if phase == "train" else phase
    return f"training {legend.title(trained)}" if trained in legend.names else PHASES.get(phase, phase)


def _summary(report: Report) -> str:
    names, legend = {task.name: task.title for task in report.tasks}, report.legend
    own, wide = escape(legend.title(legend.model)), ' class="many"' if len(legend.names) > 4 else ""
    head = "".join(column_head(legend, name) for name in legend.names)
    ratios = "".join(f'<th scope="col">{escape(legend.heading(name))}</th>' for name in legend.rivals)
    others = [escape(legend.title(name)) for name in legend.pictured[1:]]
    beside = f"beside {listed([*others, 'the trivial guess'])}"
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return f"""<section id="summary">
<h2>Summary</h2>
<p>One {own} model for all tasks {beside}: the last given frame (persistence), or for a
steady task the training set's mean solution. Lower is better; the best of a row is bold.</p>
<div class="scroll"><table{wide}>
<thead><tr class="groups"><th colspan="2"></th><th scope="colgroup" colspan="{len(legend.names)}">Error of</th>
<th scope="colgroup" colspan="{len(legend.rivals)}">{own} error over that of</th></tr>
<tr><th scope="col">Task</th><th scope="col" class="left">View</th>{head}{ratios}</tr></thead>
<tbody>{"".join(_summary_row(row, legend, names.get(row.task, row.task)) for row in report.summary)}</tbody>
<caption>Under the {own} error its 95 % bootstrap interval. ▼ better and ▲ worse than the other; ≈ the other's error
lies inside the interval, so these samples do not tell the two apart.</caption>
</table></div>
{f'<ul class="notes soft">{notes}</ul>' if notes else ""}
</section>"""


def _summary_row(row: SummaryRow, legend: Legend, title: str) -> str:
    finite = [value for value in row.values.values() if math.isfinite(value)]
    cells = ""
    for name in legend.names:
        value, kind = row.values.get(name), ""
        if value is not None and not math.isfinite(value):
            kind = ' class="failed"'
        elif value is not None and value == min(finite):
            kind = ' class="best"'
        ends = f"<small>{interval(row.intervals[name])}</small>" if name == row.model and name in row.intervals else ""
        cells += f"<td{kind}>{number(value)}{ends}</td>"
    ratios = "".join(
        _ratio_cell(against(row, name), name in legend.compared and is_undecided(row, name)) for name in legend.rivals
    )
    return (
        f'<tr><th scope="row">{escape(title)}</th>'
        f'<td class="left">{escape(row.view)}<small>{escape(row.metric)}</small></td>{cells}{ratios}</tr>'
    )


def _ratio_cell(value: float | None, undecided: bool) -> str:
    if value is None or math.isnan(value):
        return "<td>—</td>"
    if undecided:
        return f"<td>≈ {times(value)}</td>"
    better = value < 1
    return f'<td class="{"better" if better else "worse"}">{"▼" if better else "▲"} {times(value)}</td>'


def _learning(report: Report) -> str:
    if report.learning is None:
        return ""
    picture = figure_html(
        learning_figure(report.learning),
        "svg",
        "Error against the number of training trajectories, fine-tuned and from nothing",
        "The fine-tuned model and the same one from nothing, each trained for the same time on so many trajectories, "
        "with 95 % intervals over the test trajectories.",
    )
    return f'<section id="learning"><h2>Error against data</h2>{picture}</section>'


def _training(report: Report) -> str:
    if not report.curves:
        return ""
    picture = figure_html(
        training_figure(report.curves, report.legend),
        "svg",
        "Training loss against steps and validation error against wall time",
        "Left: training loss (thin) and its running median. Right: what the same seconds bought on the "
        "validation split; the best checkpoint is chosen there, never on the test split.",
        kind="wide",
    )
    return f'<section id="training"><h2>Training</h2>{picture}</section>'


def _reproduce(report: Report) -> str:
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in report.environment.items())
    return f"""<section id="reproduce">
<h2>Reproduce</h2>
<p>This command and configuration made every number above.</p>
{_copied("command", report.command)}
<details open><summary>Resolved configuration</summary>
{_copied("config", report.config_yaml)}
</details>
<h3>Environment</h3>
<dl>{facts}</dl>
</section>"""


def _copied(key: str, text: str) -> str:
    return (
        f'<div class="copy"><button type="button" data-copy="{key}">Copy</button>'
        f'<pre id="{key}" tabindex="0">{escape(text)}</pre></div>'
    )
