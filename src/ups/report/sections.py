"""One task's section: equation, player, pictures, error growth, spectra, coarse solvers, all metrics."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from matplotlib.figure import Figure

from ups.evaluation.solver import SolverComparison
from ups.report.animation import player_data
from ups.report.boxes import box_figure
from ups.report.contents import TaskPage
from ups.report.drawing import render
from ups.report.fans import ensemble_figure
from ups.report.legend import Legend
from ups.report.pictures import (
    cuts_figure,
    draws_every_field,
    film_figure,
    profiles_figure,
    space_time_figure,
    steady_figure,
)
from ups.report.plots import growth_figure, has_waves, solver_figure, spectra_figure
from ups.report.verdict import METRIC_NAMES, VIEW_NAMES, duration, from_json, interval, number

MOST_PICTURES = 6
STEADY_ROWS = 4


def task_section(task: TaskPage, budget: int) -> str:
    """The whole section; `budget` bounds the bytes of fields its players embed."""
    key, budget = slug(task.name), budget // 2 if task.ensembles else budget
    curves = ""
    if task.growth and not task.steady:
        text = "Mean over the test samples at each time; the given frame is not drawn. Lower and flatter is better."
        curves += figure_html(growth_figure(task), "svg", f"Error growth, {task.title}", text)
    if has_waves(task):
        text = "Mean energy of waves by wave number. Where a line leaves the black one, scales are lost or invented."
        curves += figure_html(spectra_figure(task), "svg", f"Spectra, {task.title}", text)
    return f"""<section id="{key}">
<h2>{escape(task.title)}</h2>
<p class="equation">{escape(task.equation)}</p>
<h3>{"Solutions, sample by sample" if task.steady else "Rollout, frame by frame"}</h3>
{_player(task, key, player_data(task.plane, budget))}
<h3>Fields and errors</h3>
{_pictures(task)}
{f'<h3>{"Scales" if task.steady else "Time and scales"}</h3><div class="pair">{curves}</div>' if curves else ""}
{_ensembles(task, key, budget) if task.ensembles else ""}
{_solver(task.solver, task) if task.solver else ""}
{_metrics(task)}
</section>"""


def figure_html(figure: Figure, form: str, alt: str, caption: str, kind: str = "", attributes: str = "") -> str:
    """A figure on its own light card, so that it reads in both colour schemes."""
    mime = {"svg": "image/svg+xml", "png": "image/png"}[form]
    data = base64.b64encode(render(figure, form)).decode()
    width = round(figure.get_figwidth() * 96)
    return (
        f'<figure class="{kind}" {attributes}><img alt="{escape(alt)}" style="max-width:{width * 5 // 4}px" '
        f'src="data:{mime};base64,{data}"><figcaption>{escape(caption)}</figcaption></figure>'
    )


def embedded_json(key: str, data: Mapping[str, Any]) -> str:
    """Data for the script. No "<" survives in it, so no text inside can end the element or start another."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(key)}">{text}</script>'


def slug(name: str) -> str:
    """A task's name as an element's id: "darcy@16" is "task-darcy-16"."""
    return "task-" + re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def _player(task: TaskPage, key: str, data: dict[str, Any]) -> str:
    choosers = ""
    if len(data["sequences"]) > 1:
        choosers += _chooser("Sample", "sample", [sequence["label"] for sequence in data["sequences"]])
    if len(task.channels) > 1:
        choosers += _chooser("Channel", "channel", task.channels)
    speeds = "".join(f'<option value="{v}"{" selected" if v == 1 else ""}>{v}×</option>' for v in (0.25, 0.5, 1, 2, 4))
    last = len(data["sequences"][0]["frames"]) - 1
    above = "Above: the fields; below: prediction minus truth on one scale."
    keys = "With the frame focused, space plays and the arrow keys step."
    scales = above if task.dimension == 1 else "Fields share one colour scale, errors another."
    where = f", of the plane that is drawn: z = {_middle(task)}" if task.dimension == 3 else ""
    return f"""<figure class="player" data-source="{key}-data" tabindex="0" role="group"
 aria-label="Animation of {escape(task.title)}: space plays and pauses, arrow keys step">
<div class="controls">
<button type="button" class="play" data-part="play">▶ Play</button>
<label class="time"><span>{"Sample" if task.steady else "Time"}</span>
<input type="range" min="0" max="{last}" step="1" value="0" data-part="slider">
<output data-part="time"></output></label>
<label><span>Speed</span> <select data-part="speed">{speeds}</select></label>
{choosers}
</div>
<div class="legend" data-part="legend"></div>
<div class="stage" data-part="stage"></div>
<figcaption>The number beside a name is its nRMSE in this frame{where}. {scales} {keys}
<noscript> The animation needs scripts to be allowed; the pictures below do not.</noscript></figcaption>
</figure>
{embedded_json(f"{key}-data", data)}"""


