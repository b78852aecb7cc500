"""Every number of a run: each view of each task by each predictor, then `metrics.json` in one act. Ranks share the
trajectories; rank 0 writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ups.config.settings import decisive
from ups.data.joined import Subset
from ups.data.sources import Source
from ups.distributed.runtime.start import Runtime
from ups.durable import read_json, write
from ups.evaluation.cheap import DRESSED, PERTURBED
from ups.evaluation.choice import choosable
from ups.evaluation.evaluate import Evaluation, evaluate
from ups.evaluation.labels import labels
from ups.evaluation.reconstruction import reconstruction
from ups.evaluation.scores import not_finite
from ups.models.predictor import PREDICTORS, PerTask, Predictor
from ups.models.saved import TrainedTask
from ups.ops.gates import Verdict, judged, references
from ups.pipeline.config import RunConfig, UntrainedConfig
from ups.pipeline.phase_seconds import note_seconds
from ups.pipeline.trainings import ALL, compared_plans, device_seconds, stage_plans
from ups.track.progress import Progress
from ups.training.data import TaskData
from ups.training.fit import Plan, progress_of
from ups.training.restore import checksum_of, restored
from ups.training.stages.codec import CodecStage


def judge(
    runtime: Runtime,
    config: RunConfig,
    directory: Path,
    tasks: dict[str, TaskData],
    sources: dict[str, Source],
    command: str,
) -> dict[str, Any]:
    """What it writes to `metrics.json`; nothing on ranks that do not write."""
    began = time.monotonic()
    stages, families = stage_plans(config, tasks, directory), compared_plans(config, tasks, directory)
    done = {family: {part: plan for part, plan in plans.items() if _ended(plan)} for family, plans in families.items()}
    restored_stages = {name: restored(plan.directory, runtime.config) for name, plan in stages.items()}
    predictors = {name: stage.predictor().to(runtime.device) for name, stage in restored_stages.items()}
    codecs = {name: stage for name, stage in restored_stages.items() if isinstance(stage, CodecStage)}
    model = next(name for name in reversed(predictors) if predictors[name].tasks)
    predictors |= {family: _family(plans, runtime) for family, plans in done.items() if plans}
    for name, untrained in config.each_untrained().items():
        predictors[name] = _untrained(untrained, predictors[model].tasks).to(runtime.device)
    trained = {name: _progress(plan) for name, plan in stages.items()}
    trained |= {f"{family}_{part}": _progress(plan) for family, plans in done.items() for part, plan in plans.items()}
    views = [(name, view) for name, source in sources.items() for view in source.tests]
    found: dict[str, Evaluation] = {}
    folder, done_before = directory / "evaluation", 0
    folder.mkdir(exist_ok=True)
    with Progress("evaluating", sum(len(sources[n].tests[v]) for n, v in views), "trajectories") as progress:
        for name, view in views:

            def tick(measured: int, _: int, view: str = view, before: int = done_before) -> None:
                progress.update(before + measured, view)
                runtime.heartbeat.mark("validate")
                runtime.check_stop("training is finished and saved; evaluation starts again")

            evaluation = evaluate(
                {who: predictor for who, predictor in predictors.items() if name in predictor.tasks},
                model,
                predictors[model].tasks[name],
                sources[name],
                view,
                seed=config.seed,
                resamples=config.evaluation.resamples,
                pictures=config.evaluation.pictures,
                solved=config.evaluation.solved,
                members=config.evaluation.members,
                training_seconds=sum(trained[stage]["seconds"] for stage in stages),
                runtime=runtime,
                tick=tick,
            )
            done_before += len(sources[name].tests[view])
            if runtime.rank == 0:
                _write_arrays(folder / f"{view}.npz", evaluation.arrays)
            found[view] = replace(evaluation, arrays={})
            runtime.check_stop("training is finished and saved; evaluation starts again")
    if runtime.rank > 0:
        return {}
    write(folder / "errors.json", json.dumps({view: evaluation.errors for view, evaluation in found.items()}).encode())
    scores = {view: evaluation.metrics for view, evaluation in found.items()}
    verdicts = judged(
        config.gates,
        scores,
        {view: evaluation.errors for view, evaluation in found.items()},
        model,
        references(config.gates, config.tasks, config.data_seed),
    )
    compared = [name for name in config.compared_names() if name in predictors]
    if any(predictor.chance for predictor in predictors.values()):
        moving = any(not task.spec.steady for task in predictors[model].tasks.values())
        compared += [DRESSED, PERTURBED] if moving else [DRESSED]
    trained_beside = [family for family, plans in done.items() if plans]
    shown = {
        "model": model,
        "predictors": [asdict(label) for label in labels([n for n in stages if predictors[n].tasks], compared)],
    }
    learned = predictors[model].tasks
    own = [(task, view) for task, view in views if sources[task].tests[view].grid.same_as(learned[task].grid)]
    floors = {
        name: {view: reconstruction(stage.model, learned[task], sources[task], view) for task, view in own}
        for name, stage in codecs.items()
    }
    notes = [note for evaluation in found.values() for note in evaluation.notes]
    operator = next((name for name, plan in stages.items() if plan.kind == "operator"), model)
    choice = {
        task: choosable(predictors[operator], task, sources[task], view, config.seed)
        for task, view in (dict(reversed(own)).items() if predictors[model].chance else ())  # the first of its views
    }
    firsts = {task: share for task, share in choice.items() if share is not None}
    solver = {view: e.solver for view, e in found.items() if e.solver}
    details = {
        "command": command,
        **shown,
        "trainings": _curves(stages, done, directory),
        "channels": {view: list(sources[name].spec.channel_names) for name, view in views},
        "data": {
            name: {"trajectories": len(source.train), "licence": source.train.header.licence}
            for name, source in sources.items()
        },
        "solver": solver,
        "notes": [
            *notes,
            *(verdict.says for verdict in verdicts),
            *_notes(done, trained, device_seconds(config, trained)),
            *_floor_notes(floors),
            *_cached_notes(stages, scores),
        ],
    }
    write(folder / "details.json", json.dumps(details, indent=1).encode())
    seconds = note_seconds(
        directory,
        train=sum(trained[stage]["seconds"] for stage in stages),
        **{family: sum(_progress(plan)["seconds"] for plan in done[family].values()) for family in trained_beside},
        evaluate=time.monotonic() - began,
    )
    whole = all(done[family].keys() == families[family].keys() for family in families)
    good = not not_finite(scores) and all(verdict.holds for verdict in verdicts)
    metrics = {
        "state": "finished" if whole and good else "evaluated",
        "name": config.name,
        "configuration": fingerprint(config),
        "seconds": seconds,
        **shown,
        "training": trained,
        "solver": solver,
        **({"reconstruction": floors} if floors else {}),
        **({"notes": notes} if notes else {}),
        **({"truth_first": firsts} if firsts else {}),
        **({"gates": [asdict(verdict) for verdict in verdicts]} if verdicts else {}),
        "tasks": scores,
    }
    write(directory / "metrics.json", (json.dumps(metrics, indent=1) + "\n").encode())
    return metrics


def look(
    runtime: Runtime, config: RunConfig, directory: Path, tasks: dict[str, TaskData], sources: dict[str, Source]
) -> list[Verdict]:
    """What the gates make of a few test trajectories of each set, kept in `evaluation/small.json`: a model that is
    surely not good enough costs no more. Of what is compared, nothing is needed.
    """
    plans = stage_plans(config, tasks, directory)
    known = {"gates": decisive(config)["gates"], "small": config.evaluation.small}
    known["stages"] = {name: checksum_of(plan.directory) for name, plan in plans.items()}
    path = directory / "evaluation" / "small.json"
    if path.is_file() and (kept := read_json(path))["of"] == known:
        return [Verdict(**verdict) for verdict in kept["gates"]]
    of = references(config.gates, config.tasks, config.data_seed)
    predictors = {name: _predictor(plan, runtime) for name, plan in plans.items()}
    model = next(name for name in reversed(predictors) if predictors[name].tasks)
    scores, errors, rows = {}, {}, {}
    for name, source in sources.items():
        for view, test in source.tests.items():
            count = min(config.evaluation.small, len(test))
            rows[view] = torch.linspace(0, len(test) - 1, count).round().long().tolist()
            few = replace(source, tests={view: Subset(test, rows[view])}, solvers=())
            evaluation = evaluate(
                {model: predictors[model]},
                model,
                predictors[model].tasks[name],
                few,
                view,
                seed=config.seed,
                resamples=config.evaluation.resamples,
                pictures=1,
                members=config.evaluation.members,
                training_seconds=0.0,
                runtime=runtime,
                tick=lambda done, of: runtime.heartbeat.mark("validate"),
            )
            scores[view], errors[view] = evaluation.metrics, evaluation.errors
            runtime.check_stop("training is finished and saved; evaluation starts again")
    verdicts = judged(config.gates, scores, errors, model, of, rows)
    path.parent.mkdir(exist_ok=True)
    write(path, json.dumps({"of": known, "gates": [asdict(verdict) for verdict in verdicts]}, indent=1).encode())
    return verdicts


def fingerprint(config: RunConfig) -> str:
    """Of all that decides a run's numbers."""
    return hashlib.sha256(json.dumps(decisive(config), sort_keys=True).encode()).hexdigest()[:16]


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    os.replace(temporary, path)


