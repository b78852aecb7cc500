import json
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from demo_report import advection_page, burgers_page, cube_page, darcy_page, report_of, vortex_page
from shapes import unchecked

from ups.metrics import nrmse
from ups.report.contents import Report, Sample
from ups.report.html import page, write_report
from ups.report.pictures import cuts_figure
from ups.report.verdict import summary_rows


class Elements(HTMLParser):
    """Every start tag with its attributes, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._raw = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._raw = False

    def handle_data(self, data):
        if not self._raw:
            self.text.append(data)

    @property
    def prose(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def quickstart():
    return report_of([advection_page(), burgers_page(), darcy_page()])


@pytest.fixture(scope="module")
def written(quickstart, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "deep" / "report.html"
    started = time.process_time()
    write_report(quickstart, path)
    return path, time.process_time() - started


@pytest.fixture(scope="module")
def elements(written):
    return Elements(written[0].read_text(encoding="utf-8"))


def test_the_report_is_one_small_file_written_in_time(written):
    path, seconds = written
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]  # no temporary file is left
    assert path.stat().st_size < 8e6
    assert seconds < 15


def test_nothing_is_loaded_from_the_network(elements, written):
    for tag, attributes in elements.tags:
        for key in ("src", "href", "srcset", "data", "action", "poster"):
            if key in attributes:
                assert attributes[key].startswith(("#", "data:")), (tag, attributes[key])
    text = written[0].read_text(encoding="utf-8")
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://", text)


def test_every_task_has_its_section_equation_player_and_link(elements, quickstart):
    sections = {attributes.get("id") for tag, attributes in elements.tags if tag == "section"}
    links = {attributes.get("href") for tag, attributes in elements.tags if tag == "a"}
    players = {attributes["data-source"] for tag, attributes in elements.tags if "data-source" in attributes}
    for task in quickstart.tasks:
        assert f"task-{task.name}" in sections
        assert f"#task-{task.name}" in links
        assert f"task-{task.name}-data" in players
        assert " ".join(task.equation.split()) in elements.prose


def test_the_page_says_how_to_repeat_the_run(elements, quickstart):
    assert quickstart.command in elements.prose
    assert " ".join(quickstart.config_yaml.split()) in elements.prose
    for key, value in quickstart.environment.items():
        assert key in elements.prose and value in elements.prose


def test_every_picture_has_words_for_those_who_cannot_see_it(elements):
    pictures = [attributes for tag, attributes in elements.tags if tag == "img"]
    assert len(pictures) >= 3 + 2 + 3 + 2 + 1  # fields, growth, spectra, solvers, training
    assert all(picture["alt"] for picture in pictures)


def test_text_from_outside_cannot_become_markup(tmp_path):
    evil = "</script><script>alert(1)</script>"
    task = advection_page(count=1)
    sample = task.samples[0]
    task = replace(
        task, name="a<b>", title=evil, equation=evil, channels=(evil,), samples=[replace(sample, label=evil)]
    )
    report = replace(
        report_of([task]), name=evil, command=evil, config_yaml=evil, notes=[evil], environment={evil: evil}
    )
    text = page(report)
    assert "<script>alert" not in text
    scripts = [attributes for tag, attributes in Elements(text).tags if tag == "script"]
    assert len(scripts) == 3  # the player's data, the colour tables, the code
    assert json.loads(_data(text, "task-a-b-data"))["sequences"][0]["label"] == evil


def _data(text, key):
    found = re.search(rf'<script type="application/json" id="{key}">(.*?)</script>', text, re.S)
    assert found is not None
    return found.group(1)


def test_a_model_that_fails_is_shown_as_failing_and_crashes_nothing():
    task = burgers_page(count=2)
    broken = []
    for sample in task.samples:
        ups = sample.predictions["operator"].copy()
        ups[20:] = math.nan
        fno = sample.predictions["fno"] * np.exp(30 * np.linspace(0, 1, 41))[:, None, None]  # grows to 1e13
        fno[-1] = math.inf
        broken.append(replace(sample, predictions={**sample.predictions, "operator": ups, "fno": fno}))
    times, errors = task.growth["operator"]
    growth = {**task.growth, "operator": (times, np.where(np.arange(41) < 20, errors, math.nan))}
    spectra = {
        **task.spectra,
        "operator": (task.spectra["operator"][0], np.full_like(task.spectra["operator"][1], math.nan)),
    }
    metrics = {"rollout": {"nrmse": {"model": math.nan, "fno": None, "persistence": 0.2, "ci95": [math.nan, math.nan]}}}
    task = replace(task, samples=broken, growth=growth, spectra=spectra, metrics=metrics)
    text = page(report_of([task]))
    prose = Elements(text).prose
    assert "The model failed on burgers" in prose
    assert '<td class="failed">not finite</td>' in text
    sequence = json.loads(_data(text, "task-burgers-data"))["sequences"][0]
    assert sequence["nrmse"]["operator"][20:] == [[None]] * 21
    assert all(value is not None for (value,) in sequence["nrmse"]["operator"][:20])


def test_all_nan_in_two_dimensions_is_drawn_as_well():
    for task in (darcy_page(count=2), vortex_page(count=1)):
        samples = [
            Sample(s.label, s.truth, {**s.predictions, "operator": np.full_like(s.truth, math.nan)}, s.static)
            for s in task.samples
        ]
        assert task.title in page(report_of([replace(task, samples=samples)]))


def test_three_dimensions_are_drawn_as_a_plane_in_time_and_as_cuts_at_the_end():
    task = cube_page(count=1)
    text = page(report_of([task]))
    assert text.count('data-sample="0" data-channel="1" hidden') == 3
    data = json.loads(_data(text, "task-box-data"))
    assert data["dimension"] == 2 and [len(axis) for axis in data["axes"]] == [24, 16]
    both = (task.samples[0].predictions["fno"], task.samples[0].truth)
    flat = nrmse(*(torch.from_numpy(values[None, ..., 6, :]) for values in both))
    assert data["sequences"][0]["nrmse"]["fno"] == pytest.approx(flat[0].numpy())


def test_cuts_go_through_the_middle_of_every_axis_and_their_errors_are_differences():
    task = cube_page(count=1)
    volume = task.samples[0].truth[-1, ..., 1]
    panels = {axes.get_title(): axes for axes in cuts_figure(task, task.samples[0], 1).axes if axes.get_title()}
    drawn = {title: np.asarray(axes.collections[0].get_array()).T for title, axes in panels.items()}
    assert np.allclose(drawn["x = 0.521"], volume[12]) and np.allclose(drawn["y = 0.354"], volume[:, 8])
    assert np.allclose(drawn["z = 0.271"], volume[:, :, 6]) and np.allclose(drawn["mean along z"], volume.mean(2))


def test_a_report_without_curves_or_a_baseline_still_stands():
    task = darcy_page(count=1)
    only = [replace(s, predictions={"operator": s.predictions["operator"]}) for s in task.samples]
    metrics = {"one_step": {"nrmse": {"model": 0.05}}}
    task = replace(task, name="darcy@16", samples=only, spectra={}, metrics=metrics)
    report = Report("pairs", "ups run darcy_pairs", "", {}, task.legend, summary_rows([task]), [task], [], {})
    elements = Elements(page(report))
    assert ("section", {"id": "task-darcy-16"}) in elements.tags
    assert not any(attributes.get("id") == "training" for _, attributes in elements.tags)


def test_a_steady_line_is_drawn_as_profiles():
    x = np.linspace(0, 1, 32)
    truth = np.sin(np.pi * x)[None, :, None]
    task = replace(
        darcy_page(count=1),
        axes=(x,),
        samples=[Sample("rod", truth, {"operator": 1.1 * truth, "fno": 0.9 * truth, "persistence": 0 * truth})],
    )
    assert "rod" in page(report_of([task]))


def test_writing_over_a_report_replaces_it_whole(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    report = replace(report_of([darcy_page(count=1)]), curves=[])
    write_report(report, path)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    with unchecked():
        broken = replace(report, tasks=[replace(report.tasks[0], spectra={"truth": None})])
    with unchecked(), pytest.raises(TypeError):
        write_report(broken, path)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_same_report_gives_the_same_bytes():
    report = replace(report_of([darcy_page(count=1)]), curves=[])
    assert page(report) == page(report)
