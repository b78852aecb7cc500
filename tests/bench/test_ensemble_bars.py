"""What ensembles are set beside in benchmarks/ensembles.py: the solver, and the time in which errors grow."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from ensembles import finished, growth, solved

from ups.equations import Burgers, KuramotoSivashinsky
from ups.errors import UserError


def test_the_solver_gives_the_truth_back_and_tells_how_fast_errors_grow() -> None:
    chaotic = KuramotoSivashinsky(points=192, length=64.0, frames=41, duration=80.0)
    batch = chaotic.solve(0, range(4))
    assert (solved(chaotic, batch, 1) - batch.values[:, 1:]).norm() < 0.02 * batch.values.norm()
    assert 8 < growth(chaotic, batch, 1) * 2.0 < 15  # e-fold in about 11 time units
    calm = Burgers(points=64, nu=0.1, frames=6, duration=0.5)
    assert growth(calm, calm.solve(0, range(2)), 1) == 5  # never: all frames are one stretch


def test_numbers_that_are_kept_are_read_and_nothing_is_run_and_those_of_other_settings_are_refused(
    tmp_path: Path,
) -> None:
    options = argparse.Namespace(
        config="generative", out=tmp_path, members=4, start=0.01, trajectories=8, device="cpu", overrides=["seed=1"]
    )
    kept = {"asked": [4, 8, "seed=1"], "tasks": {"some": {}}}
    (tmp_path / "generative_3_start_0.01.json").write_text(json.dumps(kept))
    assert finished(options, 3) == {"some": {}}
    options.members = 5
    with pytest.raises(UserError, match="other settings"):
        finished(options, 3)
    assert not (tmp_path / "generative_3").exists()
