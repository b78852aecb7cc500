"""The server of a trained run: its tasks, rollouts, the playground and what watches it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ups.errors import UserError
from ups.simulator import Simulator
from ups.web.guard import Guard, refusal
from ups.web.queue import Full, Queue
from ups.web.settings import ServerSettings


def application(sim: Simulator, settings: ServerSettings) -> Starlette:
    queue = Queue(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        queue.close()

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def tasks(request: Request) -> Response:
        return JSONResponse(described(sim))

    routes: list[BaseRoute] = [Route("/healthz", healthz), Route("/v1/tasks", tasks)]
    if find_spec("ups.web.play") is not None:
        routes += import_module("ups.web.play").routes(sim, queue)
    else:

        async def front(request: Request) -> Response:
            return HTMLResponse("<!doctype html><title>UPS</title><p>This server has no page yet.</p>")

        routes.append(Route("/", front))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={HTTPException: _refused, UserError: _mistaken, Full: _full, Exception: _failed},
        lifespan=lifespan,
    )


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
