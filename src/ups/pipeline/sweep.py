"""`ups sweep`: runs that differ in a few settings, one after another or launched, and one table of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ups.config.load import read_config
from ups.errors import GateFailed, GaveUp, UserError
from ups.ops.runs import RunState, is_run, listed
from ups.ops.sweep import combinations
from ups.pipeline.config import load_run
from ups.pipeline.launch import Asked, dry_run, launch, launched
from ups.pipeline.run import run


def sweep(name: str, overrides: Sequence[str], runs: Path) -> tuple[list[RunState], dict[str, str]]:
    """The states of all runs at the end, and why those that failed did. All configurations are read before the first
    run begins; what is finished is left as it is, so the same command goes on where one was interrupted.
    """
    of, failed = _runs_of(name, overrides, runs), {}
    for number, (label, own) in enumerate(of.items(), 1):
        print(f"run {number} of {len(of)}: {label}", flush=True)
        try:
            run(name, [*own, f"name={label}"], runs, page=False)
        except (UserError, GaveUp, GateFailed) as error:
            failed[label] = str(error)
            print(f"{label} failed: {error}", flush=True)
    return _states(of, runs), failed


def launch_sweep(name: str, overrides: Sequence[str], runs: Path, wanted: Asked) -> tuple[list[RunState], list[Path]]:
    """The states of all runs that there are, and the folders of those that were launched now: all but the finished, and
    those that are at work or wait for it. All are checked before the first is submitted.
    """
    if wanted.on == "local":
        raise UserError("--on local would start all runs at once; leave it out, and they are done one after another")
    of = {label: [*own, f"name={label}"] for label, own in _runs_of(name, overrides, runs).items()}
    states = {run.name: run.state for run in _states(of, runs)}
    new = [label for label in of if states.get(label) not in ("finished", "running") and not launched(runs / label)]
    for label in new:
        dry_run(name, of[label], runs, wanted)
    made = [directory for label in new for directory in launch(name, of[label], runs, wanted)]
    return _states(of, runs), made


def _runs_of(name: str, overrides: Sequence[str], runs: Path) -> dict[str, list[str]]:
    """The overrides of each run, whose configurations can be read."""
    written = read_config(name, [])
    of = combinations(str(written.values.get("name", written.path.stem)), overrides)
    for label, own in of.items():
        load_run(name, [*own, f"name={label}"], runs)
    return of


def _states(labels: Iterable[str], runs: Path) -> list[RunState]:
    return [listed(runs / label) for label in labels if is_run(runs / label)]
