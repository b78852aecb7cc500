"""What stands above a task in the report."""

from __future__ import annotations

import pytest

from ups.equations.named import EQUATIONS
from ups.report.assemble import heading


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_task_with_an_equation_is_headed_by_it(name):
    assert heading(name) == (EQUATIONS[name].title, EQUATIONS[name].formula)


def test_a_task_without_an_equation_shows_its_name_alone():
    assert heading("shock_tube") == ("shock_tube", "")
