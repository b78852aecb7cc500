"""What the documentation says is so: its code runs, its commands are those of `ups`, its links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
import yaml
from documents import PAGES, ROOT, Block, anchors, blocks, commands, links
from PIL import Image
from serving import Served
from small import GENERATIVE, SMALLER
from typer.testing import CliRunner

import ups
from ups import pipeline
from ups.cli.main import app
from ups.equations import Burgers
from ups.pipeline.config import load_run
from ups.pipeline.finetune import finetune
from ups.pipeline.fit import fit
from ups.web.settings import ServerSettings

ALL = [block for page in PAGES for block in blocks(page)]
TARGETS = {*re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()}
PACKAGED = {path.stem for path in (ROOT / "src" / "ups" / "config").glob("*.yaml")}
OVERRIDE = re.compile(r"[a-z][\w.]*=\S+")
LONG = ("fit.md", "tutorial.md", "finetune.md", "generative.md")
"""Pages whose Python trains something."""


NEEDED = {
    'device="cuda"': torch.cuda.is_available(),
    "onnxruntime": find_spec("onnxruntime") is not None,
    "hf://": False,
}
"""What a page's Python is left out for, where it is not there."""
STEADY = [
    "tasks.darcy.make.trajectories=16",
    "tasks.darcy.make.settings.points=16",
    "stages.operator.modes=4",
    *(f"stages.{stage}.{size}" for stage in ("operator", "codec", "steady") for size in ("width=8", "depth=1")),
    *(f"stages.{stage}.training.steps=10" for stage in ("codec", "steady")),
    "training.steps=10",
    "training.validate_every=5",
    "evaluation.members=3",
    "evaluation.resamples=100",
    "data.workers=1",
    "runtime.threads=1",
]
"""`ups run steady` in seconds."""


def of(*kinds: str) -> list[Block]:
    return [block for block in ALL if block.kind in kinds]


def test_there_are_blocks_of_every_kind() -> None:
    assert len(of("commands")) > 40 and len(of("python")) > 8 and len(of("yaml")) > 4
    assert {block.page.name for block in of("python")} >= {"README.md", "inference.md", *LONG}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        if "://" not in link:
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            generated = target.parent == ROOT / "docs" / "reference"  # of the site, by scripts/pages.py
            if not generated and not (target.exists() and (not anchor or anchor in anchors(target))):
                dead.append(link)
    assert not dead


