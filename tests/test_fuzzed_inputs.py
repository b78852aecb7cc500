"""Damaged and hostile configurations, checkpoints and files of a run are refused with one sentence, or left out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
import yaml
from fuzzing import altered, damaged, fuzzed, odd, refused_or_read
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from small import prepared

from ups import checkpoint
from ups.checkpoint.saver import Checkpoints
from ups.config.load import packaged_configs, read_config
from ups.distributed.faults.heartbeat import Heartbeat, heartbeat_path, heartbeats_of, read_heartbeat
from ups.distributed.launch import backoff
from ups.distributed.launch.outcome import Outcome, decide, forget, outcome_of, reserve
from ups.durable import crc32_of, seal, unseal
from ups.errors import UserError
from ups.models.export import export_model
from ups.pipeline.config import load_run
from ups.store.layout import INDEX, ArrayLayout, Index, Shard, read_index
from ups.track.jsonl import read_events
from ups.training.restore import restored

# Configurations

QUICKSTART = packaged_configs()["quickstart"].read_text()
FRAGMENTS = (
    "a: &a [*a]",
    "a: &a {b: *a}",
    "a: &a [1, 2]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\ntasks: [*c, *c, *c]",
    "[" * 3000,
    "{a: " * 2000,
    "- " * 2000,
    "seed: 1" + "0" * 5000,
    "seed: 0x" + "f" * 4000,
    "training: {steps: 1e999}",
    "training: {steps: .nan}",
    "training: {learning_rate: -.inf}",
    "include: /etc/passwd",
    "include: ../../../../etc/passwd",
    "include: [quickstart, quickstart]",
    "tasks: !!python/object/apply:os.system [true]",
    "<<: {<<: {<<: 1}}",
    "stages: {../x: {}}",
    "stages: {'': {kind: [1]}}",
    "compare: {fno: {tasks: {a: 1}}}",
    "name: ../../x",
    "tasks: {../x: {files: {train: [/etc/passwd]}}}",
    "? [a, b]\n: c",
    "a: '\\x00'",
    "\t",
)


@fuzzed
@given(data=st.data())
def test_damaged_configurations_are_refused_or_read(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    how = data.draw(st.sampled_from(("bytes", "values", "fragments")))
    if how == "bytes":
        content = data.draw(damaged(QUICKSTART.encode()))
    elif how == "values":
        content = yaml.safe_dump(data.draw(altered(yaml.safe_load(QUICKSTART)))).encode()
    else:
        content = "\n".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3))).encode()
    path.write_bytes(content)
    if b"plugins" in content:
        return  # which are programs
    with refused_or_read():
        load_run(path, [])


@pytest.mark.parametrize("text", FRAGMENTS)
def test_hostile_fragments_are_refused_or_read(tmp_path, text):
    (tmp_path / "hostile.yaml").write_text(f"{QUICKSTART}\n{text}")
    with refused_or_read():
        load_run(tmp_path / "hostile.yaml", [])
    (tmp_path / "hostile.yaml").write_text(text)
    with refused_or_read():
        load_run(tmp_path / "hostile.yaml", [])


@fuzzed
@given(text=st.one_of(st.text(max_size=40), odd.map(lambda value: f"training.steps={value}")))
def test_odd_overrides_are_refused_or_read(text):
    with refused_or_read():
        read_config("quickstart", [text])


# Checkpoints


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    spec, _ = prepared(folder)
    export_model(spec.build(0), spec, folder / "out")
    return folder / "out"


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> dict[str, bytes]:
    """The files of a checkpoint."""
    folder = tmp_path_factory.mktemp("saved")
    saver = Checkpoints(folder)
    saver.save(7, {"model.a": torch.randn(4, 3), "model.b": torch.zeros(())}, {"progress": {"step": 7}}, best=True)
    saver.wait()
    return {file.name: file.read_bytes() for file in (folder / checkpoint.name_of(7)).iterdir()}


@fuzzed
@given(data=st.data())
def test_damaged_bytes_of_a_checkpoint_are_refused_or_set_aside(tmp_path_factory, saved, data):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / checkpoint.name_of(7)
    path.mkdir()
    for name, content in saved.items():
        (path / name).write_bytes(content)
    name = data.draw(st.sampled_from(sorted(saved)))
    (path / name).write_bytes(content := data.draw(damaged(saved[name])))
    (folder / "latest").write_bytes(data.draw(damaged(b"step_00000007\n")))
    with refused_or_read():
        checkpoint.find(folder, "latest")
        checkpoint.load(path)
        assert content == saved[name] or name == checkpoint.MANIFEST  # whose blanks do not matter
    with refused_or_read():
        checkpoint.newest(folder)


@fuzzed
@given(data=st.data())
def test_hostile_checkpoints_with_right_checksums_are_refused_or_read(tmp_path_factory, exported, data):
    """As one from a stranger could be: whoever wrote it can seal it."""
    folder = tmp_path_factory.mktemp("hostile") / "out"
    folder.mkdir()
    head = unseal((exported / checkpoint.MANIFEST).read_bytes())
    weights = (exported / checkpoint.WEIGHTS).read_bytes()
    if data.draw(st.booleans()):
        weights = data.draw(hostile_weights(weights))
    (folder / checkpoint.WEIGHTS).write_bytes(weights)
    head["files"][checkpoint.WEIGHTS] = {"bytes": len(weights), "crc32": crc32_of(folder / checkpoint.WEIGHTS)}
    (folder / checkpoint.MANIFEST).write_bytes(seal({"head": head, **data.draw(altered(head) | st.just(head))}))
    with refused_or_read():
        restored(folder)


@st.composite
def hostile_weights(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file whose header or bytes are odd."""
    if draw(st.booleans()):
        return draw(damaged(content))
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": [0]} for name in header})}
    text = json.dumps(draw(altered(header))).encode()
    return struct.pack("<Q", draw(st.sampled_from((len(text), 2**40, 0)))) + text + content[8 + size :]


