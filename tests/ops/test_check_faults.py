"""Faults in configuration, data and machine, each of which would end a run: `ups check` finds every one, before."""

from __future__ import annotations

import fcntl
import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import yaml

from ups.config.load import save_config
from ups.data.formats.layouts import named_layout
from ups.data.open import open_dataset
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.splits import split
from ups.data.prepare.statistics import statistics
from ups.data.tasks import task_from_mapping
from ups.fields import Batch, Boundary, Grid, Header
from ups.ops.findings import Finding
from ups.ops.machine_checks import driver
from ups.pipeline.check import findings_of
from ups.pipeline.config import load_run
from ups.store.fields import FieldStore

POINTS, FRAMES = 16, 9


def waves(count: int = 20, seed: int = 0) -> torch.Tensor:
    """Travelling sines, (count, frames, points, 1)."""
    size, phase = torch.rand(2, count, 1, 1, generator=torch.Generator().manual_seed(seed))
    x, t = (torch.arange(POINTS) + 0.5) / POINTS, 0.1 * torch.arange(FRAMES)[:, None]
    return ((0.5 + size) * torch.sin(2 * torch.pi * (x - 0.3 * t + phase)))[..., None]


@dataclass
class World:
    """A configuration of one task whose data are in a file, all as it should be until a fault is put in."""

    folder: Path
    patch: pytest.MonkeyPatch
    config: dict[str, Any]
    overrides: list[str] = field(default_factory=list)
    ranks: int = 1
    runs: Path = Path()
    undo: list[Callable[[], Any]] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.runs / "toy"

    @property
    def files(self) -> dict[str, Any]:
        return self.config["tasks"]["heat"]["files"]

    @property
    def define(self) -> dict[str, Any]:
        return self.config["tasks"]["heat"]["define"]

    def write(self, name: str, values: torch.Tensor, nu: torch.Tensor | None = None, **header: Any) -> None:
        count, frames, *space, channels = values.shape
        grid, boundary = Grid.cell_centred(tuple(space)), header.pop("boundary", Boundary.all("periodic", len(space)))
        times = header.pop("times", 0.1 * torch.arange(frames).double())
        names = tuple("uvw"[:channels])
        told = {} if nu is None else {"nu": None if len(nu.unique()) > 1 else float(nu[0])}
        head = Header("heat", names, grid, times, boundary, told, licence="CC BY 4.0", **header)
        given = {} if nu is None else {"nu": nu.double()}
        batch = Batch("heat", values, times.expand(count, -1), grid, boundary, given, {}, torch.arange(count))
        path = self.folder / name
        path.unlink(missing_ok=True)
        with named_layout("pdebench-grouped").writer(path, head, count) as writer:
            writer.write(batch)

    def begin(self, *overrides: str) -> None:
        """As if a run of this configuration, with overrides, had made its data."""
        self.save()
        (self.run / "data").mkdir(parents=True)
        (self.run / ".lock").touch()
        save_config(load_run(self.folder / "toy.yaml", overrides), self.run / "config.yaml")

    def save(self) -> None:
        (self.folder / "toy.yaml").write_text(yaml.safe_dump(self.config))

    def findings(self) -> Iterator[Finding]:
        if not (self.folder / "toy.yaml").exists():
            self.save()
        return findings_of(str(self.folder / "toy.yaml"), self.overrides, self.runs, self.ranks)

    def first_red(self) -> Finding | None:
        return next((finding for finding in self.findings() if finding.level == "red"), None)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = {
        "name": "toy",
        "tasks": {
            "heat": {
                "define": {"dimension": 1, "channels": ["u"], "boundary": "periodic"},
                "files": {"train": ["a.h5"]},
            }
        },
        "data": {"root": str(tmp_path), "workers": 1},
        "stages": {"operator": {"width": 8, "depth": 1, "modes": 4, "head": 8}},
        "training": {"steps": 20, "batch_size": 4},
        "runtime": {"device": "cpu", "threads": 1},
    }
    world = World(tmp_path, monkeypatch, config, runs=tmp_path / "runs")
    world.write("a.h5", waves())
    yield world
    for undo in world.undo:
        undo()


def limited(world: World, what: int, soft: int) -> None:
    before = resource.getrlimit(what)
    resource.setrlimit(what, (soft, before[1]))
    world.undo.append(lambda: resource.setrlimit(what, before))


def poisoned(world: World) -> None:
    with h5py.File(world.folder / "a.h5", "r+") as file:
        file["0013/data"][4, 5] = float("nan")


