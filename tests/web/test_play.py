"""The playground without a browser: what it computes is what Python computes, and it takes nothing else."""

from __future__ import annotations

import io
import json
import re
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import ups
from ups.equations import Burgers, Darcy
from ups.errors import UserError
from ups.web.files import Recording, written
from ups.web.page import page
from ups.web.play import Begin, Play, Playground, channels_first
from ups.web.wire import packed, unpacked

STEPS = 5


@pytest.fixture(scope="module")
def playground(finished_run):
    return Playground(ups.load(finished_run))


def begun(playground, task, name="random", seed=3, factor=1.0):
    shape = [round(factor * n) for n in playground.tasks[task].grid.shape]
    parameters = {n: p["default"] for n, p in playground.describe()["tasks"][task]["parameters"].items()}
    fields, static = playground.start(Begin(task=task, name=name, seed=seed, parameters=parameters, shape=shape))
    sent = {"fields": channels_first(fields).astype("f4")} | {n: f.numpy().astype("f4") for n, f in static.items()}
    return parameters, fields, sent


@torch.no_grad()
def played(playground, task, parameters, sent, **settings):
    return list(playground.play(Play(task=task, parameters=parameters, **settings), sent))


@given(arrays("f4", array_shapes(max_dims=3), elements=st.floats(width=32)), st.text(max_size=9))
def test_what_goes_over_the_wire_comes_back(array, word):
    told, found = unpacked(packed({"word": word, "gone": float("nan")}, {"a": array, "b": array[:1]}))
    assert told == {"word": word, "gone": None}
    assert np.array_equal(found["a"], array, equal_nan=True) and found["b"].shape == array[:1].shape


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0" * 7,
        struct.pack("<II", 2**31, 0),
        packed({}, {"a": np.zeros(3)})[:-4],
        struct.pack("<II", 16, 0) + b'{"arrays":[1,2]}',
        struct.pack("<II", 24, 0) + b'{"arrays":{"a":[-1, 4]}}',
    ],
)
def test_a_message_that_is_not_whole_is_refused_in_a_sentence(message):
    with pytest.raises(UserError, match="cannot be read"):
        unpacked(message)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("task", ["advection", "burgers"])
def test_frames_are_those_of_the_simulator_in_python(playground, task, factor):
    parameters, fields, sent = begun(playground, task, factor=factor)
    frames = played(playground, task, parameters, sent, steps=STEPS)
    result = playground.sim.rollout(fields.float(), STEPS, conditions=parameters, task=task)
    for frame, values, time in zip(frames, result.values, result.times.tolist(), strict=True):
        torch.testing.assert_close(frame.fields, values, rtol=0, atol=1e-6)
        assert frame.time == pytest.approx(time)


def test_the_reference_is_the_solution_that_the_equation_has(playground):
    parameters, _, sent = begun(playground, "burgers")
    frames = played(playground, "burgers", parameters, sent, steps=STEPS)
    own = Burgers(nu=parameters["nu"], points=128)
    right = own.solve(3, [0], torch.arange(STEPS + 1, dtype=torch.float64) * 0.05).values[0, 1:]
    for frame, values in zip(frames, right, strict=True):
        assert float((frame.truth - values).square().mean().sqrt() / values.square().mean().sqrt()) < 5e-3
        error = (frame.fields - frame.truth).square().mean().sqrt() / frame.truth.square().mean().sqrt()
        assert frame.numbers["error"] == pytest.approx(float(error), rel=1e-5)
        kept, true = frame.numbers["conserved"]["mean of u"]
        assert kept == pytest.approx(float(frame.fields.mean()), abs=1e-6)
        assert true == pytest.approx(float(values.mean()), abs=1e-6)
        assert sum(frame.numbers["spectrum"]["model"][0]) == pytest.approx(
            float(frame.fields.square().mean()), rel=1e-3
        )


def test_a_painted_coefficient_is_solved_by_both(playground):
    _, _, sent = begun(playground, "darcy")
    sent["a"][10:20, 10:20] = 1.0
    (frame,) = played(playground, "darcy", {}, sent)
    a = torch.from_numpy(sent["a"])
    same = playground.sim.rollout(conditions={"a": a}, task="darcy").values[0]
    torch.testing.assert_close(frame.fields, same, rtol=0, atol=1e-6)
    right = Darcy(points=len(a)).steady_state(a[None].double())[0, ..., None]
    torch.testing.assert_close(frame.truth, right, rtol=0, atol=1e-7)


def test_starts_are_the_same_for_the_same_seed_and_within_what_the_model_knows(playground):
    for task, told in playground.describe()["tasks"].items():
        for name in told["starts"]:
            _, one, first = begun(playground, task, name)
            assert torch.equal(one, begun(playground, task, name)[1]) and torch.isfinite(one).all()
            other = begun(playground, task, name, seed=4)[2]
            assert name == "flat" or any(not np.array_equal(first[n], other[n]) for n in first), name
            for field, (low, high) in told["spans"].items():
                if told["steady"] and field not in told["static"]:
                    continue  # is solved for
                values = first["fields"] if field not in told["static"] else first[field]
                slack = 0.2 * (high - low) if name == "random" else 1e-6
                assert low - slack <= values.min() and values.max() <= high + slack


def test_a_step_of_another_length_is_warned_of_once(playground):
    parameters, _, sent = begun(playground, "burgers")
    frames = played(playground, "burgers", parameters, sent, steps=3, dt=0.08, solver=False)
    assert "outside the lead times" in frames[0].numbers["notes"][0]
    assert not any("lead times" in note for frame in frames[1:] for note in frame.numbers["notes"])
    assert frames[2].time == pytest.approx(0.24) and frames[0].truth is None


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda sent: sent.pop("fields"), "give fields"),
        (lambda sent: sent.update(fields=sent["fields"][0]), "numbers from 4"),
        (lambda sent: sent.update(fields=sent["fields"][:, :3]), "numbers from 4"),
        (lambda sent: sent["fields"].fill(np.nan), "NaN"),
        (lambda sent: sent.update(fields=np.concatenate([sent["fields"]] * 2)), "other channels"),
        (lambda sent: sent.update(other=sent["fields"]), "the arrays are"),
    ],
)
def test_fields_that_do_not_do_are_refused_in_a_sentence(playground, spoil, sentence):
    parameters, _, sent = begun(playground, "advection")
    spoil(sent)
    with pytest.raises(UserError, match=sentence):
        playground.play(Play(task="advection", parameters=parameters), sent)


@pytest.mark.parametrize(("kind", "where"), [("nc", "u"), ("pdebench", "tensor"), ("well", "t0_fields/u")])
def test_a_recording_is_written_in_the_layouts_of_others(playground, tmp_path, kind, where):
    parameters, _, sent = begun(playground, "burgers")
    frames = [sent["fields"]] + [
        channels_first(f.fields) for f in played(playground, "burgers", parameters, sent, steps=4)
    ]
    told = {"task": "burgers", "times": [0.05 * t for t in range(5)], "parameters": parameters}
    path = tmp_path / f"played.{'nc' if kind == 'nc' else 'hdf5'}"
    path.write_bytes(written(Recording.of(told, {"fields": np.stack(frames)}, playground.tasks), kind))
    batch = ups.open_dataset(path, "burgers").read([0], slice(None))
    np.testing.assert_array_equal(batch.values[0, ..., 0].numpy(), np.stack(frames)[:, 0])
    np.testing.assert_allclose(batch.times[0].numpy(), told["times"])
    import h5py

    with h5py.File(io.BytesIO(path.read_bytes())) as file:
        assert where in file


def test_a_format_that_would_lose_conditions_is_refused(unlike):
    task, one = unlike[1], np.ones((8, 12), "f4")
    told, arrays = {"task": "obstacle", "times": [0.0, 0.1], "parameters": {}}, {"a": one, "f": one, "mask": one}
    recording = Recording.of(told, arrays | {"fields": np.ones((2, 1, 8, 12), "f4")}, {"obstacle": task})
    with pytest.raises(UserError, match=r"do not keep .*the mask; download netCDF instead"):
        written(recording, "pdebench")
    with pytest.raises(UserError, match="a, f, mask have other points"):
        Recording.of(told, {**arrays, "fields": np.ones((2, 1, 4, 12), "f4")}, {"obstacle": task})


def test_the_page_asks_for_nothing_from_elsewhere():
    text = page(["remote.js"], {"weights": "AAAA"}, "A & B")
    assert not re.search("{{[A-Z]+}}", text) and '<script type="text/plain" id="weights">AAAA</script>' in text
    assert "<title>A &amp; B</title>" in text
    assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)=(?!\"data:,\")|@import|url\(", text)


def test_data_cannot_end_the_script_that_holds_them():
    with pytest.raises(UserError, match="ends the script"):
        page(["remote.js"], {"bad": "</Script><script>"})


def test_what_is_told_of_the_tasks_is_plain(playground):
    told = json.loads(json.dumps(playground.describe(), allow_nan=False))
    assert set(told["tasks"]) == {"advection", "burgers", "darcy"}
    assert told["tasks"]["darcy"]["static"] == ["a"] and told["tasks"]["burgers"]["parameters"]["nu"]["low"] == 0.01
