"""A page that holds the model: opened from a disk, without a network, it computes what Python does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import chromium, opened
from pace import pace
from playwright.sync_api import Browser, Page

import ups
from ups.errors import UserError
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator
from ups.web import standalone as exported
from ups.web.play import Play, Playground, channels_first
from ups.web.standalone import standalone
from ups.web.traced import OPERATIONS

PLAY = """async ([task, name, shape, dt, steps]) => {
  const { player: { backend, told } } = UPS.page, info = told.tasks[task], parameters = {};
  for (const each of Object.keys(info.parameters)) parameters[each] = info.parameters[each].default;
  const start = await backend.start(task, { name, seed: 1, shape });
  for (const [each, values] of Object.entries(start.static)) if (each === "mask") values.fill(0, 0, shape[1] + 2);
  const session = await backend.play(task, { start: start.fields, shape, parameters, static: start.static, dt, steps });
  const frames = [], plain = {};
  for (let frame = await session.next(); frame; frame = await session.next()) {
    frames.push({ ...frame, fields: Array.from(frame.fields) });
  }
  for (const [each, values] of Object.entries(start.static)) plain[each] = Array.from(values);
  return { frames, parameters, start: Array.from(start.fields), static: plain };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def built(architecture: str, tasks: tuple[TrainedTask, ...]) -> Propagator:
    """With weights that make every part of it count."""
    sizes = {"modes": 4, "adapters": 2} if architecture == "spectral" else {}
    model = ModelSpec(architecture, {"width": 16, "depth": 2, **sizes}, tasks).build(0).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return model


@contextmanager
def shown(
    browser: Browser, model: Propagator, tasks: tuple[TrainedTask, ...], folder: Path
) -> Iterator[tuple[Page, Playground]]:
    """The model's page without a network, and what Python computes beside it."""
    (folder / "model.html").write_text(standalone(model, tasks))
    with opened(browser, (folder / "model.html").as_uri(), offline=True) as page:
        yield page, Playground(Simulator(OperatorPredictor(model, tasks)))


def described(page: Page) -> dict[str, Any]:
    page.wait_for_function("() => UPS.page")
    return page.evaluate("UPS.page.player.told.tasks")


@torch.no_grad()
def compared(page: Page, playground: Playground, task: str, name: str, shape: list[int], steps: int) -> float:
    """The largest difference between the page's frames and Python's, in units of the largest value."""
    learned = playground.tasks[task]
    dt = learned.spec.dt or 0.0
    got = page.evaluate(PLAY, [task, name, shape, dt, steps])
    fields = np.array(got["start"], "f4").reshape(-1, *shape)
    sent = {"fields": fields} | {each: np.array(v, "f4").reshape(shape) for each, v in got["static"].items()}
    asked = Play(task=task, parameters=got["parameters"], dt=dt or None, steps=steps, solver=False)
    right = list(playground.play(asked, sent))
    assert len(right) == len(got["frames"]) == (1 if learned.spec.steady else steps)
    far = 0.0
    for mine, frame in zip(got["frames"], right, strict=True):
        values = channels_first(frame.fields)
        far = max(far, float(np.abs(np.array(mine["fields"]) - values.ravel()).max() / np.abs(values).max()))
        assert mine["time"] == pytest.approx(frame.time)
        assert mine["numbers"]["spectrum"]["k"] == frame.numbers["spectrum"]["k"]
        np.testing.assert_allclose(
            mine["numbers"]["spectrum"]["model"], frame.numbers["spectrum"]["model"], rtol=1e-3, atol=1e-9
        )
        for each, (kept, _) in frame.numbers["conserved"].items():
            assert mine["numbers"]["conserved"][each][0] == pytest.approx(kept, abs=1e-5)
    return far


def test_a_page_s_products_are_those_of_matrices_of_any_size(browser, unlike, tmp_path):
    """Of sizes that fill panels of rows and columns and of those that do not, one or several at once."""
    rng = np.random.default_rng(0)
    with shown(browser, built("spectral", unlike), unlike, tmp_path) as (page, _):
        for batch, m, k, n in ((1, 8, 4, 8), (3, 13, 37, 30), (1, 64, 1024, 9), (2, 9, 1025, 8), (1, 1, 64, 128)):
            a, b = rng.standard_normal((batch, m, k)).astype("f4"), rng.standard_normal((batch, k, n)).astype("f4")
            script = """([a, b, ...sizes]) => {
              const [batch, m, , n] = sizes, out = new Float32Array(batch * m * n).fill(2);
              UPS.matrixProduct(out, Float32Array.from(a), Float32Array.from(b), ...sizes);
              return Array.from(out);
            }"""
            got = page.evaluate(script, [a.ravel().tolist(), b.ravel().tolist(), batch, m, k, n])
            right = 2 + a.astype("f8") @ b
            np.testing.assert_allclose(
                np.reshape(got, right.shape), right, rtol=0, atol=1e-6 * np.abs(right).max() * k**0.5
            )


def test_a_page_from_a_disk_computes_what_python_does(browser, unlike, tmp_path):
    with shown(browser, built("spectral", unlike), unlike, tmp_path) as (page, playground):
        for task, told in described(page).items():
            for factor in told["resolutions"]:
                shape = [round(factor * n) for n in told["shape"]]
                assert compared(page, playground, task, "noise", shape, 5) < 1e-5, (task, shape)
        assert set(page.evaluate("Object.keys(UPS.operations)")) >= OPERATIONS


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["spectral", "pdet_stack", "pdet_unet"])
def test_so_do_those_of_every_architecture(browser, sim, tmp_path, architecture):
    tasks = tuple(sim.tasks.values())
    with shown(browser, built(architecture, tasks), tasks, tmp_path) as (page, playground):
        for task, told in described(page).items():
            assert compared(page, playground, task, "noise", told["shape"], 5) < 1e-5


