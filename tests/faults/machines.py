"""Machines for tests of faults: namespaces with a disk, shared memory or network of their own, and jobs inside them."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest
from job import Job, Place, launch

MACHINE = {"PYTHONPATH": str(Path(__file__).with_name("machine"))}
"""What else is in the environment of a job says what is wrong with its machine: `machine/sitecustomize.py`."""
LONG_STEPS = 200
LONG = (f"training.steps={LONG_STEPS}", "training.validate_every=100", "training.checkpoint_every=20")
"""A training that lasts some seconds, so that something can happen to it from outside."""


class Namespace:
    """Mounts (`-m`) or a network (`-n`) that only processes inside see; gone with the last of them.

    A `cat` whose input this process holds keeps it: nothing is left to clean up, however the tests end.
    """

    def __init__(self, kind: str, setup: str, why: str) -> None:
        self.kind = kind
        command = ["unshare", kind, "sh", "-c", f"{setup} && echo ready && exec cat"]
        pipe = subprocess.PIPE
        try:
            self._keeper = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        except FileNotFoundError:
            pytest.skip(f"{why} needs unshare")
        assert self._keeper.stdout and self._keeper.stderr
        if self._keeper.stdout.readline() != "ready\n":
            pytest.skip(f"{why} needs root, for a namespace ({self._keeper.stderr.read().strip()})")
        self.pid = self._keeper.pid

    def enter(self, *command: str) -> list[str]:
        """A command that runs inside."""
        return ["nsenter", f"--target={self.pid}", self.kind, *command]

    def do(self, line: str) -> None:
        """A line of shell, inside."""
        subprocess.run(self.enter("sh", "-c", line), check=True, timeout=20)

    def path(self, path: Path) -> Path:
        """How a file on a mount inside is seen from outside."""
        return Path(f"/proc/{self.pid}/root") / path.relative_to("/")

    def end(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()


def start_inside(
    namespace: Namespace, place: Place, name: str, *overrides: str, ranks: int = 2, before: str = "", who: str = ""
) -> Job:
    """`ups train` inside, after the shell has done `before`; `who` tells the outputs of several nodes apart."""
    shell = ("sh", "-c", f'{before} exec "$0" "$@"')
    command = namespace.enter(*shell, *place.command(name, *overrides, ranks=ranks))
    run = place.runs / name
    return launch(
        command,
        namespace.path(run) if namespace.kind == "-m" else run,
        place.runs.parent / f"{name}{who}.out",
        {},
    )


def fill(path: Path) -> None:
    """Write a file until the disk takes no more."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC
