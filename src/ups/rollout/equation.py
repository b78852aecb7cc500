"""The equation of a trained task, by which predictions are judged or refined where no truth is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ups.errors import UserError
from ups.fields import Grid
from ups.models.saved import TrainedTask

if TYPE_CHECKING:  # who only simulates does not wait for the solvers
    from ups.equations import Equation


def equation_of(learned: TrainedTask) -> Equation:
    """On the task's own grid; refused where its rate cannot be computed from what the task is told. What is `varied` in
    the task's source differs between samples, and is among their parameters.
    """
    from ups.equations.named import named_equation

    spec, source = learned.spec, learned.spec.source
    if "settings" not in source:
        raise UserError(
            f"the settings of the equation of task {spec.name!r} are not known: only data that tasks.{spec.name}.make "
            "makes tell them; do without it"
        )
    equation = named_equation(source["equation"], source["settings"])
    if hidden := [name for name in equation.static if name not in spec.static]:
        raise UserError(
            f"task {spec.name!r} does not tell all of {hidden[0]!r}, without which its equation has no residual; do "
            "without it"
        )
    own = Grid.cell_centred(learned.grid.shape, equation.extent).same_as(learned.grid)
    told = equation.channels == spec.channel_names and not set(source.get("varied", ())) - set(spec.parameters)
    if not own or not told or not equation.closed or spec.masked:
        raise UserError(f"the frames of task {spec.name!r} do not tell the rate of its equation; do without it")
    return equation
