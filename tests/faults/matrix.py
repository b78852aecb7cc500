"""The fault matrix as it was seen: rows from the tests, a table in Markdown."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

START, END = "<!-- matrix -->", "<!-- /matrix -->"
LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class Row:
    """One fault: what was injected, what is required, what was seen; seconds and steps where there are any."""

    number: int
    fault: str
    required: str
    seen: str
    detect: float | None = None
    recover: float | None = None
    repeated: int | None = None

    def line(self) -> str:
        repeated = "–" if self.repeated is None else str(self.repeated)
        cells = (str(self.number), self.fault, self.required, self.seen, _seconds(self.detect), _seconds(self.recover))
        return f"| {' | '.join(_cell(cell) for cell in (*cells, repeated))} |"


class Matrix:
    """Collects the rows of a session, test by test: a test that fails or is skipped has a row too."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {}
        self._ends: dict[str, str] = {}

    def add(self, test: str, row: Row) -> None:
        self._rows.setdefault(test, []).append(row)

    def ended(self, test: str, end: str) -> None:
        """How a test ended, if it did not pass: "FAILED: ..." or "skipped: ..."."""
        self._ends[test] = end

    def rows(self) -> list[Row]:
        found = []
        for test in {**self._rows, **self._ends}:
            rows = self._rows.get(test, [])
            if end := self._ends.get(test):
                number, fault = _from_name(test)
                first = rows[0] if rows else Row(number, fault, "", "")
                rows = [Row(first.number, first.fault, first.required, end)]
            found += rows
        return sorted(found, key=lambda row: (row.number, row.fault))

    def text(self, command: str) -> str:
        rows = self.rows()
        bad = sum(row.seen.startswith("FAILED") for row in rows)
        left_out = sum(row.seen.startswith("skipped") for row in rows)
        lines = [
            f"Written by `{command}` on {date.today().isoformat()}: torch {torch.__version__}, Python "
            f"{platform.python_version()}, {len(os.sched_getaffinity(0))} CPU cores. "
            f"{len(rows)} lines, {bad} failed, {left_out} skipped.",
            "",
            "| # | fault | required | seen | detect | recover | steps repeated |",
            "|---|---|---|---|---|---|---|",
            *(row.line() for row in rows),
        ]
        return "\n".join(lines)

    def write(self, path: Path, command: str) -> None:
        """Replace the part of `path` between the marks; other parts of the file belong to others."""
        part = f"{START}\n{self.text(command)}\n{END}"
        before = path.read_text() if path.exists() else f"# Faults\n\n{START}{END}\n"
        if START not in before or END not in before:
            before = f"{before.rstrip()}\n\n{START}{END}\n"
        head, rest = before.split(START, 1)
        path.write_text(head + part + rest.split(END, 1)[1])


def _from_name(test: str) -> tuple[int, str]:
    """(7, "sigkill of one rank") of "tests/faults/test_x.py::test_fault_07_sigkill_of_one_rank[2]"."""
    name = test.rsplit("::", 1)[-1]
    number = re.match(r"test_fault_(\d+)_", name)
    return int(number[1]) if number else 0, re.sub(r"^test_(fault_\d+_)?", "", name).replace("_", " ")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
