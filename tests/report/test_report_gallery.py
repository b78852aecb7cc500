"""Many tasks on one page: an index in pictures, and a page that stays small and opens at once."""

import io
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from browser import chromium, opened
from demo_report import advection_page, burgers_page, cube_page, darcy_page, report_of, vortex_page
from PIL import Image

from ups.report.gallery import SIZE, gallery, thumbnail
from ups.report.html import write_report
from ups.report.sections import slug
from ups.report.verdict import summary_rows

MAKERS = (advection_page, burgers_page, darcy_page, vortex_page, cube_page)


def test_every_task_has_a_card_that_leads_to_it():
    tasks = [make(count=1) for make in MAKERS]
    text = gallery(tasks, summary_rows(tasks))
    assert re.findall(r'<a href="#([^"]+)"', text) == [slug(task.name) for task in tasks]
    assert text.count("<img") == 5 and "rollout nRMSE" in text and "steady nRMSE" in text
    assert gallery(tasks[:3], summary_rows(tasks)) == ""


@pytest.mark.parametrize("make", MAKERS)
def test_a_thumbnail_shows_truth_and_model_in_few_bytes(make):
    content = thumbnail(make(count=1))
    picture = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    left, right = picture[:, : SIZE[0] // 2 - 1], picture[:, SIZE[0] // 2 + 1 :]
    assert picture.shape == (SIZE[1], SIZE[0], 3) and len(content) < 20_000
    assert left.std() > 10 and 0 < np.abs(left - right).mean() < 60  # alike, not the same


def test_a_model_that_left_the_numbers_has_a_thumbnail_too():
    task = vortex_page(count=1)
    sample = task.samples[0]
    broken = {**sample.predictions, "operator": np.full_like(sample.truth, np.nan)}
    assert thumbnail(replace(task, samples=[replace(sample, predictions=broken)]))


@pytest.mark.slow
def test_a_report_of_twelve_tasks_is_under_fifteen_megabytes_and_opens_at_once(tmp_path):
    tasks = [MAKERS[n % len(MAKERS)](seed=n) for n in range(12)]
    tasks = [replace(task, name=f"{task.name}{n}", title=f"{task.title} {n}") for n, task in enumerate(tasks)]
    path = tmp_path / "report.html"
    write_report(report_of(tasks), path)
    assert path.stat().st_size < 15e6
    with chromium() as browser, opened(browser, "about:blank") as page:
        began = time.process_time(), time.monotonic()
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        page.wait_for_selector("#gallery img")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print(f"{path.stat().st_size / 1e6:.1f} MB, seen after {paint:.0f} ms, there after "
              f"{time.monotonic() - began[1]:.2f} s")  # fmt: skip
        page.locator("#gallery a").last.click()
        assert page.url.endswith(slug(tasks[-1].name))
