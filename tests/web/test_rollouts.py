"""Rollouts over HTTP: the numbers of the simulator itself, in every form, within bounds."""

from __future__ import annotations

import io
import json
import socket
import time
import zipfile
from contextlib import suppress

import httpx
import numpy as np
import pytest
import torch

import ups
from ups.errors import UserError
from ups.fields import Boundary, Conditions, Grid, Trajectory
from ups.simulator import Simulator
from ups.web.client import RemoteSimulator
from ups.web.reading import read
from ups.web.settings import ServerSettings

X = (np.arange(16) + 0.5) / 16
WAVE = np.sin(2 * np.pi * X)
ASKED = {"u0": WAVE.tolist(), "steps": 5, "conditions": {"beta": 0.4}, "task": "waves"}
NPZ, JSON, ARROW = "application/x-npz", "application/json", "application/vnd.apache.arrow.stream"


def packed(**arrays) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def test_json_gives_the_numbers_of_the_simulator(serve, sim: Simulator) -> None:
    answer = httpx.post(f"{serve().url}/v1/rollout", json=ASKED)
    assert answer.status_code == 200, answer.text
    here, there = sim.rollout(WAVE, 5, conditions={"beta": 0.4}, task="waves"), answer.json()
    np.testing.assert_array_equal(np.array(there["values"], np.float32), here.values.numpy())
    assert there["times"] == here.times.tolist() and there["channels"] == ["u"] and there["task"] == "waves"
    assert there["warnings"] == list(here.warnings) and there["grid"]["x"] == pytest.approx(X)


