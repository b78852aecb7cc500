"""`ups launch`: hands a run to this machine, a scheduler or a cloud; all is checked before anything is submitted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ups.config.load import packaged_configs, read_config
from ups.config.text import to_yaml
from ups.distributed.launch.claim import LOCK, claimed, in_use, is_claimed
from ups.errors import UserError
from ups.ops.launch import local, sky, slurm
from ups.ops.launch.job import RECORD, Job, Record, check_secrets
from ups.ops.launch.sky import Rented
from ups.ops.runs import is_run, state_of
from ups.pipeline.check import check_job, check_quickly
from ups.pipeline.config import RunConfig, load_run
from ups.pipeline.trainings import check_trained
from ups.track.environment import SOFTWARE, version_of
from ups.track.tracked import check_trackers

PLACES = ("local", "slurm", "sky")
_TAIL = 200
"""Lines of a log that are shown."""
_TOKEN = "WANDB_API_KEY"


@dataclass(frozen=True)
class Asked:
    """Where a run goes, and what is asked of that place."""

    on: str
    gpus: int | None = None
    nodes: int = 1
    seeds: tuple[int, ...] = ()
    secrets: tuple[str, ...] = ()
    slurm: tuple[str, ...] = ()
    rented: Rented | None = None


def asked(
    on: str,
    gpus: int | None,
    nodes: int,
    seeds: tuple[int, ...],
    secrets: Sequence[str] | None,
    options: Sequence[str] | None,
    cloud: str | None,
    gpu: str | None,
    storage: str | None,
    spot: bool,
    install: str | None,
) -> Asked:
    """What was said on the command line."""
    if on not in PLACES:
        raise UserError(f"--on {on}: choose {', '.join(PLACES)}")
    rented = None
    if cloud is not None and gpu is not None and storage is not None:
        rented = Rented(cloud, gpu, storage, spot, install or f"{SOFTWARE}=={version_of(SOFTWARE)}")
    return Asked(on, gpus, nodes, seeds, tuple(secrets or ()), tuple(options or ()), rented)


def launch(name: str, overrides: Sequence[str], runs: Path, wanted: Asked) -> list[Path]:
    """Submit it; the directories of the runs. Of several that launch it at once, one does."""
    job = _job(name, overrides, runs, wanted)
    directories = [job.runs / each for each in job.names]
    made = [folder for folder in (job.folder, job.runs) if not folder.exists()]
    with claimed(job.folder):
        there = list(job.folder.iterdir())
        try:
            for directory in directories:
                _refuse_launched(directory)
            records = _submit(name, overrides, job, wanted)
            for directory, record in zip(directories, records, strict=True):
                record.keep(directory)
        except UserError:  # refused: what was written for it goes too
            if job.folder in made and [path.name for path in there] == [LOCK]:  # else it is another launch's
                shutil.rmtree(job.folder, ignore_errors=True)
                with suppress(OSError):  # not empty: somebody else's by now
                    if job.runs in made:
                        job.runs.rmdir()
            raise
    return directories


def dry_run(name: str, overrides: Sequence[str], runs: Path, wanted: Asked) -> str:
    """Exactly what would be submitted."""
    job = _job(name, overrides, runs, wanted)
    if wanted.on == "local":
        return local.text(job)
    if wanted.on == "slurm":
        return slurm.script(job, wanted.slurm)
    assert wanted.rented is not None
    words = sky.started("sky", job, wanted.rented, job.folder / "task.yaml")
    values = "".join(f"#   {line}\n" for line in to_yaml(_values(name, overrides, job)).splitlines())
    task = to_yaml(sky.task(job, wanted.rented))
    return f"# {' '.join(words)}\n{task}# {job.folder / sky.SUBMITTED}:\n{values}"


def status(directory: Path) -> tuple[str, str]:
    """What who has the run says of it, and what the run says itself."""
    record = Record.of(directory)
    own = state_of(directory).state if is_run(directory) else "not begun here"
    return f"{record.on} {record.job}: {_place(record).state(record)}", own


def logs(directory: Path) -> str:
    """The end of what it has printed."""
    record = Record.of(directory)
    if record.log is None:
        return sky.logs(record)
    path = Path(record.log)
    if not path.is_file():
        raise UserError(f"{directory} has printed nothing yet; it may still wait for its turn (ups launch status)")
    return "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL:])


def stop(directory: Path) -> str:
    record = Record.of(directory)
    return _place(record).stop(record)


def _job(name: str, overrides: Sequence[str], runs: Path, wanted: Asked) -> Job:
    """All that can be found wrong before anything is submitted is found here."""
    config = load_run(name, overrides, None if wanted.on == "sky" else runs)
    path = name if name in packaged_configs() else str(read_config(name, []).path.resolve())
    job = Job(
        config.name,
        path,
        tuple(overrides),
        runs.absolute(),
        wanted.gpus,
        wanted.nodes,
        wanted.seeds,
        wanted.secrets,
        config.runtime.device == "cpu",
    )
    check_secrets(job.secrets)
    if len(set(job.seeds)) != len(job.seeds):
        raise UserError("--seeds names a seed twice; two runs would have one name")
    if wanted.on == "local" and (job.seeds or job.nodes > 1):
        raise UserError("--on local is one run on this machine; for several seeds use `ups sweep CONFIG seed=0,1,2`")
    if wanted.on == "slurm" and job.nodes > 1 and job.gpus is None:
        raise UserError("--nodes goes with --gpus; say how many ranks each machine has")
    if wanted.on == "sky":
        if wanted.rented is None:
            raise UserError("--on sky needs --cloud, --gpu and --storage; see `ups launch --help`")
        sky.check(job, wanted.rented)
        _check_portable(config)
    _check_token(config, wanted)
    node = job.gpus or 1
    for own in job.each():
        each = load_run(name, [*overrides, *own], None if wanted.on == "sky" else runs)
        check_job(each, runs / each.name, node * job.nodes, node)
        if wanted.on != "sky":  # which may have what it starts from on its storage
            check_trained(each, runs / each.name)
    if wanted.on == "local":
        check_quickly(config, runs / config.name, node)
    return job


def _check_token(config: RunConfig, wanted: Asked) -> None:
    """Refuse a tracker that the job would not have, or whose token it would not get."""
    if wanted.on != "sky":
        check_trackers(config.runtime)
    online = "wandb" in config.runtime.tracking and config.runtime.wandb.mode == "online"
    left = wanted.on == "sky" or (wanted.on == "slurm" and _TOKEN in os.environ)
    if online and left and _TOKEN not in wanted.secrets:
        raise UserError(f"W&B asks for a token there: give --secret {_TOKEN}, or runtime.wandb.mode=offline")


def _check_portable(config: RunConfig) -> None:
    """Refuse what a rented machine would not find."""
    for stage, settings in config.each_stage().items():
        if settings.start and not settings.start.startswith(("hf://", f"{sky.KEPT}/", f"{sky.SHARED}/")):
            raise UserError(
                f"stages.{stage}.start lies on this machine; put it on the storage and give {sky.KEPT}/RUN (a bucket) "
                f"or {sky.SHARED}/RUN (a volume), or hf://owner/name"
            )
    if config.plugins:
        raise UserError("plugins lie on this machine; put them into a package that --install names, or run elsewhere")
    for name, task in config.tasks.items():
        if task.make is None and (config.data.root is None or not Path(config.data.root).is_absolute()):
            raise UserError(
                f"the files of task {name!r} lie on this machine; put them on the storage and give "
                f"data.root={sky.KEPT}/FOLDER (a bucket) or {sky.SHARED}/FOLDER (a volume)"
            )


def launched(directory: Path) -> str | None:
    """Who has a run, and what is said of it there; None where it has ended or was never launched."""
    if not (directory / RECORD).is_file():
        return None
    record = Record.of(directory)
    found = _place(record).state(record)
    return None if found.startswith("ended") else f"{record.on} {record.job}: {found}"


def _refuse_launched(directory: Path) -> None:
    if is_claimed(directory):
        raise in_use(directory)
    if (found := launched(directory)) is not None:
        raise UserError(
            f"{directory} is launched already ({found}); stop it with `ups launch stop {directory}`, or give another "
            "name=..."
        )


def _submit(name: str, overrides: Sequence[str], job: Job, wanted: Asked) -> list[Record]:
    if wanted.on == "local":
        return local.submit(job)
    if wanted.on == "slurm":
        return slurm.submit(job, wanted.slurm)
    assert wanted.rented is not None
    return sky.submit(job, wanted.rented, _values(name, overrides, job))


def _values(name: str, overrides: Sequence[str], job: Job) -> dict[str, Any]:
    """What the configuration says, for machines that do not have its file."""
    return read_config(name, overrides).values | {"name": job.name}


def _place(record: Record) -> ModuleType:
    """What can be asked of whoever has a run: `state` and `stop`."""
    return {"local": local, "slurm": slurm, "sky": sky, "sky-spot": sky}[record.on]
