"""The command line: help teaches and comes at once; mistakes end with one sentence and the right exit code."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import h5py
import pytest

import ups
from ups.cli.arguments import parse_settings, parse_times
from ups.errors import UserError

COMMANDS = [
    "",
    "run",
    "fit",
    "train",
    "finetune",
    "evaluate",
    "report",
    "simulate",
    "serve",
    "export",
    "push",
    "explain",
    "config",
    "bench",
    "check",
    "runs",
    "compare",
    "watch",
    "clean",
    "sweep",
    "data",
]
COMMANDS += [f"data {name}" for name in ("make", "fetch", "inspect", "stats", "convert")]
COMMANDS += ["store", "store build", "store verify", "plan", "track", "track sync", "launch"]
HEAVY = ["torch", "numpy", "matplotlib", "h5py"]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ups", *arguments], capture_output=True, text=True, check=False)


def call_planted(body: str) -> subprocess.CompletedProcess[str]:
    """Runs `ups planted`, a command added to the real ones, whose function has this body."""
    code = f"""
import os, signal, sys, typer
from ups.cli.main import app, main
from ups.errors import UserError
@app.command()
def planted() -> None:
    {body}
sys.argv = ["ups", "planted"]
main()
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_comes_at_once():
    took = [math.inf]
    while min(took) >= 0.8 and len(took) < 10:  # other processes may hold the cores for some time
        begin = time.perf_counter()
        answer = call("--help")
        took.append(time.perf_counter() - begin)
        assert answer.returncode == 0 and "Usage: ups" in answer.stdout
    assert min(took) < 0.8, took


@pytest.mark.parametrize(
    "statement", ["import ups", "import ups.cli.main", "from ups.cli.main import app; ups.__version__"]
)
def test_nothing_heavy_is_imported_before_a_command_runs(statement):
    code = f"import sys, ups\n{statement}\nprint([name for name in {HEAVY} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "3000"), ({"GOMP_SPINCOUNT": "9"}, "9"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_threads_are_told_not_to_spin_for_long_before_torch_is_loaded_unless_the_user_said_how(given, spins):
    code = "import os, sys, ups; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    plain = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain | given)
    assert answer.stdout.split() == ["False", spins]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example(command):
    answer = call(*command.split(), "--help")
    assert answer.returncode == 0
    assert re.search(rf"Example.*\n +ups {command}", answer.stdout)


def test_every_command_is_in_this_list():
    listed = set()
    for group in ("", "data", "store", "track"):
        section = call(*group.split(), "--help").stdout.split("Commands:")[1]
        listed |= {f"{group} {line.split()[0]}".strip() for line in section.strip().splitlines()}
    assert listed == set(COMMANDS) - {""}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fly"], "No such command"),
        (["run"], "Missing argument 'CONFIG'"),
        (["run", "quickstart", "--fast"], "No such option"),
        (["data", "make"], "error: give the name of an EQUATION"),
        (["data", "make", "advektion", "--list"], "did you mean advection?"),
        (["data", "fetch"], "error: give the NAME of a published file"),
        (["data", "convert", "a.hdf5", "b.hdf5"], "error: b.hdf5: say its layout with --format"),
        (["data", "make", "advection", "--out", "x", "--count", "many"], "Invalid value for '--count'"),
        (["data", "make", "advection", "--out", "x", "--set", "beta"], "error: --set beta: give NAME=VALUE"),
        (["data", "make", "advection", "--out", "x", "--set", "beta=fast"], "error: advection: beta is 'fast'"),
        (["data", "make", "heat", "--plugin", "nowhere.py"], "error: there is no plugin nowhere.py"),
        (["store", "verify", "nowhere"], "error: nowhere holds no store"),
        (["serve", "run", "--host", "0.0.0.0"], "error: host 0.0.0.0 can be reached by others; set a token"),
        (["simulate", "run", "in", "--out", "x.npz", "--steps", "3", "--times", "1"], "error: give --steps or --times"),
        (["simulate", "run", "in", "--out", "x.npz", "--steps", "3"], "error: in is not there"),
        (
            ["simulate", "run", "in", "--out", "x.png", "--steps", "3"],
            "error: --out x.png: the name ends in .npz or .nc",
        ),
        (
            ["simulate", "run", "in", "--out", "x.npz", "--times", "1,soon"],
            "error: --times 1,soon: 'soon' is not a number",
        ),
    ],
)
def test_bad_usage_exits_2_and_says_why(arguments, said):
    answer = call(*arguments)
    assert answer.returncode == 2
    assert said in answer.stderr and "Traceback" not in answer.stderr


