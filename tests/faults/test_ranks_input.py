"""Mistakes that several ranks make possible: one sentence from who knows first, an exit code, nobody left behind."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from job import CONFIG, LONGEST, STAGE, Place, difference, left_behind, slowness, start
from ranks import free_port, run_ranks

import ups
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection
from ups.errors import UserError

SECONDS = 20.0  # from the command to its end, most of it torch's import


@dataclass(frozen=True)
class Ended:
    code: int
    errors: str
    seconds: float

    def said(self, sentence: str) -> bool:
        """Whether all it said is one error with this in it."""
        return self.errors.startswith("error: ") and self.errors.count("\n") == 1 and sentence in self.errors


def call(place: Place, name: str, *overrides: str, ranks: int | None = 2, **variables: str) -> Ended:
    """The command to its end, which must come within seconds and leave no process behind."""
    began = time.monotonic()
    command = place.command(name, *overrides, ranks=ranks)
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    seconds = time.monotonic() - began
    assert seconds < SECONDS * slowness() and left_behind(place.runs / name) == []
    return Ended(done.returncode, done.stderr, seconds)


def by_hand(
    place: Place, name: str, overrides=((), ()), folders: tuple[Path | None, ...] = (None, None)
) -> list[Ended]:
    """Two ranks, each started by itself as on two nodes, in folders of their own."""
    port, began, processes = free_port(), time.monotonic(), []
    for rank, (own, folder) in enumerate(zip(overrides, folders, strict=True)):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        processes.append(
            subprocess.Popen(
                place.command(name, *own, ranks=None),
                env={**os.environ, **{k: str(v) for k, v in variables.items()}, "MASTER_ADDR": "127.0.0.1"},
                cwd=folder,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )
    ended = []
    for process in processes:
        try:
            _, errors = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            for each in processes:
                each.kill()
            raise
        ended.append(Ended(process.returncode, errors, time.monotonic() - began))
    assert max(e.seconds for e in ended) < SECONDS * slowness() and left_behind(place.runs / name) == []
    return ended


def test_missing_variables_of_a_launcher_are_named(place):
    ended = call(place, "alone", ranks=None, RANK="0", WORLD_SIZE="2")
    assert ended.code == 2
    assert ended.said(
        "RANK is set but LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not; start ranks with"
    )


def test_a_batch_smaller_than_the_ranks_is_refused(place):
    ended = call(place, "small", "training.batch_size=2", ranks=3)
    assert ended.code == 2 and ended.said("training.batch_size is 2 for 3 ranks; every rank needs a sample a step")


@pytest.mark.faults
def test_groups_that_do_not_divide_the_ranks_are_refused(place):
    ended = call(place, "groups", "runtime.strategy=hsdp", "runtime.shard=3")
    assert ended.code == 2 and ended.said(
        "runtime.shard is 3, which does not divide the 2 ranks; choose a divisor of 2"
    )


def test_more_ranks_than_gpus_are_refused(place):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    count = torch.cuda.device_count()
    ended = call(place, "many", "runtime.device=cuda", ranks=count + 1)
    assert ended.code == 2 and ended.said(f"{count + 1} ranks were asked for on this node, which has {count} GPU")


@pytest.mark.faults
def test_a_checkpoint_of_another_model_is_refused(place, half_way):
    shutil.copytree(half_way[0].runs, place.runs)
    ended = call(place, "half", "stages.operator.width=12")
    assert ended.code == 2 and ended.said("operator belongs to another configuration (settings.width differs)")
    for file in ("config.yaml", STAGE / "stage.json"):
        (place.runs / "half" / file).unlink()
    ended = call(place, "half", "stages.operator.width=12")
    assert ended.code == 2 and ended.said("is of another model") and "the model has torch.float64" in ended.errors


@pytest.mark.faults
def test_a_number_of_ranks_that_divides_nothing_works(place, reference):
    job = start(place, "three", ranks=3)
    assert job.wait() == 0, job.said()
    assert difference(job.run, reference) <= 1e-10


@pytest.mark.faults
def test_what_a_run_writes_of_its_environment_holds_no_path_and_no_secret(place):
    given = {
        "NCCL_TOPO_FILE": str(place.runs),
        "NCCL_NET_PLUGIN": f"{Path.home()}/plugin.so",
        "UPS_API_TOKEN": "hunter2",
    }
    job = start(place, "private", "training.steps=4", WANDB_API_KEY="hunter3", NCCL_ALGO="Ring", **given)
    assert job.wait() == 0, job.said()
    text = (job.run / "env.json").read_text()
    assert re.findall(r"""(?<![\w.])/\w[^\s",]*""", text) == [] and "hunter" not in text and platform.node() not in text
    assert job.json("env.json")["variables"] | {"NCCL_ALGO": "Ring"} == job.json("env.json")["variables"]