def torn(world: World) -> None:
    content = (world.folder / "a.h5").read_bytes()
    (world.folder / "a.h5").write_bytes(content[: len(content) // 2])


def copied(world: World) -> None:
    world.write("a.h5", torch.cat([waves(10), waves(10)]))


def stored(world: World) -> None:
    """As if a run had stored its training data."""
    world.begin()
    spec = task_from_mapping({"name": "heat", **world.define, "dt": 0.1})
    data = split(open_dataset(world.folder / "a.h5", spec)).train
    FieldStore.build(world.run / "store" / "heat", data, Normaliser(spec, statistics(data, spec)))


def other_store(world: World) -> None:
    stored(world)
    world.write("a.h5", waves(seed=1))


def held(world: World) -> None:
    world.begin()
    lock = (world.run / ".lock").open("a+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    world.undo.append(lock.close)


def foreign(world: World) -> None:
    world.run.mkdir(parents=True)
    (world.run / "report.html").write_text("mine")


def tracked(world: World, package: object) -> None:
    world.patch.setattr("ups.track.tracked.find_spec", lambda name: package)
    world.patch.setenv("NETRC", str(world.folder / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        world.patch.delenv(name, raising=False)
    world.overrides.append("runtime.tracking=[wandb]")


def set_in(*keys: str, value: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        at = world.config
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = value

    return change


def says(text: str) -> Callable[[World], None]:
    return lambda world: world.overrides.append(text)


HUGE = {"equation": "burgers", "trajectories": 10**9, "settings": {"points": 1024}}
TASK = ("tasks", "heat")

CONFIGURATION = {
    "no such file": (
        lambda w: (w.save(), (w.folder / "toy.yaml").unlink(), (w.folder / "toy.yaml").mkdir()),
        "is a folder",
    ),
    "not YAML": (lambda w: (w.folder / "toy.yaml").write_text("tasks: [}"), "toy.yaml"),
    "a misspelt key": (set_in("training", "lerning_rate", value=0.1), "learning_rate"),
    "a value of another type": (says("training.steps=many"), "training.steps"),
    "an unknown architecture": (says("stages.operator.architecture=spectrum"), "spectral"),
    "a plugin that is not there": (set_in("plugins", value=["gone.py"]), "gone.py"),
    "a stage that stands on none": (says("stages.operator.on=[codec]"), "which is not among the stages"),
    "a start that is not there": (says("stages.operator.start=gone"), "gone"),
    "an unknown equation": (
        set_in("tasks", value={"burgers": {"make": {"equation": "burger", "trajectories": 9}}}),
        "no equation 'burger'",
    ),
    "a rollout longer than the data": (says("training.rollout=[[0,1],[0.5,9]]"), "too few for 9 steps"),
    "cells that do not divide the grid": (set_in(*TASK, "latent_spacing", value=5 / 16), "do not divide"),
    "a gate's reference that is no run": (
        set_in("gates", "g", value={"reference": "gone", "at_most": 1.0}),
        "no finished",
    ),
    "fewer samples than ranks": (lambda w: setattr(w, "ranks", 8), "every rank needs a sample"),
    "shards that do not divide the ranks": (
        lambda w: (setattr(w, "ranks", 4), w.overrides.extend(["runtime.strategy=hsdp", "runtime.shard=3"])),
        "does not divide the 4 ranks",
    ),
}
DATA = {
    "a file that is not there": (lambda w: w.files.update(train=["gone.h5"]), "gone.h5 is not there"),
    "a file that is no data": (lambda w: (w.folder / "a.h5").write_text("hello"), "a.h5"),
    "a file cut off": (torn, "a.h5"),
    "one value that is no number": (poisoned, "13"),
    "copies in two sets": (copied, "is the same as"),
    "too few to split": (lambda w: w.write("a.h5", waves(2)), "too few to split"),
    "nothing moves": (lambda w: w.write("a.h5", waves()[:, :1].expand(-1, FRAMES, -1, -1)), "no channel changes"),
    "uneven times": (
        lambda w: w.write("a.h5", waves(), times=torch.arange(FRAMES).double() ** 2),
        "not equally spaced",
    ),
    "another number of channels": (lambda w: w.write("a.h5", waves().repeat(1, 1, 1, 2)), "2 fields"),
    "another time step than said": (lambda w: w.define.update(dt=0.2), "correct dt"),
    "other sides than said": (
        lambda w: w.write("a.h5", waves(), boundary=Boundary.all("open", 1)),
        "its sides are open",
    ),
    "a steady task of frames": (lambda w: w.define.update(steady=True), "is steady"),
    "a parameter untold": (lambda w: w.write("a.h5", waves(), nu=torch.arange(20) % 2 + 1.0), "'nu' varies"),
    "other units than said": (
        lambda w: (w.define.update(units={"u": "m/s"}), w.write("a.h5", waves(), notes={"units": {"u": "km/h"}})),
        "u in km/h, task 'heat' in m/s",
    ),
    "files of several units": (
        lambda w: (
            w.files.update(train=["a.h5", "b.h5"]),
            w.write("a.h5", waves(), notes={"units": {"u": "m/s"}}),
            w.write("b.h5", waves(seed=1), notes={"units": {"u": "km/h"}}),
        ),
        "another set of units",
    ),
    "tested in other units": (
        lambda w: (
            w.files.update(validation=2, test={"far": "b.h5"}),
            w.write("a.h5", waves(), notes={"units": {"u": "m/s"}}),
            w.write("b.h5", waves(seed=1), notes={"units": {"u": "km/h"}}),
        ),
        "u in km/h, task 'heat' in m/s",
    ),
    "no test file": (lambda w: w.files.update(validation=2, test={"far": "gone.h5"}), "gone.h5 is not there"),
    "tested on what it is trained on": (lambda w: w.files.update(validation=2, test={"far": "a.h5"}), "is the same as"),
    "more to train on than there are": (lambda w: w.files.update(trajectories=100), "100 trajectories are asked for"),
    "a store of other data": (other_store, "was built from other data"),
}
MACHINE = {
    "a launcher's variables": (lambda w: w.patch.setenv("RANK", "0"), "RANK in the environment"),
    "a package that is broken": (lambda w: w.patch.setitem(sys.modules, "matplotlib", None), "matplotlib"),
    "no GPU": (says("runtime.device=cuda"), "torch sees no GPU"),
    "no graphs to capture": (says("runtime.capture=on"), "only steps on a GPU"),
    "no compiler": (lambda w: (w.patch.setenv("PATH", ""), w.overrides.append("runtime.compile=true")), "C++ compiler"),
    "a folder that is a file": (lambda w: w.runs.write_text(""), "cannot write"),
    "files that may not be long": (lambda w: limited(w, resource.RLIMIT_FSIZE, 2**16), "File too large"),
    "a clock that is wrong": (lambda w: w.patch.setattr(time, "time", lambda now=time.time: now() - 3600), "the clock"),
    "a disk too small": (set_in("tasks", value={"burgers": {"make": HUGE}}), "GB free and the run needs"),
    "memory too small": (
        says("stages.operator={width: 100000, depth: 1, modes: 8, head: 64}"),
        "choose a smaller model",
    ),
    "a tracker that is not installed": (lambda w: tracked(w, None), "not installed here"),
    "a tracker without a token": (lambda w: tracked(w, object()), "no token for https://"),
    "another process in the run": (held, "is in use by another process"),
    "a run of another seed": (lambda w: w.begin("seed=7"), "belongs to another configuration (seed differs)"),
    "files of somebody else": (foreign, "that is no run's"),
}
FAULTS = CONFIGURATION | DATA | MACHINE


def test_there_are_thirty_of_them_and_without_them_all_is_well(world: World) -> None:
    assert len(FAULTS) >= 30
    found = list(world.findings())
    assert {finding.level for finding in found} == {"green"}, found
    assert sorted(path.name for path in world.folder.iterdir()) == ["a.h5", "toy.yaml"]


def test_what_a_recording_keeps_on_a_gpu_and_what_the_report_draws_is_counted(world: World) -> None:
    world.config["training"]["rollout"] = [[0.0, 1], [0.5, 2]]  # two recordings

    def said(about: str) -> str:
        return next(finding.says for finding in world.findings() if finding.about.startswith(about))

    def needed() -> float:
        return float(said("memory").partition("a step needs ")[2].partition(" GB")[0])

    host = needed()
    values = 4.0 * 2 * POINTS * FRAMES  # of the two trajectories to test on: the truth, the model, persistence
    assert f"fields to draw {3 * values / 1e9:.3g})" in said("disk")
    world.patch.setattr("ups.pipeline.check.wants_cuda", lambda config: True)
    device = needed()
    world.overrides.append("runtime.capture=off")
    assert needed() == host < device


def test_the_driver_s_version_is_what_its_module_says(tmp_path: Path) -> None:
    for told, version in (
        ("UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
        ("UNIX x86_64 Kernel Module  535.54  Tue Aug 19", "535.54"),
    ):
        (tmp_path / "version").write_text(f"NVRM version: NVIDIA {told}\nGCC version: 12.3.0\n")
        assert driver(tmp_path / "version") == version
    assert driver(tmp_path / "none") == "unknown"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_before_it_costs_anything(world: World, fault: str) -> None:
    seed, sentence = FAULTS[fault]
    seed(world)
    red = world.first_red()
    assert red is not None and sentence in red.says, red


def test_a_damaged_store_is_noted_and_not_refused(world: World) -> None:
    stored(world)
    shard = next((world.run / "store" / "heat").glob("*.bin"))
    shard.write_bytes(shard.read_bytes()[:-1])
    found = list(itertools.takewhile(lambda f: not f.about.startswith("memory"), world.findings()))
    assert [f.level for f in found if "the run writes it again" in f.says] == ["amber"]
    assert not [f for f in found if f.level == "red"]