def _chooser(text: str, part: str, options: Any) -> str:
    items = "".join(f"<option>{escape(option)}</option>" for option in options)
    return f'<label><span>{text}</span> <select data-part="{part}">{items}</select></label>'


def _pictures(task: TaskPage) -> str:
    """Still pictures for print and for the eye: those of the first sample are visible, the chooser shows the others."""
    same = "All fields share one colour scale and all errors another; pointed ends mark values beyond it."
    if task.dimension > 1 and not draws_every_field(task):
        same += f" Of the fields, only those of {task.legend.title(task.legend.model)} are here; the player has all."
    if task.samples[0].mask is not None:
        same += " Grey cells are outside the domain."
    plane, channels = task.plane, range(len(task.channels))
    where = f"The plane z = {_middle(task)}. " if task.dimension == 3 else ""
    shown = task.samples[: max(1, MOST_PICTURES // len(task.channels))]
    if task.steady:
        draw = profiles_figure if task.dimension == 1 else steady_figure
        pictures = [
            (0, channel, draw(plane, plane.samples[:STEADY_ROWS], channel), where + same) for channel in channels
        ]
    else:
        draw = space_time_figure if task.dimension == 1 else film_figure
        pictures = [
            (index, channel, draw(plane, sample, channel), f"Sample {sample.label}. {where}{same}")
            for index, sample in enumerate(plane.samples[: len(shown)])
            for channel in channels
        ]
    if task.dimension == 3:
        when = "" if task.steady else " at the last time"
        seen = f"The box{when} from a corner: x to the right, y to the left, z up. "
        pictures += [
            (index, channel, box_figure(task, sample, channel), f"Sample {sample.label}. {seen}{same}")
            for index, sample in enumerate(shown)
            for channel in channels
        ]
        pictures += [
            (index, channel, cuts_figure(task, sample, channel), f"Sample {sample.label}{when}. {same}")
            for index, sample in enumerate(shown)
            for channel in channels
        ]
    return "".join(
        figure_html(
            figure,
            "png",
            f"Fields and errors of {task.title}, {task.channels[channel]}",
            text,
            kind="wide",
            attributes=f'data-sample="{index}" data-channel="{channel}"{"" if index == channel == 0 else " hidden"}',
        )
        for index, channel, figure, text in pictures
    )


def _middle(task: TaskPage) -> str:
    return f"{task.axes[2][len(task.axes[2]) // 2]:.3g}"


def _ensembles(task: TaskPage, key: str, budget: int) -> str:
    text = (
        "Left: at the middle of the domain the truth (black), the members' median and what half and nine tenths of "
        "them span. Middle: members' spread and the error of their mean, over all samples: equal where an ensemble "
        "knows how wrong it is. Right: how often so many members were below the truth: level where it is one of them."
    )
    picture = figure_html(ensemble_figure(task), "svg", f"Ensembles of {task.title}", text, kind="wide")
    first = next(iter(task.ensembles))
    page = task.of_members(first)
    player = _player(page, f"{key}-members", player_data(page.plane, budget))
    return f"<h3>Ensembles</h3>{picture}<h3>Members of {escape(task.legend.title(first))}, frame by frame</h3>{player}"


def _solver(solver: SolverComparison, task: TaskPage) -> str:
    legend = task.legend
    rows = "".join(
        f"<tr{' class=equal' if index == solver.equal else ''}><td>{row.points}</td><td>{number(row.nrmse)}</td>"
        f"<td>{duration(row.seconds)}</td></tr>"
        for index, row in enumerate(solver.rows)
    )
    picture = figure_html(
        solver_figure(solver, legend),
        "svg",
        f"Error against cost, {task.title}",
        "The solver run coarser, and the trained model.",
    )
    return f"""<h3>Against the solver itself</h3>
<p>{escape(_solver_sentence(solver))}</p>
<div class="pair"><div><div class="scroll"><table>
<thead><tr><th scope="col">Points per axis</th><th scope="col">nRMSE</th>
<th scope="col">Time a trajectory</th></tr></thead>
<tbody>{rows}<tr><th scope="row">{escape(legend.title(legend.model))}</th><td>{number(solver.model_nrmse)}</td>
<td>{duration(solver.model_seconds)}</td></tr></tbody>
<caption>Highlighted: the cheapest solver tried that is at least as accurate as the model.</caption>
</table></div></div>{picture}</div>"""


def _solver_sentence(solver: SolverComparison) -> str:
    if solver.equal is None:
        return "No coarse solver tried reaches the model's error."
    row = solver.rows[solver.equal]
    start = (
        f"The solver at {row.points} points per axis is as accurate as the model and takes {duration(row.seconds)} a "
        f"trajectory; the model takes {duration(solver.model_seconds)}."
    )
    if solver.breakeven is None or not math.isfinite(solver.breakeven):
        return f"{start} The solver is the faster of the two, so training never pays off here."
    return f"{start} Training has paid off after {math.ceil(solver.breakeven):,} simulations."


def _metrics(task: TaskPage) -> str:
    """Every number of the task with its interval, for those who look for one."""
    entries_of_all = [entry for entries in task.metrics.values() for entry in entries.values()]
    run = {task.legend.model}.union(*entries_of_all)
    names = [name for name in task.legend.names if name in run]
    rows = ""
    for view, entries in task.metrics.items():
        shown = "steady" if task.steady else VIEW_NAMES.get(view, view)
        for metric, entry in entries.items():
            cells = "".join(f"<td>{_entry(entry, name, task.legend)}</td>" for name in names)
            rows += (
                f'<tr><th scope="row">{escape(METRIC_NAMES.get(metric, metric.replace("_", " ")))}</th>'
                f'<td class="left">{escape(shown)}</td>{cells}</tr>'
            )
    head = "".join(column_head(task.legend, name, task.steady) for name in names)
    return f"""<details><summary>All metrics</summary><div class="scroll"><table class="dense">
<thead><tr><th scope="col">Metric</th><th scope="col" class="left">View</th>{head}</tr></thead>
<tbody>{rows}</tbody>
<caption>Under each number its 95 % bootstrap interval over the test samples.</caption></table></div></details>"""


def column_head(legend: Legend, name: str, steady: bool = False) -> str:
    """A predictor's title over its column, with a dot of its colour."""
    return f'<th scope="col" style="--dot:{legend.ink(name).colour}"><i></i>{escape(legend.heading(name, steady))}</th>'


def _entry(entry: Mapping[str, Any], name: str, legend: Legend) -> str:
    """A predictor that was not run is a dash; a null is a NaN that JSON could not hold."""
    own = name == legend.model
    key = "model" if own else name
    if key not in entry:
        return "—"
    ends = entry.get("ci95") if own else entry.get("ci95_of", {}).get(name)
    below = f"<small>{interval([from_json(end) for end in ends])}</small>" if ends else ""
    return number(from_json(entry[key])) + below
