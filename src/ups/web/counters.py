"""What Prometheus is told, in its text format."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path


class Histogram:
    def __init__(self, name: str, says: str, ends: Sequence[float]) -> None:
        self.name, self.says, self.ends = name, says, tuple(ends)
        self.counts, self.total = [0] * (len(self.ends) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self.counts[bisect_left(self.ends, value)] += 1
            self.total += value

    def lines(self) -> list[str]:
        with self._lock:
            counts, total = list(self.counts), self.total
        lines, below = [f"# HELP {self.name} {self.says}", f"# TYPE {self.name} histogram"], 0
        for end, count in zip((*map("{:g}".format, self.ends), "+Inf"), counts, strict=True):
            below += count
            lines.append(f'{self.name}_bucket{{le="{end}"}} {below}')
        return [*lines, f"{self.name}_sum {total:g}", f"{self.name}_count {below}"]


class Counters:
    def __init__(self) -> None:
        self.answered: Counter[tuple[str, int]] = Counter()
        self.left = 0
        self.seconds = Histogram(
            "ups_rollout_seconds",
            "From the first byte of a request for a rollout to its answer being sent.",
            (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self.batches = Histogram(
            "ups_batch_samples", "Starts that are computed together.", (1, 2, 4, 8, 16, 32, 64, 128, 256)
        )

    def text(self, now: Mapping[str, float]) -> str:
        """`now` are what is measured rather than counted, by name."""
        lines = ["# HELP ups_requests_total Answers by path and status.", "# TYPE ups_requests_total counter"]
        lines += [
            f'ups_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.answered.items())
        ]
        lines += ["# HELP ups_left_total Requests whose client left before the answer."]
        lines += ["# TYPE ups_left_total counter", f"ups_left_total {self.left}"]
        for name, value in {**now, "process_resident_memory_bytes": resident()}.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join([*lines, *self.seconds.lines(), *self.batches.lines(), ""])


def resident() -> int:
    """Bytes of memory that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not on Linux
        return 0
