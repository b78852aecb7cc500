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
import random
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from job import STAGE, Job, Place, end_all, left_behind, make_place, slowness, start
from storm import EVERY, KINDS, NAN, NAN_STEP, STEPS, VALIDATE, Disturbance, Plan, keep_busy, plan, ranks_of

from ups import checkpoint
from ups.errors import UserError

ROUNDING = 1e-10
"""In float64, once a micro-batch was halved: the same sums in another order."""
PATIENCE = 100.0
"""Seconds on quiet cores in which a disturbed training must have a new checkpoint."""
SETTINGS = (
    f"training.steps={STEPS}",
    f"training.checkpoint_every={EVERY}",
    f"training.validate_every={VALIDATE}",
    "training.batch_size=16",
    "training.learning_rate=1e-4",  # or rounding grows from 1e-16 to 1e-2 within 300 steps
)
STOPPED = (75, -9)


class Failed(Exception):
    """What a soak must not see; the text begins with what it is: "difference", "hang", "false alarm", "gave up"."""


@dataclass(frozen=True)
class Seen:
    """One disturbance and what became of it; `problem` is empty where all went well."""

    campaign: int
    layout: str
    step: int
    kinds: list[str]
    happened: bool
    restarts: int
    recovery: float | None
    compared: int
    problem: str = ""


