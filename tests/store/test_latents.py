"""The store of a codec's latents: made by ranks, finished after a kill, read for that codec and for no other."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from ranks import run_ranks
from small import prepared
from typer.testing import CliRunner

from ups.cli.main import app
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import Stopped, UserError
from ups.models.saved import TrainedTask
from ups.store import layout
from ups.store.verify import verify
from ups.training import latents
from ups.training.data import TaskData
from ups.training.latents import latents_of
from ups.training.stages.codec import CodecStage, CodecStageSettings, build_codec

SHARD = 4 * 9 * 4 * 4
"""Bytes of four of the twelve trajectories: of nine frames, four cells, and a number for each."""

CONFIG = """
name: tiny
tasks:
  advection: {make: {equation: advection, trajectories: 20, settings: {points: 32, frames: 9, duration: 0.8}}}
stages:
  codec: {width: 4, depth: 1, modes: 2}
  operator: {width: 4, depth: 1, modes: 2, head: 4, conditions: 4}
training: {steps: 2, batch_size: 4, warmup: 1}
runtime: {device: cpu, threads: 1}
data: {workers: 1}
"""


def codec_of(task: TrainedTask, seed: int = 0) -> CodecStage:
    stage = build_codec((task,), CodecStageSettings(width=8, depth=1, modes=4), seed, "codec")
    stage.model.requires_grad_(False)
    return stage


def build(task: TaskData, codec: CodecStage, stop: int | None = None) -> TaskData:
    """`stop`: the rank that is asked to while it encodes."""
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as runtime:

        def asked(*arguments: Any, encode: Any = latents.in_latents) -> Any:
            runtime.stop.asked = runtime.rank == stop
            return encode(*arguments)

        with patch.object(latents, "in_latents", asked):
            return latents_of(runtime, task, codec, workers=1)


def build_here(folder: Path, stop: int | None = None) -> str:
    """How the build of this rank ended."""
    layout.SHARD_BYTES = SHARD
    task = prepared(folder)[1]["advection"]
    try:
        found = build(task, codec_of(task.learned), stop)
    except (UserError, Stopped) as error:
        return f"{type(error).__name__}: {error}"
    return str(tuple(found.store.rows("fields", torch.arange(12)).shape))


def build_until_killed(folder: Path) -> None:
    """As by the kernel, in the sixth trajectory: the second shard of three."""
    in_latents, count = latents.in_latents, iter(range(100))
    latents.in_latents = lambda *arguments: in_latents(*arguments) if next(count) < 5 else os._exit(9)
    build_here(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "advection@codec").iterdir()}


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskData:
    found = prepared(tmp_path)[1]["advection"]
    monkeypatch.setattr(layout, "SHARD_BYTES", SHARD)
    return found


def test_ranks_write_the_bytes_that_one_process_writes(task: TaskData, tmp_path: Path) -> None:
    found = build(task, codec_of(task.learned))
    apart = shutil.copytree(tmp_path, tmp_path / "apart", ignore=shutil.ignore_patterns("*@codec*"))
    assert run_ranks(2, build_here, apart) == ["(12, 9, 4, 1)"] * 2
    assert contents(apart) == contents(tmp_path) and len(contents(tmp_path)) == 5
    store, spec = found.store, found.learned.spec
    assert store.frames == 9 and spec.channel_names == ("advection_latent_0",) and found.validation is task.validation
    fields = task.store.rows("fields", torch.arange(12)).flatten(0, 1)
    wanted = codec_of(task.learned).model.encode("advection", fields).unflatten(0, (12, 9))
    torch.testing.assert_close(store.rows("fields", torch.arange(12)), wanted)
    _, changes = found.learned.normaliser.step_scales()
    assert float(changes[0, 0]) == pytest.approx(float(wanted.diff(dim=1).square().mean().sqrt()), rel=1e-4)


def test_a_build_that_was_killed_or_stopped_goes_on_and_ends_with_the_same_bytes(
    task: TaskData, tmp_path: Path
) -> None:
    build(task, codec_of(task.learned))
    whole = contents(tmp_path)
    for name in whole:
        (tmp_path / "advection@codec" / name).unlink()
    killed = multiprocessing.get_context("forkserver").Process(target=build_until_killed, args=(tmp_path,))
    killed.start()
    killed.join(60)
    left = contents(tmp_path)
    assert killed.exitcode == 9 and "index.json" not in left and len([n for n in left if n.endswith(".bin")]) == 1
    ended = run_ranks(2, build_here, tmp_path, 1)
    assert all("are kept in" in how for how in ended), ended
    build(task, codec_of(task.learned))
    assert contents(tmp_path) == whole


def test_a_flipped_byte_is_found_and_that_shard_alone_encoded_again(task: TaskData, tmp_path: Path) -> None:
    build(task, codec_of(task.learned))
    whole, path = contents(tmp_path), tmp_path / "advection@codec"
    shard = sorted(path.glob("fields*.bin"))[1]
    shard.write_bytes(bytes([whole[shard.name][0] ^ 1]) + whole[shard.name][1:])
    assert [shard.name in problem for problem in verify(path)] == [True]
    with pytest.warns(UserWarning, match="written again from the data"):
        found = build(task, codec_of(task.learned))
        found.store.rows("fields", torch.arange(12))
    assert contents(tmp_path) == whole


def test_latents_of_another_codec_are_neither_read_nor_written_over(task: TaskData, tmp_path: Path) -> None:
    build(task, codec_of(task.learned))
    before = contents(tmp_path)
    with pytest.raises(UserError, match="advection@codec holds a store of other data or settings"):
        build(task, codec_of(task.learned, seed=1))
    assert contents(tmp_path) == before


def test_a_codec_of_another_run_or_of_another_task_is_refused(task: TaskData, tmp_path: Path) -> None:
    other = replace(task.learned, statistics=replace(task.learned.statistics, trajectories=7))
    with pytest.raises(UserError, match="'codec' was trained on other data of task 'advection'"):
        build(task, codec_of(other))
    with pytest.raises(UserError, match="no latents of task 'advection', which 'codec' never saw"):
        build(task, codec_of(prepared(tmp_path)[1]["darcy"].learned))
    assert not (tmp_path / "advection@codec").exists()


def ups(*arguments: str) -> str:
    answer = CliRunner().invoke(app, list(arguments))
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.stdout


def test_the_command_stores_latents_of_trained_codecs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(CONFIG)
    with pytest.raises(UserError, match="codec is trained to step 0 of 2; finish it first"):
        ups("store", "build", "tiny.yaml", "--latents")
    with pytest.raises(UserError, match="has no stage of kind codec"):
        ups("store", "build", "tiny.yaml", "--latents", "stages.codec.kind=operator")
    ups("train", "tiny.yaml")
    said = ups("store", "build", "tiny.yaml", "--latents", "--workers", "2")
    assert said.splitlines()[-1] == "runs/tiny/store/advection@codec"
    assert "advection@codec fields: float32 16 × 9 × 4 × 1, 1 shard" in ups("store", "verify", "runs/tiny")
