"""What is checked of a task's data before training, and how much of them is held in memory for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from layout_cases import header_of

from ups.data.generate.make import generate
from ups.data.prepare import row_ranges
from ups.data.settings import DataConfig, MakeConfig, TaskConfig
from ups.data.sources import _check_conditions, _read_through, family_seed, open_source
from ups.equations import Advection, Burgers, KuramotoSivashinsky
from ups.errors import UserError
from ups.fields import Batch, Dataset
from ups.pipeline.config import schema_of
from ups.pipeline.data import _opened


class Counted(Dataset):
    """Ten trajectories of 4 frames on 8 points with the given values of beta; counts what is read at once."""

    def __init__(self, beta: Sequence[float], stated: float | None) -> None:
        self.header = header_of((8,), 4, task="advection", parameters={"beta": stated})
        self.beta = torch.tensor(beta, dtype=torch.float64)
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.beta)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        rows, times = list(indices), self.header.times[frames]
        self.reads.append(len(rows))
        values = torch.zeros(len(rows), len(times), 8, 1)
        return Batch(
            self.task,
            values,
            times.expand(len(rows), -1),
            self.grid,
            self.boundary,
            {"beta": self.beta[rows]},
            {},
            torch.tensor(rows),
        )


TOLD = Advection().task()
UNTOLD = replace(TOLD, parameters=())


def test_whole_trajectories_are_read_by_their_bytes(monkeypatch):
    data = Counted([0.4] * 10, 0.4)
    monkeypatch.setattr(row_ranges, "READ_BYTES", 3 * 4 * 8 * 4)  # three trajectories
    told: list[tuple[int, int]] = []
    _read_through(data, lambda done, total: told.append((done, total)))
    assert data.reads == [3, 3, 3, 1] and told == [(3, 10), (6, 10), (9, 10), (10, 10)]
    monkeypatch.setattr(row_ranges, "READ_BYTES", 1)  # a trajectory that is larger is read alone
    data.reads.clear()
    _read_through(data)
    assert data.reads == [1] * 10


def test_parameters_the_file_states_are_not_looked_for_in_its_fields():
    data = Counted([0.4] * 10, 0.4)
    _check_conditions("advection", UNTOLD, data)
    _check_conditions("advection", TOLD, Counted([0.1, 0.4] * 5, None))
    assert data.reads == []


def test_a_parameter_that_varies_untold_is_refused_without_reading_all_at_once(monkeypatch):
    monkeypatch.setattr(row_ranges, "READ_BYTES", 4 * 8 * 4)  # four first frames
    equal, other = Counted([0.4] * 10, None), Counted([0.4] * 9 + [0.1], None)
    _check_conditions("advection", UNTOLD, equal)
    assert equal.reads == [4, 4, 2]
    with pytest.raises(UserError, match="'beta' varies in the data"):
        _check_conditions("advection", UNTOLD, other)
    with pytest.raises(UserError, match="do not say the parameter 'nu'"):
        _check_conditions("advection", replace(TOLD, parameters=("nu",)), equal)


def made(folder, beta: list[float], seed: int = 0):
    make = MakeConfig(equation="advection", trajectories=4, values={"beta": beta}, settings={"points": 8, "frames": 3})
    data = DataConfig(workers=1, root=str(folder))
    return open_source("advection", TaskConfig(make=make), data, folder, seed, lambda *_: None)


def test_made_data_serve_a_run_with_other_values_in_another_order(tmp_path):
    made(tmp_path, [0.1, 0.4])
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    made(tmp_path, [0.7, 0.4])
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(before) == 2 and len(after) == 3 and before.items() <= after.items()


def test_a_file_of_another_seed_of_the_run_is_not_taken_for_its_own(tmp_path):
    made(tmp_path, [0.1])
    with pytest.raises(UserError, match="was not made with this equation, count, seed"):
        made(tmp_path, [0.1], seed=1)


def test_a_run_makes_its_data_on_its_own_device(tmp_path, monkeypatch):
    asked: list[str] = []

    def solved_elsewhere(*arguments, device, **options):
        asked.append(device)
        return generate(*arguments, **options)

    monkeypatch.setattr("ups.data.sources.generate", solved_elsewhere)
    make = MakeConfig(equation="advection", trajectories=4, settings={"points": 8, "frames": 3})
    values = {"name": "a", "tasks": {"advection": TaskConfig(make=make)}, "data": DataConfig(workers=1)}
    config = schema_of(values).model_validate(values)
    runtime = SimpleNamespace(rank=1, device=torch.device("cuda", 1), heartbeat=SimpleNamespace(mark=lambda _: None))
    runtime.check_stop = lambda _: None
    source = _opened(runtime, config, tmp_path, "advection", lambda *_: None)  # pyright: ignore[reportArgumentType]
    assert asked == ["cuda:1"] and len(source.train) == 2


def test_starts_follow_from_the_problem_and_not_from_how_much_of_it_is_stored():
    advection = Advection(points=8, beta=0.1, frames=3)
    assert family_seed(3, advection) == family_seed(3, Advection(points=16, beta=0.1, frames=9, duration=1.0))
    others = [
        family_seed(4, advection),
        family_seed(3, Advection(points=8, beta=0.4, frames=3)),
        family_seed(3, Burgers(points=8, nu=0.1, frames=3)),
        family_seed(3, KuramotoSivashinsky(length=32.0)),
        family_seed(3, KuramotoSivashinsky(length=64.0)),
    ]
    assert len({family_seed(3, advection), *others}) == 6


@pytest.mark.parametrize(("values", "varied"), [([0.1], None), ([0.1, 0.2], ["nu"])])
def test_made_data_tell_their_equations_settings_and_which_of_them_vary(tmp_path, values, varied):
    make = MakeConfig(equation="burgers", trajectories=20, values={"nu": values}, settings={"points": 32, "frames": 3})
    data = DataConfig(workers=1)
    source = open_source("burgers", TaskConfig(make=make), data, tmp_path, 0, lambda label, done, total: None)
    told = source.spec.source
    assert told["settings"]["points"] == 32 and told["settings"]["nu"] == 0.1 and told.get("varied") == varied