@dataclass
class Campaign:
    """One training, disturbed as planned, and compared at every checkpoint with the run `reference`."""

    plan: Plan
    place: Place
    reference: Path
    seed: int
    until: float = float("inf")
    """No disturbance begins later, by the monotonic clock: the training then ends in peace."""
    seen: list[Seen] = field(default_factory=list)
    compared: list[tuple[int, float]] = field(default_factory=list)
    """Steps at which parameters were the undisturbed run's, and when that was seen."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.plan.number} acts")
        self.name = f"campaign{self.plan.number:04d}"
        self._known: set[tuple[int, int]] = set()  # checkpoints that were looked at, by step and inode
        self._damaged: set[tuple[int, int]] = set()
        self._rounded = STEPS + 1  # from this step on, sums were added in another order
        self._restarts_allowed = self._stops_allowed = 0
        self._accounted = 0  # restarts that had a reason
        self._next = self._reached = 0
        self._jobs: list[Job] = []
        self._start()

    # One training

    def run(self) -> None:
        for number, disturbance in enumerate(self.plan.disturbances):
            if time.monotonic() > self.until:
                break
            self._next = number + 1
            try:
                self._disturb(disturbance)
            except (AssertionError, UserError, Failed) as error:
                self._note(disturbance, True, None, 0, str(error) if isinstance(error, Failed) else f"hang: {error}")
                return
        self._finish()

    def _finish(self) -> None:
        end = Disturbance(STEPS, ())
        try:
            self._await(lambda: self.job.process.poll() == 0, "the training did not end")
            self._look()
            if self.compared[-1][0] != STEPS:
                raise Failed("difference: the last checkpoint could not be compared")
            if left := left_behind(self.job.run):
                raise Failed(f"hang: left behind: {left}")
        except (AssertionError, UserError, Failed) as error:
            self._note(end, True, None, 0, str(error) if isinstance(error, Failed) else f"hang: {error}")
        else:
            skipped = any(event["step"] == NAN_STEP for event in self.job.events("skipped"))
            self._note(end, skipped, None, 1, "" if skipped else "difference: the step of the NaN was not skipped")
            shutil.rmtree(self.job.run)

    def _start(self) -> None:
        """The same command again, with the faults from within up to the next stop."""
        injected = [NAN]
        for disturbance in self.plan.disturbances[self._next :]:
            if disturbance.attempt is not None:
                injected.append(disturbance.injected())
            if disturbance.stops:
                break
        settings = (*SETTINGS, f"runtime.strategy={self.plan.strategy}")
        self.job = start(
            self.place, self.name, *settings, ranks=self.plan.ranks, fault="; ".join(injected), UPS_GRACE="10"
        )
        self._jobs.append(self.job)

    # One disturbance

    def _disturb(self, disturbance: Disturbance) -> None:
        crashes, jobs, inside = self._accounted, len(self._jobs), disturbance.attempt is not None
        # A rank that is asked to stop before it listens dies of that, and is restarted.
        more = disturbance.stops if len(disturbance.faults) > 1 else 0
        self._restarts_allowed = crashes + disturbance.restarts + more
        self._stops_allowed += disturbance.stops  # one of before may still be under way
        if disturbance.rounds:
            self._rounded = disturbance.step
        self._await(
            lambda: self._step() >= disturbance.step or self._finished(),
            f"the training did not reach step {disturbance.step}",
        )
        began, stops = time.monotonic(), []
        if not inside:
            for fault in disturbance.faults:
                self._await(lambda after=fault.after: time.monotonic() >= began + after, "no time")
                if fault.after:  # a moment later: whatever lives then, which may just be starting
                    self._await(
                        lambda rank=fault.rank: rank in ranks_of(self.job) or self._finished(), "no rank was started"
                    )
                if self._finished():  # the storm was slower than the training
                    return
                assert fault.kind.act is not None
                if fault.kind.effect == "stop":
                    stops.append((len(self._jobs), fault.kind.name == "SIGTERM to a rank"))
                fault.kind.act(self, fault.rank)
                self._look()
        struck = time.monotonic()
        step = max(self._step(), disturbance.step)
        happened = True
        if disturbance.restarts or disturbance.stops:
            limit = disturbance.step + 2 * EVERY

            def answered() -> bool:
                """By a restart, or a new start for every stop; a rank that starts, or is dead, does not hear one."""
                new, alone = self._crashes() + len(self._jobs) > crashes + jobs, len(disturbance.faults) == 1
                return new and all(len(self._jobs) > before or (deaf and not alone) for before, deaf in stops)

            self._await(
                lambda: answered() or (inside and self._step() > limit), "there was neither a restart nor a stop"
            )
            happened = answered()
        again = time.monotonic()
        self._await(
            lambda: any(at > step and when > again for at, when in self.compared) or self._finished(),
            "there was no new checkpoint",
        )
        resumed = [t for job in self._jobs[jobs - 1 :] for t in job.trains.values() if t > struck]
        returned = min(resumed) - (began if inside else struck) if resumed else None
        if not inside and not (disturbance.restarts or disturbance.stops):
            returned = None
        if inside and not disturbance.restarts:
            kinds = {"full disk for a moment": "not_saved"}.get(disturbance.faults[0].kind.name, "out_of_memory")
            happened = any(abs(event["step"] - disturbance.step) <= 2 * EVERY for event in self.job.events(kinds))
        checks = sum(when > struck for _, when in self.compared)
        # A fault from within may have come before this one was done with: its restart is the next one's.
        self._accounted = min(self._crashes(), crashes + 1 if inside else self._restarts_allowed)
        self._note(disturbance, happened, returned, checks, restarts=self._accounted - crashes)

    def _note(
        self,
        disturbance: Disturbance,
        happened: bool,
        recovery: float | None,
        compared: int,
        problem: str = "",
        restarts: int = 0,
    ) -> None:
        kinds = [fault.kind.name for fault in disturbance.faults] or ["NaN in the loss of a rank"]
        layout = f"{self.plan.strategy} on {self.plan.ranks}"
        self.seen.append(
            Seen(
                self.plan.number,
                layout,
                disturbance.step,
                kinds,
                happened,
                restarts,
                recovery,
                compared,
                problem[:2000],
            )
        )
        print(f"{self.name} {layout}: {_line(self.seen[-1])}", flush=True)

    # Looking

    def _await(self, condition: Callable[[], bool], problem: str) -> None:
        """Wait; meanwhile compare every new checkpoint, start what was stopped, and count restarts."""
        end = time.monotonic() + PATIENCE * max(1.5, slowness())

        def met() -> bool:
            self._look()
            return condition()

        # A job is watched until it ends; the next one then has a patience of its own.
        while True:
            job = self.job
            job.until(lambda job=job: met() or job is not self.job, problem, max(1.0, end - time.monotonic()))
            if job is self.job:
                return

    def _look(self) -> None:
        self._compare_new()
        self._reached = max(self._reached, self._step() + EVERY)
        ahead = [d for d in self.plan.disturbances[self._next :] if d.attempt is not None and d.step <= self._reached]
        allowed = self._restarts_allowed + sum(d.restarts for d in ahead)
        if (crashes := self._crashes()) > allowed:
            raise Failed(f"false alarm: {crashes} restarts, {allowed} had a reason: {self._last_words()}")
        code = self.job.process.poll()
        if code is None or self._finished():
            return
        if code not in STOPPED or self._stops_allowed == 0:
            raise Failed(f"gave up: exit code {code}: {self._last_words()}")
        self._stops_allowed -= 1
        self._start()

    def _last_words(self) -> str:
        return " / ".join(self.job.said().strip().splitlines()[-6:])

    def _finished(self) -> bool:
        return self.job.process.poll() == 0

    def _crashes(self) -> int:
        return len(list((self.place.runs / self.name / "crash").glob("*Z.json")))

    def _step(self) -> int:
        """Where the training is: of the newest attempt's ranks, the one that is farthest."""
        last = self.job.last
        newest = max((attempt for attempt, _ in last), default=0)
        return max((beat.step for (attempt, _), beat in last.items() if attempt == newest), default=0)

    @property
    def _folder(self) -> Path:
        return self.place.runs / self.name / STAGE / "checkpoints"

    def _compare_new(self) -> None:
        for step, path in _checkpoints(self._folder):
            try:
                key = step, (path / checkpoint.MANIFEST).stat().st_ino
                if key in self._known:
                    continue
                copy = _copied(path, self.place.runs / f"{self.name}.copy")
            except FileNotFoundError:  # it is just being removed
                continue
            self._known.add(key)
            reference = self.reference / path.name
            if reference.is_dir():
                allowed = ROUNDING if step > self._rounded else 0.0
                if (found := distance(copy, reference)) > allowed:
                    raise Failed(f"difference: {found:.1e} at step {step}, {allowed:.0e} allowed")
                self.compared.append((step, time.monotonic()))
            shutil.rmtree(copy)

    # What faults ask for

    def damage(self, truncate: bool) -> None:
        """Change or cut a file of the newest checkpoint, where a good one is left."""
        good = [(step, path) for step, path in _checkpoints(self._folder) if not self._key(step, path) & self._damaged]
        if len(good) < 2:
            return
        step, path = good[-1]
        files = sorted(path.iterdir())
        if not files:
            return  # it was just removed
        self._known |= self._key(step, path)
        self._damaged |= self._key(step, path)
        file = self.random.choice(files)
        try:
            content = bytearray(file.read_bytes())
            place = self.random.randrange(len(content))
            content[place] ^= 1 << self.random.randrange(8)
            file.write_bytes(content[:place] if truncate else content)
        except FileNotFoundError:
            return

    def _key(self, step: int, path: Path) -> set[tuple[int, int]]:
        try:
            return {(step, (path / checkpoint.MANIFEST).stat().st_ino)}
        except FileNotFoundError:
            return set()

    def await_save(self) -> None:
        """Until a checkpoint is being written, and a random moment longer."""
        end = time.monotonic() + 5
        while time.monotonic() < end and not list(self._folder.glob("*.tmp")):
            time.sleep(0.0005)
        time.sleep(self.random.random() * 0.03)


