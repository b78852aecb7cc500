"""`ups bench`: data, throughput side by side, training for equal time, rollouts against solvers, table.

Every result is written when it is there. A contestant that fails leaves a row that says why, and the others go on.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.markdown import Markdown
from torch import nn

from ups.bench import accuracy, roofline, solvers, throughput
from ups.bench.contestants import Absent, Entry, Setting, ordered
from ups.bench.contestants import chosen as chosen_entries
from ups.bench.data import KEPT, Data, prepare
from ups.bench.plots import draw
from ups.bench.tables import markdown
from ups.bench.tasks import TASKS, Task
from ups.bench.tasks import chosen as chosen_tasks
from ups.distributed.launch.claim import claimed
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.durable import write
from ups.errors import Stopped, UserError
from ups.models.predictor import Persistence
from ups.rollout.operator import OperatorPredictor
from ups.track.environment import cpu_model, environment
from ups.track.progress import Progress

FOREVER = 10**6
"""Steps of a training that is only timed."""
ROLLED = ("ours", "fno", "fno_usual", "unet_usual", "neuraloperator")
"""Whose rollouts are timed: each architecture once, where it was trained first."""


@dataclass(frozen=True)
class Options:
    """What `ups bench` was asked: see its help. `seconds` are of each training; 0: throughput only."""

    tasks: Sequence[str] = ()
    quick: bool = False
    seconds: float = 60.0
    seeds: Sequence[int] = (0,)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    out: Path = Path("bench")
    only: Sequence[str] = ()
    threads: int | None = None
    tf32: bool = True
    compile: bool = False
    command: str = "ups bench"

    @property
    def runtime(self) -> RuntimeConfig:
        return RuntimeConfig(device=self.device, threads=self.threads, tf32=self.tf32, compile=self.compile)


def measure(options: Options, *, as_json: bool = False, change: Callable[[Task], Task] = lambda task: task) -> int:
    """Measure, write and print; the exit code: 1 if a contestant failed. `change` makes tasks smaller."""
    if not math.isfinite(options.seconds):
        raise UserError(f"--seconds {options.seconds}: nobody trains that long; give a finite number of seconds")
    tasks = [change(task) for task in chosen_tasks(options.tasks, options.quick)]
    if not any(chosen_entries(options.only, task, options.quick) for task in tasks):
        names, where = ", ".join(options.only), ", ".join(task.name for task in tasks)
        where += " with --quick" if options.quick else ""
        raise UserError(f"--only {names}: {where} has no such model; choose other contestants or tasks")
    with owned(options.out), Runtime.start(options.runtime, options.seeds[0]) as runtime:
        # All files are looked at before anything is measured.
        known = {name: read(path) for name in TASKS if (path := options.out / f"{name}.json").exists()}
        benches = [_Bench(options, task, runtime, known.get(task.name)) for task in tasks]
        found = {bench.task.name: bench.run() for bench in benches}
        known |= found
        write(options.out / "bench.md", (markdown({n: known[n] for n in TASKS if n in known}) + "\n").encode())
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        # A log has no width of its own: the table must not be folded there.
        Console(width=None if sys.stdout.isatty() else 200).print(Markdown(markdown(found)))
        print(f"\nwritten to {options.out}: bench.md, and for each task its results and their picture")
    rows = [(task, row) for task, content in found.items() for row in content["contestants"].values()]
    failed = [f"failed: {task}, {row['title']}: {row['why']}" for task, row in rows if row["state"] == "failed"]
    print("\n".join(failed), file=sys.stderr, end="\n" if failed else "")
    return 1 if failed else 0


@contextmanager
def owned(out: Path) -> Iterator[None]:
    """The folder of results, made if need be, ours alone while we work in it."""
    with ExitStack() as held:
        try:
            held.enter_context(claimed(out))
        except UserError as error:
            raise UserError(f"{str(error).rpartition(';')[0]}; choose another --out") from error
        yield


def read(path: Path) -> dict[str, Any]:
    """A file of results."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not the JSON of a benchmark ({error}); remove it") from error


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers were measured on."""
    found = environment()
    return {
        "device": device_name(device),
        "cores": found["cpu"]["usable"],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "git": found["git"],
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


class _Bench:
    """One task. `known` is what earlier calls found: rows of contestants that are not measured now stay."""

    def __init__(self, options: Options, task: Task, runtime: Runtime, known: dict[str, Any] | None) -> None:
        self.options, self.task, self.runtime = options, task, runtime
        self.entries = chosen_entries(options.only, task, options.quick)
        self.rows: dict[str, dict[str, Any]] = {}
        self.path = options.out / f"{task.name}.json"
        settings = {
            "task": asdict(task) | {"solver": {type(task.solver).__name__: vars(task.solver)}},
            "seconds": options.seconds,
            "device": device_name(runtime.device),
            "threads": runtime.threads,
            "torch": torch.__version__,
            "compile": options.compile,
            "precision": roofline.single_precision(runtime.device),
        }
        if known is not None and known.get("settings") != json.loads(json.dumps(settings)):
            raise UserError(f"{self.path} holds results of other settings; choose another --out, or remove it")
        self.content = known or {"settings": settings, "commands": [], "contestants": {}}

    def run(self) -> dict[str, Any]:
        content, runtime = self.content, self.runtime
        content["machine"] = machine(runtime.device)
        content["commands"] = list(dict.fromkeys([*content["commands"], self.options.command]))
        with tempfile.TemporaryDirectory(dir=self.options.out) as folder:
            data = prepare(self.task, runtime, Path(folder))
            content["data"] = {"trajectories": len(data.train), "seconds": data.seconds}
            content["persistence"] = accuracy.judge(Persistence([data.learned]), data)
            ceilings = roofline.measure(runtime.device)
            content["ceilings"] = asdict(ceilings)
            # Ways to run the same model are compared in the same seconds; another model need not be.
            for _, group in groupby(list(self.entries), key=lambda entry: entry.model):
                self._time(list(group), data, ceilings, Path(folder))
                _release()
            if self.options.seconds:
                for entry, seed in product(list(self.entries), dict.fromkeys(self.options.seeds)):
                    if entry.trained and entry in self.entries:
                        self._train(entry, seed, data, Path(folder))
                        _release()
        done = [(row["title"], run["curve"]) for row in ordered(content) for run in row.get("runs", {}).values()]
        if done:
            curves = [(title, [p["seconds"] for p in c], [p["rollout_nrmse"] for p in c]) for title, c in done]
            draw(self.path.with_suffix(".png"), curves, xlabel="training time (s)", ylabel="rollout nRMSE, validation")
        return content

    def _setting(self, entry: Entry, data: Data, seed: int, steps: int, folder: Path) -> Setting:
        size = self.task.batch(entry.model)
        if size != self.task.batch_size:
            data = replace(data, task=replace(self.task, batch_size=size))
        return Setting(data, self.runtime, seed, steps, folder)

    def _time(self, entries: Sequence[Entry], data: Data, ceilings: roofline.Ceilings, folder: Path) -> None:
        """Throughput of some contestants, block by block in turn: one session, whose mark their rows carry."""
        session, device = datetime.now(UTC).isoformat(), self.runtime.device
        timings: dict[Entry, throughput.Timing] = {}
        blocks = throughput.BLOCKS[device.type]
        with Progress(f"timing {entries[0].title} on {self.task.name}", total=blocks, unit="rounds") as progress:
            for entry in entries:
                with self._guarded(entry):
                    setting = self._setting(entry, data, self.options.seeds[0], FOREVER, folder)
                    timings[entry] = throughput.begin(lambda e=entry, s=setting: e.make(s), device)
            for number in range(blocks):
                for entry in list(timings)[:: -1 if number % 2 else 1]:  # nobody always comes first
                    if entry in self.entries:
                        with self._guarded(entry):
                            throughput.round_of(timings[entry], device)
                progress.update(number + 1)
        for entry, timing in timings.items():
            if entry in self.entries:
                with self._guarded(entry):
                    model = self.task.models[entry.model]
                    found = throughput.result(timing, model, self.task.batch(entry.model), ceilings)
                    self.rows[entry.key] = {
                        "title": entry.title,
                        "state": "done",
                        "git": self.content["machine"]["git"],
                        "parameters": _real_numbers(timing.contestant.module),
                        "throughput": found | {"session": session},
                    }

    def _train(self, entry: Entry, seed: int, data: Data, folder: Path) -> None:
        row = self.rows[entry.key]
        with self._guarded(entry):
            steps = accuracy.steps_for(self.options.seconds, row["throughput"])
            began = time.perf_counter()
            contestant = entry.make(self._setting(entry, data, seed, steps, folder))
            making = time.perf_counter() - began
            title = f"{entry.title} on {self.task.name}"
            result = accuracy.train(contestant, data, title, steps, making, self.runtime)
            with contestant.judged() as model:
                result |= accuracy.judge(OperatorPredictor(model, [data.learned]), data)
                if entry.key in ROLLED and "rollouts" not in row:
                    row["rollouts"] = self._rollouts(model, result, data)
            row.setdefault("runs", {})[str(seed)] = result

    def _rollouts(self, model: Any, result: dict[str, Any], data: Data) -> dict[str, Any]:
        content = self.content
        if "solver" not in content:
            content["solver"] = solvers.ladder(data, self.runtime)
        spent = {"train": result["seconds"], "data": content["data"]["seconds"]}
        seconds = solvers.model_seconds(model, data, self.runtime)
        return solvers.comparison(content["solver"], result["rollout"]["nrmse"] or math.inf, seconds, spent)

    @contextmanager
    def _guarded(self, entry: Entry) -> Iterator[None]:
        """What goes wrong within is written into the contestant's row, and the bench goes on without it."""
        try:
            yield
        except Stopped:
            raise
        except Exception as error:
            absent, first = isinstance(error, Absent), str(error).strip().partition("\n")[0]
            why = first if absent else f"{type(error).__name__}: {first}"
            row = self.rows.setdefault(entry.key, {"title": entry.title})
            row.update(state="absent" if absent else "failed", why=why)
            if not absent:
                traceback.print_exc()
            self.entries.remove(entry)
        self.content["contestants"] |= self.rows
        write(self.path, (json.dumps(self.content, indent=1) + "\n").encode())
        self.runtime.check_stop(KEPT)


def _real_numbers(module: nn.Module) -> int:
    """Parameters, a complex one counting two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in module.parameters() if p.requires_grad)


def _release() -> None:
    """Free what the last contestants held; called where no variable names them any more."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # graphs are among it, and may be under way
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
