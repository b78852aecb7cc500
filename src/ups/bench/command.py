"""What `ups bench` prints and writes: the table last, JSON if asked, `bench.md` and the pictures always."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ups.bench.plots import draw
from ups.bench.record import owned, read
from ups.bench.run import Options, bench, failed
from ups.bench.tables import COLUMNS, ROLLOUT_COLUMNS, markdown, rollout_rows, rows, speedups
from ups.bench.tasks import TASKS, Task, chosen
from ups.durable import write
from ups.errors import UserError

QUICK_SECONDS, SECONDS = 8.0, 60.0


def measure(
    *,
    tasks: Sequence[str] = (),
    quick: bool = False,
    seconds: float | None = None,
    seeds: Sequence[int] = (0,),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    out: Path = Path("bench"),
    only: Sequence[str] = (),
    scaling: bool = False,
    pdet: bool = False,
    again: bool = False,
    threads: int | None = None,
    tf32: bool = True,
    compiled: bool = False,
    as_json: bool = False,
    command: str = "ups bench",
    change: Callable[[Task], Task] = lambda task: task,
) -> int:
    """Measure, write and print; the exit code: 1 if a contestant failed."""
    if seconds is not None and not math.isfinite(seconds):
        raise UserError(f"--seconds {seconds}: nobody trains that long; give a finite number of seconds")
    options = Options(
        tasks=tuple(tasks),
        quick=quick,
        seconds=(QUICK_SECONDS if quick else SECONDS) if seconds is None else seconds,
        seeds=tuple(dict.fromkeys(seeds)),
        device=device,
        out=out,
        only=tuple(only),
        again=again,
        threads=threads,
        tf32=tf32,
        compile=compiled,
        command=command,
    )
    with owned(out):
        if scaling or pdet:
            return _special(options, scaling, pdet, as_json)
        return _usual(options, as_json, change)


def _usual(options: Options, as_json: bool, change: Callable[[Task], Task]) -> int:
    """Contestants beside each other, task by task."""
    out = options.out
    others = _others(options)
    found = bench(options, change)
    known = others | found
    known = {name: known[name] for name in TASKS if name in known}
    write(out / "bench.md", (markdown(known) + "\n").encode())
    pictures = [path for task, content in found.items() for path in draw(task, content, out)]
    problems = failed(found)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        for task, content in found.items():
            _print(task, content)
        print(f"\nwritten: {', '.join(str(path) for path in (out / 'bench.md', *pictures))}")
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _others(options: Options) -> dict[str, dict[str, Any]]:
    """What the folder holds of tasks that are not measured now."""
    measured = {task.name for task in chosen(options.tasks, options.quick)}
    files = {name: options.out / f"{name}.json" for name in TASKS if name not in measured}
    return {name: read(path) for name, path in files.items() if path.exists()}


def _special(options: Options, scaling: bool, pdet: bool, as_json: bool) -> int:
    """The two measurements that have tables of their own."""
    results: dict[str, Any] = {}
    if scaling:
        from ups.bench.scaling import scale

        results["scaling"] = scale(options)
    if pdet:
        from ups.bench.pdet import pdet_share

        results["pdet"] = pdet_share(options)
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        for name, result in results.items():
            print(result["text"])
            print(f"written: {options.out / name}.json")
    return 0


def _print(task: str, content: dict[str, Any]) -> None:
    # A log has no width of its own: the table must not be folded there.
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(*COLUMNS, title=task, title_justify="left")
    for row in rows(content):
        table.add_row(*row)
    console.print(table)
    if lines := rollout_rows(content):
        table = Table(*ROLLOUT_COLUMNS, title=f"{task}: rollouts", title_justify="left")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for line in speedups(content):
        console.print(line, highlight=False)
