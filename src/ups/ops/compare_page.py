"""Runs beside one another as one HTML file, in the style of a run's report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ups.durable import write
from ups.ops.compare import ErrorRow, figure, short_names
from ups.report.html import document
from ups.report.sections import figure_html
from ups.report.verdict import interval, number


def write_page(
    runs: Sequence[Path], rows: Sequence[ErrorRow], changed: Mapping[str, Sequence[Any]], path: Path
) -> None:
    write(path, page(runs, rows, changed, path.parent).encode())


def page(runs: Sequence[Path], rows: Sequence[ErrorRow], changed: Mapping[str, Sequence[Any]], folder: Path) -> str:
    """`folder` is where it will lie: links to the runs' own reports begin there."""
    picture = figure_html(
        figure(rows), "svg", "Errors of all runs with their intervals", "95 % intervals over the test trajectories."
    )
    names = dict(zip(map(str, runs), short_names(runs), strict=True))
    named = "".join(f'<th scope="col">{_linked(run, names[str(run)], folder)}</th>' for run in runs)
    settings = "".join(
        f'<tr><th scope="row">{escape(key)}</th>{"".join(f"<td>{_value(value)}</td>" for value in values)}</tr>'
        for key, values in changed.items()
    )
    differences = (
        f'<div class="scroll"><table><thead><tr><th scope="col">Key</th>{named}</tr></thead><tbody>{settings}</tbody>'
        "</table></div>"
        if changed
        else "<p>Nothing: the configurations are the same.</p>"
    )
    body = f"""<header class="top"><p class="overline">Comparison of runs</p>
<h1 class="headline long">{escape(_headline(names, rows))}</h1></header>
<main>
<section id="errors"><h2>Errors</h2>
<p>nRMSE on test trajectories. Ratios are to the first run; where the interval does not hold 1 (▼ better, ▲ worse)
the difference is beyond the noise of the test set, which says nothing about other seeds.</p>
{picture}
<div class="scroll"><table><thead><tr><th scope="col">Test set</th><th scope="col" class="left">View</th>
<th scope="col" class="left">Run</th><th scope="col">nRMSE</th><th scope="col">Of the first run's</th></tr></thead>
<tbody>{"".join(_row(row, names[row.run]) for row in rows)}</tbody></table></div></section>
<section id="configuration"><h2>Configured otherwise</h2>{differences}</section>
</main>"""
    return document("Comparison of runs", body)


def _headline(names: Mapping[str, str], rows: Sequence[ErrorRow]) -> str:
    """Of each run beside the first: on how many test sets it is better, and worse, beyond noise."""
    (_, first), *others = names.items()
    sentences = []
    for run, name in others:
        own = [row for row in rows if row.run == run and row.ratio is not None]
        better = sum(row.decided and row.ratio.value < 1 for row in own if row.ratio)
        worse = sum(row.decided and row.ratio.value > 1 for row in own if row.ratio)
        sentences.append(f"{name}: better than {first} in {better} of {len(own)}, worse in {worse}")
    return "; ".join(sentences) + ", beyond noise."


def _row(row: ErrorRow, name: str) -> str:
    cell = "<td>—</td>"
    if row.ratio is not None:
        mark, kind = ("▼", "better") if row.ratio.value < 1 else ("▲", "worse")
        mark, kind = (mark, kind) if row.decided else ("≈", "")
        ends = interval((row.ratio.low, row.ratio.high))
        cell = f'<td class="{kind}">{mark} {number(row.ratio.value)}<small>{ends}</small></td>'
    return (
        f'<tr><th scope="row">{escape(row.task)}</th><td class="left">{escape(row.kind.replace("_", " "))}</td>'
        f'<td class="left">{escape(name)}</td>'
        f"<td>{number(row.error)}<small>{interval((row.low, row.high))}</small></td>{cell}</tr>"
    )


def _linked(run: Path, name: str, folder: Path) -> str:
    report = run / "report.html"
    if not report.is_file():
        return escape(name)
    return f'<a href="{escape(os.path.relpath(report, folder))}">{escape(name)}</a>'


def _value(value: Any) -> str:
    return "—" if value is None else escape(str(value))
