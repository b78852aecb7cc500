"""POST /v1/rollout: read within bounds, checked, queued, computed, sent; given up when the client leaves."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from ups.errors import UserError
from ups.rollout.question import Question
from ups.simulator import Simulator
from ups.web import arrow
from ups.web.counters import Counters
from ups.web.queue import Place, Queue
from ups.web.reading import ARROW, JSON, NPZ, TooLarge, Unreadable, read
from ups.web.settings import ServerSettings
from ups.web.writing import written

KINDS = (JSON, NPZ, ARROW) if arrow.available() else (JSON, NPZ)
CHUNK = 2**18
DISCARDED = 8
"""A larger body is read on, up to so many times the limit: a client that is still sending hears no answer."""


class Left(Exception):
    """The client is gone."""


class Rollouts:
    """An ASGI application of its own: it must see the client leave, before and after its answer begins."""

    def __init__(self, sim: Simulator, queue: Queue, settings: ServerSettings, counters: Counters) -> None:
        self.sim, self.queue, self.settings, self.counters = sim, queue, settings, counters
        self.readers = ThreadPoolExecutor(1, thread_name_prefix="ups-reader")
        """One at a time: what a text of numbers takes while it is read is ten times what it is."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, headers = time.monotonic(), Headers(scope=scope)
        try:
            with self.queue.place() as place:
                async with asyncio.timeout(self.settings.seconds):
                    given, wanted = _kinds(headers)
                    body = await self._body(headers, receive, place)
                    work = asyncio.ensure_future(self._answer(body, given, wanted, place))
                    del body
                    content = await _unless_left(work, receive)
                await self._send(send, content, wanted)
        except Left:
            self.counters.left += 1
            return
        except TimeoutError:
            raise HTTPException(
                503, f"no answer within {self.settings.seconds:g} seconds; ask for fewer steps, or later"
            ) from None
        self.counters.seconds.observe(time.monotonic() - began)

    async def _body(self, headers: Headers, receive: Receive, place: Place) -> bytes:
        """Whole, within the bounds of size and patience."""
        most, parts, size = self.settings.body, [], 0
        declared = headers.get("content-length", "0")
        declared = int(declared) if declared.isdigit() else 0
        if declared <= most:
            place.hold(declared)
        while True:
            try:
                message = await asyncio.wait_for(receive(), self.settings.patience)
            except TimeoutError:
                raise HTTPException(408, "the body did not come; send it at once", {"connection": "close"}) from None
            if message["type"] == "http.disconnect":
                raise Left
            size += len(message.get("body", b""))
            if max(size, declared) <= most:
                place.hold(max(size, declared))
                parts.append(message.get("body", b""))
            else:
                parts.clear()
            if not message.get("more_body", False) or size > DISCARDED * most:
                break
        if max(size, declared) > most:
            raise HTTPException(413, f"a request has {most:,} bytes at most", {"connection": "close"})
        return b"".join(parts)

    async def _answer(self, body: bytes, given: str, wanted: str, place: Place) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            question = await loop.run_in_executor(self.readers, self._question, body, given, wanted)
        except TooLarge as error:
            raise HTTPException(413, str(error)) from None
        except Unreadable as error:
            raise HTTPException(400, str(error)) from None
        place.hold(_size(question))
        rollout = await self.queue.rollout(question)
        return await loop.run_in_executor(None, written, rollout, wanted)

    @torch.no_grad()
    def _question(self, body: bytes, given: str, wanted: str) -> Question:
        most = self.settings
        question = self.sim.question(**read(body, given, most), most_steps=most.steps)
        space, rows = question.frames.shape[2:-1], len(question.frames) * question.members
        values = rows * question.states * question.points * question.frames.shape[-1]
        for what, asked, limit in (
            ("points of a start", space.numel(), most.points),
            ("points along an axis", max(space), most.axis),
            ("points in an answer", question.points, most.points),
            ("starts", len(question.frames), most.samples),
            ("steps", question.steps, most.steps),
            ("numbers in a rollout", values, most.values),
            ("numbers in a rollout sent as JSON", values if wanted == JSON else 0, most.json_values),
        ):
            if asked > limit:
                other = f", or accept {NPZ}" if "JSON" in what else ""
                raise UserError(f"{asked:,} {what} are too many for this server; ask for {limit:,} at most{other}")
        return question

    async def _send(self, send: Send, content: bytes, kind: str) -> None:
        head = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for start in range(0, max(len(content), 1), CHUNK):
            part = content[start : start + CHUNK]
            message: Message = {
                "type": "http.response.body",
                "body": part,
                "more_body": start + CHUNK < len(content),
            }
            try:
                await asyncio.wait_for(send(message), self.settings.patience)
            except TimeoutError:  # it does not read
                raise Left from None


def _size(question: Question) -> int:
    """Bytes, about, of a question, its states while they are computed, and its answer."""
    of = question.conditions
    fields = [question.frames, *of.static.values(), *of.forcings.values()]
    rows = len(question.frames) * question.members
    states = rows * question.states * question.points * question.frames.shape[-1]
    return sum(8 * field.numel() for field in fields) + 12 * states


async def _unless_left(work: asyncio.Future[Any], receive: Receive) -> Any:
    """What the work gives; it is cancelled when the client leaves."""
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Left
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _kinds(headers: Headers) -> tuple[str, str]:
    """Of the body, and of the answer."""
    given = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if given not in KINDS:
        lacks = "; for Arrow, install pyarrow here" if given == ARROW else ""
        raise HTTPException(415, f"the content type {given[:80]!r} is unknown; send {', '.join(KINDS)}{lacks}")
    accepted = [part.partition(";")[0].strip().lower() for part in headers.get("accept", given).split(",")]
    for kind in accepted:
        if kind in KINDS:
            return given, kind
    if any(kind in ("*/*", "application/*", "") for kind in accepted):
        return given, given
    raise HTTPException(406, f"there are answers of {', '.join(KINDS)} alone")
