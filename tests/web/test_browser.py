"""The playground in Chromium: what a person does there, and that the numbers are Python's."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from browser import chromium, opened
from pace import pace
from PIL import Image, ImageSequence
from playwright.sync_api import Browser, Page, expect
from serving import Served

import ups
from ups.models.saved import ModelSpec
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator
from ups.web.settings import ServerSettings

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}


@pytest.fixture(scope="module")
def trained(finished_run) -> Simulator:
    return ups.load(finished_run)


@pytest.fixture(scope="module")
def url(trained) -> Iterator[str]:
    served = Served(trained, ServerSettings(port=0))
    yield served.url
    served.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def ready(page: Page, task: str | None = None) -> None:
    page.wait_for_function("() => UPS.page")
    if task is not None:
        title = page.evaluate(f"UPS.page.player.told.tasks.{task}.title")
        page.get_by_role("radio", name=title).check()
        page.get_by_role("heading", name=title, level=2).wait_for()  # which is there when its start is


def played(page: Page, steps: int) -> None:
    """Presses play, waits for so many steps, and presses pause."""
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_function(f"() => UPS.page.player.frames.length > {steps}")
    page.get_by_role("button", name="Pause", exact=True).click()


def fields(page: Page, what: str = "fields", steps: int = 5) -> np.ndarray:
    """The first frames of the player, the start before them: (T, C, *space)."""
    found = page.evaluate(
        f"UPS.page.player.frames.slice(0, {steps + 1}).map((frame) => Array.from(frame.{what} ?? []))"
    )
    shape = page.evaluate("UPS.page.player.shape")
    return np.array([frame for frame in found if frame], "f4").reshape(-1, 1, *shape)


def stroke(page: Page, *places: tuple[float, float]) -> None:
    """Draws on the field, through places in shares of it."""
    box = page.get_by_role("application").first.bounding_box()
    assert box is not None
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=5)
    page.mouse.up()


def test_what_is_drawn_and_played_is_what_python_computes(browser, url, trained):
    with opened(browser, url, viewport=DESKTOP) as page:
        ready(page, "burgers")
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_in_viewport(ratio=1)
        before = fields(page)
        stroke(page, (0.3, 0.2), (0.5, 0.7), (0.6, 0.3))
        played(page, 5)
        after, told = fields(page), page.evaluate("UPS.page.player.parameters")
        truth, error = fields(page, "truth"), page.evaluate("UPS.page.player.frames[5].numbers.error")
    assert np.abs(after[0] - before[0]).max() > 0.02
    result = trained.rollout(torch.from_numpy(after[0, 0, :, None]), 5, conditions=told, task="burgers")
    np.testing.assert_allclose(after[1:, 0], result.values[..., 0], rtol=0, atol=1e-6)
    mine = np.sqrt(np.square(after[5] - truth[4]).mean() / np.square(truth[4]).mean())
    assert error == pytest.approx(mine, rel=1e-4)


@pytest.mark.slow
def test_a_painted_coefficient_is_solved_at_once(browser, url, trained):
    with opened(browser, url, viewport=DESKTOP) as page:
        ready(page, "darcy")
        page.wait_for_function("() => !UPS.page.solving && UPS.page.player.frame.numbers")
        before = page.evaluate("Array.from(UPS.page.player.static.a)")
        stroke(page, (0.3, 0.3), (0.7, 0.7))
        page.wait_for_function("() => !UPS.page.solving")
        painted = np.array(page.evaluate("Array.from(UPS.page.player.static.a)"), "f4").reshape(32, 32)
        solved = fields(page)[-1, 0]
    assert (painted.ravel() != np.array(before, "f4")).sum() > 50
    right = trained.rollout(conditions={"a": torch.from_numpy(painted)}, task="darcy").values[0, ..., 0]
    np.testing.assert_allclose(solved, right, rtol=0, atol=1e-6)


class Fan(OperatorPredictor):
    """Members that differ from the operator by up to a tenth."""

    chance = True

    def decode(self, state, target=None):
        values = super().decode(state, target)
        if state.members is None:
            return values
        return values * torch.linspace(0.9, 1.1, state.members).view(-1, *(1,) * (values.dim() - 1))


@pytest.mark.slow
def test_an_obstacle_is_painted_and_members_spread(browser, unlike, tmp_path):
    model = ModelSpec("spectral", {"width": 8, "depth": 1}, unlike).build().requires_grad_(False)
    served = Served(Simulator(Fan(model, unlike)), ServerSettings(port=0))
    try:
        with opened(browser, served.url, viewport=DESKTOP, accept_downloads=True) as page:
            ready(page, "obstacle")
            page.get_by_role("slider", name="Paint").fill("0")
            page.get_by_role("application", name="mask").click()
            played(page, 3)
            shown = page.evaluate(
                "[Array.from(UPS.page.player.static.mask), Array.from(UPS.page.player.frames[3].spread)]"
            )
            seen = fields(page, steps=10**6)[:, 0]
            with page.expect_download() as download:
                page.get_by_role("button", name="netCDF").click()
            download.value.save_as(tmp_path / "obstacle.nc")
            found = Axe().run(page, options={"resultTypes": ["violations"]})
    finally:
        served.stop()
    mask, spread = (np.array(each).reshape(8, 12) for each in shown)
    assert 0 < (mask == 0).sum() < 10 and np.all(spread[mask == 0] == 0) and np.all(seen[1:, mask == 0] == 0)
    np.testing.assert_allclose(spread, np.abs(seen[3]) * np.linspace(0.9, 1.1, 8).std(ddof=1), rtol=1e-4, atol=1e-7)
    batch = ups.open_dataset(tmp_path / "obstacle.nc").read([0], slice(None))
    assert set(batch.static) == {"a"} and set(batch.forcings) == {"f"}
    assert batch.mask is not None and np.array_equal(batch.mask[0], mask > 0.5)
    np.testing.assert_array_equal(batch.values[0, ..., 0], seen * mask)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.slow
def test_the_field_and_its_settings_are_reached_by_keys(browser, url):
    with opened(browser, url, viewport=DESKTOP) as page:
        ready(page, "advection")
        canvas = page.get_by_role("application").first
        canvas.focus()
        before = fields(page)[0]
        for key in ("ArrowRight", "ArrowUp", "ArrowUp", "s", "+"):
            page.keyboard.press(key)
        assert np.abs(fields(page)[0] - before).max() > 0.01
        assert page.evaluate("[UPS.page.sensors.length, UPS.page.view.x[1] - UPS.page.view.x[0] < 1]") == [1, True]
        page.keyboard.press(".")
        page.wait_for_function("() => UPS.page.player.frames.length === 2")
        page.keyboard.press(" ")
        page.wait_for_function("() => UPS.page.player.frames.length > 4")
        page.keyboard.press(" ")
        assert not page.evaluate("UPS.page.playing")
        page.keyboard.press("r")
        assert page.evaluate("UPS.page.player.frames.length") == 1
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "(({ ariaLabel, labels, textContent }) => ariaLabel ?? labels?.[0]?.textContent ?? textContent)"
                    "(document.activeElement)"
                )
            )
        assert {"Play", "Step", "Restart", "beta", "Step dt", "Points", "Begin with", "netCDF", "GIF"} <= reached


@pytest.mark.slow
def test_settings_change_what_is_computed(browser, url, trained):
    """Parameter, step, points, and whether the solver runs: what is shown after is what Python computes of them."""
    with opened(browser, url, viewport=DESKTOP) as page:
        ready(page, "burgers")
        page.get_by_label("Points").select_option("2")
        page.wait_for_function("() => UPS.page.player.frame.fields.length === 256")
        page.get_by_label("Step dt").fill("0")
        page.get_by_label("nu", exact=True).fill("0.5")
        page.get_by_label("Solve the equation beside it").uncheck()
        played(page, 3)
        after, told = fields(page, steps=3), page.evaluate("UPS.page.player.parameters")
        dt, truth = page.evaluate("[UPS.page.player.dt, UPS.page.player.frames[2].truth]")
        assert "outside the lead times" in page.get_by_role("listitem").first.inner_text()
    assert dt == 0.025 and told == {"nu": pytest.approx(0.015)} and truth is None
    result = trained.rollout(torch.from_numpy(after[0, 0, :, None]), 3, dt=dt, conditions=told, task="burgers")
    np.testing.assert_allclose(after[1:, 0], result.values[..., 0], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_every_download_opens_and_holds_what_was_played(browser, url, tmp_path):
    with opened(browser, url, viewport=DESKTOP, accept_downloads=True) as page:
        ready(page, "burgers")
        page.evaluate("UPS.page.rate = 60")
        played(page, 5)
        seen = fields(page, steps=10**6)[:, 0]
        saved = {}
        for name in ("NumPy", "netCDF", "PDEBench", "The Well", "GIF", "MP4"):
            with page.expect_download() as download:
                page.get_by_role("button", name=name).click()
            saved[name] = tmp_path / download.value.suggested_filename
            download.value.save_as(saved[name])
    with opened(browser, "about:blank") as page:
        width, seconds = page.evaluate(
            """async (text) => {
              const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
              const video = document.createElement("video");
              video.src = URL.createObjectURL(new Blob([bytes], { type: "video/mp4" }));
              await new Promise((done, failed) => {
                video.onloadeddata = done;
                video.onerror = () => failed(video.error);
              });
              return [video.videoWidth, video.duration];
            }""",
            base64.b64encode(saved["MP4"].read_bytes()).decode(),
        )
    archive = np.load(saved["NumPy"])
    np.testing.assert_array_equal(archive["values"][..., 0], seen)
    np.testing.assert_allclose(archive["times"], 0.05 * np.arange(len(seen)), rtol=1e-6)
    assert archive["truth"].shape == archive["values"].shape
    for name in ("netCDF", "PDEBench", "The Well"):
        batch = ups.open_dataset(saved[name], "burgers").read([0], slice(None))
        np.testing.assert_array_equal(batch.values[0, ..., 0], seen)
    with Image.open(saved["GIF"]) as gif:
        assert len(list(ImageSequence.Iterator(gif))) == len(seen) and gif.size == (640, 396)
    assert width == 640 and seconds > 0.8 * (len(seen) - 1) / 25


@pytest.mark.slow
@pytest.mark.parametrize("task", ["burgers", "darcy"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_is_accessible_and_fits(browser, url, viewport, scheme, task):
    with opened(browser, url, viewport=viewport, color_scheme=scheme) as page:
        ready(page, task)
        if task == "burgers":
            played(page, 2)
        page.locator("details.keys").evaluate("(keys) => { keys.open = true; }")
        found = Axe().run(page, options={"resultTypes": ["violations"]})
        wide = page.evaluate("document.documentElement.scrollWidth")
    assert found.violations_count == 0, found.generate_report()
    assert wide == viewport["width"]


@pytest.mark.slow
def test_the_first_frame_comes_within_a_second_and_then_twenty_each_second(browser, trained):
    """Of a model larger than the quickstart's, beside the solver."""
    tasks = tuple(trained.tasks.values())
    full = OperatorPredictor(ModelSpec("spectral", {}, tasks).build().requires_grad_(False), tasks)
    served = Served(Simulator(full, trained.run), ServerSettings(port=0))
    try:
        with opened(browser, served.url, viewport=DESKTOP) as page:
            ready(page, "burgers")
            first, rate = pace(page)
    finally:
        served.stop()
    assert first < 1 and rate > 20


@pytest.mark.slow
def test_a_server_that_is_gone_is_said_in_a_sentence(browser, trained):
    served = Served(trained, ServerSettings(port=0))
    holder = browser.new_context()
    page = holder.new_page()
    page.goto(served.url)
    ready(page)
    served.stop()
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_text("the server does not answer; start it again with `ups serve`").wait_for()
    holder.close()
