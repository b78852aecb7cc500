"""What `ups bench` prints and writes: the table last, JSON if asked, `bench.md` and the pictures always."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable

from rich.console import Console
from rich.markdown import Markdown

from ups.bench.plots import draw
from ups.bench.record import owned, read
from ups.bench.run import Options, bench
from ups.bench.scaling import pdet_share, scale
from ups.bench.tables import markdown
from ups.bench.tasks import TASKS, Task, chosen
from ups.durable import write
from ups.errors import UserError


def measure(options: Options, *, as_json: bool = False, change: Callable[[Task], Task] = lambda task: task) -> int:
    """Measure, write and print; the exit code: 1 if a contestant failed. `change` makes tasks smaller."""
    if not math.isfinite(options.seconds):
        raise UserError(f"--seconds {options.seconds}: nobody trains that long; give a finite number of seconds")
    with owned(options.out):
        if options.scaling or options.pdet:
            return _special(options, as_json)
        return _usual(options, as_json, change)


def _usual(options: Options, as_json: bool, change: Callable[[Task], Task]) -> int:
    """Contestants beside each other, task by task."""
    out, measured = options.out, {task.name for task in chosen(options.tasks, options.quick)}
    files = {name: out / f"{name}.json" for name in TASKS if name not in measured}
    others = {name: read(path) for name, path in files.items() if path.exists()}
    found = bench(options, change)
    known = others | found
    write(out / "bench.md", (markdown({name: known[name] for name in TASKS if name in known}) + "\n").encode())
    pictures = [path for task, content in found.items() for path in draw(task, content, out)]
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        # A log has no width of its own: the table must not be folded there.
        Console(width=None if sys.stdout.isatty() else 200).print(Markdown(markdown(found)))
        print(f"\nwritten: {', '.join(str(path) for path in (out / 'bench.md', *pictures))}")
    problems = [
        f"{task}, {row['title']}: {row['why']}"
        for task, content in found.items()
        for row in content["contestants"].values()
        if row.get("state") == "failed"
    ]
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _special(options: Options, as_json: bool) -> int:
    """The two measurements that have tables of their own."""
    asked = {"scaling": (options.scaling, scale), "pdet": (options.pdet, pdet_share)}
    results = {name: work(options) for name, (wanted, work) in asked.items() if wanted}
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        for name, result in results.items():
            print(f"{result['text']}\nwritten: {options.out / name}.json")
    return 0
