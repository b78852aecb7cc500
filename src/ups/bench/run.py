"""`ups bench`: data, throughput side by side, training for equal time, rollouts against solvers, table.

Every result is written when it is there; the same command goes on where an interrupted one stopped. A contestant that
fails leaves a row that says why, and the others go on.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ups.bench import accuracy, roofline, solvers, throughput
from ups.bench.contestants import Absent, Entry, Setting
from ups.bench.contestants import chosen as chosen_entries
from ups.bench.data import KEPT, Data, prepare
from ups.bench.record import Record, device_name, machine
from ups.bench.tasks import Task
from ups.bench.tasks import chosen as chosen_tasks
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import Stopped, UserError
from ups.models.predictor import Persistence
from ups.track.progress import Progress

QUICK_SECONDS, SECONDS = 8.0, 60.0
FOREVER = 10**6
"""Steps of a training that is only timed."""
ROLLED = ("ours", "fno", "fno_usual", "unet_usual", "neuraloperator")
"""Whose rollouts are timed: each architecture once, where it was trained first."""


@dataclass(frozen=True)
class Options:
    """What `ups bench` was asked: see its help. `asked_seconds` are of each training, None the usual ones."""

    tasks: Sequence[str] = ()
    quick: bool = False
    asked_seconds: float | None = None
    seeds: Sequence[int] = (0,)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    out: Path = Path("bench")
    only: Sequence[str] = ()
    scaling: bool = False
    pdet: bool = False
    again: bool = False
    threads: int | None = None
    tf32: bool = True
    compile: bool = False
    command: str = "ups bench"

    @property
    def seconds(self) -> float:
        """Of each training; 0: throughput only."""
        usual = QUICK_SECONDS if self.quick else SECONDS
        return usual if self.asked_seconds is None else self.asked_seconds

    @property
    def runtime(self) -> RuntimeConfig:
        return RuntimeConfig(device=self.device, threads=self.threads, tf32=self.tf32, compile=self.compile)


def bench(options: Options, change: Callable[[Task], Task] = lambda task: task) -> dict[str, dict[str, Any]]:
    """Do whatever of the benchmark is not done yet; all that is known, by task."""
    tasks = [change(task) for task in chosen_tasks(options.tasks, options.quick)]
    if not any(chosen_entries(options.only, task, options.quick) for task in tasks):
        names, where = ", ".join(options.only), ", ".join(task.name for task in tasks)
        where += " with --quick" if options.quick else ""
        raise UserError(f"--only {names}: {where} has no such model; choose other contestants or tasks")
    found = {}
    with Runtime.start(options.runtime, options.seeds[0]) as runtime:
        # All files are looked at before anything is measured.
        for each in [_Bench(options, task, runtime) for task in tasks]:
            found[each.task.name] = each.run()
    return found


class _Bench:
    """One task."""

    def __init__(self, options: Options, task: Task, runtime: Runtime) -> None:
        self.options, self.task, self.runtime = options, task, runtime
        self.entries = chosen_entries(options.only, task, options.quick)
        described = asdict(task) | {"solver": {type(task.solver).__name__: vars(task.solver)}}
        settings = {
            "task": described,
            "seconds": options.seconds,
            "device": device_name(runtime.device),
            "threads": runtime.threads,
            "torch": torch.__version__,
            "compile": options.compile,
            "precision": roofline.single_precision(runtime.device),
        }
        self.record = Record(options.out / f"{task.name}.json", settings, options.again)
        known = self.record.content["contestants"]
        self.anew = {entry.key for entry in self.entries if options.again and entry.key in known}
        """Whose old results are replaced when there are new ones: who stops before keeps them."""
        kept = [row for key, row in known.items() if key not in self.anew]
        self.solve = options.again and not any("rollouts" in row for row in kept)
        """Whether solvers are timed anew: not while rollouts that were compared with the old times stay."""
        key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:8]
        self.work = options.out / "work" / f"{task.name}-{runtime.device.type}-{key}"
        self.work.mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, Any]:
        content = self.record.content
        untimed = [e for e in self.entries if e.key in self.anew or "throughput" not in self.record.row(e.key)]
        untrained = [(entry, seed) for entry in self.entries for seed in self._seeds(entry)]
        absent = {e.key for e in untimed if self.record.row(e.key).get("state") == "absent" and not self.options.only}
        absent -= self.anew
        if any(entry.key not in absent for entry in (*untimed, *(entry for entry, _ in untrained))):
            for entry in (*untimed, *(entry for entry, _ in untrained)):
                if entry.key not in self.anew:
                    self.record.row(entry.key).pop("state", None)
            content["machine"] = machine(self.runtime.device)
            commands = content.setdefault("commands", [])
            commands += [self.options.command] if self.options.command not in commands else []
            data = prepare(self.task, self.runtime, self.work)
            content["data"] = {"trajectories": len(data.train), "seconds": data.seconds}
            content["persistence"] = accuracy.judged(Persistence([data.learned]), data)
            self.record.save()
            self.ceilings = roofline.measure(self.runtime.device) if untimed else None
            # Ways to run the same model are compared in the same seconds; another model need not be.
            for _, group in groupby(untimed, key=lambda entry: entry.model):
                self._time(list(group), data)
                _release()
                self.runtime.check_stop(KEPT)
            for entry, seed in untrained:
                self._train(entry, seed, data)
                _release()
                self.runtime.check_stop(KEPT)
        return content

    def _seeds(self, entry: Entry) -> list[int]:
        """For which seeds a contestant is still to be trained."""
        if not entry.trained or not self.options.seconds:
            return []
        done = {} if entry.key in self.anew else self.record.row(entry.key).get("runs", {})
        return [seed for seed in dict.fromkeys(self.options.seeds) if str(seed) not in done]

    def _setting(self, entry: Entry, data: Data, seed: int, steps: int) -> Setting:
        size = self.task.batch(entry.model)
        if size != self.task.batch_size:
            data = replace(data, task=replace(self.task, batch_size=size))
        return Setting(data, self.runtime, seed, steps, self.work)

    def _time(self, entries: Sequence[Entry], data: Data) -> None:
        """Throughput of some contestants, block by block in turn: one session, whose mark their rows carry."""
        session = datetime.now(UTC).isoformat()
        device, measured = self.runtime.device, self.ceilings
        assert measured is not None
        self.record.content["ceilings"] = asdict(measured)
        running: dict[Entry, throughput.Timing] = {}
        blocks = throughput.BLOCKS[device.type]
        with Progress(
            f"timing {entries[0].title} on {self.task.name}", total=(blocks + 1) * len(entries), unit="blocks"
        ) as progress:
            done = 0
            for entry in entries:
                with self._guarded(entry):
                    setting = self._setting(entry, data, self.options.seeds[0], FOREVER)
                    running[entry] = throughput.begin(lambda e=entry, s=setting: e.make(s), device)
                done += 1
                progress.update(done, entry.title)
                self.runtime.check_stop(KEPT)
            for number in range(blocks):
                for entry in list(running)[:: -1 if number % 2 else 1]:  # nobody always comes first
                    with self._guarded(entry, lambda e=entry: running.pop(e, None)):
                        throughput.round_of(running[entry], device)
                    done += 1
                    progress.update(done, entry.title)
                    self.runtime.check_stop(KEPT)
        for entry, timing in running.items():
            with self._guarded(entry):
                counts = timing.contestant.count()
                row = self._row(entry)
                row["git"] = self.record.content["machine"]["git"]
                row["parameters"] = _real_numbers(timing.contestant.module)
                speed = throughput.result(timing, self.task.batch(entry.model), counts, measured)
                row["throughput"] = speed | {"session": session}
                timing.contestant.close()

    def _train(self, entry: Entry, seed: int, data: Data) -> None:
        row = self.record.row(entry.key)
        if "throughput" not in row:
            return
        with self._guarded(entry):
            steps = accuracy.steps_for(self.options.seconds, row["throughput"])
            began = time.perf_counter()
            contestant = entry.make(self._setting(entry, data, seed, steps))
            making = time.perf_counter() - began
            try:
                result, model = accuracy.trained(contestant, data, f"{entry.title} on {self.task.name}", steps, making)
                if entry.key in ROLLED and "rollouts" not in row:
                    row["rollouts"] = self._rollouts(model, result, data)
                row.setdefault("runs", {})[str(seed)] = result
            finally:
                contestant.close()

    def _rollouts(self, model: Any, result: dict[str, Any], data: Data) -> dict[str, Any]:
        content = self.record.content
        if self.solve or "solver" not in content:
            content["solver"] = solvers.ladder(data, self.runtime)
            self.solve = False
        spent = {"train": result["seconds"], "data": content["data"]["seconds"]}
        seconds = solvers.model_seconds(model, data, self.runtime)
        return solvers.comparison(content["solver"], result["rollout"]["nrmse"] or float("inf"), seconds, spent)

    def _row(self, entry: Entry) -> dict[str, Any]:
        """Where to write what was found of a contestant; what is to be replaced is gone from it."""
        row = self.record.renewed(entry.key) if entry.key in self.anew else self.record.row(entry.key)
        self.anew.discard(entry.key)
        row["title"] = entry.title
        return row

    @contextmanager
    def _guarded(self, entry: Entry, drop: Callable[[], Any] = lambda: None) -> Iterator[None]:
        """What goes wrong within is written into the contestant's row; the bench goes on."""
        try:
            yield
            if entry.key not in self.anew and (row := self._row(entry)).get("state") != "failed":
                row["state"] = "done"
                row.pop("why", None)
        except (Stopped, KeyboardInterrupt):
            raise
        except Absent as absent:
            self._row(entry).update(state="absent", why=str(absent))
            drop()
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            self._row(entry).update(state="failed", why=f"{type(error).__name__}: {first}")
            with (self.options.out / "failures.log").open("a") as log:
                log.write(f"{self.task.name}, {entry.title}\n{traceback.format_exc()}\n")
            drop()
        self.record.save()


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
