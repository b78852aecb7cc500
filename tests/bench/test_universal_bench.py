"""`ups bench --universal`: several seeds of one configuration, and the table of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from toy_universal import DATA, HASTE, RIVAL, SECONDS, TASKS
from typer.testing import CliRunner

from ups import pipeline
from ups.bench.ratios import MODEL, Result, average, compared, counted, markdown, ratio
from ups.cli.main import app
from ups.errors import UserError
from ups.pipeline.bench import ALSO, UNIVERSAL, universal
from ups.pipeline.config import load_run
from ups.training.fit import progress_of

NAMES = [f"{SECONDS:g}s-seed{seed}" for seed in (0, 1)]
ARGUMENTS = [*TASKS, *DATA, *HASTE, RIVAL]


def results(out: Path) -> list[Result]:
    return [Result.of(out / name) for name in NAMES]


def made_up(**errors: tuple[float, float, float]) -> Result:
    """Of (model, FNO, persistence) a task."""
    kinds = {
        task: {"rollout": dict(zip((MODEL, "fno", "persistence"), ([e] for e in es), strict=True))}
        for task, es in errors.items()
    }
    return Result("made up", 0, 0, ["fno"], kinds, {}, {}, "nowhere")


def test_intervals_of_the_table_are_those_of_the_run_s_metrics(universal_bench: Path) -> None:
    first = results(universal_bench)[0]
    metrics = json.loads((universal_bench / NAMES[0] / "metrics.json").read_text())
    for task, kinds in compared([first]).items():
        for kind, entry in kinds.items():
            told = metrics["tasks"][task][kind]["nrmse"]
            assert entry[MODEL] == [pytest.approx(told["model"], rel=1e-5)]
            assert entry["rivals"]["fno"] == pytest.approx(told["fno"], rel=1e-5)
            found = entry["ratios"]["fno"][0]
            assert found.value == pytest.approx(told["model"] / told["fno"], rel=1e-5)
            assert [found.low, found.high] == pytest.approx(told["ratio95_of"]["fno"], rel=1e-5)


def test_the_bench_trains_u_nets_beside_what_the_configuration_names() -> None:
    def beside(*words: str) -> list[str]:
        return load_run(UNIVERSAL, words).compared_names()

    assert beside() == ["specialist", "fno"] and beside(ALSO) == ["specialist", "fno", "unet"]
    assert beside(ALSO, "compare={fno: {}}") == ["fno"] and beside(ALSO, "compare={}") == []


def test_a_seed_without_rivals_is_set_beside_the_first_s_on_the_same_trajectories(universal_bench: Path) -> None:
    first, second = results(universal_bench)
    assert (first.seed, second.seed, second.data_seed) == (0, 1, 0) and first.rivals == ["fno"] and not second.rivals
    for task in TASKS:
        one, other = (result.errors[task]["rollout"] for result in (first, second))
        assert one["persistence"] == other["persistence"] and one[MODEL] != other[MODEL]
        found = compared([first, second])[task]["rollout"]["ratios"]["fno"]
        assert found[1] == ratio(other[MODEL], one["fno"], 1)
        assert found[1].value == pytest.approx(average(other[MODEL]) / average(one["fno"]))


def test_a_seed_of_other_data_has_no_ratio_to_rivals_that_it_did_not_train(universal_bench: Path) -> None:
    first, second = results(universal_bench)
    found = compared([first, replace(second, data_seed=1)])
    assert all(len(entry["ratios"]["fno"]) == 1 for kinds in found.values() for entry in kinds.values())


def test_what_is_finished_needs_only_its_small_file(universal_bench: Path, tmp_path: Path, capsys) -> None:
    for name in NAMES:
        shutil.copy(universal_bench / f"{name}.json", tmp_path)
    universal(SECONDS, (0, 1), tmp_path, ARGUMENTS, rivals_once=True)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert capsys.readouterr().out.strip() == markdown(results(universal_bench))
    universal(SECONDS, (0, 1), tmp_path, ARGUMENTS, rivals_once=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["counts"].keys() == {"fno"} and set(told["tasks"]) == set(TASKS)


def test_results_of_other_settings_are_refused(universal_bench: Path) -> None:
    with pytest.raises(UserError, match=r"seed0\.json holds results of other settings; choose another --out"):
        universal(SECONDS, (0, 1), universal_bench, [*ARGUMENTS, "training.noise=0"], rivals_once=True)


def test_a_run_that_lost_its_data_makes_them_again_and_trains_nothing_twice(
    universal_bench: Path, tmp_path: Path, capsys
) -> None:
    """As on another machine, to which data did not travel: they are as large as they are quickly made."""
    out = tmp_path / "elsewhere"
    shutil.copytree(universal_bench / NAMES[0], out / NAMES[0], ignore=shutil.ignore_patterns("store", "data"))
    before = Result.of(out / NAMES[0])
    (out / NAMES[0] / "metrics.json").unlink()
    config = out / NAMES[0] / "config.yaml"
    config.write_text(config.read_text().replace(str(universal_bench), str(out)))
    trained = progress_of(out / NAMES[0] / "stages" / "operator")
    universal(SECONDS, (0,), out, ARGUMENTS, rivals_once=True)
    printed = capsys.readouterr().out
    assert "making burgers" in printed and "training" not in printed.partition("evaluating")[0]
    assert progress_of(out / NAMES[0] / "stages" / "operator") == trained
    assert Result.of(out / NAMES[0]).errors == before.errors


def test_a_rival_that_was_given_up_on_a_task_is_left_out_there(universal_bench: Path, tmp_path: Path) -> None:
    run = tmp_path / NAMES[0]
    shutil.copytree(universal_bench / NAMES[0], run)
    shutil.rmtree(run / "compare" / "fno" / "burgers")
    pipeline.evaluate(run)
    numbers = compared([Result.of(run)])
    assert {task: len(kinds["rollout"]["ratios"]["fno"]) for task, kinds in numbers.items()} == dict(
        zip(TASKS, (0, 1), strict=True)
    )
    assert "| – |" in markdown([Result.of(run)])


def test_a_task_counts_where_the_better_of_two_is_below_half_of_persistence() -> None:
    whole = made_up(won=(0.3, 0.4, 1.0), lost=(0.5, 0.25, 1.0), chaos=(0.6, 0.9, 1.0), equal=(0.1, 0.1, 1.0))
    found = counted(compared([whole]), "fno")
    assert found["tasks"] == ["won", "lost", "equal"] and found["not counted"] == ["chaos"]
    assert found["at most"] == {"0.5": 0, "0.7": 0, "0.9": 1, "1.0": 2, "1.3": 2}
    assert "not counted, since both are above 0.5 of persistence: chaos" in markdown([whole])


def test_a_rollout_that_left_the_numbers_is_no_good_ratio() -> None:
    errors = {"lost": {"rollout": {MODEL: [0.1, None], "fno": [0.2, 0.2], "persistence": [1.0, 1.0]}}}
    broken = Result("broken", 0, 0, ["fno"], errors, {}, {}, "nowhere")
    assert counted(compared([broken]), "fno")["at most"] == dict.fromkeys(("0.5", "0.7", "0.9", "1.0", "1.3"), 0)
    assert "| not finite |" in markdown([broken])


def test_the_table_of_finished_runs_says_what_each_training_took(universal_bench: Path) -> None:
    text = markdown(results(universal_bench))
    assert "- fno: 2 trainings, " in text and "- model: " in text and "50 steps" in text
    with pytest.raises(UserError, match=r"has no config\.yaml; finish the run"):
        Result.of(universal_bench)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--universal", "--quick"], "--universal takes no --quick; give overrides instead"),
        (["--rivals-once"], "--rivals-once goes with --universal"),
        (["--universal", "burger"], "universal has no task 'burger'; it has advection, burgers"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["bench", *words, "--out", str(tmp_path)])
    assert isinstance(answer.exception, UserError) and str(answer.exception).startswith(sentence)
    assert not list(tmp_path.iterdir())
