"""Rollouts stay within the trained range and a margin, whatever the network says; inside it, guards change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from small import Solved
from torch import Tensor, nn

from ups.data.prepare.normalise import MARGIN, Normaliser
from ups.data.prepare.statistics import Statistics, statistics
from ups.equations import Burgers, Compressible1D, DiffusionSorption
from ups.fields import Boundary, Grid, Invariant, TaskSpec
from ups.models.propagator import Guards, Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.rollout.unroll import unroll
from ups.simulator import Simulator
from ups.store.fields import store_key

FLOW = Compressible1D(points=32, frames=6, duration=0.25)
DATA = Solved(FLOW, 4)
WAVES = Burgers(points=32, frames=6, duration=0.25)
GAS = FLOW.task()


def learned(equation: Compressible1D | Burgers = FLOW, data: Solved = DATA) -> TrainedTask:
    task = equation.task()
    ranges = {name: (value, value) for name, value in equation.parameters.items()}
    return TrainedTask(task, equation.grid, statistics(data, task), ranges, (task.dt or 0.0,))


class Growing(nn.Module):
    """Every field grows by its own multiple at each step: what errors that feed on themselves come to."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain, dtype=torch.float64), requires_grad=False)

    def forward(self, task: str, history: Tensor, static: Tensor, conditions: dict, grid: Grid) -> Tensor:
        return self.gain * (history[:, -1] - history[:, -1].mean(1, keepdim=True))


def diverging(gain: float, guarded: bool, keeps: bool = True) -> Propagator:
    trained = learned()
    normaliser, name = trained.normaliser, trained.spec.name
    units = {name: normaliser.units()} if keeps else None
    ends = normaliser.limits()
    assert ends is not None
    scales = {name: normaliser.step_scales()}
    return Propagator(Growing(gain), [GAS], scales, units, {name: ends} if guarded else None).eval()


def rolled(model: Propagator, steps: int) -> Tensor:
    trained = learned()
    batch = trained.normaliser.batch(replace(DATA.batch, values=DATA.batch.values.double()))
    history, lead = batch.values[:, :1], torch.full((len(batch.values),), GAS.dt, dtype=torch.float64)
    static = history.new_zeros(*history.shape[:1], FLOW.points, 0)
    states = unroll(model, GAS.name, history, batch.parameters, FLOW.grid, [(static, lead)] * steps)
    return torch.stack([history[:, -1], *states], 1)


def limits(trained: TrainedTask) -> tuple[Tensor, Tensor]:
    ends = trained.normaliser.ranges()
    assert ends is not None
    margin = MARGIN * (ends[1] - ends[0])
    return ends[0] - margin, ends[1] + margin


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("gain", [0.5, 50.0])
def test_a_diverging_network_stays_in_the_trained_range_and_leaves_the_numbers_without_guards(
    gain: float, keeps: bool
) -> None:
    bare = learned().normaliser.physical(rolled(diverging(gain, False, keeps), 2000))
    assert not bool(bare.isfinite().all())
    states = rolled(diverging(gain, True, keeps), 2000)
    lower, upper = limits(learned())
    # The logarithm of an exponential, at most 1e-15 of a value of order one, may end a digit beyond the limit.
    assert bool((states >= lower - 1e-12).all()) and bool((states <= upper + 1e-12).all())
    values = learned().normaliser.physical(states)
    assert bool(values.isfinite().all()) and float(values[..., :2].min()) > 0
    assert float((values[:, -1] - values[:, 0]).abs().amax((0, 1)).min()) > 0.1  # not frozen where it started


@pytest.mark.parametrize("gain", [0.5, 50.0])
def test_conserved_means_hold_to_round_off_also_where_values_are_cut_off(gain: float) -> None:
    trained = learned()
    both = replace(GAS, invariants=(Invariant("density"), Invariant("Vx")))
    ends = trained.normaliser.limits()
    guards = Guards(both, trained.normaliser.units(), ends).eval()
    last = trained.normaliser.normalise(DATA.batch.values[:, 0].double())
    torch.manual_seed(0)
    for _ in range(100):
        change = gain * torch.randn_like(last)
        state = guards(last + change - change.mean(1, keepdim=True), last)
        before, after = (trained.normaliser.physical(values) for values in (last, state))
        speed = float(before[..., 2].abs().max())
        assert torch.allclose(before[..., 0].mean(1), after[..., 0].mean(1), rtol=1e-12, atol=0)
        assert torch.allclose(before[..., 2].mean(1), after[..., 2].mean(1), rtol=0, atol=1e-12 * speed)
        last = state
    lower, upper = limits(trained)
    assert bool((last >= lower - 1e-12).all()) and bool((last <= upper + 1e-12).all())
    assert float((last - lower).min()) < 1e-6  # something was cut off


