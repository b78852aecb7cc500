"""What surrounds the code is as true as the code: workflows, citation, release, and where the package does not run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import ups
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.simulator import Simulator

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = {*re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_only_and_runs_pinned_actions(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert content["permissions"] == {"contents": "read"}  # jobs may be given more, one by one
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 60 and job["runs-on"] != "ubuntu-latest"
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
            else:
                words = step["run"].split()
                assert words[1] in TARGETS if words[0] == "make" else (ROOT / words[0]).stat().st_mode & 0o100


def test_the_forms_for_issues_ask_something() -> None:
    for path in FORMS:
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert form["name"] and form["description"]
            assert all(part["type"] == "textarea" and part["attributes"]["label"] for part in form["body"])
    assert {path.stem for path in FORMS} >= {"bug", "idea", "config"}


def test_hooks_are_local_and_run_tools_of_the_environment() -> None:
    (source,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert source["repo"] == "local"
    dev = " ".join(PROJECT["optional-dependencies"]["dev"])
    for hook in source["hooks"]:
        tool = hook["entry"].split()[0]
        assert hook["language"] == "system"
        assert tool in ("bash", ".venv/bin/python") or tool.removeprefix(".venv/bin/") in dev


def test_the_citation_is_of_this_version_and_invents_nobody() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format demands
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["authors"] == [{"name": "Universal Physics Stack"}]


def test_what_contributors_are_told_to_read_and_run_is_there() -> None:
    for page in ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md"):
        text = (ROOT / page).read_text()
        links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
        named = re.findall(r"`((?:tests|scripts|docs)/[\w./]+)`", text)
        assert all((ROOT / place).exists() for place in [*links, *named]), page
        assert {*re.findall(r"(?:`|^    )make ([a-z]+)", text, re.M)} <= TARGETS, page


def test_windows_is_refused_in_a_sentence() -> None:
    code = "import sys; sys.platform = 'win32'; import ups"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: UPS does not run on Windows itself: it locks")
    assert "WSL 2" in done.stderr


def test_training_elsewhere_than_on_linux_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match=r"run on Linux alone.*ups\.load"), Runtime.start(RuntimeConfig(), 0):
        pass


def test_apple_s_gpus_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"device is 'mps', but Apple's GPUs have no float64"):
        ups.load(tmp_path, device="mps")

    class Anything:
        tasks: dict = {}  # noqa: RUF012

    with pytest.raises(UserError, match="'mps'"):
        Simulator(Anything()).to("mps")  # type: ignore[arg-type]
