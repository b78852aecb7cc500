"""A run that is handed to a machine, a scheduler or a cloud: what is handed over, and the record of it.

The script, and what the job prints, lie in `RUNS/NAME.launch/`; each run that it makes keeps who has it, in
`RUN/launch.json`. Neither holds a secret: those are named, and go from the environment to the job's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ups.durable import write
from ups.errors import UserError

RECORD = "launch.json"


@dataclass(frozen=True)
class Job:
    """`ups run` of a configuration on `nodes` machines of `gpus` ranks, once or with each of some `seeds`. `config` is
    a packaged name or an absolute path; `secrets` are names of variables; `cpu`: it asks for no GPU.
    """

    name: str
    config: str
    overrides: tuple[str, ...]
    runs: Path
    gpus: int | None = None
    nodes: int = 1
    seeds: tuple[int, ...] = ()
    secrets: tuple[str, ...] = ()
    cpu: bool = False

    @property
    def names(self) -> list[str]:
        """Of the runs."""
        return [f"{self.name}_seed{seed}" for seed in self.seeds] or [self.name]

    def each(self) -> list[list[str]]:
        """What is overridden in each run."""
        return [[f"seed={seed}", f"name={name}"] for seed, name in zip(self.seeds, self.names, strict=False)] or [[]]

    @property
    def folder(self) -> Path:
        return self.runs / f"{self.name}.launch"

    def command(self, *what: str, python: str = sys.executable, config: str | None = None) -> list[str]:
        """`ups WHAT CONFIG ...`; with seeds, `seed` and `name` are still to be given."""
        run = [python, "-m", "ups", *what, config or self.config, *self.overrides, "--runs", str(self.runs)]
        return run if self.gpus is None else [*run, "--gpus", str(self.gpus)]


@dataclass(frozen=True)
class Record:
    """Who has a run: `on` names the kind, `job` is what it is called there, `log` the file with what it prints."""

    on: str
    job: str
    log: str | None = None

    def keep(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        write(directory / RECORD, (json.dumps(asdict(self)) + "\n").encode())

    @classmethod
    def of(cls, directory: Path) -> Record:
        path = directory / RECORD
        if not path.is_file():
            raise UserError(f"{directory} was not launched (it has no {RECORD}); name a run that `ups launch` started")
        try:
            return cls(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path} is damaged; remove it, and ask the scheduler itself") from error


def check_secrets(names: Sequence[str]) -> None:
    """Refuse a job whose secrets are not there, before anything is submitted."""
    for name in names:
        if not name.isidentifier():
            raise UserError("--secret takes the NAME of a variable of the environment, not its value")
        if not os.environ.get(name):
            raise UserError(f"{name} is not in the environment; export it, or leave --secret {name} out")


def tool(name: str, remedy: str) -> str:
    """The path of a program."""
    found = shutil.which(name)
    if found is None:
        raise UserError(f"there is no {name} here; {remedy}")
    return found


def asked(command: Sequence[str], what: str) -> str:
    """What a program prints; where it fails, its last line."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise UserError(f"{what}: {said[-1].strip() if said else f'exit code {done.returncode}'}")
    return done.stdout
