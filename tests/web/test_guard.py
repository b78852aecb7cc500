"""Who is answered: this machine's own pages and programs; elsewhere, who has the token."""

from __future__ import annotations

import httpx
import pytest

from ups.errors import UserError
from ups.web.settings import ServerSettings

TOKEN = "a-token-of-the-tests"


def test_a_local_server_says_what_its_model_can_do(serve) -> None:
    server = serve()
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
    tasks = httpx.get(f"{server.url}/v1/tasks").json()["tasks"]
    assert tasks["waves"]["channels"] == ["u"] and tasks["waves"]["parameters"] == {"beta": [0.1, 1.0]}
    page = httpx.get(server.url)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),  # DNS rebinding: a stranger's name that means 127.0.0.1 now
        ({"host": "evil.example:80@127.0.0.1"}, 200),  # is 127.0.0.1
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "localhost:x"}, 421),
        ({"host": ""}, 421),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),  # another server's page on this machine
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),  # a link is followed
    ],
)
def test_pages_of_strangers_are_refused_on_this_machine_too(serve, headers: dict[str, str], status: int) -> None:
    answer = httpx.get(f"{serve().url}/v1/tasks", headers=headers)
    assert answer.status_code == status, answer.text
    assert status == 200 or answer.json()["error"]


def test_its_own_page_is_answered(serve) -> None:
    server = serve()
    for name in ("127.0.0.1", "localhost"):
        own = {"host": f"{name}:{server.port}", "origin": f"http://{name}:{server.port}"}
        assert httpx.get(f"{server.url}/v1/tasks", headers=own).status_code == 200


def test_without_the_token_only_healthz_answers(serve) -> None:
    server = serve(token=TOKEN, names=("sim.example",))
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    for path in ("", "/v1/tasks", "/metrics", "/openapi.json", "/nothing", "/?token=wrong"):
        assert httpx.get(f"{server.url}{path}").status_code == 401, path
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.get(f"{server.url}/v1/tasks", headers=bearer | {"host": "sim.example"}).status_code == 200
    assert httpx.get(f"{server.url}/v1/tasks", headers=bearer | {"host": "other.example"}).status_code == 421
    with httpx.Client(base_url=server.url) as browser:
        entered = browser.get("/", params={"token": TOKEN})
        assert entered.status_code == 303 and entered.headers["location"] == "/"  # the token leaves the address bar
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert browser.get("/v1/tasks").status_code == 200


def test_others_are_let_in_with_a_token_alone() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "sim.example"):
        with pytest.raises(UserError, match="set a token"):
            ServerSettings(host=host)
        ServerSettings(host=host, token=TOKEN)
    with pytest.raises(UserError, match="too easy to guess"):
        ServerSettings(token="secret")
    for host in ("127.0.0.1", "localhost", "::1"):
        ServerSettings(host=host)
    assert TOKEN not in repr(ServerSettings(token=TOKEN))