def test_every_page_is_in_the_site_s_contents() -> None:
    def listed(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from listed(inner)

    nav = {*listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= nav


@pytest.mark.parametrize("block", of("commands"), ids=str)
def test_commands_are_those_that_there_are(block: Block) -> None:
    for program, *words in commands(block):
        if program == "ups":
            parsed_by_ups(words)
        elif program == "make":
            assert words[0] in TARGETS
        elif program == "python" and words[0].endswith(".py"):
            text = (ROOT / words[0]).read_text()
            assert all(f'"{word.split("=")[0]}"' in text for word in words if word.startswith("--"))
        elif program == "python" and words[0] == "-m" and words[1].startswith("ups."):
            assert (ROOT / "src" / f"{words[1].replace('.', '/')}.py").is_file()


def parsed_by_ups(words: list[str]) -> None:
    """By the parser itself, without running it: known options, choices, numbers, enough arguments; known overrides."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("ups", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(context, list(words))
        context = type(context)(command, info_name=name, parent=context)
    given, left, _ = command.make_parser(context).parse_args(list(words))
    assert not left
    for parameter in command.params:
        value = given.get(parameter.name)
        assert value or not parameter.required, f"{command.name} lacks {parameter.name}"
        if value and parameter.name != "help" and not (isinstance(value, str) and value.isupper()):  # RUN, N
            parameter.process_value(context, value)
    if given.get("config") in PACKAGED:
        load_run(given["config"], [word.split(",")[0] for word in given.get("overrides") or () if OVERRIDE.match(word)])


def test_a_wrong_command_is_found() -> None:
    for wrong in (
        "fit",
        "runn x",
        "train quickstart --gpu 8",
        "train quickstart --gpus many",
        "run quickstart width=3",
    ):
        with pytest.raises(Exception):  # noqa: B017  (of several libraries)
            parsed_by_ups(wrong.split())


@pytest.mark.parametrize("block", [block for block in of("yaml") if "plugins:" not in block.text], ids=str)
def test_configurations_are_valid(block: Block, tmp_path: Path) -> None:
    values = yaml.safe_load(block.text)
    assert isinstance(values, dict)
    if "tasks" in values or "stages" in values:
        named = ["burgers", *(["darcy"] if "darcy" in block.text else [])]
        made = ", ".join(f"{name}: {{make: {{equation: {name}, trajectories: 9}}}}" for name in named)
        (tmp_path / "written.yaml").write_text(("" if "tasks" in values else f"tasks: {{{made}}}\n") + block.text)
        load_run(tmp_path / "written.yaml", [])


@pytest.fixture
def reader(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a reader has: a trained quickstart, in a folder of their own, and the arrays that pages speak of."""
    shutil.copytree(finished_run, tmp_path / "runs" / "quickstart", ignore=shutil.ignore_patterns("store"))
    monkeypatch.chdir(tmp_path)
    x = (torch.arange(128) + 0.5) / 128
    u0 = torch.sin(2 * torch.pi * x)[:, None]
    nu = np.linspace(0.005, 0.05, 12)
    t = np.arange(21)[:, None] * 0.05
    u = np.stack([np.exp(-n * 40 * t) * np.sin(2 * np.pi * (x[None, ::4].numpy() - 0.3 * t + 9 * n)) for n in nu])
    return {
        "ups": ups,
        "torch": torch,
        "np": np,
        "u0": u0,
        "starts": torch.stack([u0, 2 * u0]),
        "betas": torch.tensor([0.2, 0.4]),
        "u": u[..., None],
        "nu": nu,
        "truth": torch.zeros(40, 128, 1),
        "history": torch.zeros(1, 1, 128, 1),
        "static": {},
        "parameters": {"beta": torch.tensor([0.4])},
        "lead": torch.tensor([0.05]),
        "a": torch.ones(1, 32, 32),
    }


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_is_python_that_names_what_there_is(block: Block) -> None:
    """Names of `ups`, and the arguments of its functions and of rollouts."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ups":
            assert node.attr in ups.__all__
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_ups = isinstance(node.func.value, ast.Name) and node.func.value.id == "ups"
            called = getattr(ups, node.func.attr) if of_ups else {"rollout": ups.Simulator.rollout}.get(node.func.attr)
            given = [*node.args] if of_ups else [None, *node.args]
            if called is not None:
                inspect.signature(called).bind_partial(*given, **{word.arg: None for word in node.keywords if word.arg})


def executed(page: str, words: dict[str, Any], without: tuple[str, ...] = ()) -> None:
    """All Python of a page, in order, but what needs a GPU, a network or an optional package."""
    for block in of("python"):
        lacks = [word for word, there in NEEDED.items() if word in block.text and not there]
        if block.page.name == page and not lacks and not any(word in block.text for word in without):
            exec(compile(block.text, str(block), "exec"), words)


def test_the_readme_s_example_runs(reader: dict[str, Any]) -> None:
    executed("README.md", reader, without=("ups.fit(",))
    assert reader["result"].values.shape == (2, 3, 3, 1) and reader["beta"].grad is not None


def test_the_notebook_runs(reader: dict[str, Any]) -> None:
    shown = 0
    for cell in json.loads((ROOT / "examples" / "tour.ipynb").read_text())["cells"]:
        assert not cell.get("outputs")  # they are made anew, not kept
        if cell["cell_type"] == "code":
            *statements, last = ast.parse("".join(cell["source"])).body
            if not isinstance(last, ast.Expr):
                statements, last = [*statements, last], None
            exec(compile(ast.Module(statements, []), "tour.ipynb", "exec"), reader)
            result = None if last is None else eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), reader)
            if result is not None:
                shown += "<" in result._repr_html_()
    assert shown == 5 and reader["loss"] < 1 and any("nu" in each for each in reader["batch"].warnings)


@pytest.mark.slow
def test_the_readme_s_picture_is_made_by_its_command(reader: dict[str, Any]) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "film.py", "runs/quickstart", "made.gif"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kept = ROOT / "docs" / "pictures" / "quickstart.gif"
    with Image.open("made.gif") as made, Image.open(kept) as shown:
        assert made.size == shown.size and shown.n_frames == 41
    assert kept.stat().st_size <= 300_000 and "docs/pictures/quickstart.gif" in (ROOT / "README.md").read_text()


@pytest.mark.usefixtures("plugins_are_forgotten")
def test_the_plugin_on_the_page_about_extending_is_trained_and_judged(tmp_path: Path) -> None:
    page = [block for block in ALL if block.page.name == "extending.md"]
    (tmp_path / "mine.py").write_text(next(block.text for block in page if block.kind == "python"))
    (tmp_path / "mine.yaml").write_text(next(block.text for block in page if block.kind == "yaml"))
    small = [
        "tasks.advection.make.trajectories=12",
        "tasks.advection.make.settings.points=32",
        "stages.shifted.modes=4",
    ]
    small += ["training.steps=6", "training.validate_every=3", "data.workers=1", "runtime.threads=1"]
    pipeline.run(str(tmp_path / "mine.yaml"), [*small, "evaluation.resamples=100"], tmp_path / "runs")
    scores = json.loads((tmp_path / "runs" / "mine" / "metrics.json").read_text())["tasks"]["advection"]["rollout"]
    assert scores["peak_error"].keys() >= {"model", "pointwise", "persistence"}


@pytest.mark.slow
def test_the_page_on_trained_models_runs(reader: dict[str, Any]) -> None:
    executed("inference.md", reader)
    assert reader["result"].values.shape == (40, 128, 1) and reader["result"].values.isfinite().all()


@pytest.mark.slow
def test_the_page_on_handing_models_over_runs(reader: dict[str, Any]) -> None:
    wanted = ["advection.pt2", "darcy.pt2", *(["burgers.onnx"] if NEEDED["onnxruntime"] else [])]
    for file in wanted:
        done = CliRunner().invoke(app, ["export", "runs/quickstart", file, "--task", Path(file).stem])
        assert done.exit_code == 0, done.output
    executed("share.md", reader, without=("onnxruntime",))
    assert reader["state"].isfinite().all() and reader["state"].shape == (1, 32, 32, 1)
    if NEEDED["onnxruntime"]:
        arrays = {"history": reader["history"].numpy(), "lead": reader["lead"].numpy(), "nu": np.float32([0.01])}
        words = reader | arrays | {"onnxruntime": import_module("onnxruntime")}
        executed("share.md", words, without=("torch.export",))
        assert words["state"].shape == (1, 128, 1)


@pytest.mark.slow
def test_the_page_on_sensors_runs(reader: dict[str, Any], finished_run: Path) -> None:
    shutil.copytree(finished_run / "store", "runs/quickstart/store")  # which says what states are like
    x, times = np.arange(8) / 8, 0.05 * np.arange(1, 5)
    seen = {"points": x[:, None], "times": times, "observations": np.tile(np.sin(2 * np.pi * x)[:, None], (4, 1, 1))}
    executed("assimilation.md", reader | seen)


@pytest.mark.slow
def test_the_page_on_fine_tuning_runs(reader: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In ten steps, on another system of that name."""
    shutil.copytree("runs/quickstart", "runs/universal")
    ups.generate(Burgers(points=64, nu=0.1, frames=11, duration=0.5), 20, 0, Path("heat.hdf5"), workers=1)
    short = {"steps": 10, "overrides": ["evaluation.resamples=100", "data.workers=1", "runtime.threads=1"]}
    monkeypatch.setattr(ups, "finetune", lambda *given, **words: finetune(*given, **(words | short)), raising=False)
    executed("finetune.md", reader)
    assert reader["done"].task == "heat" and Path("runs/universal-heat/report.html").is_file()


@pytest.mark.slow
def test_the_page_on_ensembles_runs(reader: dict[str, Any]) -> None:
    pipeline.run("generative", GENERATIVE, Path("runs"))
    pipeline.run("steady", STEADY, Path("runs"))
    known = torch.rand(16, 16) < 0.1
    executed("generative.md", reader | {"u0": reader["u0"][::2], "a": torch.ones(16, 16), "known": known.float()})


@pytest.mark.slow
def test_the_page_on_lightning_runs(reader: dict[str, Any]) -> None:
    """As a script, for it starts one more process; in a few steps."""
    pytest.importorskip("lightning")
    (block,) = (block for block in of("python") if block.page.name == "lightning.md")
    assert '["training.steps=2000"]' in block.text
    Path("page.py").write_text(block.text.replace('["training.steps=2000"]', repr([*SMALLER, "training.steps=4"])))
    done = subprocess.run([sys.executable, "page.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and Path("quickstart.ckpt").is_file(), done.stderr


def test_the_page_on_serving_runs(reader: dict[str, Any]) -> None:
    served = Served(ups.load("runs/quickstart"), ServerSettings(port=0))
    try:
        for block in of("python"):
            if block.page.name == "serving.md" and ("pyarrow" not in block.text or find_spec("pyarrow")):
                assert "http://127.0.0.1:8000" in block.text
                exec(block.text.replace("http://127.0.0.1:8000", served.url), reader)
        assert reader["sim"].url == served.url
        if "values" in reader:
            np.testing.assert_allclose(reader["values"], reader["result"].values, atol=1e-4)  # u0 in double
    finally:
        served.stop()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "tutorial.md", "fit.md"])
def test_the_pages_that_train_run(reader: dict[str, Any], page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ten seconds instead of two minutes."""
    monkeypatch.setattr(ups, "fit", lambda *given, **words: fit(*given, **(words | {"budget": "10 s"})), raising=False)
    np.save("my_simulations.npy", reader["u"])
    executed(page, reader)
    assert reader["sim"].run.is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "count"), [("tutorial.md", 3), ("share.md", 5)])
def test_the_commands_of_a_page_run(reader: dict[str, Any], page: str, count: int) -> None:
    """But those that train, serve or publish."""
    shutil.copytree("runs/quickstart", "runs/wider")
    ran = []
    for program, *words in (each for block in of("commands") if block.page.name == page for each in commands(block)):
        if program == "ups" and words[0] in ("data", "simulate", "compare", "export"):
            ran.append(words)
            if NEEDED["onnxruntime"] or not any(word.endswith(".onnx") for word in words):
                done = CliRunner().invoke(app, words)
                assert done.exit_code == 0, (words, done.output)
    assert len(ran) == count


def test_make_docs_hears_of_dead_links() -> None:
    """--quiet hides warnings from --strict too."""
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text())
    assert "--strict" in command and "quiet" not in command


@pytest.mark.slow
def test_the_site_is_built_without_a_complaint(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
