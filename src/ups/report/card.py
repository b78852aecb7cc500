"""A model card: what a stranger must know of a model before using it, in Markdown. All of it is read, not computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ups.durable import read_json
from ups.evaluation.labels import PERSISTENCE
from ups.models.saved import ModelSpec, TrainedTask
from ups.report.verdict import VIEW_NAMES, interval, listed, number
from ups.track.environment import SOFTWARE, version_of

_HEAD = {"library_name": SOFTWARE, "tags": ["physics", "pde", "simulation", "neural-operator"]}
_OWN = "made by ups; no licence of others"
_UNSAID = "not said by the data; ask who published them"


def model_card(name: str, spec: ModelSpec, weights: int, run: Path | None, stage: str) -> str:
    """Of a model of so many weights: that of a `stage` of a run, or (None) one of which no run tells more."""
    metrics = _json(run, "metrics.json").get("tasks", {})
    sections = [
        f"---\n{yaml.safe_dump(_HEAD, sort_keys=False)}---",
        f"# {name}\n\nA learned simulator of {listed([task.spec.name for task in spec.tasks])}: architecture "
        f"`{spec.architecture}`, {weights:,} weights, handed over by ups {version_of(SOFTWARE)}.",
        f"## Use\n\n```python\n{_example(spec.tasks[0], several=len(spec.tasks) > 1)}\n```",
        f"## Tasks\n\n{_table(('task', 'fields', 'grid', 'sides', 'step', 'conditions'), [*map(_task, spec.tasks)])}",
        f"## Data\n\n{_data(spec, run)}",
        f"## Errors\n\n{_errors(metrics, stage)}",
        f"## Limits\n\n{_limits(spec, metrics, stage)}",
        f"## Cite\n\n{_cite()}",
    ]
    return "\n\n".join(sections) + "\n"


def _example(learned: TrainedTask, several: bool) -> str:
    spec = learned.spec
    conditions = {name: f"{low:g}" for name, (low, _) in learned.ranges.items()} | {name: name for name in spec.static}
    words = [] if spec.steady else ["u0", "steps=40"]
    words += [f"dt={learned.leads[0]:g}"] * (not spec.steady and spec.dt is None)
    words += [f"conditions={_mapping(conditions)}"] * bool(conditions)
    words += [f"forcings={_mapping({name: name for name in spec.forcings})}"] * bool(spec.forcings)
    words += ["mask=mask"] * spec.masked + [f'task="{spec.name}"'] * several
    return (
        "import ups                        # pip install universal-physics-stack\n\n"
        'sim = ups.load("FOLDER")          # this folder, or "hf://OWNER/NAME"\n'
        f"result = sim.rollout({', '.join(words)})"
    )


def _mapping(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


def _task(learned: TrainedTask) -> tuple[str, ...]:
    spec, units = learned.spec, learned.spec.units
    span = " × ".join(f"[{low:g}, {high:g}]" for low, high in learned.grid.extent)
    conditions = [
        f"{name} from {low:g} to {high:g} {units.get(name, '')}".rstrip()
        for name, (low, high) in learned.ranges.items()
    ]
    conditions += [f"{name} (a field)" for name in spec.static] + [f"{name} (a forcing)" for name in spec.forcings]
    leads = f"{spec.dt:g}" if spec.dt is not None else " to ".join(f"{lead:g}" for lead in learned.leads)
    return (
        spec.name,
        ", ".join(f"{name} {units.get(name, '')}".rstrip() for name in spec.channel_names),
        f"{' × '.join(map(str, learned.grid.shape))} points of {span}",
        spec.boundary.kinds,
        "steady" if spec.steady else f"{leads} {units.get('time', '')}".rstrip(),
        ", ".join([*conditions, *["a mask"] * spec.masked]) or "none",
    )


def _data(spec: ModelSpec, run: Path | None) -> str:
    if run is None:
        return "Not noted here; ask who gave you the model."
    config = yaml.safe_load((run / "config.yaml").read_text())["tasks"]
    noted = _json(run, "evaluation/details.json").get("data", {})
    rows = []
    for name in (learned.spec.name for learned in spec.tasks):
        told, known = config.get(name, {}), noted.get(name, {})
        made = told.get("make")
        files = ", ".join(Path(file).name for file in (told.get("files") or {}).get("train", ()))
        values = [
            f"{key} = {', '.join(f'{v:g}' for v in vs)}" for key, vs in ((made or {}).get("values") or {}).items()
        ]
        source = ", ".join([f"the solver of {made['equation']} in ups", *values]) if made else files
        licence = known.get("licence") or (_OWN if made else _UNSAID)
        rows.append((name, source, str(known.get("trajectories", "not noted")), licence))
    return _table(("task", "from", "trajectories trained on", "licence"), rows)


def _errors(metrics: Mapping[str, Any], stage: str) -> str:
    rows = []
    for task, views in metrics.items():
        for view, found in views.items():
            entry = found.get("nrmse", {})
            if stage in entry:
                others = [
                    f"{who} {number(value)}"
                    for who, value in entry.items()
                    if isinstance(value, float) and who not in (stage, "model")
                ]
                ends = interval(entry.get("ci95_of", {}).get(stage))
                rows.append((task, VIEW_NAMES.get(view, view), number(entry[stage]), ends, ", ".join(others)))
    if not rows:
        return "Not measured: this model was handed over before an evaluation (`ups evaluate RUN`)."
    head = ("task", "view", "nRMSE", "95 % of resampled test sets", "others")
    return f"On trajectories kept from training:\n\n{_table(head, rows)}"


def _limits(spec: ModelSpec, metrics: Mapping[str, Any], stage: str) -> str:
    poor = [
        task
        for task, views in metrics.items()
        if any(
            (e := v.get("nrmse", {})).get(stage) is None or e[stage] >= e.get(PERSISTENCE, e[stage] + 1)
            for v in views.values()
        )
    ]
    lines = [
        "Known for the fields, domains, sides, steps and ranges above; outside of them a rollout says so in its "
        "`warnings`, and its error is unknown.",
        "It computes on the grid above; starts on other grids are brought there and results interpolated.",
        "Values are cut off a little beyond those of the training data: a rollout stays finite also where it is wrong.",
        "A single rollout has no error bar; compare with a solver before a decision rests on it.",
    ]
    if poor:
        lines.append(f"No better than the trivial guess in some view of {listed(poor)}.")
    lines += ["No licence of these weights is stated here: who publishes them adds one, which the data's must allow."]
    return "\n".join(f"- {line}" for line in lines)


def _cite() -> str:
    return (
        "Whoever published the data, and the software:\n\n```bibtex\n@software{ups,\n"
        f"  title = {{UPS: Universal Physics Stack}},\n  author = {{{{Universal Physics Stack}}}},\n"
        f"  version = {{{version_of(SOFTWARE)}}},\n  license = {{Apache-2.0}}\n}}\n```"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _json(run: Path | None, name: str) -> dict[str, Any]:
    return read_json(run / name) if run is not None and (run / name).is_file() else {}
