"""A real browser for tests of pages: Chromium without a window, and every complaint of a page as a failed test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

QUIET = (
    "--no-sandbox",  # as root, as on build machines
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

GIVEN_UP = "net::ERR_ABORTED"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium, or that of `UPS_CHROMIUM`, which must then be there; else a skipped test."""
    path = os.environ.get("UPS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium, or name one in UPS_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, url: str, **context: Any) -> Iterator[Page]:
    """A page of its own at `url`, with `context` as Playwright takes it (viewport, color_scheme, ...). Whatever it says
    on the console as a warning or an error, and whatever it fails to fetch, but for what it gives up itself, fails the
    test when the page is left.
    """
    complaints: list[str] = []
    holder = browser.new_context(**context)
    page = holder.new_page()
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "requestfailed",
        lambda request: None if request.failure == GIVEN_UP else complaints.append(f"{request.url}: {request.failure}"),
    )
    try:
        page.goto(url)
        yield page
        assert not complaints, complaints
    finally:
        holder.close()