def _predictor(plan: Plan, runtime: Runtime) -> Predictor:
    return restored(plan.directory, runtime.config).predictor().to(runtime.device)


def _family(plans: dict[str, Plan], runtime: Runtime) -> Predictor:
    if ALL in plans:
        return _predictor(plans[ALL], runtime)
    return PerTask({task: _predictor(plan, runtime) for task, plan in plans.items()})


def _untrained(config: UntrainedConfig, tasks: Mapping[str, TrainedTask]) -> Predictor:
    kind = PREDICTORS[config.predictor]
    return kind.build(tasks, kind.settings.model_validate(config.model_dump(exclude={"predictor"})))


def _ended(plan: Plan) -> bool:
    budget, progress = plan.directory / "budget.json", progress_of(plan.directory)
    return budget.exists() and progress is not None and read_json(budget)["steps"] == progress["step"]


def _progress(plan: Plan) -> dict[str, Any]:
    progress = progress_of(plan.directory)
    assert progress is not None, "it was trained"
    return {key: progress[key] for key in ("step", "seconds", "device_seconds", "best_step", "best")}


def _curves(stages: dict[str, Plan], done: dict[str, dict[str, Plan]], directory: Path) -> list[dict[str, str]]:
    """Where the events of each training are."""
    curves = [(name, name, plan) for name, plan in stages.items()]
    curves += [(f"{family}, {part}", family, plan) for family, plans in done.items() for part, plan in plans.items()]
    return [
        {"label": label, "predictor": who, "events": str((plan.directory / "events.jsonl").relative_to(directory))}
        for label, who, plan in curves
    ]


