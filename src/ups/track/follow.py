"""Weights & Biases follows a run's diaries from a process of its own: training neither imports it nor waits for it.

    python -m ups.track.follow RUN PROJECT online|offline      (started by `tracked` and `ups track sync`)

It reads what `events.jsonl` of the run and its stages say and writes it to `RUN/wandb/`, always as an offline run;
`online` sends those files meanwhile, with W&B's own `sync`. The number of the job's exit code on standard input ends
it: the rest is written, then how the job ended. If its input ends without a word, the job was killed, and what is on
disk has no exit record either. A job that goes on is a further file of the same run, which begins behind what the
earlier ones hold: steps that a restart repeats are not drawn twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ups.config.text import parse_yaml
from ups.durable import write
from ups.errors import STOPPED
from ups.track.curves import curves, numbers
from ups.track.jsonl import Diary, plain
from ups.track.rollouts import ROLLOUTS, draw

FOLLOWING = ".following"
"""In the folder of W&B's files, which the process holds that follows the run."""
LOOK = 1.0
"""Seconds between looks at the diaries."""
RETRY = 15.0
"""Seconds from an upload that failed to the next try."""


class Rows:
    """What of a run's diaries is not yet drawn, as rows of W&B: the numbers of an event, and the files of its rollouts,
    under the name of its training, beside the step of that training. `drawn`: by training and kind of event, the last
    step that is.
    """

    def __init__(self, directory: Path, drawn: dict[tuple[str, str], int]) -> None:
        self.directory, self.drawn = directory, drawn
        self._diaries: dict[Path, Diary] = {}

    def news(self) -> Iterator[dict[str, Any]]:
        for path in trainings(self.directory):
            diary = self._diaries.setdefault(path, Diary(path))
            name = training_name(path)
            for event in diary.news():
                key = name, event["kind"]
                found: dict[str, Any] = dict(curves(event["kind"], event))
                if event["kind"] == ROLLOUTS:
                    kept = {task: path.parent / ROLLOUTS / file for task, file in event["files"].items()}
                    found = {f"{ROLLOUTS}/{task}": file for task, file in kept.items() if file.is_file()}
                if found and event["step"] > self.drawn.get(key, -1):
                    self.drawn[key] = event["step"]
                    yield {f"{name}/step": event["step"]} | {f"{name}/{curve}": n for curve, n in found.items()}


def trainings(directory: Path) -> list[Path]:
    """The diaries of a run's stages and of what it is compared with."""
    return sorted([*directory.glob("stages/*/events.jsonl"), *directory.glob("compare/*/*/events.jsonl")])


def training_name(path: Path) -> str:
    """`operator` of stages/operator/events.jsonl, `fno_darcy` of compare/fno/darcy/events.jsonl."""
    folder, *_ = reversed(path.parts[:-1])
    return folder if path.parts[-3] == "stages" else f"{path.parts[-3]}_{folder}"


def files(directory: Path) -> list[Path]:
    """Those of W&B that a run has, in the order in which they were begun."""
    return sorted((directory / "wandb").glob("offline-run-*/run-*.wandb"))


def records(path: Path) -> Iterator[dict[str, Any]]:
    """What is in a file of W&B, by its own reader; of a file that was cut off, what is whole."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    for line in said.stdout.splitlines():
        yield json.loads(line)


def drawn_in(files: list[Path]) -> tuple[dict[tuple[str, str], int], str]:
    """By training and kind of event, the last step that files of W&B hold; and the word that the last one ends with."""
    found: dict[tuple[str, str], int] = {}
    ended = ""
    for file in files:
        ended = ""
        for record in records(file):
            if record["type"] == "exit":
                ended = str(record["exit"].get("exit_code", 0))
            row = record["history"]["item"] if record["type"] == "history" else {}
            for name in [key.removesuffix("/step") for key in row if key.count("/") == 1 and key.endswith("/step")]:
                kinds = {key.split("/")[1] for key in row if key.startswith(f"{name}/") and key.count("/") > 1}
                found |= {(name, kind): max(row[f"{name}/step"], found.get((name, kind), -1)) for kind in kinds}
    return found, ended


class Sending(threading.Thread):
    """Sends the files of a run in their order, the one that is being written as it grows, until all are sent."""

    def __init__(self, directory: Path) -> None:
        super().__init__(name="sending", daemon=True)
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        *earlier, current = files(self.directory)
        for file in earlier:
            while not sent(file):
                self._sync(file)
        while not sent(current):
            self._sync(current, "--live")

    def _sync(self, file: Path, *options: str) -> None:
        self.process = subprocess.Popen([*sync_command(file), *options], stdin=subprocess.DEVNULL)
        self.process.wait()
        if not sent(file):
            time.sleep(RETRY)


def sync_command(file: Path) -> list[str]:
    """W&B's own, which goes on where it was when it is repeated."""
    return [sys.executable, "-m", "wandb", "beta", "sync", str(file)]


