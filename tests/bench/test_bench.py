"""`ups bench` from end to end, made tiny."""

from __future__ import annotations

import gc
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hasty import ARGUMENTS, hastily, measure
from tiny import tiny

from ups.bench import run, solvers
from ups.bench.contestants import Entry
from ups.bench.data import prepare
from ups.bench.loops import Loop
from ups.bench.solvers import comparison
from ups.bench.tables import markdown, seconds_to, speedups, target
from ups.bench.tasks import TASKS
from ups.bench.trained import Trained
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import DiffusionReaction
from ups.errors import UserError
from ups.fields import Batch, Boundary, Grid


@pytest.fixture(scope="module", autouse=True)
def quickly():
    with hastily():
        yield


@pytest.fixture(scope="module")
def benched(tmp_path_factory, quickly):
    """A bench of two seconds of training, all three contestants together."""
    out = tmp_path_factory.mktemp("bench")
    assert measure(**ARGUMENTS, seconds=0.7, out=out) == 0
    return out


def test_the_record_holds_every_number_of_the_table(benched):
    content = json.loads((benched / "advection.json").read_text())
    assert list(content["contestants"]) == ["ours", "eager", "fno_usual"]
    for row in content["contestants"].values():
        speed, trained = row["throughput"], row["runs"]["0"]
        assert row["state"] == "done"
        assert speed["samples_per_second"] == pytest.approx(4 / speed["step_seconds"])
        assert 0 <= speed["data_wait_share"] < 1
        assert speed["share_of_matmul"] > 0 and speed["of_roofline"]["moved"] > 1
        assert trained["rollout"]["nrmse"] > 0 and len(trained["rollout"]["ci95"]) == 2
        assert [point["step"] for point in trained["curve"]] == sorted(point["step"] for point in trained["curve"])
        assert trained["steps"] == trained["curve"][-1]["step"] >= 20
    # Training beats copying the input where copying is bad: advection moves everything.
    assert (
        content["contestants"]["ours"]["runs"]["0"]["one_step"]["nrmse"] < content["persistence"]["one_step"]["nrmse"]
    )


def test_the_same_model_is_counted_alike_however_it_is_run(benched):
    rows = json.loads((benched / "advection.json").read_text())["contestants"]
    assert rows["ours"]["throughput"]["counts"] == rows["eager"]["throughput"]["counts"]
    assert rows["ours"]["parameters"] == rows["eager"]["parameters"]


def test_nothing_of_a_contestant_is_left_when_the_next_is_made(tmp_path, monkeypatch):
    """Graphs of the last one, freed by a forked DataLoader worker of the next, would kill that worker."""
    left: list[int] = []
    release = run._release

    def watched() -> None:
        release()
        left.append(sum(type(thing) in (Trained, Loop) for thing in gc.get_objects()))

    monkeypatch.setattr(run, "_release", watched)
    assert measure(**ARGUMENTS | {"only": ["ours", "fno_usual"]}, seconds=0.1, out=tmp_path) == 0
    assert left == [0, 0, 0, 0]  # two timed, two trained


def test_a_model_may_have_a_batch_size_of_its_own(benched, tmp_path):
    def pairs(task):
        return replace(task, models={**task.models, "fno_usual": replace(task.models["fno_usual"], batch_size=2)})

    arguments = ARGUMENTS | {"only": ["ours", "fno_usual"], "change": lambda task: pairs(tiny())}
    assert measure(**arguments, seconds=0, out=tmp_path) == 0
    mine, other = (json.loads((folder / "advection.json").read_text())["contestants"] for folder in (tmp_path, benched))
    flop = {key: mine[key]["throughput"]["counts"]["flop"] / other[key]["throughput"]["counts"]["flop"] for key in mine}
    assert flop == {"ours": 1, "fno_usual": pytest.approx(0.5, rel=0.05)}
    speed = mine["fno_usual"]["throughput"]
    assert speed["samples_per_second"] == pytest.approx(2 / speed["step_seconds"])