def _floor_notes(floors: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"{name} keeps {floor['numbers']} of {floor['of']} numbers of a field of {view} and gives it back with an "
        f"nRMSE of {floor['nrmse']['codec']:.3g}; as many principal components with {floor['nrmse']['pca']:.3g}."
        for name, views in floors.items()
        for view, floor in views.items()
    ]


def _cached_notes(stages: Mapping[str, Plan], scores: Mapping[str, Any]) -> list[str]:
    """What every operator on latents loses against the default one, which steps on fields."""
    default = next((name for name, plan in stages.items() if plan.kind == "operator"), None)
    notes = []
    for name in (name for name, plan in stages.items() if plan.kind == "cached"):
        if default is None:
            notes.append(
                f"{name} stands beside no operator on fields; put `operator: {{}}` beside it to see what it loses."
            )
            continue
        for view, kinds in scores.items():
            own, other = (kinds["rollout"]["nrmse"][who] for who in (name, default))
            notes.append(
                f"{name} steps through latents: its rollout nRMSE on {view} is {own:.3g}, {own / other:.3g} times the "
                f"{other:.3g} of {default}."
            )
    return notes


def _notes(families: dict[str, dict[str, Plan]], trained: dict[str, Any], given: float) -> list[str]:
    """What each training came to, and the time that each family really had for the model's `given` device-seconds."""
    notes = [
        f"{name.replace('_', ' on ', 1)}: {t['step']} steps in {t['seconds']:.0f} s of training, "
        + (f"weights of step {t['best_step']} chosen on validation." if t["best_step"] >= 0 else "last weights.")
        for name, t in trained.items()
    ]
    for family, plans in families.items():
        used = sum(trained[f"{family}_{part}"]["device_seconds"] for part in plans)
        if plans:
            notes.append(
                f"{family} had {used:.0f} device-seconds of training for the model's {given:.0f}, split evenly over "
                "its networks; numbers of steps follow from speed."
            )
    return notes
