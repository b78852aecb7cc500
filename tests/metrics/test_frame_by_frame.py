"""Long trajectories are measured a few frames at a time: the same numbers, in less memory."""

from __future__ import annotations

import pytest
import torch

from ups.fields import Boundary, Channel, Grid, Invariant, TaskSpec
from ups.metrics import MetricContext, layout, metrics

SPEC = TaskSpec(
    "waves", 2, (Channel("u"), Channel("v")), Boundary.all("periodic", 2), dt=0.1, invariants=(Invariant("u"),)
)


@pytest.mark.parametrize("masked", [False, True])
def test_every_metric_is_the_same_a_few_frames_at_a_time(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(2, 7, 16, 12, 2, generator=generator)
    prediction = truth + 0.1 * torch.randn(truth.shape, generator=generator)
    mask = torch.rand(2, 16, 12, generator=generator) < 0.8 if masked else None
    context = MetricContext(SPEC, 0.1 * torch.arange(7.0).expand(2, -1), Grid.cell_centred((16, 12)), mask)
    known = {name: metric for name, metric in metrics().items() if metric.applies(context)}
    whole = {name: metric(prediction, truth, context) for name, metric in known.items()}
    monkeypatch.setattr(layout, "AT_ONCE", 3 * truth[:, 0].numel())
    for name, metric in known.items():
        assert torch.allclose(metric(prediction, truth, context), whole[name], rtol=1e-12, atol=0, equal_nan=True), name
    seen = []

    @layout.frame_by_frame
    def frames(prediction, truth, mask):
        seen.append(truth.shape[1])
        return truth.mean((2, 3))

    assert torch.equal(frames(prediction, truth), truth.mean((2, 3))) and seen == [3, 3, 1]
