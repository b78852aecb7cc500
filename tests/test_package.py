"""The package as a user gets it: a wheel that needs no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from small import SMALLER

from ups.config.load import packaged_configs

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_works_in_a_fresh_environment_without_the_checkout(tmp_path):
    """The dependencies are lent by this environment through a .pth file; the package itself comes from the wheel."""
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, sources)
    (wheel,) = tmp_path.glob("*.whl")
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")

    assert "Usage: ups" in call(tmp_path / "venv" / "bin" / "ups", "--help")
    code = "import ups; from ups.config.load import packaged_configs; print(ups.__file__); print(*packaged_configs())"
    where, *names = call(python, "-c", code).split()
    assert Path(where).is_relative_to(site)
    assert names == list(packaged_configs())
    missing = [
        path for path in (ROOT / "src" / "ups").rglob("*.py") if not (site / path.relative_to(ROOT / "src")).exists()
    ]
    assert not missing

    call(tmp_path / "venv" / "bin" / "ups", "--quiet", "run", "quickstart", *SMALLER)
    assert (tmp_path / "runs" / "quickstart" / "report.html").is_file()
