"""Equal wall time: every contestant trains for the same seconds, then rolls out the same test trajectories."""

from __future__ import annotations

from typing import Any

from ups.bench.contestants import STRETCHES, Contestant
from ups.bench.data import KEPT, Data
from ups.bench.throughput import block
from ups.distributed.runtime.start import Runtime
from ups.metrics import nrmse, pooled_nrmse
from ups.metrics.bootstrap import bootstrap_interval
from ups.metrics.layout import Fields
from ups.models.predictor import Predictor
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step, rollout
from ups.track.jsonl import plain
from ups.track.progress import Progress


def steps_for(seconds: float, throughput: dict[str, Any]) -> int:
    """As many steps as the measured speed gives, after what it took to get to the first; the same in every stretch."""
    left = seconds - throughput["first_step_seconds"]
    return STRETCHES * max(1, int(left / throughput["step_seconds"]) // STRETCHES)


def train(
    contestant: Contestant, data: Data, title: str, steps: int, making: float, runtime: Runtime
) -> dict[str, Any]:
    """Train a contestant that was made for `steps` steps in `making` seconds; validation is no part of its time."""
    curve: list[dict[str, float]] = []
    task, each, seconds = data.learned.spec.name, steps // STRETCHES, making
    with Progress(f"training {title}", total=steps, unit="steps") as progress:
        for stretch in range(1, STRETCHES + 1):
            seconds += each * block(contestant, each, runtime.device)
            if stretch % 2 == 0:
                with contestant.judged() as model:
                    predicted = rollout(OperatorPredictor(model, [data.learned]), task, data.validation)
                error = float(nrmse(predicted, data.validation.values[:, 1:]).mean())
                curve.append({"step": stretch * each, "seconds": seconds, "rollout_nrmse": error})
                progress.text = f"rollout nRMSE {error:.4f}"
            progress.update(stretch * each)
            runtime.check_stop(KEPT)
    return {"steps": steps, "seconds": seconds, "curve": curve}


def judge(predictor: Predictor, data: Data) -> dict[str, Any]:
    """nRMSE of one step from every true frame and of rollouts from the first, over the test set."""
    task, target = data.learned.spec.name, data.test.values[:, 1:]
    return {
        "rollout": _scored(rollout(predictor, task, data.test), target),
        "one_step": _scored(one_step(predictor, task, data.test), target),
    }


def _scored(predicted: Fields, target: Fields) -> dict[str, Any]:
    each = nrmse(predicted, target).flatten(1).mean(1)
    scores = {
        "nrmse": each.mean(),
        "ci95": bootstrap_interval(each, 0, 1000),
        "median": each.median(),
        "pooled": pooled_nrmse(predicted, target).mean(),
    }
    return plain(scores)
