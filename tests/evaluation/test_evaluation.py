"""The numbers of metrics.json against hand values, and solvers beside the model."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from small import Solved

from ups.data.prepare.statistics import statistics
from ups.data.sources import Source
from ups.equations import Advection, Burgers, Darcy
from ups.evaluation import evaluate as judging
from ups.evaluation.evaluate import evaluate
from ups.evaluation.scores import score
from ups.evaluation.solver import compare
from ups.fields import Batch, Boundary, Channel, Grid, Invariant, TaskSpec
from ups.metrics import MetricContext
from ups.models.interpolation import on_grid
from ups.models.predictor import Persistence
from ups.models.saved import TrainedTask
from ups.rollout.unroll import start_history

WAVES = TaskSpec("waves", 1, (Channel("u"),), Boundary.all("periodic", 1), 1 / 4, dt=0.1, invariants=(Invariant("u"),))


def scored(predictions, truth, model="operator"):
    context = MetricContext(WAVES, torch.tensor([[0.1]]).expand(len(truth), -1), Grid.cell_centred((4,)))
    return score(context, predictions, truth, 0, 400, model=model)


def test_scores_of_two_hand_computed_trajectories() -> None:
    """Truth ±1 and ±2; the model is off by 0.1 and 0.4 everywhere, persistence by 1 and 1."""
    truth = torch.tensor([[1.0, -1.0, 1.0, -1.0], [2.0, -2.0, 2.0, -2.0]]).view(2, 1, 4, 1)
    model = truth + torch.tensor([0.1, 0.4]).view(2, 1, 1, 1)
    result = scored({"operator": model, "persistence": truth + 1}, truth)
    assert result["nrmse"]["model"] == pytest.approx((0.1 + 0.2) / 2)
    assert result["nrmse"]["persistence"] == pytest.approx((1 + 0.5) / 2)
    assert result["nrmse_median"]["model"] == pytest.approx(0.15)
    assert result["nrmse_pooled"]["model"] == pytest.approx(((0.01 + 0.16) / (1 + 4)) ** 0.5)
    assert result["vrmse"]["model"] == pytest.approx((0.1 + 0.2) / 2)
    assert result["max_error"]["model"] == pytest.approx(0.25)
    assert result["conserved_rmse"]["model"] == pytest.approx(0.25)
    assert result["boundary_rmse"]["model"] == pytest.approx(0.25)
    # Two samples: a resample is one of the two or both, so the ends are the samples themselves.
    assert result["nrmse"]["ci95"] == pytest.approx([0.1, 0.2])
    assert result["nrmse_median"]["ci95"] == pytest.approx([0.1, 0.2])


def test_a_prediction_that_is_not_a_number_scores_null() -> None:
    truth = torch.ones(2, 1, 4, 1)
    result = scored({"operator": truth * torch.nan}, truth)
    assert result["nrmse"]["model"] is None
    assert result["nrmse"]["ci95"] == [None, None]


def test_every_predictor_stands_under_its_own_name_and_one_of_them_as_the_model() -> None:
    truth = torch.tensor([[1.0, -1.0, 1.0, -1.0], [2.0, -2.0, 2.0, -2.0]]).view(2, 1, 4, 1)
    away = {"operator": 0.2, "corrector": 0.1, "unet": 0.4, "persistence": 1.0}
    result = scored({name: truth + error for name, error in away.items()}, truth, model="corrector")
    for metric, entry in result.items():
        named = ["model", "persistence", "operator", "corrector", "unet"]
        assert list(entry) == [*named, "ci95", "ci95_of", "ratio95_of"], metric
        assert entry["model"] == entry["corrector"] and entry["ci95"] == entry["ci95_of"]["corrector"]
        assert list(entry["ci95_of"]) == list(away)
    for name, error in away.items():  # two samples: the interval's ends are the samples themselves
        assert result["nrmse"][name] == pytest.approx(0.75 * error)
        assert result["nrmse"]["ci95_of"][name] == pytest.approx([error / 2, error])
        assert result["nrmse_pooled"]["ci95_of"][name] == pytest.approx([error / 2, error])
    # On the same trajectories everybody is wrong in proportion, so the ratio is certain where neither error is.
    assert result["nrmse"]["ratio95_of"]["unet"] == pytest.approx([0.25, 0.25])
    assert "corrector" not in result["nrmse"]["ratio95_of"]


@pytest.mark.parametrize("name", ["model", "truth", "ci95", "ci95_of", "ratio95_of"])
def test_a_name_that_means_something_else_in_the_files_is_refused(name: str) -> None:
    truth = torch.ones(2, 1, 4, 1)
    with pytest.raises(ValueError, match=f"cannot be called '{name}'"):
        scored({"operator": truth, name: truth}, truth)


def test_a_model_that_predicted_nothing_is_refused() -> None:
    truth = torch.ones(2, 1, 4, 1)
    with pytest.raises(ValueError, match="the model is 'corrector'"):
        scored({"operator": truth}, truth, model="corrector")


class Scaling(Persistence):
    """Stands for a model: `predict` of the tests below multiplies the truth by it."""

    def __init__(self, learned: TrainedTask, factor: float) -> None:
        super().__init__([learned])
        self.factor = factor


@pytest.mark.parametrize(
    ("equation", "views"),
    [
        (Advection(points=32, beta=0.4, frames=5, duration=0.5), ["one_step", "rollout"]),
        (Darcy(points=16), ["one_step"]),
    ],
)
def test_numbers_and_arrays_are_there_of_every_predictor_and_of_persistence(
    equation: Advection | Darcy, views: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = 0 if isinstance(equation, Darcy) else 1

    def patched(original):
        def predict(predictor, task: str, batch: Batch, *given: int) -> torch.Tensor:
            if isinstance(predictor, Scaling):
                return predictor.factor * batch.values[:, first:]
            return original(predictor, task, batch, *given)

        return predict

    for function in ("one_step", "rollout", "solve"):
        name = f"ups.evaluation.evaluate.{function}"
        monkeypatch.setattr(name, patched(getattr(judging, function)))
    data, spec = Solved(equation, 6), equation.task()
    learned = TrainedTask(spec, data.grid, statistics(data, spec), {}, ())
    elsewhere = replace(learned, spec=replace(spec, name="another"))
    source = Source(spec, data, data, {equation.name: data})
    predictors = {name: Scaling(learned, by) for name, by in (("operator", 1.2), ("corrector", 1.1), ("unet", 0.5))}
    predictors["stranger"] = Scaling(elsewhere, 1.0)
    found = evaluate(
        predictors,
        "corrector",
        learned,
        source,
        equation.name,
        seed=0,
        resamples=50,
        pictures=2,
        solved=64,
        training_seconds=1.0,
    )
    assert list(found.metrics) == views
    for view in views:
        entry = found.metrics[view]["relative_l2"]
        assert entry["model"] == pytest.approx(0.1, rel=1e-5)
        expected = {"operator": 0.2, "corrector": 0.1, "unet": 0.5}
        assert {name: entry[name] for name in expected} == pytest.approx(expected, rel=1e-5)
        assert "stranger" not in entry  # it was not trained on this task
        assert entry["persistence"] > 0
    for kind in ("prediction", "growth", "spectrum"):
        drawn = {key.removeprefix(f"{kind}_") for key in found.arrays if key.startswith(kind)}
        assert drawn - {"truth"} == {*expected, "persistence"}


def test_a_predictor_called_persistence_is_refused_before_anything_is_predicted() -> None:
    equation = Darcy(points=16)
    data, spec = Solved(equation, 2), equation.task()
    learned = TrainedTask(spec, data.grid, statistics(data, spec), {}, ())
    source = Source(spec, data, data, {"darcy": data})
    rest = {"seed": 0, "resamples": 50, "pictures": 2, "training_seconds": 1.0}
    with pytest.raises(ValueError, match="evaluation adds it itself"):
        evaluate({"persistence": Scaling(learned, 1.0)}, "persistence", learned, source, "darcy", **rest)


@pytest.mark.parametrize(
    "equation",
    [
        Advection(points=64, beta=0.4, frames=6, duration=0.5),
        Burgers(points=64, nu=0.05, frames=6, duration=0.5),
        Darcy(points=64),
    ],
    ids=lambda e: e.name,
)
def test_a_coarser_solver_is_less_exact(equation: Advection | Burgers | Darcy) -> None:
    found = compare([(equation, Solved(equation, 8))], lambda batch: batch.values, training_seconds=10.0)
    errors = [row.nrmse for row in found.rows]
    assert [row.points for row in found.rows] == [64, 32, 16, 8]
    assert errors == sorted(errors)
    assert errors[0] < 0.02
    assert errors[-1] > 3 * errors[0]


def test_breakeven_is_training_over_what_a_simulation_saves() -> None:
    equation = Darcy(points=32)
    data = [(equation, Solved(equation, 4))]
    fast = compare(data, lambda batch: 1.5 * batch.values, training_seconds=10.0)
    assert fast.model_nrmse == pytest.approx(0.5)
    assert fast.equal is not None and fast.rows[fast.equal].seconds == min(row.seconds for row in fast.rows)
    assert fast.breakeven == pytest.approx(10.0 / (fast.rows[fast.equal].seconds - fast.model_seconds))

    def slow(batch: Batch) -> torch.Tensor:
        time.sleep(0.5)
        return 1.5 * batch.values

    assert compare(data, slow, training_seconds=10.0).breakeven is None
    exact = compare(data, lambda batch: batch.values, training_seconds=10.0)
    assert exact.model_nrmse == 0.0 and exact.equal is None and exact.breakeven is None


@pytest.mark.parametrize("points", [50, 36])
def test_solvers_are_coarsened_only_as_far_as_the_grid_divides(points: int) -> None:
    equation = Burgers(points=points, nu=0.05, frames=3, duration=0.1)
    found = compare([(equation, Solved(equation, 2))], lambda batch: batch.values, training_seconds=1.0)
    assert [row.points for row in found.rows] == {50: [50, 25], 36: [36, 18, 9]}[points]


def test_a_single_frame_is_repeated_to_fill_the_history() -> None:
    frames = torch.arange(6.0).view(1, 3, 2, 1)
    assert torch.equal(start_history(frames, 2), frames[:, 1:])
    assert torch.equal(start_history(frames[:, :1], 3), frames[:, :1].expand(-1, 3, -1, -1))


def test_fields_move_between_grids_by_cubics() -> None:
    coarse, fine = Darcy(points=16).grid, Darcy(points=48).grid

    def wave(grid) -> torch.Tensor:
        x, y = grid.points().T
        return (torch.sin(2 * x) * torch.cos(y)).view(1, 1, *grid.shape, 1)

    assert torch.allclose(on_grid(wave(coarse), fine, (False, False)), wave(fine), atol=1e-4)
