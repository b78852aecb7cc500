"""Equal wall time: every contestant trains for the same seconds, then rolls out the same test trajectories."""

from __future__ import annotations

from typing import Any

from ups.bench.contestants import Contestant
from ups.bench.data import Data
from ups.metrics import nrmse, pooled_nrmse
from ups.metrics.bootstrap import bootstrap_interval
from ups.metrics.layout import Fields
from ups.models.predictor import Predictor
from ups.models.propagator import Propagator
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step, rollout
from ups.track.jsonl import plain
from ups.track.progress import Progress

RESAMPLES = 1000
FEWEST = 8
"""Steps of the shortest training."""


def steps_for(seconds: float, throughput: dict[str, Any]) -> int:
    """As many steps as the measured speed gives, after what it took to get to the first."""
    left = seconds - throughput["first_step_seconds"]
    return max(FEWEST, int(left / throughput["step_seconds"]))


def trained(
    contestant: Contestant, data: Data, title: str, steps: int, making: float
) -> tuple[dict[str, Any], Propagator]:
    """Train a contestant that was made for `steps` steps in `making` seconds, and judge it on the test set."""
    curve: list[dict[str, float]] = []
    with Progress(f"training {title}", total=steps, unit="steps") as progress:

        def validate(step: int, seconds: float, model: Propagator) -> float:
            predictor = OperatorPredictor(model, [data.learned])
            predicted = rollout(predictor, data.learned.spec.name, data.validation)
            error = float(nrmse(predicted, data.validation.values[:, 1:]).mean())
            curve.append({"step": step, "seconds": making + seconds, "rollout_nrmse": error})
            progress.update(step, f"rollout nRMSE {error:.4f}")
            return error

        seconds = making + contestant.train(validate, progress.update)
    model = contestant.trained()
    result = {"steps": curve[-1]["step"], "seconds": seconds, "curve": curve}
    return result | judged(OperatorPredictor(model, [data.learned]), data), model


def judged(predictor: Predictor, data: Data) -> dict[str, Any]:
    """nRMSE of one step from every true frame and of rollouts from the first, over the test set."""
    task, target = data.learned.spec.name, data.test.values[:, 1:]
    return {
        "rollout": scored(rollout(predictor, task, data.test), target),
        "one_step": scored(one_step(predictor, task, data.test), target),
    }


def scored(predicted: Fields, target: Fields) -> dict[str, Any]:
    each = nrmse(predicted, target).flatten(1).mean(1)
    low, high = bootstrap_interval(each, 0, RESAMPLES)
    return {
        "nrmse": plain(each.mean()),
        "ci95": [plain(low), plain(high)],
        "median": plain(each.median()),
        "pooled": plain(pooled_nrmse(predicted, target).mean()),
    }
