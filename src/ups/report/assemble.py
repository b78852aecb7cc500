"""From a finished run directory to the contents of its report: nothing is computed here, only read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ups.config.plugins import load_plugins
from ups.durable import read_json
from ups.equations import named
from ups.errors import UserError
from ups.evaluation.solver import Coarse, SolverComparison
from ups.report.contents import Curve, Ensemble, Report, Sample, TaskPage
from ups.report.legend import REFERENCE, Legend
from ups.report.verdict import summary_rows
from ups.track.jsonl import read_events


def assemble(run: Path) -> Report:
    """Read a run's metrics, arrays, events and configuration."""
    path = run / "metrics.json"
    if not path.is_file():
        raise UserError(f"{run} has no metrics.json; finish it with `ups run`, or evaluate it with `ups evaluate`")
    metrics = read_json(path)
    details = read_json(run / "evaluation" / "details.json")
    legend = Legend.read(details)
    config = yaml.safe_load((run / "config.yaml").read_text())
    load_plugins(config.get("plugins", ()))  # for titles and formulas of the user's own equations
    own = {name for name, task in config["tasks"].items() if task.get("define")}
    tasks = [_page(run, legend, name, views, details, own) for name, views in metrics["tasks"].items()]
    environment = read_json(run / "env.json")
    curves = [_curve(run / t["events"], t["label"], t["predictor"]) for t in details["trainings"]]
    return Report(
        name=metrics["name"],
        command=details["command"],
        config_yaml=(run / "config.yaml").read_text(),
        environment={key: str(value) for key, value in environment.items() if value},
        legend=legend,
        summary=summary_rows(tasks),
        tasks=tasks,
        curves=[curve for curve in curves if len(curve.steps)],
        seconds=metrics["seconds"],
        notes=details["notes"],
        learning=read_json(learning) if (learning := run / "curve.json").is_file() else None,
    )


def heading(task: str) -> tuple[str, str]:
    """Title and formula of a task: its equation's; one without an equation shows its name alone."""
    equation = named.EQUATIONS.get(task)
    return (task, "") if equation is None else (equation.title, equation.formula)


def _page(
    run: Path,
    legend: Legend,
    name: str,
    views: Mapping[str, Any],
    details: Mapping[str, Any],
    own: Collection[str],
) -> TaskPage:
    with np.load(run / "evaluation" / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    base = name.split("@")[0]
    title, formula = heading(base) if base not in own else (base, "")
    who = [w for w in legend.names if f"prediction_{w}" in arrays]
    dimension = sum(key.startswith("axis_") for key in arrays)
    samples = [
        Sample(
            label=_label(arrays, i),
            truth=arrays["truth"][i],
            predictions={w: arrays[f"prediction_{w}"][i] for w in who},
            static={k.removeprefix("static_"): v[i] for k, v in arrays.items() if k.startswith("static_")},
            mask=arrays["mask"][i] if "mask" in arrays else None,
            times=arrays["own_times"][i] if "own_times" in arrays else None,
        )
        for i in range(len(arrays["truth"]))
    ]
    waved = [w for w in (REFERENCE, *legend.names) if f"spectrum_{w}" in arrays]
    drawn = [w for w in legend.names if f"fan_{w}" in arrays]
    kept = [f.name for f in fields(Ensemble) if f.name != "members"]
    return TaskPage(
        legend=legend,
        name=name,
        title=title if name == base else f"{title}, {name.split('@')[1]} points",
        equation=formula,
        steady="rollout" not in views,
        channels=tuple(details["channels"][name]),
        axes=tuple(arrays[f"axis_{i}"] for i in range(dimension)),
        times=arrays["times"][arrays["frames"]],
        samples=samples,
        growth={w: (arrays["times"], arrays[f"growth_{w}"]) for w in who},
        spectra={w: (arrays["wavenumbers"], arrays[f"spectrum_{w}"]) for w in waved},
        metrics=views,
        solver=_solver(details["solver"].get(name)),
        ensembles={
            w: Ensemble(**{part: arrays[f"{part}_{w}"] for part in kept}, members=_members(arrays, w)) for w in drawn
        },
    )


def _members(arrays: Mapping[str, np.ndarray], who: str) -> np.ndarray:
    """Those kept of an ensemble, at the frames that are pictured, the given ones before."""
    if f"members_{who}" not in arrays:
        raise UserError("the run was evaluated by an older version of ups; do it again with `ups evaluate RUN`")
    found, frames = arrays[f"members_{who}"], arrays["frames"]
    given = len(arrays["times"]) - found.shape[2]
    start = np.repeat(arrays["truth"][:, None, frames < given], found.shape[1], 1)
    return np.concatenate([start, found[:, :, frames[frames >= given] - given]], 2)


def _label(arrays: Mapping[str, np.ndarray], row: int) -> str:
    values = [f"{k.removeprefix('parameter_')} = {v[row]:g}" for k, v in arrays.items() if k.startswith("parameter_")]
    return ", ".join([f"test trajectory {arrays['chosen'][row]}", *values])


def _solver(found: Mapping[str, Any] | None) -> SolverComparison | None:
    if found is None or found["model_nrmse"] is None:
        return None
    return SolverComparison(**{**found, "rows": tuple(Coarse(**row) for row in found["rows"])})


def _curve(path: Path, label: str, predictor: str) -> Curve:
    events = read_events(path)
    steps = {event["step"]: event for event in events if event["kind"] == "step"}
    found = [steps[step] for step in sorted(steps)]
    checks = {event["step"]: event["score"] for event in events if event["kind"] == "validation"}
    return Curve(
        label=label,
        steps=np.array([event["step"] for event in found], dtype=np.float64),
        seconds=np.array([event["train_seconds"] for event in found], dtype=np.float64),
        loss=np.array([event["loss"] if event["loss"] is not None else np.nan for event in found]),
        validation=[(step, np.nan if checks[step] is None else checks[step]) for step in sorted(checks)],
        predictor=predictor,
    )
