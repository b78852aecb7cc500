"""What of a new system's data a trained model has not seen the like of is said before anything is trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from small import Solved

from ups.data.joined import Joined
from ups.data.prepare.statistics import statistics
from ups.equations import Burgers, Compressible1D, Equation
from ups.fields import Channel
from ups.models.saved import TrainedTask
from ups.pipeline.familiar import unfamiliar

FLOW = Compressible1D(points=32, frames=6, duration=0.25)


def learned(equation: Equation, data: Solved) -> TrainedTask:
    task = equation.task()
    ranges = {name: (value, value) for name, value in equation.parameters.items()}
    return TrainedTask(task, equation.grid, statistics(data, task), ranges, (task.dt or 0.0,))


def test_density_and_pressure_in_other_units_are_said_although_they_are_learned_in_logarithms() -> None:
    data = Solved(FLOW, 4)
    known = [learned(FLOW, data)]
    assert not list(unfamiliar(known, FLOW.task(), data))
    other = Solved(FLOW, 4)
    other.batch = replace(data.batch, values=data.batch.values * torch.tensor([1e6, 1e6, 1.0]))
    notes = list(unfamiliar(known, FLOW.task(), other))
    assert [note.split()[0] for note in notes] == ["density", "pressure"]
    assert all("has a geometric mean of" in note and "where the model was trained on" in note for note in notes)
    plain = replace(FLOW.task(), channels=tuple(Channel(name) for name in FLOW.channels))
    notes = list(unfamiliar(known, plain, other))  # the new task learns the same fields without logarithms
    assert [note.split()[0] for note in notes] == ["density", "pressure"] and "has an rms of" in notes[0]


def test_a_parameter_that_differs_between_files_is_looked_at_too() -> None:
    def made(nu: float) -> Solved:
        data = Solved(Burgers(points=32, frames=6, nu=nu), 3)
        data.header = replace(data.header, parameters={"nu": nu})
        return data

    known = [learned(Burgers(points=32, frames=6, nu=0.01), made(0.01))]
    assert not list(unfamiliar(known, known[0].spec, made(0.02)))
    both = Joined([made(0.02), made(5.0)])
    assert both.header.parameters == {"nu": None}
    (note,) = unfamiliar(known, known[0].spec, both)
    assert note == "nu is 0.02 to 5, where the model was trained on 0.01; are these other units?"
