"""`ups store build` and `ups store verify`: what training begins with, made and checked beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ups.cli.main import app
from ups.durable import seal, unseal
from ups.errors import UserError
from ups.store import fields, layout
from ups.training import data as training_data

CONFIG = """
name: tiny
tasks:
  advection:
    make: {equation: advection, trajectories: 20, values: {beta: [0.4]},
           settings: {points: 32, frames: 9, duration: 0.8}}
  darcy:
    make: {equation: darcy, trajectories: 20, settings: {points: 16}}
stages: {operator: {width: 4, depth: 1, modes: 2, head: 4, conditions: 4}}
training: {steps: 2, batch_size: 4, warmup: 1}
runtime: {device: cpu, threads: 1}
data: {workers: 1}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(CONFIG)
    return tmp_path / "runs" / "tiny"


def ups(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, list(arguments))
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.exit_code, answer.stdout


def times(run: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in sorted((run / "store").rglob("*")) if file.is_file()}


def test_training_finds_the_store_that_was_built_and_writes_none_of_it_again(tiny):
    code, said = ups("store", "build", "tiny.yaml", "--workers", "2")
    assert code == 0 and said.splitlines()[-2:] == ["runs/tiny/store/advection", "runs/tiny/store/darcy"]
    before = times(tiny)
    assert len(before) == 2 * (3 + 2)  # index, fields, parameters or a coefficient; what was checked and measured
    assert ups("store", "build", "tiny.yaml")[0] == 0 and ups("train", "tiny.yaml")[0] == 0
    assert times(tiny) == before
    code, said = ups("store", "verify", "runs/tiny")
    assert code == 0 and said.count("every byte as written") == 4
    assert "advection fields: float32 16 × 9 × 32 × 1, 1 shard, 0.0184 MB" in said


def test_damage_is_named_with_what_to_do_and_exit_code_1(tiny, monkeypatch):
    monkeypatch.setattr(layout, "SHARD_BYTES", 4 * 9 * 32 * 2)
    ups("store", "build", "tiny.yaml", "data.store=float16", "--workers", "1")
    good = {file: file.read_bytes() for file in (tiny / "store" / "advection").glob("*.bin")}
    flipped, cut = sorted(file for file in good if file.name.startswith("fields"))[1:3]
    flipped.write_bytes(bytes([good[flipped][0] ^ 1]) + good[flipped][1:])
    cut.write_bytes(good[cut][:-1])
    code, said = ups("store", "verify", "runs/tiny")
    assert code == 1 and "advection fields: float16 16 × 9 × 32 × 1, 4 shards" in said
    assert "2 of 4 shards damaged" in said and flipped.name in said and cut.name in said
    assert said.count("every byte as written") == 3 and "remove the damaged files" in said

    code, said = ups("store", "verify", "runs/tiny/store/advection", "--json")
    (store,) = json.loads(said)
    assert code == 1 and [len(array["problems"]) for array in store["arrays"]] == [2, 0]

    flipped.unlink()  # as the sentence says
    cut.unlink()
    assert ups("store", "build", "tiny.yaml", "data.store=float16", "--workers", "1")[0] == 0
    assert {file: file.read_bytes() for file in good} == good and ups("store", "verify", "runs/tiny")[0] == 0


def test_an_unfinished_store_and_none_at_all_are_told_apart(tiny):
    ups("store", "build", "tiny.yaml")
    (tiny / "store" / "darcy" / "index.json").rename(tiny / "store" / "darcy" / "partial.json")
    code, said = ups("store", "verify", "runs/tiny")
    assert code == 1 and "darcy holds no complete store; run the command that builds it again" in said
    with pytest.raises(UserError, match="holds no store; name a store or a run"):
        ups("store", "verify", "runs/tiny/data")


@pytest.mark.parametrize("loss", ["removed", "dangling", "directory", "version"])
def test_a_store_without_a_readable_index_is_named_and_the_others_are_read(tiny, loss):
    ups("store", "build", "tiny.yaml")
    index = tiny / "store" / "advection" / "index.json"
    content = unseal(index.read_bytes())
    index.unlink()
    if loss == "dangling":
        index.symlink_to(tiny / "nowhere")
    elif loss == "directory":
        index.mkdir()
    elif loss == "version":
        index.write_bytes(seal(content | {"version": 99}))
    code, said = ups("store", "verify", "runs/tiny")
    why = {"directory": "advection/index.json cannot be read", "version": "advection/index.json has format version 99"}
    assert code == 1 and f"damaged: runs/tiny/store/{why.get(loss, 'advection has lost its index.json; run')}" in said
    assert said.count("every byte as written") == 2  # darcy's
    if loss in ("removed", "dangling"):
        assert ups("store", "build", "tiny.yaml")[0] == 0 and ups("store", "verify", "runs/tiny")[0] == 0


@pytest.mark.parametrize("damaged", [b"", b'{"data": 1', b"\xff\xfe", b"[1]", b'{"data": "long"}'])
def test_lost_seconds_do_not_end_a_build(tiny, damaged):
    ups("store", "build", "tiny.yaml")
    (tiny / "seconds.json").write_bytes(damaged)
    assert ups("store", "build", "tiny.yaml")[0] == 0
    assert json.loads((tiny / "seconds.json").read_text())["data"] > 0


def test_a_store_of_another_codec_is_refused_though_what_was_learned_is_kept(tiny, monkeypatch):
    ups("store", "build", "tiny.yaml")
    another = fields.CODEC + 1
    for module in (fields, training_data):
        monkeypatch.setattr(module, "CODEC", another)
    with pytest.raises(UserError, match="holds a store of other data or settings"):
        ups("store", "build", "tiny.yaml")
