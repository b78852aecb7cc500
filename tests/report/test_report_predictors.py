"""No table or plot has a built-in column: a report takes whatever predictors a run has."""

import json
import re
import shutil

import numpy as np
import pytest
from demo_report import advection_page, darcy_page, report_of, vortex_page, with_predictors
from matplotlib.collections import QuadMesh

from ups.errors import UserError
from ups.evaluation.labels import PredictorLabel, labels
from ups.report.animation import player_data
from ups.report.assemble import assemble
from ups.report.html import page
from ups.report.legend import COLOURS, MODEL, TRIVIAL, TRUTH, Legend
from ups.report.pictures import MOST_WIDTH, film_figure, space_time_figure, steady_figure
from ups.report.plots import growth_figure, training_figure

MANY = Legend(labels(["operator", "corrector"], ["fno", "unet", "mine"]), "corrector")


def legend(stages, compared):
    return Legend(labels(stages, compared), stages[-1])


def headings(html):
    """The columns of the summary, without tags."""
    row = re.search(r'<th scope="col">Task</th>(.*?)</tr>', html, re.S)
    assert row is not None
    return re.sub(r"<[^>]+>", " ", row.group(1)).split()


def test_titles_are_those_readers_know_and_unknown_names_stand_for_themselves():
    found = {label.name: (label.title, label.kind) for label in MANY.predictors}
    assert found == {
        "operator": ("UPS", "stage"),
        "corrector": ("corrector", "stage"),
        "fno": ("FNO", "compared"),
        "unet": ("U-Net", "compared"),
        "mine": ("mine", "compared"),
        "persistence": ("persistence", "baseline"),
    }


def test_columns_are_the_model_other_stages_compared_and_persistence():
    assert MANY.names == ("corrector", "operator", "fno", "unet", "mine", "persistence")
    assert MANY.rivals == ("fno", "unet", "mine", "persistence")
    assert MANY.pictured == MANY.names[:-1]


def test_the_model_truth_and_persistence_look_the_same_in_every_report():
    for shown in (MANY, legend(["operator"], []), legend(["operator"], ["fno"])):
        assert [shown.ink(name) for name in ("truth", shown.model, "persistence")] == [TRUTH, MODEL, TRIVIAL]


def test_no_two_predictors_are_drawn_alike():
    crowd = legend(["operator"], [f"rival_{i}" for i in range(15)])
    inks = [crowd.ink(name) for name in ("truth", *crowd.names)]
    assert len({(ink.colour, ink.dash) for ink in inks}) == len(inks)
    assert len({crowd.ink(name).colour for name in crowd.compared[: len(COLOURS)]}) == len(COLOURS)


@pytest.mark.parametrize(
    ("stages", "compared", "columns"),
    [
        (["operator"], [], ["View", "UPS", "Persistence", "Persistence"]),
        (["operator"], ["unet"], ["View", "UPS", "U-Net", "Persistence", "U-Net", "Persistence"]),
        (
            ["operator", "corrector"],
            ["fno", "unet", "mine"],
            [
                *("View", "Corrector", "UPS", "FNO", "U-Net", "Mine", "Persistence"),
                *("FNO", "U-Net", "Mine", "Persistence"),
            ],
        ),
    ],
)
def test_a_page_has_columns_curves_and_pictures_of_one_to_six_predictors(stages, compared, columns):
    shown = legend(stages, compared)
    pages = [with_predictors(make(count=1), shown) for make in (advection_page, darcy_page, vortex_page)]
    html = page(report_of(pages))
    assert headings(html) == columns
    for task in pages:
        fields = player_data(task, 10**6)["sequences"][0]["fields"]
        assert list(fields) == ["truth", *shown.names]
        assert f'--dot:{shown.ink(shown.model).colour}"' in html
    assert len(html) < 8e6


def _panels(figure):
    meshes = [mesh for axes in figure.axes if axes.get_visible() for mesh in axes.collections]
    return sum(isinstance(mesh, QuadMesh) and mesh.get_array().size > 300 for mesh in meshes)


