"""What the nodes of a job tell one another through the rendezvous' store: the attempt, and how far their ranks are.

A rank may wait for one on another node that is in a long phase with good reason. Clocks and files of other hosts do not
tell in time, so that each node puts the place of its slowest rank into the store, with a number that rises: a node
whose number stands still is lost, and nobody waits for it any more.
"""

from __future__ import annotations

import json
import time

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import WorkerGroup

LOST = 10.0
"""Seconds without a sign after which a node is no longer waited for."""


class Neighbours:
    """One round's view of the other nodes; with one node there is nothing to ask and nobody to tell."""

    def __init__(self, group: WorkerGroup, attempt: int) -> None:
        self._store, self._own, self._size = group.store, group.group_rank, group.group_world_size or 1
        self._told = 0
        self._seen: dict[int, tuple[int, float]] = {}
        self.attempt = attempt
        if self._size > 1:
            self._put("attempt", [attempt])
            self._put("place", [0, 0, 0])
            known = [self._get("attempt", node) for node in self._others()]
            self.attempt = max([attempt, *(value[0] for value in known if value)])

    @property
    def others(self) -> int:
        """How many other nodes there are."""
        return self._size - 1

    def lower_than(self, order: tuple[int, int]) -> bool:
        """Tell the others where this node is; is one of them, alive, further behind?"""
        if self._size == 1:
            return False
        self._told += 1
        self._put("place", [*order, self._told])
        now = time.monotonic()
        behind = False
        for node in self._others():
            place = self._get("place", node)
            if place is None:
                continue
            if self._seen.get(node, (-1, 0.0))[0] != place[2]:
                self._seen[node] = place[2], now
            behind = behind or (tuple(place[:2]) < order and now - self._seen[node][1] < LOST)
        return behind

    def lost(self) -> tuple[int, ...]:
        """The numbers of the nodes that have been silent for too long."""
        now = time.monotonic()
        return tuple(node for node, (_, heard) in self._seen.items() if now - heard >= LOST)

    def check(self) -> None:
        """Raises torch's DistError when the store, and so the rest of the job, is lost to this node."""
        if self._size > 1 and self._store is not None:
            self._store.check([f"ups/attempt/{self._own}"])

    def _others(self) -> list[int]:
        return [node for node in range(self._size) if node != self._own]

    def _put(self, what: str, value: list[int]) -> None:
        assert self._store is not None
        self._store.set(f"ups/{what}/{self._own}", json.dumps(value))

    def _get(self, what: str, node: int) -> list[int] | None:
        """What a node last told; None if it has told nothing in the time the store waits."""
        assert self._store is not None
        try:
            return json.loads(self._store.get(f"ups/{what}/{node}"))
        except DistStoreError:
            return None
