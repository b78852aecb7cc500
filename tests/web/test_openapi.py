"""The server's description of itself is true: its examples are answered, it names all there is, its page opens."""

from __future__ import annotations

import httpx
from axe_playwright_python.sync_playwright import Axe
from browser import chromium, opened

NPZ = "application/x-npz"


def test_every_example_is_answered(serve) -> None:
    server = serve()
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert document["openapi"] == "3.1.0" and "security" not in document
    content = document["paths"]["/v1/rollout"]["post"]["requestBody"]["content"]
    assert NPZ in content and content["application/json"]["examples"].keys() == {"waves", "flow"}
    for name, example in content["application/json"]["examples"].items():
        answer = httpx.post(f"{server.url}/v1/rollout", json=example["value"])
        assert answer.status_code == 200, answer.text
        required = document["components"]["schemas"]["Rollout"]["required"]
        assert answer.json()["task"] == name and answer.json().keys() >= set(required)


def test_it_names_every_argument_and_status(serve) -> None:
    server = serve()
    document = httpx.get(f"{server.url}/openapi.json").json()
    said = httpx.post(f"{server.url}/v1/rollout", json={"path": 1}).json()["error"]
    listed = document["components"]["schemas"]["Question"]["properties"]
    assert said.split("it has ")[1].split(", ") == [*sorted(listed, key=said.split("it has ")[1].split(", ").index)]
    assert {"400", "413", "415", "422", "429", "503"} <= document["paths"]["/v1/rollout"]["post"]["responses"].keys()


def test_it_says_that_a_token_is_needed_and_needs_it_too(serve) -> None:
    server = serve(token="a token of sixteen")
    assert httpx.get(f"{server.url}/openapi.json").status_code == 401
    document = httpx.get(f"{server.url}/openapi.json", headers={"authorization": "Bearer a token of sixteen"}).json()
    assert document["security"] == [{"token": []}]
    assert "401" in document["paths"]["/v1/tasks"]["get"]["responses"]


def test_its_page_opens_without_a_complaint(serve) -> None:
    with chromium() as browser, opened(browser, f"{serve().url}/docs", viewport={"width": 400, "height": 800}) as page:
        assert page.locator("section").count() == 4 and "POST /v1/rollout" in page.content()
        page.locator("summary").first.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert Axe().run(page).violations_count == 0