def distance(path: Path, other: Path) -> float:
    """The largest difference of any number in two checkpoints: weights, averages, moments, and the best score."""
    (ours, manifest), (theirs, their_manifest) = (checkpoint.load(folder) for folder in (path, other))
    progress, expected = (m.content["progress"] for m in (manifest, their_manifest))
    if ours.keys() != theirs.keys() or any(progress[key] != expected[key] for key in ("step", "best_step")):
        return float("inf")
    largest = abs((progress["best"] or 0.0) - (expected["best"] or 0.0))
    for name, tensor in ours.items():
        if tensor.dtype != theirs[name].dtype or not torch.isfinite(tensor).all():
            return float("inf")
        largest = max(largest, float((tensor.double() - theirs[name].double()).abs().max()))
    return largest


def make_reference(place: Place, ranks: int, strategy: str) -> Path:
    """Every checkpoint of the run that nothing disturbs; made once."""
    kept = place.runs / f"undisturbed_{strategy}_{ranks}"
    if kept.is_dir():
        return kept
    kept.with_suffix(".new").mkdir(parents=True, exist_ok=True)
    name = f"reference_{strategy}_{ranks}"
    shutil.rmtree(place.runs / name, ignore_errors=True)
    job = start(place, name, *SETTINGS, f"runtime.strategy={strategy}", ranks=ranks, fault=NAN)

    def keep() -> bool:
        for _, path in _checkpoints(job.stage / "checkpoints"):
            if not (kept.with_suffix(".new") / path.name).exists():
                try:
                    _copied(path, kept.with_suffix(".new") / path.name)
                except FileNotFoundError:
                    continue
        return job.process.poll() is not None

    job.until(keep, "the undisturbed run did not end", 300)
    assert job.process.returncode == 0 and job.reports() == [], job.said()
    assert len(list(kept.with_suffix(".new").iterdir())) > STEPS // EVERY // 2
    shutil.rmtree(job.run)
    return kept.with_suffix(".new").rename(kept)


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    return [(step, folder / checkpoint.name_of(step)) for step in checkpoint.steps(folder)]