def test_a_users_mistake_is_one_sentence_and_exit_2():
    answer = call_planted("raise UserError('x.yaml is empty; fill it')")
    assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", "error: x.yaml is empty; fill it\n")


def test_a_full_disk_is_the_users_to_mend():
    answer = call_planted("open('/dev/full', 'wb', buffering=0).write(b'x')")
    assert answer.returncode == 2 and "error: the disk is full" in answer.stderr


def test_a_bug_shows_its_traceback_and_exits_1():
    answer = call_planted("raise ZeroDivisionError('by nought')")
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr and "ZeroDivisionError: by nought" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("this is a bug in ups")


def test_an_interrupt_that_nothing_handles_exits_130_without_a_traceback():
    # A shell without job control starts background commands deaf to SIGINT, and they hand that on.
    hear = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    answer = call_planted(f"{hear}; os.kill(os.getpid(), signal.SIGINT)")
    assert (answer.returncode, answer.stderr) == (130, "interrupted\n")


def test_a_commands_own_exit_code_is_kept():
    assert call_planted("raise typer.Exit(75)").returncode == 75
    assert call_planted("print('done')").returncode == 0


def test_a_reader_that_leaves_early_is_no_bug():
    with subprocess.Popen(
        [sys.executable, "-m", "ups", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as help:
        assert help.stdout is not None and help.stderr is not None
        help.stdout.close()
        assert b"bug in ups" not in help.stderr.read()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_output_that_was_closed_at_the_start_goes_nowhere(closed):
    line = f"exec {sys.executable} -m ups --version {closed}"
    answer = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert bool(answer.stdout) == (closed == "2>&-")


def test_the_version_is_printed():
    answer = call("--version")
    assert answer.returncode == 0 and answer.stdout == f"ups {ups.__version__}\n"


def test_settings_and_times_become_numbers():
    assert parse_settings(["beta=0.4", " nu = 1e-3"]) == {"beta": 0.4, "nu": 1e-3}
    assert parse_times("0.1, 0.2") == [0.1, 0.2]
    with pytest.raises(UserError, match="NAME=VALUE"):
        parse_settings(["=3"])


@pytest.mark.parametrize(("name", "module"), ups.PUBLIC.items())
def test_every_public_name_is_there(name, module):
    assert getattr(ups, name) is getattr(import_module(module), name)
    assert name in dir(ups)


def test_a_name_that_is_not_there_says_what_is():
    with pytest.raises(AttributeError, match="Simulator, TaskSpec, connect, finetune, fit, generate, load"):
        _ = ups.simulate_everything


def test_data_that_are_made_can_be_inspected(tmp_path):
    made = call(
        "--quiet",
        "data",
        "make",
        "advection",
        "--points",
        "16",
        "--count",
        "3",
        "--set",
        "beta=0.5",
        "--out",
        str(tmp_path),
    )
    assert made.returncode == 0, made.stderr
    (path,) = made.stdout.splitlines()
    found = json.loads(call("data", "inspect", path, "--json").stdout)
    assert found["shape"] == {"samples": 3, "time": 41, "x": 16, "channels": 1}
    assert found["parameters"] == {"beta": [0.5]} and found["problems"] == []
    with h5py.File(path, "r+") as file:
        file["tensor"][0] = float("nan")  # a reader refuses this sample; the report must not be lost with it
    damaged = call("data", "inspect", path, "--plot", path)
    assert "problem " in damaged.stdout and "█" in damaged.stdout and "ends in .png" in damaged.stderr
    wrong = call("data", "make", "advection", "--count", "3", "--set", "bta=0.5", "--out", str(tmp_path))
    assert wrong.returncode == 2 and "did you mean beta?" in wrong.stderr
    half = call("data", "make", "advection", "--set", "points=16.5", "--out", str(tmp_path))
    assert half.returncode == 2 and "points is 16.5; give a whole number" in half.stderr
    unknown = call("data", "make", "advecton", "--out", str(tmp_path))
    assert unknown.returncode == 2 and "did you mean advection?" in unknown.stderr


def test_data_are_made_of_an_equation_of_the_users_own(tmp_path):
    plugin = Path(__file__).parents[1] / "examples" / "toy_equation.py"
    given = ["--plugin", str(plugin), "--count", "40", "--workers", "2", "--out", str(tmp_path)]  # workers know it, too
    made = call("--quiet", "data", "make", "heat", *given)
    assert made.returncode == 0, made.stderr
    found = json.loads(call("data", "inspect", made.stdout.strip(), "--task", "heat", "--json").stdout)
    assert found["shape"] == {"samples": 40, "time": 21, "x": 64, "channels": 1}
    assert "∂u/∂t = ν ∂²u/∂x²" in call("data", "make", "heat", "--list", "--plugin", str(plugin)).stdout
