"""What the generative stages minimise, against cases whose optimum is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ups.data.prepare.statistics import Statistics
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, TaskSpec
from ups.models.codec import Codec, CodecSettings, unpatchify
from ups.models.corrector import Corrector, CorrectorSettings, Guess, Velocity, consistency, flow_matching, path, solve
from ups.models.operator.model import patchify
from ups.models.saved import TrainedTask

MEAN, SIZE = 0.6, 0.5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moments(time: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of x_τ, where data are N(MEAN, SIZE²)."""
    angle = time * math.pi / 2
    return angle.sin() * MEAN, angle.cos() ** 2 + (SIZE * angle.sin()) ** 2


def exact(x: Tensor, time: Tensor, span: Tensor) -> Tensor:
    """E[dx_τ/dτ | x_τ] of Gaussian data: linear in x."""
    angle = (time * math.pi / 2).view(-1, 1, 1)
    mean, variance = (value.view(-1, 1, 1) for value in moments(time))
    slope = angle.sin() * angle.cos() * (SIZE**2 - 1) / variance
    return math.pi / 2 * (angle.cos() * MEAN + slope * (x - mean))


def jump(x: Tensor, time: Tensor, span: Tensor) -> Tensor:
    """The mean velocity along the exact flow, which keeps a number's place in its distribution."""
    (mean, variance), (mean_after, variance_after) = moments(time), moments(time + span)
    scale = (variance_after / variance).sqrt().view(-1, 1, 1)
    after = mean_after.view(-1, 1, 1) + scale * (x - mean.view(-1, 1, 1))
    return (after - x) / span.view(-1, 1, 1)


def matching(velocity: Velocity, count: int = 100_000) -> float:
    data = MEAN + SIZE * normal(count, 1, 1, seed=1)
    return float(flow_matching(velocity, normal(count, 1, 1), data, uniform(count, 2)).mean())


def test_flow_matching_is_least_at_the_known_velocity_and_has_the_known_value_there() -> None:
    """(π/2)² mean over τ of Var(cos x₁ − sin z | x_τ)."""
    angle = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000 * math.pi / 2
    sine, cosine = angle.sin(), angle.cos()
    known = cosine**2 * SIZE**2 + sine**2
    known -= (sine * cosine * (SIZE**2 - 1)) ** 2 / (cosine**2 + (sine * SIZE) ** 2)
    least = matching(exact)
    assert least == pytest.approx(float((math.pi / 2) ** 2 * known.mean()), rel=0.02)
    for change in (lambda v, x: v + 0.2, lambda v, x: 0.8 * v, lambda v, x: v + 0.2 * x, lambda v, x: 0 * v):
        assert matching(lambda x, time, span, c=change: c(exact(x, time, span), x)) > least


@pytest.mark.parametrize(("sampler", "steps", "tolerance"), [("euler", 64, 0.02), ("heun", 16, 0.005)])
def test_samplers_turn_noise_into_the_data_of_the_known_velocity(sampler: str, steps: int, tolerance: float) -> None:
    noise = normal(2000, 1, 1)
    found = solve(exact, noise, steps, sampler)
    torch.testing.assert_close(found, MEAN + SIZE * noise, atol=tolerance * 4, rtol=0)


def test_heun_converges_at_second_order_and_euler_at_first() -> None:
    noise = normal(200, 1, 1)

    def error(sampler: str, steps: int) -> float:
        return float((solve(exact, noise, steps, sampler) - (MEAN + SIZE * noise)).abs().mean())

    assert error("euler", 32) / error("euler", 64) == pytest.approx(2, rel=0.15)
    assert error("heun", 32) / error("heun", 64) == pytest.approx(4, rel=0.3)


def test_consistency_is_zero_for_the_jumps_of_the_teachers_flow_and_for_no_others() -> None:
    count = 2000
    data, time = MEAN + SIZE * normal(count, 1, 1, seed=1), uniform(count, 2)
    x, _ = path(normal(count, 1, 1), data, time)
    end = ((time * 2).floor() + 1) / 2

    def loss(student: Velocity) -> float:
        return float(consistency(student, exact, x, time, end, 16).mean())

    assert loss(jump) < 1e-5
    assert loss(exact) > 1e-3  # who follows the tangent, misses the end
    assert loss(lambda x, time, span: 0 * x) > 0.1


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_distilled_sampler_is_exact_in_few_steps_where_its_teacher_is_not(steps: int) -> None:
    noise = normal(1000, 1, 1)
    wanted = MEAN + SIZE * noise
    torch.testing.assert_close(solve(jump, noise, steps, "jumps"), wanted)
    assert float((solve(exact, noise, steps, "euler") - wanted).abs().mean()) > 0.05


def task_of(
    points: int = 16, dimension: int = 1, kind: str = "periodic", channels: tuple[str, ...] = ("u",)
) -> TrainedTask:
    boundary = Boundary.all(kind, dimension)  # pyright: ignore[reportArgumentType]
    spec = TaskSpec("toy", dimension, tuple(Channel(c) for c in channels), boundary, dt=1.0)
    return TrainedTask(spec, Grid.cell_centred((points,) * dimension), Statistics("toy", 1, 1.0, (1,), {}), {}, (1.0,))


