"""Who is on the page: the run's predictors in the order of its tables, their titles and how they are drawn.

Colours and lines are such that all common colour visions tell them apart, after Okabe and Ito, and Tol. The truth, the
model and persistence look the same in every report; the others take theirs from a cycle, by order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ups.errors import UserError
from ups.evaluation.labels import PERSISTENCE, PredictorLabel

REFERENCE = "truth"


@dataclass(frozen=True)
class Ink:
    """How a predictor is drawn: its colour, and a dash pattern (in line widths) so that print and grey copies work."""

    colour: str
    dash: tuple[float, ...] = ()
    width: float = 1.8


TRUTH = Ink("#1b1b1b", width=2.4)
MODEL = Ink("#0072b2")
TRIVIAL = Ink("#7a7a7a", (1.4, 1.6))
SOLVER = Ink("#1b1b1b")  # as the truth, which is the same solver's on its finest grid

COLOURS = ("#d55e00", "#aa3377", "#2a8f84", "#b8860b")
DASHES = ((5, 1.6), (3, 1, 1, 1), (8, 1.4), (5, 1, 1, 1, 1, 1), (2.4, 1))
"""One more than colours, so that the sixth to the ninth differ from the first four in their dashes."""

FIELD_MAP = "viridis"
ERROR_MAP = "RdBu_r"
NOT_A_NUMBER = "#e6007e"
"""In images: a value that is NaN or infinite; a colour in neither map."""
OUTSIDE = "#c8c8c8"
"""In images: a cell that is no part of the domain."""


@dataclass(frozen=True)
class Legend:
    """The predictors of a run; `model` names the one it is about, the last of its stages."""

    predictors: tuple[PredictorLabel, ...]
    model: str

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Legend:
        """From what evaluation wrote: {"model": name, "predictors": [{"name", "title", "kind"}, …]}."""
        if "predictors" not in content or "model" not in content:
            raise UserError("the run was evaluated by an older version of ups; do it again with `ups evaluate RUN`")
        return cls(tuple(PredictorLabel(**entry) for entry in content["predictors"]), content["model"])

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of columns: the model, the other stages, what it is compared with, baselines."""
        others = tuple(name for name in self._of("stage") if name != self.model)
        return (self.model, *others, *self.compared, *self._of("baseline"))

    @property
    def compared(self) -> tuple[str, ...]:
        return self._of("compared")

    @property
    def rivals(self) -> tuple[str, ...]:
        """Whose error the model's is divided by: what it is compared with, and baselines."""
        return (*self.compared, *self._of("baseline"))

    @property
    def pictured(self) -> tuple[str, ...]:
        """Whose fields are shown; baselines are left to curves and tables."""
        return tuple(name for name in self.names if name not in self._of("baseline"))

    def title(self, name: str, steady: bool = False) -> str:
        """How readers know it. Nothing persists in a steady task: there the baseline is the training mean."""
        if steady and name == PERSISTENCE:
            return "training mean"
        return next((label.title for label in self.predictors if label.name == name), name)

    def called(self, name: str) -> str:
        """In a sentence: "the FNO", but "mine" of one that has a name only."""
        title = self.title(name)
        return title if title == name else f"the {title}"

    def heading(self, name: str, steady: bool = False) -> str:
        """The title at the head of a column."""
        title = self.title(name, steady)
        return title[:1].upper() + title[1:]

    def ink(self, name: str) -> Ink:
        """Colour and dashes; a name that is no predictor's (a codec has a training, too) takes the next free ones."""
        fixed = {REFERENCE: TRUTH, self.model: MODEL, PERSISTENCE: TRIVIAL}
        others = [other for other in self.names if other not in fixed]
        place = others.index(name) if name in others else len(others)
        return fixed.get(name, Ink(COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]))

    def _of(self, kind: str) -> tuple[str, ...]:
        return tuple(label.name for label in self.predictors if label.kind == kind)
