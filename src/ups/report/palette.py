"""One colour and line a model, everywhere: Okabe and Ito's colours, told apart by all common colour visions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ink:
    """How a model is drawn: its colour, and a dash pattern (in line widths) so that print and grey copies work."""

    colour: str
    dash: tuple[float, ...] = ()
    width: float = 1.8


INKS = {
    "truth": Ink("#1b1b1b", width=2.4),
    "UPS": Ink("#0072b2"),
    "FNO": Ink("#d55e00", (5, 1.6)),
    "persistence": Ink("#7a7a7a", (1.4, 1.6)),
    "solver": Ink("#009e73"),
}
OTHER = Ink("#cc79a7", (3, 1, 1, 1))

FIELD_MAP = "viridis"
ERROR_MAP = "RdBu_r"
NOT_A_NUMBER = "#e6007e"
"""In images: a value that is NaN or infinite; a colour in neither map."""


def ink(model: str) -> Ink:
    return INKS.get(model, OTHER)


def display_name(model: str, steady: bool) -> str:
    """What persistence is called: a steady task has nothing that persists, its baseline is the training mean."""
    return "training mean" if steady and model == "persistence" else model
