"""Damage of every kind, for tests that readers refuse it with one sentence.

`make test` tries some dozens of damaged inputs of each kind, always the same; `make fuzz` thousands, each time others.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st

from ups.errors import UserError

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
ROOM = 2**30
"""Bytes of memory that reading something small may take more than there are in use."""

fuzzed = settings(
    max_examples=EXAMPLES or 50,
    derandomize=not EXAMPLES,
    phases=(Phase.generate,),  # shrinking takes minutes, and the input that was drawn is printed
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def refused_or_read() -> Iterator[None]:
    """The input may be read, or refused with one sentence; not with another exception, nor with much memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UserError as error:
        assert str(error) and len(str(error)) < 4000, "no sentence"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused_or_read_apart(work: Callable[[], None]) -> None:
    """The same in a process of its own, for native libraries: what they do with damaged bytes, such as HDF5's endless
    loops and crashes, is not ours to mend. What Python does wrong, or does without end, fails here too.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXCPU, _too_long)
            resource.setrlimit(resource.RLIMIT_CPU, (5, 8))  # Python hears the first, native code obeys the second
            with refused_or_read():
                work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status != 1, "see the traceback above"
    if status:
        event(f"a native library died: {status}")


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("reading takes too long")


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Flipped, overwritten, cut, repeated, or inserted bytes."""
    made = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(made) - 1)))
        how = draw(st.sampled_from(("flip", "byte", "number", "zeros", "cut", "repeat", "insert")))
        if how == "cut":
            del made[place:]
        elif how == "insert":
            made[place:place] = draw(st.binary(max_size=16))
        elif how == "repeat":
            made[place:place] = made[place : place + 64]
        elif made:
            new = {
                "flip": bytes([made[place] ^ (1 << draw(st.integers(0, 7)))]),
                "byte": draw(st.binary(min_size=1, max_size=1)),
                "number": draw(st.sampled_from((0, 1, 2**31 - 1, 2**40, 2**63 - 1, 2**64 - 1))).to_bytes(8, "little"),
                "zeros": bytes(draw(st.integers(1, 64))),
            }[how]
            made[place : place + len(new)] = new
    return bytes(made)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from((2**31, 2**63, 10**30, -(2**40), 1e308, -1e-308, float("nan"), float("inf"))),
    st.sampled_from(("", "..", "../../elsewhere", "/etc/passwd", "step_00000001", "x" * 500, "\0", "ß\n", "1e999")),
    st.lists(st.integers(-1, 2), max_size=3),
    st.dictionaries(st.sampled_from(("", "step", "..", "kind")), st.integers(), max_size=2),
    st.integers(1, 5).map(lambda depth: json.loads("[" * depth + "]" * depth)),
)
"""Values that nobody expects."""


@st.composite
def altered(draw: st.DrawFn, content: Any) -> Any:
    """JSON in which some values are odd, gone or twice there."""
    made = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 3))):
        holders = [holder for holder in _holders(made) if holder]
        if not holders:
            return draw(odd)
        holder = draw(st.sampled_from(holders))
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        how = draw(st.sampled_from(("odd", "odd", "remove", "rename")))
        value = holder[key]
        if how == "odd":
            holder[key] = draw(odd)
        else:
            del holder[key]
            if how == "rename" and isinstance(holder, dict):
                holder[str(draw(odd))] = value
            elif how == "rename":
                holder[:] = [*holder, value, value]
    return made


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)
