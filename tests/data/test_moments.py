"""The Well's statistics against the plain formulas in extended precision; not a digit depends on how data are read."""

from __future__ import annotations

import layout_cases
import numpy as np
import pytest
import torch
import yaml
from test_statistics import InMemory

from ups.data.generate.make import generate
from ups.data.open import open_dataset
from ups.data.prepare import moments as moments_module
from ups.data.prepare.moments import by_kind, moments, well_stats, write_statistics
from ups.equations import Advection, Darcy
from ups.errors import UserError


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def plain(values: np.ndarray) -> dict[str, float]:
    exact = values.astype(np.longdouble)
    return {"mean": float(exact.mean()), "std": float(exact.std()), "rms": float(np.sqrt(np.square(exact).mean()))}


def test_every_number_is_the_plain_formula():
    values = sample(11, 7, 12, 10, 2) * torch.tensor([1.0, 30.0]) + torch.tensor([0.2, -5.0])
    static = sample(11, 12, 10)
    found = moments(InMemory(values, ("p", "q"), {"a": static}))
    for number, name in enumerate(("p", "q")):
        field = values[..., number].double().numpy()
        expected = plain(field) | {f"{kind}_delta": v for kind, v in plain(np.diff(field, axis=1)).items()}
        # 9,240 float64 numbers near 1: rounding of each is 1e-16, of a mean near zero as much in absolute terms.
        assert found[name] == pytest.approx(expected, rel=1e-13, abs=1e-14)
    assert found["a"] == pytest.approx(plain(static.numpy()), rel=1e-13, abs=1e-14)


def test_a_large_mean_does_not_swallow_a_small_spread():
    noise = sample(20, 4, 32, 1).double()
    found = moments(InMemory(1e8 + noise, ("u",), {}))["u"]
    # Values near 1e8 are rounded to 1.5e-8; E[u²] − E[u]² would lose 1e16 · 2e-16 ≈ 2 of the variance.
    assert found["std"] == pytest.approx(float(noise.std(correction=0)), rel=1e-7)
    assert found["std_delta"] == pytest.approx(float(noise.diff(dim=1).std(correction=0)), rel=1e-7)
    assert found["mean_delta"] == pytest.approx(float(noise.diff(dim=1).mean()), abs=1e-8)


def test_a_piece_is_cut_by_the_bytes_of_its_numbers(monkeypatch):
    monkeypatch.setattr(moments_module, "BLOCK_BYTES", 4 * 4 * 32 * 4)  # four trajectories of four frames in float32
    for values, most in ((sample(9, 4, 32, 1), 4), (sample(9, 4, 32, 1).double(), 2)):
        dataset = InMemory(values, ("u",), {})
        moments(dataset)
        assert dataset.most == most


@pytest.mark.parametrize("block", [1, 900, 5_000, 1 << 26])
def test_neither_pieces_nor_order_change_a_digit(monkeypatch, block):
    values, static = sample(23, 6, 37, 2), sample(23, 37)
    expected = moments(InMemory(values, ("u", "v"), {"a": static}))
    monkeypatch.setattr(moments_module, "BLOCK_BYTES", block)  # 1: frame by frame; 900: two or three frames
    assert moments(InMemory(values, ("u", "v"), {"a": static})) == expected
    assert moments(InMemory(values.flip(0), ("u", "v"), {"a": static.flip(0)})) == expected


def test_two_workers_find_the_digits_of_one(tmp_path, monkeypatch):
    dataset = open_dataset(generate(Advection(points=32, frames=5), 30, 0, tmp_path / "a.hdf5"))
    monkeypatch.setattr(moments_module, "BLOCK_BYTES", 32 * 5 * 4 * 4)
    counted: list[tuple[int, int]] = []
    assert moments(dataset, workers=2) == moments(dataset, progress=lambda *count: counted.append(count))
    assert counted == [(number, 8) for number in range(1, 9)]


def test_a_steady_field_has_no_changes(tmp_path):
    found = moments(open_dataset(generate(Darcy(points=8), 6, 0, tmp_path / "d.hdf5")))
    assert set(found) == {"u", "a"} and set(found["u"]) == {"mean", "std", "rms"}


def test_the_file_has_the_wells_form(tmp_path):
    values = sample(4, 5, 8, 8, 3)
    dataset = InMemory(values, ("velocity_x", "velocity_y", "pressure"), {})
    found = moments(dataset)
    form = well_stats(layout_cases.header_of((8, 8), channels=dataset.channels), by_kind(found))
    write_statistics(form, tmp_path / "stats.yaml")
    read = yaml.safe_load((tmp_path / "stats.yaml").read_text())
    assert read == form and set(read) == {"mean", "std", "rms", "mean_delta", "std_delta", "rms_delta"}
    assert read["std"]["velocity"] == [found["velocity_x"]["std"], found["velocity_y"]["std"]]
    assert read["rms_delta"]["pressure"] == found["pressure"]["rms_delta"]


def test_no_trajectories_are_refused():
    with pytest.raises(UserError, match="no trajectories"):
        moments(InMemory(sample(2, 3, 8, 1)[:0], ("u",), {}))


def test_statistics_of_other_data_are_not_overwritten(tmp_path):
    write_statistics({"mean": {"u": 1.0}}, tmp_path / "stats.yaml")
    write_statistics({"mean": {"u": 1.0}}, tmp_path / "stats.yaml")
    with pytest.raises(UserError, match="holds other statistics"):
        write_statistics({"mean": {"u": 2.0}}, tmp_path / "stats.yaml")
