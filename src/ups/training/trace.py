"""From a Chrome trace of training steps to a table of where their time went.

Host time is that of the thread that trains, phase by phase; a GPU works behind it, so the time of its kernels is a
column of its own, each kernel counted to the phase that launched it. A phase that only launches is short on the host
and long on the device; one that waits is the other way round. The host waits for data while it gathers them and the
device, where there is one, has nothing to do.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STEP = "ups step"
PREFIX = "ups: "
"""The names of a step's range in a trace, and the beginning of those of its phases."""
PHASES = ("data", "forward", "backward", "vote", "reduce", "update")
"""In the order of a step, as the table has them. Replayed graphs hold both passes: "forward and backward"."""
_PASSES, _REST = "forward and backward", "rest"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_TOP = 12

Span = tuple[float, float]


@dataclass(frozen=True)
class Work:
    """An operator or a kernel: its own seconds and its calls, in all steps together."""

    name: str
    seconds: float
    calls: int


@dataclass(frozen=True)
class StepTimes:
    """Seconds of all traced steps together. `device` and `busy` are empty and None where there is no GPU."""

    steps: int
    seconds: float
    host: Mapping[str, float]
    device: Mapping[str, float]
    waiting: float
    busy: float | None
    operators: tuple[Work, ...]
    kernels: tuple[Work, ...]

    @property
    def shares(self) -> dict[str, float]:
        """Each phase's share of the steps on the host; what belongs to no phase is "rest"."""
        return {phase: seconds / self.seconds for phase, seconds in self.host.items()}


def complete_events(trace: bytes) -> list[dict[str, Any]]:
    """The events of a Chrome trace that have a beginning and a duration."""
    return [event for event in json.loads(trace)["traceEvents"] if event.get("ph") == "X"]


def step_times(events: Sequence[Mapping[str, Any]]) -> StepTimes:
    """Where the time of the traced steps went; times in a trace are microseconds."""
    ranges = [event for event in events if event.get("cat") == "user_annotation"]
    steps = _merged(_span(event) for event in ranges if event["name"] == STEP)
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    graphs = sorted(event["ts"] for event in launches.values() if event["name"] == "cudaGraphLaunch")
    phases = _phases(ranges, graphs)
    work = [event for event in events if event.get("cat") in _ON_DEVICE]
    active = _merged(_span(event) for event in work)
    host: dict[str, float] = dict.fromkeys((*PHASES, _REST), 0.0)
    for begin, end, phase in phases:
        host[phase] = host.get(phase, 0.0) + (end - begin) / 1e6
    total = _length(steps) / 1e6
    host[_REST] = max(0.0, total - sum(host.values()))
    device: dict[str, float] = defaultdict(float)
    for event in work:
        launch = launches.get(event.get("args", {}).get("correlation"))
        device[_REST if launch is None else _phase_at(phases, launch["ts"])] += event["dur"] / 1e6
    gathering = _merged((begin, end) for begin, end, phase in phases if phase == "data")
    return StepTimes(
        steps=sum(event["name"] == STEP for event in ranges),
        seconds=total,
        host=host,
        device=dict(device),
        waiting=(_length(gathering) - _overlap(gathering, active)) / 1e6,
        busy=_overlap(steps, active) / 1e6 if work else None,
        operators=_own_times(event for event in events if event.get("cat") == "cpu_op"),
        kernels=_summed((event["name"], event["dur"]) for event in work),
    )


def _span(event: Mapping[str, Any]) -> Span:
    return event["ts"], event["ts"] + event["dur"]


def _phases(ranges: Iterable[Mapping[str, Any]], graphs: Sequence[float]) -> list[tuple[float, float, str]]:
    """The phases in order of time. A step that replays graphs says nothing between its data and its passes: there the
    launch of a graph ends the data.
    """
    found = []
    for event in ranges:
        if event["name"].startswith(PREFIX):
            begin, end = _span(event)
            phase = event["name"].removeprefix(PREFIX)
            place = bisect_right(graphs, begin)
            if phase == "data" and place < len(graphs) and graphs[place] < end:
                found.append((graphs[place], end, _PASSES))
                end = graphs[place]
            found.append((begin, end, phase))
    return sorted(found)


def _phase_at(phases: Sequence[tuple[float, float, str]], when: float) -> str:
    place = bisect_right(phases, when, key=lambda phase: phase[0]) - 1
    return phases[place][2] if place >= 0 and when <= phases[place][1] else _REST


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Their union, as separate spans in order."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((begin, end))
    return union


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _overlap(one: Sequence[Span], other: Sequence[Span]) -> float:
    """What two unions of spans have in common."""
    return _length(one) + _length(other) - _length(_merged([*one, *other]))


def _own_times(operators: Iterable[Mapping[str, Any]]) -> tuple[Work, ...]:
    """Operators by their own time, without that of the operators they call."""
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in operators:
        threads[event["pid"], event["tid"]].append(event)
    own: list[tuple[str, float]] = []
    for calls in threads.values():
        open_calls: list[tuple[float, int]] = []  # where each call that is under way ends, and its place in `own`
        for event in sorted(calls, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = _span(event)
            while open_calls and open_calls[-1][0] <= begin:
                open_calls.pop()
            if open_calls:
                name, seconds = own[open_calls[-1][1]]
                own[open_calls[-1][1]] = (name, seconds - event["dur"])
            open_calls.append((end, len(own)))
            own.append((event["name"], event["dur"]))
    return _summed(own)


def _summed(times: Iterable[tuple[str, float]]) -> tuple[Work, ...]:
    """The longest, by name."""
    calls: dict[str, list[float]] = defaultdict(list)
    for name, duration in times:
        calls[name].append(duration / 1e6)
    works = [Work(name, sum(spent), len(spent)) for name, spent in calls.items()]
    return tuple(sorted(works, key=lambda work: -work.seconds)[:_TOP])


def markdown(times: StepTimes) -> str:
    """The tables, in milliseconds a step."""

    def each(seconds: float) -> str:
        return f"{1e3 * seconds / times.steps:.3f}"

    on_gpu = times.busy is not None
    lines = ["| phase | ms a step | share |" + (" device ms |" if on_gpu else "")]
    lines.append("|---|---:|---:|" + ("---:|" if on_gpu else ""))
    order = [*PHASES[:3], _PASSES, *PHASES[3:]]
    order += [phase for phase in times.host if phase not in {*order, _REST}] + [_REST]
    for phase in order:
        seconds = times.host.get(phase, 0.0)
        if seconds or times.device.get(phase):
            row = f"| {phase} | {each(seconds)} | {seconds / times.seconds:.1%} |"
            lines.append(row + (f" {each(times.device.get(phase, 0.0))} |" if on_gpu else ""))
    lines += ["", f"Waiting for data: {times.waiting / times.seconds:.1%} of a step."]
    if times.busy is not None:
        lines.append(f"The device was busy {times.busy / times.seconds:.1%} of the time.")
    for title, work in (("kernel", times.kernels), ("operator", times.operators)):
        if work:
            lines += ["", f"| {title} | own ms a step | share | calls a step |", "|---|---:|---:|---:|"]
            for entry in work:
                share = f"{entry.seconds / times.seconds:.1%}"
                name = entry.name.replace("|", "\\|")
                lines.append(f"| `{name[:80]}` | {each(entry.seconds)} | {share} | {entry.calls / times.steps:.1f} |")
    return "\n".join(lines) + "\n"
