"""The server of a trained run: its tasks, rollouts, the playground and what watches it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ups.errors import UserError
from ups.simulator import Simulator
from ups.web import openapi, playing
from ups.web.counters import Counters
from ups.web.guard import Guard, refusal
from ups.web.queue import Full, Queue
from ups.web.rollouts import Rollouts
from ups.web.settings import ServerSettings


def application(sim: Simulator, settings: ServerSettings) -> Starlette:
    counters = Counters()
    queue = Queue(sim.predictor, settings, counters)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        queue.close()

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def tasks(request: Request) -> Response:
        return JSONResponse(described(sim))

    document = openapi.described(sim, settings)
    reference = openapi.page(document)

    async def schema(request: Request) -> Response:
        return JSONResponse(document)

    async def docs(request: Request) -> Response:
        return HTMLResponse(reference)

    async def metrics(request: Request) -> Response:
        now = {"ups_places": queue.places, "ups_held_bytes": queue.held}
        return PlainTextResponse(counters.text(now), media_type="text/plain; version=0.0.4")

    routes: list[BaseRoute] = [
        Route("/healthz", healthz),
        Route("/metrics", metrics),
        Route("/openapi.json", schema),
        Route("/docs", docs),
        Route("/v1/tasks", tasks),
        Route("/v1/rollout", Rollouts(sim, queue, settings, counters), methods=["POST"]),
        *playing.routes(sim, queue),
    ]
    paths = {route.path for route in routes if isinstance(route, Route) and "{" not in route.path}
    return Starlette(
        routes=routes,
        middleware=[Middleware(Counted, counters=counters, paths=paths), Middleware(Guard, settings=settings)],
        exception_handlers={HTTPException: _refused, UserError: _mistaken, Full: _full, Exception: _failed},
        lifespan=lifespan,
    )


class Counted:
    """Counts answers by path and status; paths that there are not count as one."""

    def __init__(self, app: ASGIApp, counters: Counters, paths: Set[str]) -> None:
        self.app, self.counters, self.paths = app, counters, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self.paths else "other"
                self.counters.answered[path, message["status"]] += 1
            await send(message)

        await self.app(scope, receive, send_counted if scope["type"] == "http" else send)


def described(sim: Simulator) -> dict[str, Any]:
    """What can be asked of the model."""
    tasks = {}
    for name, learned in sim.tasks.items():
        spec = learned.spec
        tasks[name] = {
            "channels": list(spec.channel_names),
            "shape": list(learned.grid.shape),
            "extent": [list(span) for span in learned.grid.extent],
            "positions": [p.tolist() for p in learned.grid.positions],
            "boundary": [[side.kind for side in pair] for pair in spec.boundary.sides],
            "parameters": {each: list(span) for each, span in learned.ranges.items()},
            "static": list(spec.static),
            "forcings": list(spec.forcings),
            "masked": spec.masked,
            "steady": spec.steady,
            "history": spec.history,
            "dt": spec.dt,
            "leads": list(learned.leads),
            "units": dict(spec.units),
        }
    return {"tasks": tasks}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, str(error.detail), **(error.headers or {}))


async def _mistaken(request: Request, error: Exception) -> Response:
    return refusal(422, str(error))


async def _full(request: Request, error: Exception) -> Response:
    return refusal(429, "the server is busy; ask again in a second", **{"retry-after": "1"})


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, "the server failed; its log says why")