def _copied(path: Path, to: Path) -> Path:
    """A checkpoint that stays, however soon it is removed: hard links to its files."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    try:
        for file in path.iterdir():
            os.link(file, to / file.name)
        (path / checkpoint.MANIFEST).stat()  # it was still there when the last was linked
    except FileNotFoundError:
        shutil.rmtree(to)
        raise
    return to


@contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
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
    place = make_place(folder, folder / "data")
    log = folder / f"{'calm' if calm else 'storm'}_{seed}.jsonl"
    until = time.monotonic() + 60 * minutes
    with busy_cores(calm):
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
                Campaign(ahead, place, reference, seed, until, seen).run()
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
    lines += [
        "",
        f"{count_faults(seen)} faults in {len({entry.campaign for entry in seen})} trainings, "
        f"{sum(entry.restarts for entry in seen)} restarts, {sum(entry.compared for entry in seen)} checkpoints "
        f"compared after a fault; planned and not met: {len(seen) - len(happened)}. "
        f"Differences: {problems['difference']}, hangs: {problems['hang']}, "
        f"false alarms: {problems['false alarm']}, given up: {problems['gave up']}.",
        *(f"campaign {entry.campaign}, {_line(entry)}" for entry in seen if entry.problem),
    ]
    return "\n".join(lines)


def count_faults(seen: list[Seen]) -> int:
    return sum(len(entry.kinds) for entry in seen if entry.happened)


def _times(entries: list[Seen]) -> str:
    times = [entry.recovery for entry in entries if entry.recovery is not None]
    return f"{statistics.median(times):.1f} s | {max(times):.1f} s" if times else "– | –"


def _line(seen: Seen) -> str:
    how = seen.problem or ("ok" if seen.happened else "did not happen")
    after = "" if seen.recovery is None else f", training again after {seen.recovery:.1f} s"
    return f"step {seen.step}, {' + '.join(seen.kinds)}: {how}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", action="store_true", help="only what must not restart anything, on busy cores")
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # jobs are ended, counts kept
    seen = soak(options.folder.resolve(), options.minutes, options.seed, calm=options.calm)
    print(table(seen))
    return int(any(entry.problem for entry in seen))


if __name__ == "__main__":
    sys.exit(main())