def test_rollouts_are_timed_in_full_batches_however_few_the_test_trajectories(monkeypatch):
    grid = Grid.cell_centred((4,))
    times = torch.arange(2.0).double().expand(3, -1)
    batch = Batch("u", torch.randn(3, 2, 4, 1), times, grid, Boundary.all("periodic", 1), {}, {}, torch.arange(3))
    lengths: list[int] = []
    most = 8

    def work(part: Batch) -> torch.Tensor:
        if len(part) > most:
            raise torch.OutOfMemoryError
        lengths.append(len(part))
        return 2 * part.values

    monkeypatch.setattr(solvers, "synchronise", lambda device: None)
    monkeypatch.setitem(solvers.BATCHES, "cuda", (2, 8))
    result, seconds = solvers.fastest(work, batch, torch.device("cuda"), lambda kept: None)
    assert torch.equal(result, 2 * batch.values) and seconds > 0
    assert lengths == [8, 8, 8] + [2, 1] * 3
    lengths.clear()
    monkeypatch.setattr(solvers, "LONG", 0.0)
    assert torch.equal(solvers.fastest(work, batch, torch.device("cuda"), lambda kept: None)[0], 2 * batch.values)
    assert lengths == [8]  # a long run is the only one
    most = 4
    lengths.clear()
    assert torch.equal(solvers.fastest(work, batch, torch.device("cuda"), lambda kept: None)[0], 2 * batch.values)
    assert lengths == [2, 1]  # eight do not fit
    most = 1
    with pytest.raises(torch.OutOfMemoryError):
        solvers.fastest(work, batch, torch.device("cuda"), lambda kept: None)


def test_solvers_are_compared_on_the_same_trajectories(benched):
    content = json.loads((benched / "advection.json").read_text())
    ladder = content["solver"]
    assert [row["points"] for row in ladder] == [32, 16]
    assert 0 < ladder[0]["nrmse"] < ladder[1]["nrmse"]  # shifting samples of a function is not knowing it
    rollouts = content["contestants"]["ours"]["rollouts"]
    assert rollouts["against_reference"] == pytest.approx(
        rollouts["rollouts_per_second"] / rollouts["solver_rollouts_per_second"]
    )


@pytest.mark.parametrize("long", [math.inf, 0.0])
def test_drawing_initial_states_is_no_part_of_the_reference_solver_s_time(tmp_path, monkeypatch, long):
    """Whether it is solved again, or too slow for that and timed when it made the data."""
    draw = DiffusionReaction.noise

    def slowly(equation: DiffusionReaction, seed: int, ids: Sequence[int], device: Any) -> torch.Tensor:
        time.sleep(0.1 * len(ids))
        return draw(equation, seed, ids, device)

    monkeypatch.setattr(DiffusionReaction, "noise", slowly)
    monkeypatch.setattr(solvers, "LONG", long)
    task = TASKS["diffusion_reaction"]
    task = replace(task, solver=DiffusionReaction(points=32), points=32, train=2, validation=2, test=4)
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as runtime:
        data = prepare(task, runtime, tmp_path)
        reference, coarse = solvers.ladder(data, runtime)
    assert reference["points"] == 32 and coarse["points"] == 16
    assert data.seconds / 8 > 0.1 > reference["seconds"] > 0
    assert (reference["nrmse"] == 0) if long == 0 else (0 < reference["nrmse"] < 1e-6)
    assert coarse["nrmse"] > 0.01


def test_the_markdown_has_the_tables_and_says_where_they_come_from(benched):
    text = (benched / "bench.md").read_text()
    assert re.search(r"torch \d.*, CPU threads: 1, \d{4}-\d\d-\d\d, `ups bench`", text)
    header = next(line for line in text.splitlines() if line.startswith("| contestant"))
    rows = [line for line in text.splitlines() if line.startswith(("| ours ", "| ours, eager ", "| FNO, usual way "))]
    assert {line.count("|") for line in rows if "," not in line.split("|")[2]} >= {header.count("|")}
    assert "Our step trains on" in text and "Roofline of ours" in text


def test_tables_are_the_same_whatever_was_measured_first(benched):
    content = json.loads((benched / "advection.json").read_text())
    turned = content | {"contestants": dict(reversed(content["contestants"].items()))}
    assert markdown({"advection": turned}) == markdown({"advection": content})


def test_a_picture_is_drawn(benched):
    assert (benched / "advection.png").read_bytes().startswith(b"\x89PNG")


def test_results_of_other_settings_are_refused(benched):
    with pytest.raises(UserError, match="results of other settings; choose another --out, or remove it"):
        measure(**ARGUMENTS, seconds=0.8, out=benched)


