"""One toy bench of the universal configuration for all tests of it and of what is measured on its runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_universal import DATA, HASTE, RIVAL, SECONDS, TASKS

from ups.pipeline.bench import universal


@pytest.fixture(scope="session")
def universal_bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, of which the first has FNOs beside it."""
    out = tmp_path_factory.mktemp("universal")
    universal(SECONDS, (0, 1), out, [*TASKS, *DATA, *HASTE, RIVAL], rivals_once=True)
    return out
