"""Colours and lines that all common colour visions tell apart, after Okabe and Ito, and Tol.

The truth, the model and persistence look the same in every report; the others take theirs from a cycle, by order.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def other_ink(position: int) -> Ink:
    """Of the predictor that is so-manieth of those without an ink of their own."""
    return Ink(COLOURS[position % len(COLOURS)], DASHES[position % len(DASHES)])