def test_a_corrector_learns_a_mean_and_a_spread_that_depend_on_the_state() -> None:
    """Where the state is 1 the error is N(½, 0.2²), where it is −1 N(−1, 1): neither zero nor one size for all."""
    torch.manual_seed(0)
    learned = task_of()
    codec = Codec([learned], CodecSettings(width=8, depth=1))
    model = Corrector([learned], codec, CorrectorSettings(width=16, depth=1, conditions=8))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    count = 128
    sign = torch.where(torch.arange(count) % 2 == 0, 1.0, -1.0)
    shape, field = (count, *codec.frames["toy"].latent_shape, 1), sign.view(-1, 1, 1).expand(-1, 16, 1)
    mean = torch.where(sign > 0, 0.5, -1.0).view(-1, 1, 1)
    size = torch.where(sign > 0, 0.2, 1.0).view(-1, 1, 1)
    nothing = torch.zeros(count, 16, 0)

    def velocity() -> Velocity:
        context = model.context(Guess("toy", field, field, nothing, {}, torch.ones(count)))
        return lambda x, time, span: model.velocity("toy", x, time, span, torch.zeros(shape), context)

    noise = torch.randn(shape)
    assert torch.equal(solve(velocity(), noise, 3, "heun"), noise)  # untrained: Gaussian noise as it is
    for step in range(160):
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / 160)
        loss = flow_matching(velocity(), torch.randn(shape), mean + size * torch.randn(shape), torch.rand(count)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        found = torch.cat([solve(velocity(), torch.randn(shape), 8, "heun") for _ in range(4)])
    sign = sign.repeat(4)
    for which, (wanted_mean, wanted_size) in ((sign > 0, (0.5, 0.2)), (sign < 0, (-1.0, 1.0))):
        assert float(found[which].mean()) == pytest.approx(wanted_mean, abs=0.2)
        assert float(found[which].std()) == pytest.approx(wanted_size, rel=0.35)


def test_the_learned_size_is_least_wrong_at_the_root_mean_square() -> None:
    mean_square = torch.tensor([0.01, 0.04, 0.09], dtype=torch.float64)

    def off(square: Tensor) -> Tensor:
        ratio = mean_square / square
        return (ratio - ratio.log() - 1).mean()

    best = mean_square.mean().clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(off(best), best)
    assert abs(float(gradient)) < 1e-12 and float(off(best.detach())) >= 0
    assert off(0.8 * best) > off(best) < off(1.2 * best)


@pytest.mark.parametrize(("dimension", "kind"), [(1, "periodic"), (2, "value"), (3, "periodic")])
def test_a_codec_of_any_dimension_has_fewer_numbers_and_all_its_parameters_learn(dimension: int, kind: str) -> None:
    torch.manual_seed(0)
    learned = task_of(16 if dimension < 3 else 8, dimension, kind, ("u", "v"))
    model = Codec([learned], CodecSettings(width=8, depth=1, modes=4, cell=4, compression=8))
    for trunk in (model.encoder, model.decoder):
        for weight in trunk.modulation.weights:
            torch.nn.init.normal_(weight)  # zero at first, so that what leads to them has no gradient yet
    field = torch.randn(2, *learned.grid.shape, 2)
    latent = model.encode("toy", field)
    decoded = model.decode("toy", latent)
    assert decoded.shape == field.shape and latent.numel() * 8 == field.numel()
    decoded.square().mean().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (CodecSettings(compression=1e9), r"compressed 1e\+09 times: a codec's cell of 8 of its 32 .* at most 16 times"),
        (CodecSettings(compression=4, cell=1), "a codec's cell of 1 of its 32 points has 2 numbers"),
    ],
)
def test_a_compression_that_the_cells_do_not_allow_is_refused(settings: CodecSettings, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Codec([task_of(32, channels=("u", "v"))], settings)
    codec = Codec([task_of(32, channels=("u", "v"))], CodecSettings(compression=16))
    assert codec.encode("toy", torch.zeros(1, 32, 2)).shape == (1, 4, 1)


def test_the_default_compression_is_what_cells_allow() -> None:
    assert set(Codec([task_of(32)], CodecSettings()).numbers.values()) == {1}  # 8 points of one channel
    assert set(Codec([task_of(25)], CodecSettings()).numbers.values()) == {1}  # 5, which cannot be compressed 8 times


def test_a_codec_on_a_periodic_axis_moves_with_its_field_by_whole_cells() -> None:
    torch.manual_seed(0)
    learned = task_of(32)
    model = Codec([learned], CodecSettings(width=8, depth=1, cell=8)).double()
    field = normal(2, 32, 1)
    latent = model.encode("toy", field)
    torch.testing.assert_close(model.encode("toy", field.roll(8, 1)), latent.roll(1, 1))
    torch.testing.assert_close(model.decode("toy", latent.roll(1, 1)), model.decode("toy", latent).roll(8, 1))


def test_cells_are_taken_apart_and_put_together_again() -> None:
    field = normal(2, 6, 8, 3)
    assert torch.equal(unpatchify(patchify(field, (3, 4)), (3, 4)), field)
