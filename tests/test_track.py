"""Events, environment, progress: what a run leaves behind is whole, readable and says nothing of who ran it."""

from __future__ import annotations

import getpass
import io
import json
import os
import platform
import pty
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ups.errors import UserError
from ups.track import progress as progress_module
from ups.track.environment import environment
from ups.track.jsonl import Events, read_events
from ups.track.progress import Progress


@contextmanager
def files_at_most(size: int):
    """The system refuses to let files grow past `size` bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_event_is_on_disk_before_the_next_line_of_code(tmp_path):
    events = Events(tmp_path / "events.jsonl")
    events.write("step", step=1, loss=torch.tensor(0.5), path=Path("a/b"), parts=(1, 2.5))
    (event,) = read_events(tmp_path / "events.jsonl")
    assert (event["kind"], event["step"], event["loss"], event["path"]) == ("step", 1, 0.5, "a/b")
    assert event["parts"] == [1, 2.5] and event["seconds"] >= 0 and event["time"].endswith("+00:00")
    events.close()


def test_every_line_is_strict_json_even_when_the_loss_is_not_a_number(tmp_path):
    with Events(tmp_path / "e.jsonl") as events:
        events.write("step", loss=float("nan"), worst=torch.tensor([1.0, float("inf")]))
    line = (tmp_path / "e.jsonl").read_text()
    event = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert event["loss"] is None and event["worst"] == [1.0, None]


@given(cut=st.integers(min_value=0, max_value=10_000))
def test_a_file_cut_anywhere_reads_back_its_whole_lines_and_goes_on(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    with Events(path) as events:
        for step in range(4):
            events.write("step", step=step)
    whole = path.read_bytes()[: cut % (path.stat().st_size + 1)]
    path.write_bytes(whole)
    kept = list(range(whole.count(b"\n")))
    assert [event["step"] for event in read_events(path)] == kept
    with Events(path) as events:
        events.write("step", step=99)
    assert [event["step"] for event in read_events(path)] == [*kept, 99]


def test_damage_inside_a_file_is_said_and_the_rest_is_read(tmp_path):
    (tmp_path / "e.jsonl").write_text('{"kind": "a"}\n{"kind": \n{"kind": "b"}\n')
    with pytest.warns(UserWarning, match="line 2 is damaged"):
        assert [event["kind"] for event in read_events(tmp_path / "e.jsonl")] == ["a", "b"]


def test_a_full_disk_loses_no_event_and_warns_once(tmp_path):
    path = tmp_path / "events.jsonl"
    with Events(path) as events:
        events.write("step", step=0)
        room = path.stat().st_size + 20  # the next line is cut after 20 bytes
        with files_at_most(room), pytest.warns(UserWarning, match="they wait in memory") as caught:
            for step in range(1, 5):
                events.write("step", step=step)
            assert path.stat().st_size == room
        assert len(caught) == 1
        events.write("step", step=5)
        assert [event["step"] for event in read_events(path)] == [0, 1, 2, 3, 4, 5]


def test_events_that_are_lost_in_the_end_are_counted():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    events = Events("/dev/full")
    with pytest.warns(UserWarning) as caught:
        events.write("step")
        events.write("step")
        events.close()
    assert "2 events could not be written" in str(caught[-1].message)


def test_a_diary_that_cannot_be_opened_is_the_users_to_mend(tmp_path):
    with pytest.raises(UserError, match="cannot write events"):
        Events(tmp_path / "nowhere" / "events.jsonl")


def test_a_field_cannot_hide_the_time(tmp_path):
    with Events(tmp_path / "e.jsonl") as events, pytest.raises(TypeError, match="seconds"):
        events.write("step", seconds=3)


def test_the_environment_says_what_ran_and_not_who_or_where():
    found = environment()
    text = json.dumps(found)
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["torch"]["version"] == torch.__version__
    assert found["cpu"]["count"] >= found["cpu"]["usable"] >= 1
    assert str(Path.home()) not in text and platform.node() not in text
    assert f'"{getpass.getuser()}"' not in text


def test_the_environment_keeps_paths_addresses_and_secrets_back(monkeypatch):
    private = {
        "NCCL_TOPO_FILE": "/home/ann/topo.xml",
        "NCCL_NET_PLUGIN": "/opt/site/libplugin.so",
        "NCCL_COMM_ID": "10.1.2.3:5000",
        "NCCL_HOSTID": "node7",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/home/ann/runs/dump_",
        "TORCH_HUB_TOKEN": "hunter2",
        "UPS_RUN": "/home/ann/runs/x",
        "UPS_FAULT": "kill at update rank 1 step 12",
    }
    for name, value in {**private, "WANDB_API_KEY": "hunter3", "NCCL_ALGO": "^Ring,Tree", "UPS_GRACE": "4"}.items():
        monkeypatch.setenv(name, value)
    variables = environment()["variables"]
    assert {name: variables[name] for name in private} == dict.fromkeys(private, "set")
    assert variables["NCCL_ALGO"] == "^Ring,Tree" and variables["UPS_GRACE"] == "4"
    assert "WANDB_API_KEY" not in variables


def test_the_environment_names_the_commit_of_a_checkout():
    folder = Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False)
    if commit.returncode:
        pytest.skip("not run from a git checkout")
    git = environment()["git"]
    assert git is not None and git["commit"] == commit.stdout.strip() and git["changed"] in (True, False)


def test_a_log_gets_a_line_each_interval_and_one_at_the_end(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress_module, "monotonic", lambda: now)
    with Progress("training", total=400, unit="steps", start=160) as progress:
        for step in range(161, 401):
            now += 0.125
            progress.update(step, f"loss {1 / step:.4f}")
    assert capsys.readouterr().out.splitlines() == [
        "training: 240/400 steps, 8.0/s, 20 s left, loss 0.0042",
        "training: 320/400 steps, 8.0/s, 10 s left, loss 0.0031",
        "training: 400/400 steps in 30 s, 8.0/s, loss 0.0025",
    ]


def test_a_log_is_not_silent_while_the_first_unit_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(progress_module, "LOG_INTERVAL", 0.05)
    with Progress("burgers", total=100, unit="trajectories"):
        time.sleep(0.3)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "burgers: 0/100 trajectories, 0 s so far" and last.startswith("burgers: 0/100 trajectories in")


def test_a_quiet_progress_prints_nothing(capsys, monkeypatch):
    with Progress("a", total=1, quiet=True) as progress:
        progress.update(1)
    monkeypatch.setattr(Progress, "silent", True)
    with Progress("a", total=1) as progress:
        progress.update(1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [1, 5, 10, 20, 40, 60, 80, 200])
@pytest.mark.parametrize("done", [0, 7, 2400, 3000])
def test_the_display_is_one_line_that_fits_any_terminal(width, done):
    progress = Progress("training", total=2400)
    progress._began -= 60
    progress.update(done, "loss 0.012")
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(progress)
    (line,) = out.getvalue().splitlines()
    assert len(line) <= width
    if width >= 80:
        assert "2400 steps" in line and "loss 0.012" in line


def test_a_terminal_shows_the_end_and_gets_its_cursor_back():
    parent, child = pty.openpty()
    code = (
        "from ups.track.progress import Progress\n"
        "with Progress('training', total=3) as p:\n"
        "    for n in range(1, 4): p.update(n, f'loss {n}')\n"
    )
    subprocess.run([sys.executable, "-c", code], stdout=child, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(child)
    shown = os.read(parent, 100_000).decode()
    os.close(parent)
    assert "3/3 steps" in shown and "loss 3" in shown and shown.rstrip().endswith("\x1b[?25h")
