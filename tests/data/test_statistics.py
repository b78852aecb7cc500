"""Statistics against the plain formulas, and independent of how the data are read."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from ups.data.generate.make import generate
from ups.data.open import open_dataset
from ups.data.prepare import row_ranges
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import Scale, Statistics, statistics
from ups.equations import Compressible1D, Darcy
from ups.errors import UserError
from ups.fields import Batch, Boundary, Channel, Grid, Header, TaskSpec


@dataclass
class InMemory:
    """A real dataset, held in memory."""

    values: torch.Tensor
    channels: tuple[str, ...]
    static: dict[str, torch.Tensor]
    task: str = "test"

    def __post_init__(self) -> None:
        self.grid = Grid.cell_centred(tuple(self.values.shape[2:-1]))
        self.boundary = Boundary.all("periodic", self.grid.dimension)
        self.times = torch.arange(self.values.shape[1], dtype=torch.float64) * 0.5
        self.most = 0  # trajectories that were read at once
        self.header = Header(
            self.task,
            self.channels,
            self.grid,
            self.times,
            self.boundary,
            static=tuple(self.static),
            dtype=self.values.dtype,
        )

    def __len__(self) -> int:
        return len(self.values)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        rows = list(indices)
        self.most = max(self.most, len(rows))
        values = self.values[rows][:, frames]
        times = self.times[frames].expand(len(rows), -1)
        static = {name: field[rows] for name, field in self.static.items()}
        return Batch(self.task, values, times, self.grid, self.boundary, {}, static, torch.tensor(rows))


def spec(channels: tuple[Channel, ...], dimension: int = 1, steady: bool = False) -> TaskSpec:
    boundary = Boundary.all("periodic", dimension)
    return TaskSpec("test", dimension, channels, boundary, 0.1, dt=None if steady else 0.5, steady=steady)


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_every_number_is_the_plain_formula():
    values = sample(37, 9, 16, 2) * torch.tensor([1.0, 3.0]) + torch.tensor([0.0, 5.0])
    found = statistics(InMemory(values, ("p", "q"), {}), spec((Channel("p"), Channel("q"))))
    assert found.strides == (1, 2, 4) and found.dt == 0.5 and found.trajectories == 37
    for c, name in enumerate(("p", "q")):
        field = values[..., c].double()
        scale = found.channels[name]
        assert scale.mean == pytest.approx(float(field.mean()), rel=1e-12, abs=1e-14)
        assert scale.std == pytest.approx(float(field.std(correction=0)), rel=1e-12)
        assert scale.rms == pytest.approx(float(field.square().mean().sqrt()), rel=1e-12)
        assert scale.range == (float(field.min()), float(field.max()))
        for stride, value in zip(found.strides, scale.differences, strict=True):
            expected = (field[:, stride:] - field[:, :-stride]).square().mean().sqrt()
            assert value == pytest.approx(float(expected), rel=1e-12)


def test_a_large_mean_does_not_swallow_a_small_spread():
    noise = sample(20, 4, 32, 1).double()
    found = statistics(InMemory(1e8 + noise, ("u",), {}), spec((Channel("u"),))).channels["u"]
    # Values near 1e8 are rounded to 1.5e-8; the naive E[u²] − E[u]² would lose 1e16 · 2e-16 ≈ 2 of the variance.
    assert found.std == pytest.approx(float(noise.std(correction=0)), rel=1e-7)


def test_neither_chunks_nor_order_change_a_digit(monkeypatch):
    values = sample(23, 5, 16, 1)
    task = spec((Channel("u"),))
    expected = statistics(InMemory(values, ("u",), {}), task)
    assert statistics(InMemory(values.flip(0), ("u",), {}), task) == expected
    for trajectories in (1, 7, 100):
        monkeypatch.setattr(row_ranges, "READ_BYTES", trajectories * 5 * 16 * 4)
        dataset = InMemory(values, ("u",), {})
        assert statistics(dataset, task) == expected and dataset.most == min(trajectories, 23)


def test_worker_processes_find_the_same_digits_and_name_the_same_mistakes(tmp_path, monkeypatch):
    equation = Compressible1D(points=16, frames=3, duration=0.1)
    data = open_dataset(generate(equation, 11, 0, tmp_path / "gas.hdf5"))
    monkeypatch.setattr(row_ranges, "READ_BYTES", 2 * 3 * 3 * 16 * 4)  # two trajectories
    told: list[tuple[int, int]] = []
    found = statistics(data, equation.task(), lambda done, total: told.append((done, total)), workers=3)
    assert found == statistics(data, equation.task())
    assert len(told) == 6 and told[-1] == (11, 11)
    velocity = Channel("Vx", "log")  # negative somewhere
    wrong = replace(equation.task(), channels=(*equation.task().channels[:2], velocity))
    with pytest.raises(UserError, match=r"channel 'Vx' of trajectory \d+ has the value -.*its transform is log"):
        statistics(data, wrong, workers=3)


def test_components_of_a_vector_share_one_scale():
    values = sample(10, 4, 8, 3) * torch.tensor([1.0, 10.0, 100.0])
    channels = (Channel("vx", vector="v"), Channel("vy", vector="v"), Channel("p"))
    found = statistics(InMemory(values, ("vx", "vy", "p"), {}), spec(channels)).channels
    assert found["vx"].rms == found["vy"].rms and found["vx"].differences == found["vy"].differences
    assert found["vx"].rms == pytest.approx(float(values[..., :2].double().square().mean().sqrt()), rel=1e-12)
    assert found["vx"].mean != found["vy"].mean
    largest = float(values[..., :2].abs().max())
    assert found["vx"].range == found["vy"].range == (-largest, largest)
    assert found["p"].rms == pytest.approx(float(values[..., 2].double().square().mean().sqrt()), rel=1e-12)


def test_a_log_channel_is_measured_after_the_logarithm():
    values = sample(6, 3, 8, 1).exp()
    task = spec((Channel("density", "log"),))
    found = statistics(InMemory(values, ("density",), {}), task).channels["density"]
    assert found.std == pytest.approx(float(values.double().log().std(correction=0)), rel=1e-12)
    values[4, 1, 2, 0] = 0.0
    with pytest.raises(UserError, match=r"channel 'density' of trajectory 4 has the value 0\.0"):
        statistics(InMemory(values, ("density",), {}), task)


def test_a_steady_task_has_static_scales_and_no_differences():
    equation = Darcy(points=8)
    batch = equation.solve(0, range(5))
    found = statistics(InMemory(batch.values, ("u",), dict(batch.static), "darcy"), equation.task())
    assert found.strides == () and found.dt is None and found.channels["u"].differences == ()
    a = batch.static["a"].double().numpy()
    assert found.static["a"].mean == pytest.approx(a.mean(), rel=1e-12)
    assert found.static["a"].std == pytest.approx(np.std(a), rel=1e-12)


def test_statistics_survive_json_to_the_last_digit():
    found = statistics(InMemory(sample(5, 9, 8, 1), ("u",), {"a": sample(5, 8)}), spec((Channel("u"),)))
    assert Statistics.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert math.isfinite(found.static["a"].std)


def test_wrong_channels_and_empty_splits_are_refused():
    with pytest.raises(UserError, match="channels"):
        statistics(InMemory(sample(2, 3, 8, 1), ("u",), {}), spec((Channel("w"),)))
    with pytest.raises(UserError, match="empty"):
        statistics(InMemory(sample(2, 3, 8, 1)[:0], ("u",), {}), spec((Channel("u"),)))


def test_a_standardised_channel_is_its_departure_from_the_mean():
    spec = TaskSpec("t", 1, (Channel("T", "standardised"),), Boundary.all("periodic", 1), dt=1.0)
    scales = Statistics("t", 1, 1.0, (1,), {"T": Scale(290.0, 2.0, 290.007, (0.5,), (285.0, 296.0))})
    normaliser = Normaliser(spec, scales)
    kelvin = torch.tensor([[290.0], [294.0]], dtype=torch.float64)
    assert normaliser.normalise(kelvin).flatten().tolist() == [0.0, 2.0]
    assert torch.equal(normaliser.physical(normaliser.normalise(kelvin)), kelvin)
    assert normaliser.step_scales()[1].tolist() == [[0.25]]