@pytest.mark.parametrize("transform", ["identity", "standardised"])
@pytest.mark.parametrize("gain", [0.5, 50.0])
def test_what_was_never_negative_in_training_never_is_and_its_conserved_mean_holds(
    transform: Literal["identity", "standardised"], gain: float
) -> None:
    equation = DiffusionSorption(points=32, frames=6, duration=100.0)
    data = Solved(equation, 3)
    assert 0 <= float(data.batch.values.min()) < 0.1 * float(data.batch.values.max())
    channels = tuple(replace(channel, transform=transform) for channel in equation.task().channels)
    task = replace(equation.task(), channels=channels, invariants=(Invariant("u"),))
    normaliser = Normaliser(task, statistics(data, task))
    guards = Guards(task, normaliser.units(), normaliser.limits()).eval()
    states = [normaliser.normalise(data.batch.values[:, -1].double())]
    torch.manual_seed(0)
    for _ in range(100):
        change = gain * torch.randn_like(states[-1])
        states.append(guards(states[-1] + change - change.mean(1, keepdim=True), states[-1]))
    values = normaliser.physical(torch.stack(states))
    assert float(values.min()) >= (0.0 if transform == "identity" else -1e-15) and float(values.min()) < 1e-12
    assert torch.allclose(values[1:].mean(2), values[:1].mean(2).expand(100, -1, -1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_cut_off_is_counted(keeps: bool) -> None:
    states = rolled(diverging(50.0, True, keeps), 40)
    shares = diverging(50.0, True, keeps).cut_off(GAS.name, states[:, 0], list(states[:, 1:].unbind(1)))
    wanted = rolled(diverging(50.0, False, keeps), 1)[:, 1]
    lower, upper = limits(learned())
    beyond = ((wanted < lower) | (wanted > upper)).double().flatten(1).mean(1)
    first = diverging(50.0, True, keeps).cut_off(GAS.name, states[:, 0], [states[:, 1]])
    assert bool((first <= beyond).all()) and bool((first >= (0.5 if keeps else 1.0) * beyond).all())
    assert float(beyond.min()) > 0.2
    assert float(shares.min()) > 0.2 and float(shares.max()) <= 1
    calm = rolled(diverging(1e-6, True, False), 3)
    assert not diverging(1e-6, True, False).cut_off(GAS.name, calm[:, 0], list(calm[:, 1:].unbind(1))).any()


def test_inside_the_trained_range_guards_change_no_digit() -> None:
    trained = learned()
    units, ends = trained.normaliser.units(), trained.normaliser.limits()
    first, second = trained.normaliser.normalise(DATA.batch.values[:, :2].double()).unbind(1)
    assert torch.equal(Guards(GAS, None, ends).eval()(second, first), second)
    without_range = Guards(GAS, units)(second, first)
    assert torch.equal(Guards(GAS, units, ends).eval()(second, first), without_range)
    assert not torch.equal(without_range, second)  # the mean density was corrected


def test_a_start_outside_the_trained_range_is_kept_and_not_exceeded() -> None:
    trained = learned()
    units, ends = trained.normaliser.units(), trained.normaliser.limits()
    guards = Guards(replace(GAS, invariants=()), units, ends).eval()
    far = 3 * trained.normaliser.normalise(DATA.batch.values[:, 0].double())
    assert torch.equal(guards(far, far), far)
    assert torch.equal(guards(far.roll(5, 1), far), far.roll(5, 1))  # what is far may move
    lower, upper = limits(trained)
    grown = guards(100 * far, far)
    assert torch.equal(grown.amax(1)[far.amax(1) > upper], far.amax(1)[far.amax(1) > upper])
    assert torch.equal(grown.amin(1)[far.amin(1) < lower], far.amin(1)[far.amin(1) < lower])
    assert bool((far.amax(1) > upper).any()) and bool((far.amin(1) < lower).any())


def test_a_prescribed_wall_keeps_its_value_where_the_rest_is_cut_off() -> None:
    wall = TaskSpec("tube", 1, GAS.channels, Boundary.all("value", 1), dt=0.1)
    guards = Guards(wall, None, torch.tensor([[-1.0] * 3, [1.0] * 3], dtype=torch.float64)).eval()
    last = torch.rand(2, 16, 3, dtype=torch.float64)
    last[:, 0] = 0.7
    change = 100 * torch.randn(2, 16, 3, dtype=torch.float64)
    change[:, 0] = 0.0
    state = guards(last + change, last)
    assert torch.equal(state[:, 0], last[:, 0]) and float(state.abs().max()) == 1


@pytest.mark.parametrize("architecture", ["spectral", "fno", "unet"])
def test_every_architecture_is_guarded(architecture: str) -> None:
    data = Solved(WAVES, 4)
    trained = learned(WAVES, data)
    settings = {"width": 8, "modes": 4} if architecture != "unet" else {"width": 8}
    model = ModelSpec(architecture, settings, (trained,)).build(0).double().requires_grad_(False).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=30.0)
    simulator = Simulator(OperatorPredictor(model, [trained]))
    result = simulator.rollout(data.batch.values[:, 0].double(), steps=200, conditions=WAVES.parameters)
    lower, upper = (trained.normaliser.physical(end) for end in limits(trained))
    assert float(result.values.min()) >= float(lower) - 1e-12 and float(result.values.max()) <= float(upper) + 1e-12
    assert any(n.startswith("step ") and "u = " in n and "'burgers'" in n for n in result.warnings)


def test_a_rollout_that_leaves_the_trained_range_says_where_before_it_leaves_the_numbers() -> None:
    trained = learned()
    start = DATA.batch.values[:, 0].double()
    bare = diverging(2.0, guarded=False, keeps=False)
    result = Simulator(OperatorPredictor(bare, [trained])).rollout(start, steps=1000, conditions=FLOW.parameters)
    states = torch.cat([start[:, None], result.values], 1)
    for channel, name in enumerate(result.channels):
        left = next(n for n in result.warnings if f": {name} = " in n)
        lost = next(n for n in result.warnings if f": {name} of task 'compressible_1d' has NaN" in n)
        first, last = (int(note.split()[1].rstrip(":")) for note in (left, lost))
        assert first < last and "'compressible_1d'" in left
        values = states[..., channel].transpose(0, 1).flatten(1)
        assert bool(values[:last].isfinite().all()) and not bool(values[last].isfinite().all())
        low, high = trained.statistics.channels[name].range or (0.0, 0.0)
        seen = values.log() if name != "Vx" else values
        excess = torch.maximum(seen.amax(1) - high, low - seen.amin(1)) / (high - low)
        assert float(excess[first]) > 0.05 and float(excess[:first].max()) <= 0.05
    still = Simulator(OperatorPredictor(diverging(0.0, guarded=True), [trained]))
    assert still.rollout(start, steps=5, conditions=FLOW.parameters).warnings == ()


def test_a_model_saved_without_ranges_is_read_and_runs_unguarded() -> None:
    described = learned().to_dict()
    for scale in described["statistics"]["channels"].values():
        del scale["range"]
    old = TrainedTask.from_dict(described)
    assert old.normaliser.ranges() is None and old.normaliser.limits() is None
    assert Statistics.from_dict(old.statistics.to_dict()) == old.statistics
    assert store_key(DATA, old.normaliser) == store_key(DATA, learned().normaliser)  # stores stay as they are
    model = ModelSpec("spectral", {"width": 8, "depth": 1}, (old,)).build(0)
    guards = model.get_submodule("guards_compressible_1d")
    assert isinstance(guards, Guards) and not guards.limited


def test_nothing_is_cut_off_in_training_where_it_would_have_no_gradient() -> None:
    trained = learned()
    guards = Guards(replace(GAS, invariants=()), trained.normaliser.units(), trained.normaliser.limits())
    last = trained.normaliser.normalise(DATA.batch.values[:, 0].double())
    assert torch.equal(guards.train()(last + 100, last), last + 100)
    assert not torch.equal(guards.eval()(last + 100, last), last + 100)


def test_a_sample_is_guarded_as_if_it_were_alone() -> None:
    trained = learned()
    guards = Guards(GAS, trained.normaliser.units(), trained.normaliser.limits()).eval()
    last = trained.normaliser.normalise(DATA.batch.values[:, 0])
    wild = last.clone()
    wild[0] *= 100
    together = guards(wild, last)
    assert together.dtype == torch.float32 and not torch.equal(together[0], wild[0])
    for i in range(len(last)):
        assert torch.equal(guards(wild[i : i + 1], last[i : i + 1])[0], together[i])
