"""A soak: trainings of the real command under a storm of faults, compared with undisturbed ones at every checkpoint.

    python tests/faults/soak.py --minutes 30 --seed 0       # make soak
    python tests/faults/soak.py --minutes 60 --calm         # only what must not restart anything, on busy cores

What happened is kept in `runs/soak/`, a line a disturbance: the same command again goes on with the next campaign, and
the table counts all of them. The exit code is 1 if anything differed, hung, gave up, or was restarted without a reason.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from campaign import Campaign, Seen, make_reference
from clock import Clock
from job import end_all, make_place
from storm import KINDS, keep_busy, plan

from ups.errors import UserError
from ups.locks import held


@contextmanager
def _ours_alone(folder: Path) -> Iterator[None]:
    """Two soaks would remove each other's runs, and take what is missing for a fault."""
    path = folder / ".lock"
    with path.open("a") as lock:
        if not held(lock, path):
            raise UserError(f"another soak is at work in {folder}; wait for it, or give another --folder")
        yield


@contextmanager
def _busy_cores(wanted: bool) -> Iterator[None]:
    processes = keep_busy(2 * len(os.sched_getaffinity(0)), 1e6) if wanted else []
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def soak(folder: Path, minutes: float, seed: int, *, calm: bool = False) -> list[Seen]:
    """Campaign after campaign until the time is over; what was seen now and by earlier soaks of this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{'calm' if calm else 'storm'}_{seed}.jsonl"
    with _ours_alone(folder), _busy_cores(calm):
        place = make_place(folder, folder / "data")
        clock = Clock(folder) if calm else None
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            known = read_log(log)
            number = max((seen.campaign for seen in known), default=-1) + 1
            ahead = plan(seed, number, calm=calm)
            seen: list[Seen] = []
            shutil.rmtree(place.runs / f"campaign{number:04d}", ignore_errors=True)
            try:
                began = time.monotonic()
                reference = make_reference(place, ahead.ranks, ahead.strategy)
                until += time.monotonic() - began  # which is no time under faults
                Campaign(ahead, place, reference, seed, until, clock, seen).run()
            finally:
                end_all()
                with log.open("a") as file:
                    file.writelines(json.dumps(asdict(entry)) + "\n" for entry in seen)
    return read_log(log)


def read_log(path: Path) -> list[Seen]:
    return [Seen(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def table(seen: list[Seen]) -> str:
    """Counts by kind, seconds until training again where there was one fault alone, and what went wrong."""
    happened = [entry for entry in seen if entry.happened]
    lines = ["| fault | alone | with another | training again after, median | worst |", "|---|---|---|---|---|"]
    names = [*KINDS, "NaN in the loss of a rank"]
    for name in names:
        alone = [entry for entry in happened if entry.kinds == [name]]
        pairs = sum(entry.kinds.count(name) for entry in happened if len(entry.kinds) > 1)
        if alone or pairs:
            lines.append(f"| {name} | {len(alone)} | {pairs} | {_times(alone)} |")
    pairs = [entry for entry in happened if len(entry.kinds) > 1]
    lines.append(f"| two at a time | {len(pairs)} | – | {_times(pairs)} |")
    problems: Mapping[str, int] = {
        word: sum(entry.problem.startswith(word) for entry in seen)
        for word in ("difference", "hang", "false alarm", "gave up")
    }
    minutes = sum(entry.seconds for entry in seen) / 60
    lines += [
        "",
        f"{count_faults(seen)} faults in {len({entry.campaign for entry in seen})} trainings, "
        f"{sum(entry.restarts for entry in seen)} restarts, {sum(entry.compared for entry in seen)} checkpoints "
        f"compared after a fault; planned and not met: {len(seen) - len(happened)}. "
        f"{count_faults(seen) / minutes:.2f} faults a minute in {minutes:.1f} minutes. "
        f"Differences: {problems['difference']}, hangs: {problems['hang']}, "
        f"false alarms: {problems['false alarm']}, given up: {problems['gave up']}.",
        *(f"campaign {entry.campaign}, {entry.line()}" for entry in seen if entry.problem),
    ]
    return "\n".join(lines)


def count_faults(seen: list[Seen]) -> int:
    return sum(len(entry.kinds) for entry in seen if entry.happened)


def _times(entries: list[Seen]) -> str:
    times = [entry.recovery for entry in entries if entry.recovery is not None]
    return f"{statistics.median(times):.1f} s | {max(times):.1f} s" if times else "– | –"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", action="store_true", help="only what must not restart anything, on busy cores")
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # jobs are ended, counts kept
    try:
        seen = soak(options.folder.resolve(), options.minutes, options.seed, calm=options.calm)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(seen))
    return int(any(entry.problem for entry in seen))


if __name__ == "__main__":
    sys.exit(main())
