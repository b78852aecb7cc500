"""The playground on the server.

A frame is one turn of the server's queue, so rollouts of several people, and other requests, go on side by side; who
leaves has stopped computing. Nothing of a player is kept between requests: a play begins with the field that the page
sends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ups.errors import UserError
from ups.simulator import Simulator
from ups.web.files import Recording, written
from ups.web.page import page
from ups.web.play import Begin, Play, Playground, channels_first
from ups.web.queue import Queue
from ups.web.wire import packed, unpacked


def routes(sim: Simulator, queue: Queue) -> list[Route]:
    playground, text = Playground(sim), page(["remote.js"], {})

    async def front(request: Request) -> Response:
        return HTMLResponse(text)

    async def describe(request: Request) -> Response:
        return JSONResponse(playground.describe())

    async def begin(request: Request) -> Response:
        told, _ = unpacked(await request.body())
        asked = _checked(Begin, told)
        fields, static = await queue.turn(lambda: playground.start(asked))
        arrays = {"fields": channels_first(fields)} | {name: field.numpy() for name, field in static.items()}
        return Response(packed({}, arrays), media_type="application/octet-stream")

    async def play(request: Request) -> Response:
        told, arrays = unpacked(await request.body())
        asked = _checked(Play, told)
        frames = await queue.turn(lambda: playground.play(asked, arrays))

        async def messages() -> AsyncIterator[bytes]:
            while (frame := await queue.turn(lambda: next(frames, None))) is not None:
                yield frame.packed()

        return StreamingResponse(messages(), media_type="application/octet-stream")

    async def download(request: Request) -> Response:
        told, arrays = unpacked(await request.body())
        recording = Recording.of(told, arrays, playground.tasks)
        content = await queue.turn(lambda: written(recording, request.path_params["layout"]))
        return Response(content, media_type="application/octet-stream")

    return [
        Route("/", front),
        Route("/play/describe", describe),
        Route("/play/start", begin, methods=["POST"]),
        Route("/play/frames", play, methods=["POST"]),
        Route("/play/file/{layout}", download, methods=["POST"]),
    ]


def _checked(kind: Any, told: Mapping[str, Any]) -> Any:
    try:
        return kind.model_validate(told)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        raise UserError(f"{where}: {first['msg']}; reload the page") from None
