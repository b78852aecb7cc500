"""A crash report's JSON as text: plain Markdown, the answer first, the evidence after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def markdown(report: Mapping[str, Any]) -> str:
    """The whole report for reading on a terminal."""
    host = report["host_state"]
    lines = [
        f"# {report['what']}",
        "",
        f"Likely cause: {report['cause']}",
        "",
        f"- time: {report['time']}, attempt {report['attempt']}, host {report['host']}, device {report['device']}",
        f"- place: phase {report['phase']}, step {report['step']}"
        + (f", task {report['task']}" if report["task"] else "")
        + (f", shapes {report['shapes']}" if report["shapes"] else ""),
    ]
    if report["seconds_to_detect"] is not None:
        lines.append(f"- found after {report['seconds_to_detect']:.2f} s")
    lines += [
        f"- host memory: {_bytes(host['after']['memory_free'])} free of {_bytes(host['after']['memory_total'])}; "
        f"kills for memory since the start: {_known(host['oom_kills'])}",
        f"- /dev/shm: {_bytes(host['after']['shm_free'])} free of {_bytes(host['after']['shm_total'])}; "
        f"open files allowed a process: {host['after']['descriptor_limit']}",
        "",
        "Reproduce:",
        "",
        f"    {report['command']}",
        "",
        "## Where every rank was",
        "",
        *_table(report["ranks"]),
    ]
    if report["flight_recorder"]:
        lines += ["", "Collectives that NCCL had begun and not ended, by its own records:", ""]
        lines += [f"- {path}: {'; '.join(begun) or 'none'}" for path, begun in report["flight_recorder"].items()]
    first = report["rank"]
    for rank in sorted(report["ranks"], key=lambda entry: entry["rank"] != first):
        lines += _one(rank)
    lines += ["", "## Environment", "", *(f"- {key}: {value}" for key, value in (report["environment"] or {}).items())]
    return "\n".join(lines) + "\n"


def _table(ranks: list[dict[str, Any]]) -> list[str]:
    rows = ["| rank | end | phase | step | seconds there | memory | open files |", "|---|---|---|---|---|---|---|"]
    for entry in ranks:
        cells = [entry["rank"], _end(entry), _known(entry["phase"]), _known(entry["step"])]
        cells += [_known(entry["seconds_there"]), _bytes((entry["memory"] or {}).get("resident"))]
        rows.append("| " + " | ".join(str(cell) for cell in [*cells, _known(entry["descriptors"])]) + " |")
    return rows


def _end(entry: Mapping[str, Any]) -> str:
    if not entry["here"]:
        return "on another node"
    if entry["signal"]:
        return entry["signal"]
    if entry["exit"] is None:
        return "alive, waited" if entry["exception"] is None else f"leaving, {entry['exception']['type']}"
    return f"code {entry['exit']}" + (f", {entry['exception']['type']}" if entry["exception"] else "")


def _one(entry: Mapping[str, Any]) -> list[str]:
    lines = ["", f"## Rank {entry['rank']}"]
    if entry["exception"]:
        lines += ["", "Exception:", "", *_block(entry["exception"]["traceback"].splitlines())]
    if entry["details"]:
        lines += ["", "Details: " + ", ".join(f"{key} {value}" for key, value in entry["details"].items())]
    if entry["memory"] and len(entry["memory"]) > 1:
        told = (f"{key} {_bytes(v) if isinstance(v, int) else v}" for key, v in entry["memory"].items())
        lines += ["", "Memory: " + ", ".join(told)]
    if entry["stacks"]:
        lines += ["", "Python stacks, innermost frame first:", "", *_block(entry["stacks"].splitlines())]
    if entry["log"]:
        lines += ["", "End of its log (C++ stacks are here too):", "", *_block(entry["log"])]
    return lines


def _block(lines: list[str]) -> list[str]:
    return [f"    {line}".rstrip() for line in lines]


def _known(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.2f} GiB"
