"""One training of a soak: disturbed as planned, and compared at every checkpoint with one that nothing disturbs."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from clock import HOUR, Clock
from job import STAGE, Job, Place, left_behind, slowness, start
from storm import EVERY, NAN, NAN_STEP, STEPS, VALIDATE, Disturbance, Plan, ranks_of

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
    seconds: float
    """Since the one before, or the training's start."""
    problem: str = ""

    def line(self) -> str:
        how = self.problem or ("ok" if self.happened else "did not happen")
        after = "" if self.recovery is None else f", training again after {self.recovery:.1f} s"
        return f"step {self.step}, {' + '.join(self.kinds)}: {how}{after}"


@dataclass
class Campaign:
    """One training, disturbed as planned, and compared at every checkpoint with the run `reference`."""

    plan: Plan
    place: Place
    reference: Path
    seed: int
    until: float = float("inf")
    """No disturbance begins later, by the monotonic clock: the training then ends in peace."""
    clock: Clock | None = None
    """Only calm plans make it jump, or a validation long."""
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
        self._noted = time.monotonic()
        self._long_until = 0.0  # a validation that is to take long has ended by then
        self._long = self.place.config.with_name("long_validation")
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
                if disturbance.rounds:  # it happens also where no time is left to look at it
                    self._rounded = disturbance.step
            if disturbance.stops:
                break
        settings = [*SETTINGS, f"runtime.strategy={self.plan.strategy}"]
        variables = {"UPS_GRACE": "10"}
        if self.clock is not None:
            settings.append(f"plugins=[{Path(__file__).with_name('slow_validation.py')}]")
            variables |= {**self.clock.variables, "SLOW_VALIDATION": str(self._long)}
        fault = "; ".join(injected)
        self.job = start(self.place, self.name, *settings, ranks=self.plan.ranks, fault=fault, **variables)
        self._jobs.append(self.job)

    # One disturbance

    def _disturb(self, disturbance: Disturbance) -> None:
        crashes, jobs, inside = self._accounted, len(self._jobs), disturbance.attempt is not None
        # A rank that is asked to stop before it listens dies of that, and is restarted.
        more = disturbance.stops if len(disturbance.faults) > 1 else 0
        self._restarts_allowed = crashes + disturbance.restarts + more
        self._stops_allowed += disturbance.stops  # one of before may still be under way
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
        layout, step = f"{self.plan.strategy} on {self.plan.ranks}", disturbance.step
        now, before = time.monotonic(), self._noted
        self._noted = now
        counts = happened, restarts, recovery, compared
        self.seen.append(Seen(self.plan.number, layout, step, kinds, *counts, now - before, problem[:2000]))
        print(f"{self.name} {layout}: {self.seen[-1].line()}", flush=True)

    # Looking

    def _await(self, condition: Callable[[], bool], problem: str) -> None:
        """Wait; meanwhile compare every new checkpoint, start what was stopped, and count restarts."""
        end = max(time.monotonic(), self._long_until) + PATIENCE * max(1.5, slowness())

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

    def jump(self) -> None:
        """The time of day is from now on an hour later or earlier than the machine's, or that of the machine."""
        assert self.clock is not None
        self.clock.jump(self.random.choice((HOUR, -HOUR, 0)))

    def validate_for(self, seconds: float) -> None:
        """Make the next validation that long, and wait until it has begun."""
        self._long.write_text(str(seconds))
        self._await(lambda: not self._long.exists() or self._finished(), "there was no validation")
        self._long_until = time.monotonic() + seconds

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

    job.until(keep, "the undisturbed run did not end", 300 * max(2.0, slowness()))
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
