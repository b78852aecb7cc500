"""Golden digits: what a toy quickstart and a two-rank job lose, step by step, to more digits than any rounding takes.

A change that only moves code keeps them; one that means to change them says so, and pins the new ones. Training is in
float64 and data are float32, so that machines agree to about 1e-6.
"""

from pathlib import Path

import pytest
from ranks import run_ranks
from small import SMALLER, train_small

from ups import pipeline
from ups.track.jsonl import read_events

TASKS = ("advection", "burgers", "darcy")
TOLERANCE = 1e-5


def test_the_toy_quickstart_keeps_its_losses(tmp_path: Path) -> None:
    pipeline.train("quickstart", [*SMALLER, "training.precision=float64"], tmp_path)
    events = read_events(tmp_path / "quickstart" / "stages" / "operator" / "events.jsonl")
    losses = {e["step"]: [e["parts"][t] for t in TASKS] for e in events if e["kind"] == "step"}
    errors = {e["step"]: [e["errors"][t] for t in TASKS] for e in events if e["kind"] == "validation"}
    assert losses[20] == pytest.approx([0.7116878534, 0.6914533364, 0.9799003247], rel=TOLERANCE)
    assert losses[40] == pytest.approx([0.5079447124, 0.9331401876, 0.9487981606], rel=TOLERANCE)
    assert errors[40] == pytest.approx([0.5605129498, 0.7944269979, 0.9383365152], rel=TOLERANCE)


def test_a_two_rank_job_keeps_its_losses(tmp_path: Path) -> None:
    losses, _ = run_ranks(2, train_small, tmp_path / "data", tmp_path / "run")[0]
    assert [losses[step] for step in (0, 5, 10, 19)] == pytest.approx(
        [0.9137001557, 0.7244182013, 0.8671104506, 0.6061727138], rel=TOLERANCE
    )
