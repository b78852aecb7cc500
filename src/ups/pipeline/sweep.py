"""`ups sweep`: runs that differ in a few settings, one after another, and one table of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ups.config.load import read_config
from ups.errors import GateFailed, GaveUp, UserError
from ups.ops.runs import RunState, is_run, state_of
from ups.ops.sweep import combinations
from ups.pipeline.config import load_run
from ups.pipeline.run import run


def sweep(name: str, overrides: Sequence[str], runs: Path) -> tuple[list[RunState], dict[str, str]]:
    """The states of all runs at the end, and why those that failed did. All configurations are read before the first
    run begins; what is finished is left as it is, so the same command goes on where one was interrupted.
    """
    written = read_config(name, [])
    of = combinations(str(written.values.get("name", written.path.stem)), overrides)
    for label, own in of.items():
        load_run(name, [*own, f"name={label}"], runs)
    failed = {}
    for number, (label, own) in enumerate(of.items(), 1):
        print(f"run {number} of {len(of)}: {label}", flush=True)
        try:
            run(name, [*own, f"name={label}"], runs, page=False)
        except (UserError, GaveUp, GateFailed) as error:
            failed[label] = str(error)
            print(f"{label} failed: {error}", flush=True)
    return [state_of(runs / label) for label in of if is_run(runs / label)], failed
