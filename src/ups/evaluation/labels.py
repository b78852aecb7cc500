"""Who stands in the tables and pictures of a run: predictors in order, with the titles readers know them by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

PERSISTENCE = "persistence"
"""The trivial guess, which every evaluation adds: the last given frame, or the training mean of a steady task."""

TITLES = {
    "operator": "UPS",
    "cached": "UPS on latents",
    "fno": "FNO",
    "unet": "U-Net",
    "from_nothing": "same model from nothing",
    "dressed": "dressed UPS",
    "perturbed": "perturbed UPS",
}


@dataclass(frozen=True)
class PredictorLabel:
    """A predictor's own name, its title, and whether it is a stage of the run, compared with it, or a baseline."""

    name: str
    title: str
    kind: Literal["stage", "compared", "baseline"]


def labels(stages: Iterable[str], compared: Iterable[str]) -> tuple[PredictorLabel, ...]:
    """The stages in their order, what they are compared with, and persistence; an unknown name is its own title."""
    return (
        *(PredictorLabel(name, TITLES.get(name, name), "stage") for name in stages),
        *(PredictorLabel(name, TITLES.get(name, name), "compared") for name in compared),
        PredictorLabel(PERSISTENCE, PERSISTENCE, "baseline"),
    )