def test_what_is_measured_again_is_replaced_and_the_rest_is_kept(tmp_path, capsys):
    assert measure(**ARGUMENTS | {"only": ["ours", "eager"]}, seconds=0, out=tmp_path) == 0
    before = json.loads((tmp_path / "advection.json").read_text())["contestants"]
    capsys.readouterr()
    assert measure(**ARGUMENTS | {"only": ["eager"]}, seconds=0, out=tmp_path, as_json=True) == 0
    after = json.loads((tmp_path / "advection.json").read_text())
    assert after["contestants"]["ours"] == before["ours"]
    assert after["contestants"]["eager"]["throughput"] != before["eager"]["throughput"]
    assert capsys.readouterr().out.endswith(json.dumps({"advection": after}, indent=1) + "\n")
    assert "timed in turn" not in (tmp_path / "bench.md").read_text(), "ways timed in different calls"


def test_a_contestant_that_fails_does_not_stop_the_others_and_its_row_says_why(tmp_path, monkeypatch, capsys):
    class Broken:
        def __init__(self, *_):
            raise RuntimeError("no luck today\nand more")

    make = Entry.make
    monkeypatch.setattr(Entry, "make", lambda self, s: Broken() if self.key == "eager" else make(self, s))
    assert measure(**ARGUMENTS, seconds=0, out=tmp_path) == 1
    rows = json.loads((tmp_path / "advection.json").read_text())["contestants"]
    assert rows["eager"] == {"title": "ours, eager", "state": "failed", "why": "RuntimeError: no luck today"}
    assert "throughput" in rows["ours"] and "throughput" in rows["fno_usual"]
    assert "runs" not in rows["ours"], "with --seconds 0 nothing is trained"
    assert "failed: advection, ours, eager: RuntimeError: no luck today" in capsys.readouterr().err
    assert "no luck today" in (tmp_path / "bench.md").read_text()
    monkeypatch.undo()
    assert measure(**ARGUMENTS, seconds=0, out=tmp_path) == 0, "a second call tries it again"


def test_what_was_finished_before_a_kill_is_kept(tmp_path, monkeypatch):
    def killed(self, entry, seed, data, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(run._Bench, "_train", killed)
    with pytest.raises(KeyboardInterrupt):
        measure(**ARGUMENTS, seconds=0.2, out=tmp_path)
    assert "throughput" in json.loads((tmp_path / "advection.json").read_text())["contestants"]["ours"]


def test_time_to_an_error_is_the_first_point_that_has_it():
    curve = [{"seconds": s, "rollout_nrmse": e} for s, e in ((1.0, 0.5), (2.0, 0.1), (3.0, 0.2))]
    assert seconds_to(curve, 0.2) == 2.0
    assert seconds_to(curve, 0.01) is None


def test_the_target_is_the_first_fno_that_was_trained():
    def ended(error: float) -> dict:
        return {"runs": {"0": {"curve": [{"seconds": 1.0, "rollout_nrmse": error}]}}}

    assert target({"contestants": {"ours": ended(0.1), "neuraloperator": ended(0.3), "fno": ended(0.2)}}) == 0.2
    assert target({"contestants": {"ours": ended(0.1)}}) is None


def test_errors_at_equal_time_are_said_with_the_time_that_each_had():
    def ended(*runs: tuple[float | None, float]) -> dict:
        return {"runs": {str(i): {"rollout": {"nrmse": e}, "seconds": s} for i, (e, s) in enumerate(runs)}}

    theirs = {"fno": ended((0.3, 60.0), (0.5, 62.0)), "neuraloperator": ended((None, 60.0))}
    assert speedups({"contestants": {"ours": ended((0.1, 59.0)), **theirs}}) == [
        "At equal time (59 s and 61 s) our rollout nRMSE is 0.250 of that of our FNO in our Trainer."
    ]


def test_breakeven_is_what_was_spent_over_what_a_rollout_saves():
    rows = [{"points": 64, "nrmse": 0.0, "seconds": 0.4}, {"points": 32, "nrmse": 0.01, "seconds": 0.1}]
    spent = {"train": 9.0, "data": 9.0}
    fair = comparison(rows, 0.02, 0.01, spent)
    assert (fair["equal_error_points"], fair["against_equal_error"]) == (32, pytest.approx(10))
    assert (fair["breakeven"], fair["breakeven_with_data"]) == (pytest.approx(100), pytest.approx(200))
    assert comparison(rows, 0.001, 0.01, spent)["equal_error_points"] == 64
    assert comparison(rows, 0.02, 0.2, spent)["breakeven"] is None