def test_pictures_of_many_predictors_keep_to_the_width_of_a_page():
    """Lines over time are wrapped; planes show the model's field alone, and everybody's error."""
    line, plane, film = (with_predictors(make(count=1), MANY) for make in (advection_page, darcy_page, vortex_page))
    wrapped = space_time_figure(line, line.samples[0], 0)
    assert wrapped.get_figwidth() <= MOST_WIDTH + 1
    assert _panels(wrapped) == 6 + 5
    assert _panels(steady_figure(plane, plane.samples, 0)) == 1 + 2 + 5
    assert _panels(film_figure(film, film.samples[0], 0)) == 5 * (2 + 5)


def test_names_of_many_lines_are_written_where_they_cover_no_curve():
    few, many = growth_figure(advection_page(count=1)), growth_figure(with_predictors(advection_page(count=1), MANY))
    assert few.axes[0].get_legend() is not None and not few.legends
    assert many.axes[0].get_legend() is None
    assert [text.get_text() for text in many.legends[0].get_texts()] == [MANY.title(name) for name in MANY.names]


def test_a_training_of_something_that_predicts_nothing_is_drawn_too():
    report = report_of([advection_page(count=1)])
    codec = type(report.curves[0])(**{**vars(report.curves[0]), "label": "codec", "predictor": "codec"})
    figure = training_figure([*report.curves, codec], report.legend)
    assert "codec" in figure.legends[0].get_texts()[-1].get_text()


@pytest.fixture
def run(finished_run, tmp_path):
    folder = tmp_path / "run"
    for part in ("metrics.json", "config.yaml", "env.json"):
        folder.mkdir(exist_ok=True)
        shutil.copy(finished_run / part, folder / part)
    shutil.copytree(finished_run / "evaluation", folder / "evaluation")
    for part in ("stages", "compare"):
        shutil.copytree(finished_run / part, folder / part)
    return folder


def changed_details(run, **changes):
    path = run / "evaluation" / "details.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_run_says_which_predictors_and_trainings_it_has(run):
    report = assemble(run)
    assert report.legend == legend(["operator"], ["fno"])
    assert [curve.predictor for curve in report.curves] == ["operator", "fno", "fno", "fno"]
    assert [list(task.samples[0].predictions) for task in report.tasks] == [["operator", "fno", "persistence"]] * 3


def test_the_report_follows_the_runs_own_list_and_not_literal_names(run):
    """The same run with its FNO told to be another predictor: names, order and titles are read, never guessed."""
    stored = run / "evaluation" / "advection.npz"
    with np.load(stored) as arrays:
        renamed = {key.replace("_fno", "_mine"): arrays[key] for key in arrays.files}
    np.savez(stored, **renamed)
    metrics = json.loads((run / "metrics.json").read_text())
    views = metrics["tasks"]["advection"]
    for view in views.values():
        for entry in view.values():
            entry["mine"] = entry.pop("fno")
    (run / "metrics.json").write_text(json.dumps(metrics | {"tasks": {"advection": views}}))
    shown = [PredictorLabel("operator", "Ours", "stage"), PredictorLabel("mine", "Theirs", "compared")]
    shown.append(PredictorLabel("persistence", "persistence", "baseline"))
    (run / "deep").mkdir()
    shutil.move(run / "stages" / "operator" / "events.jsonl", run / "deep" / "diary.jsonl")
    changed_details(
        run,
        predictors=[vars(label) for label in shown],
        trainings=[{"label": "ours", "predictor": "operator", "events": "deep/diary.jsonl"}],
    )
    report = assemble(run)
    assert [curve.label for curve in report.curves] == ["ours"]
    assert list(report.tasks[0].samples[0].predictions) == ["operator", "mine", "persistence"]
    assert list(report.summary[0].values) == ["operator", "mine", "persistence"]
    html = page(report)
    assert headings(html) == ["View", "Ours", "Theirs", "Persistence", "Theirs", "Persistence"]
    assert "the FNO" not in html


def test_a_run_of_before_is_refused_with_what_to_do(run):
    path = run / "evaluation" / "details.json"
    details = json.loads(path.read_text())
    del details["predictors"]
    path.write_text(json.dumps(details))
    with pytest.raises(UserError, match="older version of ups; do it again with `ups evaluate"):
        assemble(run)
