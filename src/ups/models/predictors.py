"""Predictors that need no training, by name: users register theirs, and `compare:` sets them beside the model.

ups.register_predictor(UntrainedPredictor("solver", build))        # then `compare: {solver: {}}`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ups.config.named import Registry
from ups.config.settings import Strict
from ups.models.predictor import Predictor
from ups.models.saved import TrainedTask


@dataclass(frozen=True)
class UntrainedPredictor:
    """`build(tasks, settings)` gives the predictor of those of the run's tasks that it knows, its `tasks`; `settings`
    checks what a configuration says.
    """

    name: str
    build: Callable[[Mapping[str, TrainedTask], Any], Predictor]
    settings: type[Strict] = Strict


PREDICTORS = Registry[UntrainedPredictor]("predictor", {})


def register_predictor(predictor: UntrainedPredictor) -> UntrainedPredictor:
    """Make a predictor known by its name, which no other may have."""
    return PREDICTORS.add(predictor.name, predictor)
