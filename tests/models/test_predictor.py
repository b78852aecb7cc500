"""Predictors: what each starts from, what it decodes to, and members of a sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import Solved
from standing import DT, GRID, Standing, exact_model, learned

from ups.data.prepare.statistics import statistics
from ups.equations import Darcy
from ups.errors import UserError
from ups.fields import Conditions, Grid
from ups.models.predictor import MeanSolution, Persistence, PerTask
from ups.models.saved import TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step, rollout, steady
from ups.simulator import Simulator

BATCH = Standing(frames=6).read(range(3), slice(None))


def predictor(given: int = 1) -> OperatorPredictor:
    return OperatorPredictor(exact_model(), [learned(given)])


def started(predictor, frames: int, grid: Grid = GRID):
    return predictor.start("standing", BATCH.values[:, :frames], Conditions(), grid)


def test_an_operator_starts_from_its_last_frames_and_repeats_a_single_one() -> None:
    values = BATCH.values
    assert torch.equal(started(predictor(), 5).history, values[:, 3:5])
    assert torch.equal(started(predictor(), 1).history, values[:, [0, 0]])


def test_a_state_decodes_to_the_start_until_it_is_stepped() -> None:
    fine = Grid.cell_centred((40,))  # whose frames the model sees on its own sixteen points
    frames = torch.rand(2, 1, 40, 1, dtype=torch.float64)
    state = predictor().start("standing", frames, Conditions(), fine)
    assert state.history.shape == (2, 2, 16, 1)
    assert torch.equal(predictor().decode(state), frames[:, -1])
    after = predictor().step(state, torch.full((2,), DT))
    assert predictor().decode(after).shape == (2, 40, 1)
    assert predictor().decode(after, GRID).shape == (2, 16, 1)
    assert predictor().decode(after, torch.rand(7, 1)).shape == (2, 7, 1)


def test_a_step_follows_its_lead_time_and_conditions_not_those_of_the_step_before() -> None:
    model = exact_model()
    model.register_forward_pre_hook(lambda module, inputs: seen.append(float(inputs[4][0])))
    seen: list[float] = []
    state = started(OperatorPredictor(model, [learned()]), 2)
    for lead in (0.1, 0.2):
        state = OperatorPredictor(model, [learned()]).step(state, torch.full((3,), lead))
    assert seen == pytest.approx([0.1, 0.2])


def test_persistence_is_the_frame_before_bit_for_bit_and_can_be_read_anywhere() -> None:
    still, values = Persistence([learned()]), BATCH.values
    assert torch.equal(one_step(still, "standing", BATCH), values[:, :-1])
    assert torch.equal(rollout(still, "standing", BATCH, 2), values[:, 1:2].expand(-1, 4, -1, -1))
    points = still.decode(started(still, 1), GRID.points())
    torch.testing.assert_close(points, values[:, 0])


def test_the_mean_solution_is_the_training_set_s_on_any_grid() -> None:
    equation = Darcy(points=16)
    data, spec = Solved(equation, 5), equation.task()
    trained = TrainedTask(spec, data.grid, statistics(data, spec), {}, ())
    mean = data.batch.values.double().mean(0)
    found = steady(MeanSolution(trained, data), spec.name, data.batch)
    torch.testing.assert_close(found, mean.float().expand(5, -1, -1, -1, -1))
    finer = Darcy(points=32).solve(1, range(2))
    assert steady(MeanSolution(trained, data), spec.name, finer).shape == finer.values.shape


def test_a_family_of_predictors_is_one() -> None:
    other = replace(learned(), spec=replace(learned().spec, name="other"))
    family = PerTask({"standing": predictor(), "other": Persistence([other])})
    assert list(family.tasks) == ["standing", "other"]
    assert torch.equal(rollout(family, "standing", BATCH), rollout(predictor(), "standing", BATCH))
    assert torch.equal(rollout(family, "other", BATCH), BATCH.values[:, :1].expand(-1, 5, -1, -1))


class Shaken(Persistence):
    """Persistence with chance: members are folded into the batch."""

    def sample(self, state, lead, seed: int, members: int):
        history = state.history if state.members else state.history.repeat(members, 1, 1, 1)
        noise = torch.randn(history.shape, generator=torch.Generator().manual_seed(seed % 2**63))
        return replace(state, history=history + noise, static=history[:, 0, :, :0], members=members)

    def decode(self, state, target=None) -> torch.Tensor:
        values = super().decode(replace(state, members=None), target)
        return values.unflatten(0, (state.members, -1)) if state.members else values


def test_members_of_a_sample_differ_from_step_to_step_and_return_with_their_seed() -> None:
    sim = Simulator(Shaken([learned()]))
    found = [sim.rollout(BATCH.values[:, 0], steps=4, members=3, seed=seed).values for seed in (0, 0, 1)]
    assert found[0].shape == (3, 3, 4, 16, 1)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    moves = found[0].diff(dim=2)
    assert float(moves[0].std()) == pytest.approx(1.0, abs=0.2)
    assert not torch.allclose(moves[:, :, 0], moves[:, :, 1]) and not torch.allclose(moves[0], moves[1])


def test_members_of_a_model_without_chance_are_all_its_rollout() -> None:
    sim, u0 = Simulator(predictor(given=2)), BATCH.values[:, :2]
    alone = sim.rollout(u0, times=[0.0, 0.1, 0.25], at=[[0.3]]).values
    several = sim.rollout(u0, times=[0.0, 0.1, 0.25], at=[[0.3]], members=4).values
    assert torch.equal(several, alone.expand(4, 3, 3, 1, 1))
    assert sim.rollout(u0[0, 0], steps=2, members=4).values.shape == (4, 2, 16, 1)
    with pytest.raises(UserError, match="members is 0"):
        sim.rollout(u0, steps=1, members=0)


def test_a_simulator_takes_as_many_frames_as_validation_gave() -> None:
    values = Simulator(predictor(given=4)).rollout(BATCH.values[:, :4], steps=2).values
    torch.testing.assert_close(values, BATCH.values[:, 4:])
    with pytest.raises(UserError, match="4 frames a sample; task 'standing' starts from 2"):
        Simulator(predictor()).rollout(BATCH.values[:, :4], steps=1)


def test_the_mean_solution_is_of_those_whose_domain_a_point_is_in() -> None:
    data = Solved(Darcy(points=8), 3)
    mask = torch.ones(3, 8, 8, dtype=torch.bool)
    mask[0, 2:4], mask[:, 5] = False, False
    values = torch.where(mask[:, None, ..., None], data.batch.values, 0.0)
    data.batch = replace(data.batch, values=values, mask=mask)
    spec = Darcy(points=8).task()
    learned = TrainedTask(spec, data.grid, statistics(data, spec), {}, ())
    predictor = MeanSolution(learned, data)
    state = predictor.start("darcy", values[:1], Conditions({}, {}), data.grid)
    mean = predictor.decode(state)[0]
    torch.testing.assert_close(mean[2:4], values[1:, 0, 2:4].mean(0))
    torch.testing.assert_close(mean[0], values[:, 0, 0].mean(0))
    assert not mean[5].any()
