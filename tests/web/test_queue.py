"""What is alike is computed together, long rollouts let short ones pass, and who leaves takes nothing further."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import torch

import ups
from ups.simulator import Simulator
from ups.web.counters import Counters
from ups.web.queue import Queue
from ups.web.settings import ServerSettings

X = (np.arange(16) + 0.5) / 16
WAVE = np.sin(2 * np.pi * X)
ASKED = {"u0": WAVE.tolist(), "steps": 5, "conditions": {"beta": 0.4}, "task": "waves"}


@contextmanager
def queued(sim: Simulator) -> Iterator[Queue]:
    queue = Queue(sim.predictor, ServerSettings(), Counters())
    try:
        yield queue
    finally:
        queue.close()


def test_what_is_alike_is_computed_in_one_batch_with_the_numbers_of_each(sim: Simulator) -> None:
    asked = [
        {"u0": WAVE * (0.1 + n / 10), "steps": 5, "conditions": {"beta": 0.1 + n / 4}, "task": "waves"}
        for n in range(8)
    ]
    asked.insert(3, asked[3] | {"steps": 2})  # another kind, between them
    alone = [sim.rollout(**each) for each in asked]
    assert alone[7].warnings and not alone[0].warnings

    async def all_at_once(queue: Queue) -> list:
        held = threading.Event()
        busy = asyncio.ensure_future(queue.turn(held.wait))
        await asyncio.sleep(0.05)
        rollouts = [asyncio.ensure_future(queue.rollout(sim.question(**each))) for each in asked]
        await asyncio.sleep(0.05)
        held.set()
        return [await each for each in (*rollouts, busy)][:-1]

    with queued(sim) as queue:
        together = asyncio.run(all_at_once(queue))
        batches = queue.counters.batches
    assert sum(batches.counts) == 2 and batches.total == 9  # one of eight, one of one
    for here, there in zip(alone, together, strict=True):
        torch.testing.assert_close(there.values, here.values, rtol=1e-5, atol=1e-6)
        assert there.warnings == here.warnings and there.values.shape == here.values.shape


def test_a_long_rollout_lets_short_ones_pass(sim: Simulator) -> None:
    async def both(queue: Queue) -> None:
        long = asyncio.ensure_future(queue.rollout(sim.question(WAVE, 9000, conditions={"beta": 0.4})))
        await asyncio.sleep(0.1)
        await queue.rollout(sim.question(WAVE, 3, conditions={"beta": 0.4}))
        assert await queue.turn(lambda: 7) == 7
        assert not long.done()
        long.cancel()

    with queued(sim) as queue:
        asyncio.run(both(queue))


def test_a_mistake_that_computing_finds_reaches_who_made_it_alone(sim: Simulator) -> None:
    async def asked(queue: Queue) -> None:
        wrong = asyncio.ensure_future(queue.turn(lambda: 1 / 0))
        right = asyncio.ensure_future(queue.rollout(sim.question(WAVE, 3, conditions={"beta": 0.4})))
        done = await asyncio.gather(wrong, right, return_exceptions=True)
        assert isinstance(done[0], ZeroDivisionError) and done[1].values.shape == (3, 16, 1)

    with queued(sim) as queue:
        asyncio.run(asked(queue))


def test_a_question_that_comes_while_a_batch_is_chosen_is_answered(sim: Simulator) -> None:
    async def asked(queue: Queue) -> None:
        first, second = (sim.question(WAVE, steps, conditions={"beta": 0.4}) for steps in (2, 3))
        with queue._changed:  # as it is while the device's thread chooses
            loop = threading.Thread(target=lambda: asyncio.run(queue.rollout(second)))
            queue._waiting.append((Future(), first, first.kind()))
            loop.start()
            time.sleep(0.2)  # the other loop now waits for the lock
            queue._next()
        await asyncio.to_thread(loop.join, 10)
        assert not loop.is_alive()

    with queued(sim) as queue:
        asyncio.run(asked(queue))


def places(url: str) -> int:
    gauges = dict(line.split(" ") for line in httpx.get(f"{url}/metrics").text.splitlines() if line.startswith("ups_p"))
    return int(gauges["ups_places"])


def test_a_client_that_leaves_frees_its_place_within_a_second(serve) -> None:
    server = serve(queue=1)
    body = httpx.Request("POST", server.url, json=ASKED | {"steps": 10_000, "times": None}).content
    head = f"POST /v1/rollout HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for sent in (head + body, head + body[:-1], head[:-2] + b"accept: application/x-npz\r\n\r\n" + body):
        client = socket.create_connection((server.host, server.port))
        client.sendall(sent)
        time.sleep(0.2)
        assert places(server.url) == 1
        assert httpx.post(f"{server.url}/v1/rollout", json=ASKED).status_code == 429
        client.close()
        left = time.monotonic()
        while httpx.post(f"{server.url}/v1/rollout", json=ASKED).status_code != 200:
            assert time.monotonic() - left < 1
            time.sleep(0.02)
    assert "ups_left_total 3\n" in httpx.get(f"{server.url}/metrics").text


def test_an_answer_that_takes_too_long_is_given_up(serve) -> None:
    server = serve(seconds=0.3, steps=10_000)
    answer = httpx.post(f"{server.url}/v1/rollout", json=ASKED | {"steps": 10_000}, timeout=30)
    assert answer.status_code == 503 and "within 0.3 seconds" in answer.json()["error"]
    assert places(server.url) == 0


def test_many_clients_at_once_all_get_their_own_numbers(serve, sim: Simulator) -> None:
    there = ups.connect(serve().url)

    def ask(number: int) -> bool:
        question = {"u0": WAVE * (0.2 + number % 7 / 10), "steps": 2 + number % 3, "conditions": {"beta": 0.4}}
        values = there.rollout(**question).values
        return bool(torch.allclose(values, sim.rollout(**question).values, rtol=1e-5, atol=1e-6))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(100)))
