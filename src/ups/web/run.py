"""The server running: from its settings to Ctrl-C."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from ups.errors import UserError
from ups.simulator import load
from ups.web.app import application
from ups.web.settings import ServerSettings


def serve(run: Path, settings: ServerSettings, device: str = "cpu") -> None:
    """Answers until it is interrupted. Says where it listens once it does."""
    app = application(load(run, device), settings)
    bound = listening(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"serving {run} on http://{host}:{bound.getsockname()[1]} (Ctrl-C ends it)", flush=True)
    with bound, suppress(KeyboardInterrupt):
        uvicorn.Server(configured(app, settings)).run([bound])


def configured(app: Starlette, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.connections,
        h11_max_incomplete_event_size=2**15,
        timeout_graceful_shutdown=5,
    )


def listening(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen()  # from here on who connects waits, and is not refused
    except (OSError, OverflowError) as error:
        bound.close()
        raise UserError(
            f"cannot listen on {settings.host} port {settings.port} ({getattr(error, 'strerror', None) or error}); "
            "choose another with --port (0: any that is free) or --host"
        ) from None
    return bound
