"""Who may ask: requests for this server's own names, from its own pages or from no page at all, with its token.

A page of a stranger in the user's own browser can send requests to localhost. It cannot read answers, unless its name
is made to mean 127.0.0.1 (DNS rebinding): then the request's Host is that name, and it is refused. What it sends
blindly has its Origin.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ups.web.settings import ServerSettings

COOKIE = "ups_token"
OPEN = {"/healthz"}
"""What answers without the token: that the server is alive."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; worker-src blob:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def refusal(status: int, sentence: str, **headers: str) -> JSONResponse:
    """Every error of the server: one sentence."""
    return JSONResponse({"error": sentence}, status, headers)


class Guard:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.settings = app, settings
        self.names = {"localhost", settings.host.lower(), *(name.lower() for name in settings.names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the start and the end of the server; it speaks no WebSocket
            return await self.app(scope, receive, send)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in own),
                ]
            await send(message)

        answer = self._refused(scope)
        await (answer or self.app)(scope, receive, send_guarded)

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not self._known(host[0]):
            return refusal(
                421, "the request is for another host; use this server's address, or start it with --name NAME"
            )
        origins = headers.getlist("origin")
        if any(urlsplit(origin).netloc.lower() != host[0].lower() for origin in origins):
            return refusal(403, "the request comes from a page of another origin; open this server's own page")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not (
            headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        ):
            return refusal(403, "the request comes from a page of another site; open this server's own page")
        if self.settings.token is None or scope["path"] in OPEN:
            return None
        given = _bearer(headers)
        if given is None and scope["method"] == "GET" and scope["path"] == "/":
            (asked,) = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[:1]
            if self._right(asked):
                answer = RedirectResponse("/", 303)
                answer.set_cookie(COOKIE, asked, httponly=True, samesite="strict", secure=scope["scheme"] == "https")
                return answer
        if given is None:
            given = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        if given is None or not self._right(given):
            return refusal(
                401,
                "a token is needed: send the header 'Authorization: Bearer TOKEN', or open /?token=TOKEN in a browser",
                **{"www-authenticate": "Bearer"},
            )
        return None

    def _known(self, host: str) -> bool:
        """An address has no name that could have been made to mean this machine."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            urlsplit(f"//{host}").port  # noqa: B018  (raises if it is no number)
        except ValueError:
            return False
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _right(self, token: str) -> bool:
        return self.settings.token is not None and hmac.compare_digest(token.encode(), self.settings.token.encode())


def _bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None