QUESTIONS = {
    "one": lambda: {"u0": WAVE, "steps": 5, "conditions": {"beta": 0.4}},
    "torch, a batch, beta of each": lambda: {
        "u0": torch.stack([torch.from_numpy(WAVE), torch.from_numpy(WAVE) * 0.5])[..., None].float(),
        "steps": 3,
        "conditions": {"beta": torch.tensor([0.2, 0.9])},
    },
    "times between steps, at points": lambda: {
        "u0": WAVE,
        "times": [0.1, 0.25, 0.33],
        "conditions": {"beta": 0.4},
        "at": np.array([[0.1], [0.77]]),
    },
    "another grid": lambda: {
        "u0": np.sin(2 * np.pi * np.arange(32) / 32),
        "steps": 2,
        "conditions": {"beta": 0.4},
        "grid": Grid.nodal((32,)),
    },
    "another step, members": lambda: {
        "u0": WAVE,
        "steps": 2,
        "dt": 0.2,
        "members": 3,
        "seed": 5,
        "conditions": {"beta": 3.0},
    },
    "a steady task": lambda: {"conditions": {"a": np.full((8, 8), 0.5)}, "task": "flow"},
    "a trajectory": lambda: {
        "u0": Trajectory(
            torch.from_numpy(WAVE)[None, :, None],
            ("u",),
            Grid.cell_centred((16,)),
            torch.zeros(1),
            Boundary.all("periodic", 1),
            Conditions({"beta": 0.3, "what its task does not vary": 1.0}),
            "waves",
        ),
        "steps": 4,
    },
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_client_is_asked_like_the_simulator_and_gives_the_same(serve, sim: Simulator, name: str) -> None:
    question = QUESTIONS[name]()
    here, there = sim.rollout(**question), ups.connect(serve().url).rollout(**question)
    assert torch.equal(there.values, here.values) and torch.equal(there.times, here.times)
    assert there.warnings == here.warnings and there.channels == here.channels and there.task == here.task
    assert there.count == here.count and there.units == here.units
    if isinstance(here.where, Grid):
        assert isinstance(there.where, Grid) and there.where.same_as(here.where)
    else:
        assert isinstance(there.where, torch.Tensor) and torch.equal(there.where, here.where)


def test_mistakes_are_the_simulators_sentences(serve, sim: Simulator) -> None:
    there = ups.connect(serve().url)
    for question in (
        {"u0": WAVE, "steps": 5, "conditions": {"betta": 0.4}, "task": "waves"},
        {"u0": WAVE[:3], "steps": 5, "conditions": {"beta": 0.4}},
        {"u0": WAVE * np.nan, "steps": 5, "conditions": {"beta": 0.4}},
        {"u0": WAVE, "steps": 5, "dt": 1e308, "conditions": {"beta": 0.4}},
        {"u0": WAVE, "conditions": {"beta": 0.4}},
    ):
        with pytest.raises(UserError) as here:
            sim.rollout(**question)
        with pytest.raises(UserError) as remote:
            there.rollout(**question)
        assert str(remote.value) == f"{there.url}: {here.value}"


BOMB = io.BytesIO()
with zipfile.ZipFile(BOMB, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("u0.npy", bytes(2**27))
LIAR = io.BytesIO()  # a header of 8 TB before 8 bytes
np.lib.format.write_array_header_1_0(LIAR, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
LIE = io.BytesIO()
with zipfile.ZipFile(LIE, "w") as archive:
    archive.writestr("u0.npy", LIAR.getvalue() + bytes(8))
PICKLED = packed(u0=np.array([{}], object))


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"", JSON, 400, "not JSON"),
        (b"[1]", JSON, 400, "not a JSON object"),
        (b'{"u0": NaN}', JSON, 400, "NaN is no number"),
        (b'{"u0": 1' + b"0" * 5000 + b"}", JSON, 400, "not JSON"),
        (b"[" * 100_000, JSON, 400, "not JSON"),
        (b'{"u0":' + b"[" * 900 + b"1" + b"]" * 900 + b"}", JSON, 422, "no array of numbers"),
        (b"\xff\xfe", JSON, 400, "not JSON"),
        (json.dumps(ASKED | {"steps": 10**9}).encode(), JSON, 422, "from 1 to 10000"),
        (json.dumps(ASKED | {"steps": True}).encode(), JSON, 422, "whole numbers"),
        (json.dumps(ASKED | {"u0": [1e999] * 16}).encode().replace(b"Infinity", b"1e999"), JSON, 422, "infinite"),
        (json.dumps(ASKED | {"u0": [1, [2]]}).encode(), JSON, 422, "no array of numbers"),
        (json.dumps(ASKED | {"u0": ["1"] * 16}).encode(), JSON, 422, "no array of numbers"),
        (json.dumps(ASKED | {"path": "/etc/passwd"}).encode(), JSON, 422, "has no 'path'"),
        (json.dumps(ASKED | {"task": "../waves"}).encode(), JSON, 422, "no task"),
        (json.dumps(ASKED | {"u0": [[0.1] * 16] * 300}).encode(), JSON, 422, "300 starts are too many"),
        (json.dumps(ASKED | {"u0": [0.1] * 5000}).encode(), JSON, 422, "5,000 points along an axis are too many"),
        (json.dumps(ASKED | {"u0": [[0.1] * 16] * 200, "steps": 900}).encode(), JSON, 422, "accept application/x-npz"),
        (json.dumps(ASKED | {"u0": [[0.1] * 16] * 200, "members": 64, "steps": 900}).encode(), JSON, 422, "too many"),
        (b" " * (8 * 2**20 + 1), JSON, 413, "send large arrays"),
        (bytes(64 * 2**20 + 1), NPZ, 413, "at most"),
        (BOMB.getvalue(), NPZ, 413, "unpacked"),
        (LIE.getvalue(), NPZ, 400, "not as many as it says"),
        (PICKLED, NPZ, 400, "other things than numbers"),
        (packed(u0=WAVE)[:-30], NPZ, 400, "no readable .npz"),
        (b"PK\x03\x04", NPZ, 400, "no readable .npz"),
        (b"", "text/csv", 415, "unknown"),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence(serve, body: bytes, kind: str, status: int, said: str) -> None:
    server = serve()
    answer = httpx.post(f"{server.url}/v1/rollout", content=body, headers={"content-type": kind}, timeout=30)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"] and len(answer.text) < 400
    assert httpx.post(f"{server.url}/v1/rollout", json=ASKED).status_code == 200


def test_a_body_of_unknown_length_is_bounded_too(serve) -> None:
    def endless():
        for _ in range(100):
            yield bytes(2**14)

    server = serve(body=2**20)
    answer = httpx.post(f"{server.url}/v1/rollout", content=endless(), headers={"content-type": NPZ})
    assert answer.status_code == 413
    gauge = httpx.get(f"{server.url}/metrics").text
    assert "ups_places 0\n" in gauge and "ups_held_bytes 0\n" in gauge


def test_a_full_server_says_when_to_come_again(serve) -> None:
    server = serve(queue=2, patience=5.0)
    head = b"POST /v1/rollout HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n"
    waiting = []
    for _ in range(2):
        waiting.append(socket.create_connection((server.host, server.port)))
        waiting[-1].sendall(head)
    time.sleep(0.3)
    answer = httpx.post(f"{server.url}/v1/rollout", json=ASKED)
    assert answer.status_code == 429 and answer.headers["retry-after"] and "busy" in answer.json()["error"]
    for each in waiting:
        each.close()
    time.sleep(0.3)
    assert httpx.post(f"{server.url}/v1/rollout", json=ASKED).status_code == 200


def test_arrow_gives_the_numbers_of_the_simulator(serve, sim: Simulator) -> None:
    pa = pytest.importorskip("pyarrow")
    from ups.web.arrow import to_arrow

    asked = {"u0": WAVE, "steps": 5, "conditions.beta": 0.4, "task": "waves"}
    answer = httpx.post(f"{serve().url}/v1/rollout", content=to_arrow(asked), headers={"content-type": ARROW})
    assert answer.status_code == 200 and answer.headers["content-type"] == ARROW, answer.text
    table = pa.ipc.open_stream(answer.content).read_all()
    values = table["values"].chunk(0).to_numpy_ndarray()[0]
    here = sim.rollout(WAVE, 5, conditions={"beta": 0.4}, task="waves")
    np.testing.assert_array_equal(values, here.values.numpy())
    assert json.loads(table["told"][0].as_py())["task"] == "waves" and table["channels"][0].as_py() == ["u"]


def test_arrow_that_is_wrong_is_refused_in_a_sentence(serve) -> None:
    pa = pytest.importorskip("pyarrow")
    from ups.web.arrow import to_arrow

    def stream(table, **options) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    whole = to_arrow({"u0": WAVE, "steps": 5, "task": "waves"})
    zeros = pa.array([[0.0] * 2**20])
    words = pa.table({"task": pa.array(["waves"]).dictionary_encode()})
    refused = {
        b"": "no readable Arrow",
        b"ARROW1\0\0" + whole: "no readable Arrow",
        whole[:-100]: "no readable Arrow",
        stream(pa.table({"u0": zeros}), compression="zstd"): "compressed",
        stream(words): "other messages",
        stream(pa.table({"u0": [1.0, 2.0]})): "one row",
        stream(pa.table({"u0": zeros})): "neither a fixed_shape_tensor",
        to_arrow({"where": WAVE}): "has no 'where'",
    }
    server = serve()
    for body, said in refused.items():
        answer = httpx.post(f"{server.url}/v1/rollout", content=body, headers={"content-type": ARROW})
        assert answer.status_code in (400, 422) and said in answer.json()["error"], answer.text
    generator = np.random.default_rng(0)
    for _ in range(1000):  # one byte of it is another
        body = bytearray(whole)
        body[generator.integers(len(body))] = generator.integers(256)
        with suppress(UserError):
            read(bytes(body), ARROW, ServerSettings())


def test_arrow_without_pyarrow_is_refused_in_a_sentence(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups.web.rollouts.KINDS", (JSON, NPZ))
    answer = httpx.post(f"{serve().url}/v1/rollout", content=b"", headers={"content-type": ARROW})
    assert answer.status_code == 415 and "install pyarrow" in answer.json()["error"]


def test_a_trajectory_s_forcings_are_sent_a_field_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frames, half a step apart here, are not the steps."""
    known = {"parameters": [], "static": [], "forcings": ["f"], "masked": False, "dt": 0.2}
    remote, sent = RemoteSimulator("http://127.0.0.1:9"), {}

    def asked(path: str, body: bytes | None = None) -> bytes:
        sent.update(np.load(io.BytesIO(body or b"")))
        raise UserError("sent")

    monkeypatch.setattr(remote, "_asked", asked)
    remote.__dict__["tasks"] = {"driven": known}
    force = torch.arange(7.0)[:, None].expand(7, 16)
    trajectory = Trajectory(
        torch.zeros(7, 16, 1), ("u",), Grid.cell_centred((16,)), 0.1 * torch.arange(7), Boundary.all("periodic", 1),
        Conditions(forcings={"f": force}), "driven",
    )  # fmt: skip
    with pytest.raises(UserError, match="sent"):
        remote.rollout(trajectory, steps=3)
    assert sent["forcings.f"][:, 0].tolist() == [0.0, 2.0, 4.0, 6.0]
    with pytest.raises(UserError, match="'f' of the trajectory ends"):
        remote.rollout(trajectory, steps=4)
    with pytest.raises(UserError, match="a function cannot be sent"):
        remote.rollout(trajectory, times=[0.1])