@pytest.mark.slow
def test_an_exported_run_is_played_without_a_network(browser, finished_run, tmp_path):
    """Forty steps within 1e-4 of Python's, by the weights that were trained; nothing is asked of anybody."""
    page_file, asked = tmp_path / "model.html", []
    call = [sys.executable, "-m", "ups", "export", str(finished_run), str(page_file)]
    subprocess.run(call, check=True)
    playground = Playground(ups.load(finished_run))
    with opened(browser, page_file.as_uri(), offline=True) as page:
        page.on("request", lambda request: asked.append(request.url))
        for task, told in described(page).items():
            assert told["starts"][0] == "random"
            assert compared(page, playground, task, "random", told["shape"], 40) < 1e-4
        page.get_by_role("button", name="Play", exact=True).click()
        page.wait_for_function("() => UPS.page.player.frames.length > 5")
        page.get_by_role("button", name="Pause", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name="NumPy").click()
        assert np.load(download.value.path())["values"].shape[0] > 5
    assert not [url for url in asked if not url.startswith("blob:")]


@pytest.mark.slow
def test_a_page_larger_than_the_quickstarts_is_quick_and_small(browser, finished_run, tmp_path):
    tasks = tuple(ups.load(finished_run).tasks.values())
    full = ModelSpec("spectral", {}, tasks).build().eval().requires_grad_(False)
    page_file = tmp_path / "model.html"
    page_file.write_text(standalone(full, tasks, finished_run))
    with opened(browser, page_file.as_uri(), offline=True) as page:
        title = described(page)["burgers"]["title"]
        page.get_by_role("radio", name=title).check()
        page.get_by_role("heading", name=title, level=2).wait_for()
        first, rate = pace(page)
    size = page_file.stat().st_size / 1e6
    print(f"{size:.1f} MB")
    assert size < 15 and first < 1 and rate > 10


def test_what_does_not_fit_into_a_browser_is_refused_in_a_sentence(sim, finished_run, tmp_path, monkeypatch):
    tasks = tuple(sim.tasks.values())
    fno = ModelSpec("fno", {"width": 8}, tasks[:1]).build().requires_grad_(False)
    with pytest.raises(UserError, match="which a page cannot; serve it with `ups serve` instead"):
        standalone(fno, tasks[:1])
    monkeypatch.setattr(exported, "MOST_WEIGHTS", 100)
    page_file = tmp_path / "model.html"
    with pytest.raises(UserError, match=r"has [\d,]+ weights, too many for a browser, which takes 100; serve it with"):
        exported.write_page(finished_run, page_file)
    monkeypatch.undo()
    monkeypatch.setattr(exported, "MOST_PRODUCTS", 100)
    with pytest.raises(UserError, match=r"a step of task 'advection' takes [\d,]+ products, too many for"):
        exported.write_page(finished_run, page_file)
    assert not page_file.exists()


def test_a_page_is_written_where_nothing_is_and_of_a_task_there_is(finished_run, tmp_path):
    with pytest.raises(UserError, match="no task 'heat' to make a page of; it has advection"):
        exported.write_page(finished_run, tmp_path / "model.html", "heat")
    with pytest.raises(UserError, match="exists; choose another place"):
        exported.write_page(finished_run, Path(__file__))
