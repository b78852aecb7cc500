import runpy

import pytest
import torch

from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, Invariant, TaskSpec
from ups.metrics import MetricContext, metrics, nrmse, register_metric, registry

POINTS = Grid.cell_centred((8,))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_known", dict(registry._known))


def context(steady=False, invariants=()):
    spec = TaskSpec(
        "waves", 1, (Channel("u"), Channel("v")), Boundary.all("periodic", 1), 1 / 8, dt=None if steady else 0.1,
        steady=steady, invariants=invariants,
    )  # fmt: skip
    return MetricContext(spec, torch.tensor([0.1, 0.2, 0.3]).expand(5, -1), POINTS)


def fields(seed):
    return torch.randn(5, 3, 8, 2, generator=torch.Generator().manual_seed(seed))


def test_the_metrics_of_the_package_are_there_in_the_order_of_the_files():
    assert list(metrics()) == [
        "nrmse", "relative_l2", "max_error", "boundary_rmse", "spectral_low", "spectral_middle", "spectral_high",
        "vrmse", "conserved_rmse", "correlation_time", "balance",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in registry.metrics() if name != "balance"])  # which has a test file
def test_every_metric_gives_one_number_a_sample(name):
    values = metrics()[name](fields(0), fields(1), context(invariants=(Invariant("v"),)))
    assert values.shape == (5,) and values.dtype == torch.float64


def test_the_number_of_a_sample_is_the_mean_over_times_and_channels():
    values = metrics()["nrmse"](fields(0), fields(1), context())
    assert torch.equal(values, nrmse(fields(0), fields(1)).flatten(1).mean(1))


def test_only_conserved_channels_are_judged_by_their_mean():
    truth = fields(1)
    wrong = truth + torch.tensor([5.0, 2.0])
    found = metrics()["conserved_rmse"](wrong, truth, context(invariants=(Invariant("v"),)))
    assert found == pytest.approx(torch.full((5,), 2.0).double(), rel=1e-6)


def test_a_metric_without_a_meaning_for_a_task_is_left_out():
    def applying(context):
        return {name for name, metric in metrics().items() if metric.applies(context)}

    assert {"conserved_rmse", "correlation_time"} & applying(context(steady=True)) == set()
    assert "correlation_time" in applying(context())
    assert "conserved_rmse" in applying(context(invariants=(Invariant("u"),)))


def test_a_users_file_adds_a_metric_that_knows_task_times_and_points(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ups.metrics import register_metric\n\n"
        "def peak_distance(prediction, truth, context):\n"
        "    x = context.grid.positions[0]\n"
        "    column = context.spec.channel_names.index('v')\n"
        "    return (x[prediction[:, -1, :, column].argmax(1)] - x[truth[:, -1, :, column].argmax(1)]).abs()\n\n"
        "register_metric('peak_distance', peak_distance)\n"
    )
    runpy.run_path(str(file))
    truth = torch.zeros(1, 3, 8, 2)
    truth[:, :, 2, 1] = 1
    assert list(metrics())[-1] == "peak_distance"
    assert metrics()["peak_distance"](truth.roll(3, 2), truth, context()) == pytest.approx(torch.tensor([3 / 8]))


def test_two_metrics_cannot_have_one_name():
    def mine(prediction, truth, context):
        return truth.flatten(1).sum(1)

    register_metric("mine", mine)
    register_metric("mine", mine)  # the same again is no harm
    for taken in ("mine", "nrmse", "nrmse_median"):
        with pytest.raises(UserError, match=f"metric '{taken}' is already registered"):
            register_metric(taken, lambda prediction, truth, context: truth.flatten(1).sum(1))


@pytest.mark.parametrize(
    ("function", "found"),
    [(lambda p, y, c: nrmse(p, y), r"shape \(5, 3, 2\) for 5 samples"), (lambda p, y, c: 0.5, "float for 5 samples")],
)
def test_a_metric_that_is_not_one_number_a_sample_is_named(function, found):
    register_metric("mine", function)
    with pytest.raises(UserError, match=f"metric 'mine' gave {found}"):
        metrics()["mine"](fields(0), fields(1), context())
