"""The table of faults says what happened, also where a test failed or was left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from matrix import Matrix, Row

TESTS = """
import time
import pytest

def test_fault_07_a_rank_dies(matrix):
    matrix.row(7, fault="SIGKILL", required="survives", seen="survived | resumed", detect=0.25, recover=12, repeated=3)

def test_fault_05_a_rank_fails(matrix):
    assert 1 == 2, "the parameters differ"

@pytest.mark.skip(reason="needs a GPU")
def test_fault_23_a_node_is_lost(matrix):
    pass

@pytest.mark.limit(0.2)
def test_fault_09_a_rank_hangs(matrix):
    matrix.row(9, fault="a rank sleeps", required="found", seen="found")
    time.sleep(30)
"""


def test_a_session_writes_its_rows_in_order_with_failures_skips_and_time_outs(tmp_path):
    here = Path(__file__).parent
    (tmp_path / "tests" / "faults").mkdir(parents=True)
    for file in (*here.parent.glob("*.py"), *here.glob("*.py")):
        if not file.name.startswith("test_"):
            shutil.copy(file, tmp_path / "tests" / file.relative_to(here.parent))
    (tmp_path / "tests" / "faults" / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = limit: seconds\n")
    document = tmp_path / "faults.md"
    document.write_text("# Faults\n\nWords.\n\n<!-- matrix -->\nold\n<!-- /matrix -->\n\nA table of the GPU.\n")
    command = [sys.executable, "-m", "pytest", "tests", "-q", "--write-matrix", str(document)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert run.returncode == 1 and "2 failed, 1 passed, 1 skipped" in run.stdout, run.stdout + run.stderr
    text = document.read_text()
    assert text.startswith("# Faults\n\nWords.\n") and text.endswith("\n\nA table of the GPU.\n") and "old" not in text
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [line.split("|")[1].strip() for line in lines] == ["5", "7", "9", "23"]
    assert "a rank fails" in lines[0] and "FAILED: AssertionError: the parameters differ" in lines[0]
    assert lines[1] == "| 7 | SIGKILL | survives | survived \\| resumed | 0.25 s | 12 s | 3 |"
    assert "| a rank sleeps | found | FAILED: TimeoutError" in lines[2]
    assert "skipped: needs a GPU" in lines[3]
    assert "4 lines, 2 failed, 1 skipped" in text and "pytest tests -q --write-matrix" in text


def test_a_new_document_and_one_without_marks_get_the_table(tmp_path):
    matrix = Matrix()
    matrix.add("test_fault_01_x", Row(1, "out of memory", "survives", "survived"))
    for before in (None, "# Faults\n\nWords.\n"):
        path = tmp_path / "faults.md"
        path.unlink(missing_ok=True)
        if before:
            path.write_text(before)
        matrix.write(path, "make faults")
        once = path.read_text()
        assert once.count("| 1 | out of memory | survives | survived | – | – | – |") == 1
        assert once.startswith(before or "# Faults\n")
        matrix.write(path, "make faults")
        assert path.read_text() == once
