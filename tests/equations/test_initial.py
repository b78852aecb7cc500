"""Random waves: the published statistics, and draws that belong to their trajectory."""

import math

import pytest
import torch

from ups.equations.initial import RandomWaves
from ups.equations.uniforms import uniforms
from ups.errors import UserError


def test_the_published_statistics_are_met():
    x = (torch.arange(128, dtype=torch.float64) + 0.5) / 128
    u = RandomWaves.draw(7, range(20000))(x)
    assert float(u.square().mean().sqrt()) == pytest.approx(0.790, rel=0.02)
    assert float(u.mean(1).std()) == pytest.approx(0.594, rel=0.02)


def test_one_in_ten_is_windowed_one_in_ten_absolute_and_half_are_flipped():
    waves = RandomWaves.draw(1, range(20000))
    three_sigma = 3 * math.sqrt(0.1 * 0.9 / 20000)
    assert float(waves.windowed.double().mean()) == pytest.approx(0.1, abs=three_sigma)
    assert float(waves.absolute.double().mean()) == pytest.approx(0.1, abs=three_sigma)
    assert float(waves.sign.mean()) == pytest.approx(0.0, abs=3 / math.sqrt(20000))


def test_a_wave_number_drawn_twice_is_doubled_and_the_others_are_constants():
    multiples = RandomWaves.draw(0, range(500)).wavenumber / (2 * math.pi)
    order = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    times_drawn = multiples / order
    assert torch.equal(times_drawn.sum(1), torch.full((500,), 2.0, dtype=torch.float64))
    assert set(times_drawn.flatten().tolist()) == {0.0, 1.0, 2.0}


def test_a_trajectory_is_drawn_alike_alone_and_in_company():
    together = uniforms(3, range(10), 15)
    assert torch.equal(together[7:8], uniforms(3, [7], 15))
    assert not torch.equal(uniforms(4, [7], 15), uniforms(3, [7], 15))
    assert len({tuple(row) for row in together.tolist()}) == 10


def test_the_draws_are_the_same_on_every_machine():
    # The first double of PCG64 seeded by SeedSequence((0, 1)), written down once.
    assert float(uniforms(0, [1], 1)) == 0.8897387912781343


def test_waves_have_the_domain_as_their_period():
    waves = RandomWaves.draw(0, range(200))
    x = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # |angle| ≤ 2π·8·2, so rounding in x + 1 moves sin by about 100 ε; the steepest window multiplies that by 100.
    assert torch.allclose(waves(x), waves(x + 1), atol=1e-12, rtol=0)
    assert torch.allclose(waves(x), waves(x - 3), atol=1e-12, rtol=0)


def test_waves_take_positions_of_their_own_for_each_trajectory():
    waves = RandomWaves.draw(0, range(3))
    x = torch.linspace(0, 1, 15, dtype=torch.float64).reshape(3, 5)
    for row in range(3):
        assert torch.equal(waves(x)[row], waves(x[row])[row])


def test_a_negative_seed_is_the_users_mistake():
    with pytest.raises(UserError, match="seed is -1"):
        uniforms(-1, [0], 1)
