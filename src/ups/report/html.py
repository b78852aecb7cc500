"""The page: header with the verdict, the table, a section a task, training, how to repeat it; one file, no network."""

from __future__ import annotations

import math
import os
from html import escape
from importlib.resources import files
from pathlib import Path

from ups.report.animation import colour_tables
from ups.report.contents import Report, SummaryRow
from ups.report.palette import ink
from ups.report.plots import training_figure
from ups.report.sections import embedded_json, figure_html, slug, task_section
from ups.report.verdict import (
    duration,
    geometric_mean,
    headline,
    interval,
    is_undecided,
    judged_rows,
    number,
    ratio,
    times,
)

PLAYER_BYTES = 3_500_000
"""Of embedded fields in the whole page, before base64: with pictures it stays under 8 MB."""


PHASES = {"data": "making data", "train": "training UPS", "fno": "training FNOs", "evaluate": "evaluation"}


def write_report(report: Report, path: Path) -> None:
    """Write the page beside its place and rename it there, so that no reader ever sees half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page(report), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def page(report: Report) -> str:
    """The whole document as text."""
    here = files("ups.report")
    budget = PLAYER_BYTES // max(1, len(report.tasks))
    links = [("summary", "Summary"), *((slug(task.name), task.title) for task in report.tasks)]
    links += [("training", "Training")] if report.curves else []
    links += [("reproduce", "Reproduce")]
    items = "".join(f'<li><a href="#{key}">{escape(text)}</a></li>' for key, text in links)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(report.name)} · UPS report</title>
<link rel="icon" href="data:,">
<style>{here.joinpath("report.css").read_text(encoding="utf-8")}</style>
</head>
<body>
{_header(report)}
<nav aria-label="Sections"><ul>{items}</ul></nav>
<main>
{_summary(report)}
{"".join(task_section(task, budget) for task in report.tasks)}
{_training(report)}
{_reproduce(report)}
</main>
<footer>Written by UPS, the Universal Physics Stack. Errors are in physical space, on samples no training saw.</footer>
{embedded_json("colour-tables", colour_tables())}
<script>{here.joinpath("report.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _header(report: Report) -> str:
    judged = judged_rows(report.summary)
    against_fno = geometric_mean([r for row in judged if (r := ratio(row.ups, row.fno)) is not None])
    against_rest = geometric_mean([r for row in judged if (r := ratio(row.ups, row.persistence)) is not None])
    tiles = []
    if against_fno is not None:
        tiles.append((times(against_fno), "the FNO's error (geometric mean over the tasks)", against_fno))
    if against_rest is not None:
        tiles.append(
            (times(against_rest), "the error of the trivial guess (persistence; training mean if steady)", against_rest)
        )
    tiles += [(duration(value), PHASES.get(phase, phase), 0) for phase, value in report.seconds.items()]
    items = "".join(
        f"<li{'' if math.isfinite(value) else ' class=failed'}><b>{escape(text)}</b><span>{escape(what)}</span></li>"
        for text, what, value in tiles
    )
    return f"""<header class="top">
<p class="overline">Run report · {escape(report.name)}</p>
<h1 class="headline">{escape(headline(report.summary))}</h1>
<ul class="tiles">{items}</ul>
</header>"""


def _summary(report: Report) -> str:
    names = {task.name: task.title for task in report.tasks}
    head = "".join(
        f'<th scope="col" style="--dot:{ink(model).colour}"><i></i>{text}</th>'
        for model, text in (("UPS", "UPS"), ("FNO", "FNO"), ("persistence", "Persistence"))
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return f"""<section id="summary">
<h2>Summary</h2>
<p>One UPS model for all tasks beside one FNO a task and the trivial guess: the last given frame (persistence), or for a
steady task the training set's mean solution. Lower is better; the best of a row is bold.</p>
<div class="scroll"><table>
<thead><tr><th scope="col">Task</th><th scope="col" class="left">View and error</th>{head}
<th scope="col">UPS / FNO</th><th scope="col">UPS / persistence</th><th scope="col">UPS, 95 % interval</th></tr></thead>
<tbody>{"".join(_summary_row(row, names.get(row.task, row.task)) for row in report.summary)}</tbody>
<caption>▼ better and ▲ worse than the baseline; ≈ the FNO's error lies inside the 95 % bootstrap interval of the
UPS error, so these samples do not tell the two apart.</caption>
</table></div>
{f'<ul class="notes soft">{notes}</ul>' if notes else ""}
</section>"""


def _summary_row(row: SummaryRow, title: str) -> str:
    values = (row.ups, row.fno, row.persistence)
    finite = [value for value in values if value is not None and math.isfinite(value)]
    cells = ""
    for value in values:
        kind = ""
        if value is not None and not math.isfinite(value):
            kind = ' class="failed"'
        elif value is not None and value == min(finite):
            kind = ' class="best"'
        cells += f"<td{kind}>{number(value)}</td>"
    return (
        f'<tr><th scope="row">{escape(title)}</th><td class="left">{escape(row.view)}, {escape(row.metric)}</td>'
        f"{cells}{_ratio_cell(ratio(row.ups, row.fno), is_undecided(row))}"
        f"{_ratio_cell(ratio(row.ups, row.persistence), False)}<td>{interval(row.ci95)}</td></tr>"
    )


def _ratio_cell(value: float | None, undecided: bool) -> str:
    if value is None or math.isnan(value):
        return "<td>—</td>"
    if undecided:
        return f"<td>≈ {times(value)}</td>"
    better = value < 1
    return f'<td class="{"better" if better else "worse"}">{"▼" if better else "▲"} {times(value)}</td>'


def _training(report: Report) -> str:
    if not report.curves:
        return ""
    picture = figure_html(
        training_figure(report.curves),
        "svg",
        "Training loss against steps and validation error against wall time",
        "Left: training loss (thin) and its running median. Right: what the same seconds bought each model on the "
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