def sent(file: Path) -> bool:
    """Whether a file was sent to its end, which W&B's `sync` marks beside it."""
    return file.with_name(f"{file.name}.synced").exists()


def identity(directory: Path) -> str:
    """The id of a run at W&B, kept with it: jobs that go on with the run are of the same one."""
    path = directory / "wandb" / "id"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, os.urandom(6).hex().encode())
    return path.read_text()


def follow(directory: Path, project: str, online: bool) -> int:
    """Until the job says how it ended, or is gone. One after the other: who followed a job that was killed writes its
    last rows for a moment, while another may go on with the run already.
    """
    with (directory / "wandb" / FOLLOWING).open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _follow(directory, project, online)


def _follow(directory: Path, project: str, online: bool) -> int:
    import wandb  # pyright: ignore[reportMissingImports]

    before = files(directory)
    drawn, ended = drawn_in(before)
    rows = Rows(directory, drawn)
    first = list(rows.news())
    word = _word(0.0)
    if before and not first and word == ended:
        return 0  # for `ups track sync`: everything is there
    *team, name = project.split("/")
    run = wandb.init(
        entity=team[0] if team else None,
        project=name,
        id=identity(directory),
        name=directory.name,
        resume="allow",
        config=parse_yaml((directory / "config.yaml").read_text()),
        dir=directory,
        settings=wandb.Settings(
            mode="offline",
            console="off",
            disable_git=True,
            disable_code=True,
            silent=True,
            host="",
            program="ups",
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=LOOK,
        ),
    )
    for path in trainings(directory):
        run.define_metric(f"{training_name(path)}/*", step_metric=f"{training_name(path)}/step")
    known = {training_name(path) for path in trainings(directory)}
    sending = Sending(directory)
    if online:
        sending.start()
    told = ""
    while True:
        for row in [*first, *rows.news()]:
            name = next(key.removesuffix("/step") for key in row if key.endswith("/step") and key.count("/") == 1)
            if name not in known:
                known.add(name)
                run.define_metric(f"{name}/*", step_metric=f"{name}/step")
            run.log(_drawn(row, directory / "wandb" / ROLLOUTS / name))
        first = []
        told = _environment(run, directory, told)
        if word is not None:
            break
        word = _word(LOOK)
    if not word:  # the job is gone without a word: it was killed
        time.sleep(2 * LOOK)
        if sending.process is not None:
            sending.process.kill()
        os._exit(0)
    _evaluation(run, directory)
    if int(word) == STOPPED:
        run.mark_preempting()
    run.finish(exit_code=int(word))
    if online:
        sending.join()
    return 0


def _word(seconds: float) -> str | None:
    """What the job says within that time: its exit code, nothing if it is gone, None if it works."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.readline().strip() if ready else None


def _environment(run: Any, directory: Path, before: str) -> str:
    """Tell versions and devices once they are known, or are others."""
    path = directory / "env.json"
    text = path.read_text() if path.is_file() else ""
    if text and text != before:
        run.config.update({"environment": json.loads(text)}, allow_val_change=True)
    return text


def _evaluation(run: Any, directory: Path) -> None:
    """Tell the numbers of the test data, and show a rollout of each set."""
    path, folder = directory / "metrics.json", directory / "wandb" / ROLLOUTS
    if not path.is_file():
        return
    metrics = json.loads(path.read_text())
    run.summary.update(dict(numbers("evaluation", plain(metrics["tasks"]))) | {"state": metrics["state"]})
    kept = {f"evaluation/{view}": directory / "evaluation" / f"{view}.npz" for view in metrics["tasks"]}
    shown = _drawn({name: arrays for name, arrays in kept.items() if arrays.is_file()}, folder, metrics["model"])
    if shown:
        run.log(shown)


def _drawn(row: Mapping[str, Any], folder: Path, model: str = "model") -> dict[str, Any]:
    """The row with pictures and films in the place of files of rollouts."""
    import wandb  # pyright: ignore[reportMissingImports]

    found: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, Path):
            found[name] = value
            continue
        for path in draw(value, model, folder):
            if path.suffix == ".gif":
                found[f"{name}/film"] = wandb.Video(str(path), format="gif")
            else:
                found[f"{name}/picture"] = wandb.Image(str(path), caption="truth, prediction, difference")
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(follow(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "online"))
