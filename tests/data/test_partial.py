"""Static fields that are known at some points only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import Solved

from ups.data.agreement import task_of
from ups.data.inputs import check_inputs
from ups.data.joined import Subset
from ups.data.partial import Partial
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.splits import content_hashes
from ups.data.prepare.statistics import statistics
from ups.data.settings import DataConfig, TaskConfig
from ups.data.sources import check_source, open_source
from ups.equations import Darcy
from ups.errors import UserError
from ups.fields import Dataset

MADE = {"make": {"equation": "darcy", "trajectories": 12, "settings": {"points": 16}}}


def quiet(task: str, done: int, total: int) -> None: ...


def medium(share: float = 0.05, count: int = 8) -> Partial:
    data: Dataset = Solved(Darcy(points=16), count)  # pyright: ignore[reportAssignmentType]
    return Partial(data, share)


def test_so_many_points_are_known_and_the_others_are_zero() -> None:
    batch = medium().read(range(8), slice(None))
    known = batch.static["known"]
    assert known.flatten(1).sum(1).tolist() == [13.0] * 8  # 5 % of 256
    assert torch.equal(batch.static["a_known"], batch.static["a"] * known)
    assert not torch.equal(known[0], known[1])
    assert float(known.mean(0).max()) < 0.7  # they are not the same points in all


def test_a_sample_has_the_same_points_wherever_it_stands() -> None:
    data = medium()
    alone = Subset(data, [5, 2]).read([0], slice(None))
    assert torch.equal(alone.static["known"], data.read(range(8), slice(None)).static["known"][5:6])
    assert content_hashes(Subset(data, [3])) == content_hashes(Subset(data, [0, 3]))[1:]


def test_a_model_is_told_what_is_known_and_metrics_the_whole(tmp_path: Path) -> None:
    config = TaskConfig.model_validate({**MADE, "known": 0.05})
    data = DataConfig(workers=1)
    outline = check_inputs({"darcy": config}, data, tmp_path)["darcy"]
    source = open_source("darcy", config, data, tmp_path, 0, quiet)
    assert outline.spec.static == source.spec.static == task_of("darcy", config).static == ("a_known", "known")
    check_source(source, quiet)
    assert source.train.header.static == ("a_known", "known")
    equation, test = source.solvers[0]
    assert source.spec.source == {"equation": "darcy", "settings": {"points": 16, "beta": 1.0, "target": "steady"}}
    batch = test.read(range(len(test)), slice(None))
    torch.testing.assert_close(equation.coarse(batch, 16).float(), batch.values, rtol=1e-5, atol=1e-6)


def test_a_prepared_task_does_not_hold_what_is_hidden(tmp_path: Path) -> None:
    config = TaskConfig.model_validate({**MADE, "known": 0.05})
    source = open_source("darcy", config, DataConfig(workers=1), tmp_path, 0, quiet)
    scales = statistics(source.train, source.spec)
    seen = Normaliser(source.spec, scales).batch(source.train.read([0], slice(None)))
    assert list(seen.static) == ["a_known", "known"]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_that_makes_no_sense_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="known"):
        TaskConfig.model_validate({**MADE, "known": share})


def test_a_task_without_static_fields_has_nothing_to_hide() -> None:
    config = TaskConfig.model_validate({"make": {"equation": "burgers", "trajectories": 12}, "known": 0.5})
    with pytest.raises(UserError, match="leave `known` out"):
        task_of("burgers", config)
