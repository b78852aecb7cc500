"""`ups train --profile N`: N steps are traced, then training goes on as if nothing had been.

    RUN/profile/trace.json.gz      for chrome://tracing or ui.perfetto.dev
    RUN/profile/profile.md         where a step's time went

Phases come from the marks that every step leaves anyway (the heartbeat's, and those where faults may be injected), so a
step that is not traced pays nothing. Rank 0 traces itself; the others wait for it as they do for any slower rank.
"""

from __future__ import annotations

import gzip
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ups.distributed.runtime.start import Runtime
from ups.durable import write
from ups.errors import UserError
from ups.training.trace import PREFIX, STEP, complete_events, markdown, step_times

WARM_UP = 10
"""So many steps run untraced first: they load kernels, make tables, record graphs."""

_BEGINS = {
    "first step": "recording",
    "gradients": "data",
    "forward": "forward",
    "loss": "backward",
    "vote": "vote",
    "reduce": "reduce",
    "update": "update",
}
"""Which phase a mark begins."""


class StepProfile:
    """Traces `steps` steps of those that run inside `step()`, after a warm-up, and writes into `folder`."""

    def __init__(self, steps: int, folder: Path, runtime: Runtime, left: int) -> None:
        """`left`: the steps that training still has to take."""
        if left < WARM_UP + 1 + steps:
            raise UserError(
                f"a profile of {steps} steps comes after {WARM_UP + 1} others, but only {left} are left to train; "
                "use a smaller --profile or more training.steps"
            )
        self.steps, self.folder, self.runtime = steps, folder, runtime
        self._count, self._thread = 0, threading.get_ident()
        self._untraced: list[float] = []
        self._tracer: profile | None = None
        self._phase: record_function | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step within."""
        self._count += 1
        if self.runtime.rank or self._count > WARM_UP + 1 + self.steps:
            yield
            return
        if self._count == WARM_UP + 1:  # a first traced step, thrown away: starting to trace takes time of its own
            self._tracer = self._started()
            self._tracer.__enter__()
        if self._tracer is None:
            began = time.perf_counter()
            yield
            self._untraced.append(time.perf_counter() - began)
            return
        self.runtime.heartbeat.heard = self._enter
        try:
            with record_function(STEP):
                yield
                self._leave()
                if self._count == WARM_UP + 1 + self.steps:
                    self._wait_for_device()
        finally:
            self.runtime.heartbeat.heard = None
        if self._count < WARM_UP + 1 + self.steps:
            self._tracer.step()
        else:
            self._finish(self._tracer)

    def _started(self) -> profile:
        activities = [ProfilerActivity.CPU]
        if self.runtime.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._wait_for_device()
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=self.steps, repeat=1)
        return profile(activities=activities, schedule=schedule)

    def _wait_for_device(self) -> None:
        if self.runtime.device.type == "cuda":
            torch.cuda.synchronize()

    def _enter(self, mark: str) -> None:
        """The phase that was under way ends, and the one that `mark` begins starts."""
        if mark in _BEGINS and threading.get_ident() == self._thread:
            self._leave()
            self._phase = record_function(PREFIX + _BEGINS[mark])
            self._phase.__enter__()

    def _leave(self) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
            self._phase = None

    def _finish(self, tracer: profile) -> None:
        self.runtime.heartbeat.mark("first step")  # its deadline: a trace takes seconds to write
        tracer.__exit__(None, None, None)
        self._tracer = None
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            plain = Path(temporary) / "trace.json"
            tracer.export_chrome_trace(str(plain))
            trace = plain.read_bytes()
        write(self.folder / "trace.json.gz", gzip.compress(trace, 3))  # torch's own gzip takes ten times as long
        times = step_times(complete_events(trace))
        runtime, before = self.runtime, 1e3 * median(self._untraced)
        device = torch.cuda.get_device_name() if runtime.device.type == "cuda" else f"CPU (threads: {runtime.threads})"
        head = (
            f"# Where a step's time went\n\n{times.steps} steps of rank 0 of {runtime.size} on {device}, "
            f"after {self._count - times.steps} others. A step took {1e3 * times.seconds / times.steps:.2f} ms; "
            f"untraced ones before it took {before:.2f} ms.\n\n"
        )
        write(self.folder / "profile.md", (head + markdown(times)).encode())
