"""A job and the process that tells Weights & Biases of it."""

from __future__ import annotations

import netrc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from ups.config.text import parse_yaml
from ups.distributed.launch.claim import in_use, is_claimed
from ups.distributed.launch.outcome import outcome_of
from ups.distributed.runtime.settings import RuntimeConfig, WandbConfig
from ups.errors import GATE_FAILED, STOPPED, GateFailed, GaveUp, Stopped, UserError
from ups.locks import held
from ups.track.follow import files, sent, sync_command
from ups.track.open import check_tensorboard

CLOSING = 60.0
"""Seconds that a job waits at its end for W&B to take the rest."""
_QUIET = 2.0
"""Of these, so many without a word."""


@contextmanager
def tracked(directory: Path, config: RuntimeConfig) -> Iterator[None]:
    """The work inside is followed by W&B, if it is asked for, and its end is told. The caller holds the directory; of
    nodes that share it, one follows.
    """
    if "wandb" not in config.tracking:
        yield
        return
    path = directory / "wandb" / ".lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as lock:
        if not held(lock, path):
            yield
            return
        process, code = _start(directory, config.wandb.project, config.wandb.mode), 1
        try:
            yield
            code = 0
        except BaseException as error:
            code = _code(error)
            raise
        finally:
            _end(process, directory, str(code))


def sync(directory: Path) -> list[Path]:
    """Send W&B what it has not got of a run, and how it ended; the files that it has now."""
    if not (directory / "config.yaml").is_file():
        raise UserError(f"{directory} is not a run (it has no config.yaml); name a directory that `ups run` made")
    if is_claimed(directory):
        raise in_use(directory)
    told = parse_yaml((directory / "config.yaml").read_text()).get("runtime", {}).get("wandb", {})
    config = WandbConfig.model_validate(told | {"mode": "online"})
    _check_wandb(config)
    outcome = outcome_of(directory)
    process = _start(directory, config.project, "offline")
    process.communicate("" if outcome is None else f"{outcome.code}\n")
    if process.returncode:
        raise GaveUp(f"{directory} could not be written for Weights & Biases; {_log(directory)} says why")
    for file in files(directory):
        if not sent(file):
            subprocess.run(sync_command(file), stdin=subprocess.DEVNULL, env=_variables(directory), check=False)
            if not sent(file):
                raise GaveUp("Weights & Biases did not take everything; give the same command again for the rest")
    return files(directory)


def _start(directory: Path, project: str, mode: str) -> subprocess.Popen[str]:
    """The process that follows the run. It notices the end of this one, also by SIGKILL, and writes what is left."""
    command = [sys.executable, "-m", "ups.track.follow", str(directory.resolve()), project, mode]
    _log(directory).parent.mkdir(exist_ok=True)
    with _log(directory).open("a") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
            env=_variables(directory),
        )


def _end(process: subprocess.Popen[str], directory: Path, word: str) -> None:
    """Say how the job ended, wait a little, and say so if W&B has not taken everything by then."""
    try:
        process.communicate(f"{word}\n", timeout=_QUIET)
    except subprocess.TimeoutExpired:
        print("telling Weights & Biases the rest")
        try:
            process.communicate(timeout=CLOSING)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        warnings.warn(
            f"Weights & Biases has not got everything ({_log(directory)} says why); "
            f"`ups track sync {directory}` sends the rest",
            stacklevel=3,
        )


def _log(directory: Path) -> Path:
    return directory / "wandb" / "follow.log"


def _code(error: BaseException) -> int:
    """The exit code of a command that ends with it."""
    if isinstance(error, Stopped | KeyboardInterrupt):
        return STOPPED
    if isinstance(error, GateFailed):
        return GATE_FAILED
    return 2 if isinstance(error, UserError) else 1


def _variables(directory: Path) -> dict[str, str]:
    """Ours without what makes a process a rank; W&B's own logs go to the run too."""
    ours = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
    return ours | {"WANDB_DIR": str(directory.resolve())}


_OF_RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def check_trackers(config: RuntimeConfig) -> None:
    """Refuse a tracker that is not installed, or has no token that it will ask for."""
    check_tensorboard(config.tracking)
    if "wandb" in config.tracking:
        _check_wandb(config.wandb)


def _check_wandb(config: WandbConfig) -> None:
    if find_spec("wandb") is None:
        raise UserError(
            "runtime.tracking names wandb, which is not installed here; "
            "pip install 'universal-physics-stack[wandb]', or leave it out"
        )
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    if config.mode == "online" and not _has_token(host):
        raise UserError(
            f"there is no token for {host}; set WANDB_API_KEY or use `wandb login`, or give "
            "runtime.wandb.mode=offline and send it later with `ups track sync`"
        )


def _has_token(host: str) -> bool:
    """Whether there is one, which is for W&B to read."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return urlsplit(host).hostname in netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError):
        return False