@pytest.mark.faults
def test_torchrun_works_too(place, reference):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, *place.command("torchrun", ranks=None)[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    assert difference(place.runs / "torchrun", reference) == 0 and left_behind(place.runs / "torchrun") == []


@pytest.mark.faults
def test_a_hang_under_torchrun_ends_with_the_stacks_of_the_rank_that_hangs(place):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, *place.command("hang", "runtime.deadline=3", ranks=None)[1:]]
    variables = os.environ | {"UPS_FAULT": "sleep at forward rank 1 step 12"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 1
    assert "rank 1 has not moved for too long in gradients, step 12; rank 1 leaves" in done.stderr
    assert "injection.py" in done.stderr and left_behind(place.runs / "hang") == []


@pytest.mark.faults
def test_ranks_that_disagree_on_the_configuration_are_refused(place):
    for ended in by_hand(place, "differ", overrides=((), ("training.learning_rate=0.5",))):
        assert ended.code == 2 and ended.said("ranks disagree on the configuration: rank 0 has ")


@pytest.fixture
def nodes(tmp_path) -> tuple[Place, list[Path]]:
    """A configuration that reads a file from the folder `data` it is started in, and two such folders."""
    tasks = "tasks:\n  advection:\n    files: {train: [waves.hdf5]}\n"
    config = tmp_path / "files.yaml"
    config.write_text(CONFIG.split("tasks:")[0] + tasks + "stages:" + CONFIG.split("stages:")[1])
    folders = [tmp_path / "node0", tmp_path / "node1"]
    for seed, folder in enumerate(folders):
        (folder / "data").mkdir(parents=True)
        equation = Advection(points=32, beta=0.4, frames=9, duration=0.8)
        ups.generate(equation, 20, seed, folder / "data" / equation.published_name)
        (folder / "data" / equation.published_name).rename(folder / "data" / "waves.hdf5")
    return Place(config, Path("data"), tmp_path / "runs"), folders


@pytest.mark.faults
def test_ranks_that_disagree_on_the_data_are_refused(nodes):
    place, folders = nodes
    for ended in by_hand(place, "differ", folders=tuple(folders)):
        assert ended.code == 2 and ended.said("ranks disagree on the validation data of advection: rank 0 has ")


@pytest.mark.faults
@pytest.mark.parametrize("without", [0, 1])
def test_a_node_without_the_data_file_says_so_and_ends_all(nodes, without):
    place, folders = nodes
    (folders[without] / "data" / "waves.hdf5").unlink()
    ended = by_hand(place, "lacks", folders=tuple(folders))
    assert ended[without].code == 2 and ended[without].said("data/waves.hdf5")
    assert ended[1 - without].code != 0


def _other_version() -> str:
    before = torch.__version__
    if os.environ["RANK"] == "1":
        torch.__version__ = "1.0.0"
    try:
        with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0):
            return "went on"
    except UserError as error:
        torch.distributed.destroy_process_group()
        return str(error)
    finally:
        torch.__version__ = before


def test_ranks_of_different_versions_are_refused():
    for said in run_ranks(2, _other_version):
        assert said.startswith("ranks disagree on the software: rank 0 has ups ")
        assert ", torch 1.0.0, Python" in said and said.endswith("install the same versions on every node")