def test_a_pointer_does_not_leave_its_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / checkpoint.name_of(3)).mkdir()
    for text in ("../step_00000003", str(tmp_path / "step_00000003"), "../a/../step_00000003"):
        (tmp_path / "a" / "best").write_text(text)
        assert checkpoint.find(tmp_path / "a", "best") is None


def test_a_part_that_claims_to_lie_far_away_takes_no_memory(tmp_path):
    folder = tmp_path / checkpoint.name_of(1)
    folder.mkdir()
    places = json.dumps({"model.a": {"saved_offsets": [2**45]}})
    (folder / "x.safetensors").write_bytes(save({"model.a": torch.zeros(4)}, {"DCP_SHARDING_INFO": places}))
    file = {"bytes": (folder / "x.safetensors").stat().st_size, "crc32": crc32_of(folder / "x.safetensors")}
    head = {"format": checkpoint.files.FORMAT, "step": 1, "files": {"x.safetensors": file}, "content": {}}
    (folder / checkpoint.MANIFEST).write_bytes(seal(head))
    with refused_or_read(), pytest.raises(UserError, match="damaged"):
        checkpoint.load(folder)


def test_a_stage_does_not_stand_on_one_outside_its_run(tmp_path, exported):
    folder = tmp_path / "run" / "stage"
    folder.mkdir(parents=True)
    (folder / checkpoint.WEIGHTS).write_bytes((exported / checkpoint.WEIGHTS).read_bytes())
    head = unseal((exported / checkpoint.MANIFEST).read_bytes())
    head["content"]["parents"] = {"../../elsewhere": "0"}
    (folder / checkpoint.MANIFEST).write_bytes(seal(head))
    with pytest.raises(UserError, match="elsewhere"):
        restored(folder)


# Files of a run


@fuzzed
@given(data=st.data())
def test_damaged_files_of_a_run_are_refused_or_left_out(tmp_path_factory, data):
    run = tmp_path_factory.mktemp("run")
    Heartbeat(heartbeat_path(run, 3), 3, 0).mark("gradients", 7)
    beat = heartbeat_path(run, 3)
    beat.write_bytes(data.draw(damaged(2 * struct.pack("<QiiqiddQ", 5, 0, 1234, 7, 6, 1.5, 0.1, 5) + bytes(16))))
    (run / "heartbeats" / data.draw(st.sampled_from(("rank_", "rank_x", "rank_00003.old")))).write_bytes(
        beat.read_bytes()
    )
    reserve(run)
    decide(run, Outcome("stopped", "a reason"))
    (run / "events.jsonl").write_text('{"kind": "step", "step": 1, "loss": 0.5}\n{"kind": "crash", "rank": 0}\n')
    backoff.count_crash(run, 0)
    for name in ("outcome.json", "backoff.json", "events.jsonl"):
        content = (run / name).read_bytes()
        if name == "outcome.json" and data.draw(st.booleans()):
            content = json.dumps(data.draw(altered(json.loads(content)))).encode()
        else:
            content = data.draw(damaged(content))
        (run / name).write_bytes(content)
    with refused_or_read():
        read_heartbeat(beat)
        heartbeats_of(run / "heartbeats")
        assert all(isinstance(event, dict) and "kind" in event for event in read_events(run / "events.jsonl"))
        outcome = outcome_of(run)
        assert outcome is None or outcome.code in (0, 1, 2, 75)
        forget(run)
        backoff.micro_batches(run)
        backoff.count_crash(run, 1)


@fuzzed
@given(data=st.data())
def test_damaged_indices_of_a_store_are_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    shards = (Shard("fields.00000.0000abcd.bin", 0, 2, 48, 43981),)
    index = Index("key", {"fields": ArrayLayout("float32", (2, 6), shards)})
    content = index.sealed()
    if data.draw(st.booleans()):
        content = data.draw(damaged(content))
    else:
        content = seal({**data.draw(altered(unseal(content))), "more": 1})
    (folder / INDEX).write_bytes(content)
    with refused_or_read():
        found = read_index(folder)
        assert found is not None
        for array in found.arrays.values():
            assert all(Path(shard.file).name == shard.file for shard in array.shards), "a shard outside of its store"
