"""What equations and their files are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups.equations import Compressible2D
from ups.equations.named import EQUATIONS
from ups.equations.schemes.euler import Gas

DOCS = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_table_names_the_files_the_defaults_write():
    rows = [line.replace("\\|", "/").split(" | ") for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    named = {row[0].strip("| `"): row[4] for row in rows if len(row) == 6}
    assert set(named) == set(EQUATIONS)
    for name, equation in EQUATIONS.items():
        file = equation().published_name
        assert f"`{file}`" in named[name]


@pytest.mark.parametrize("name", EQUATIONS)
def test_every_equation_has_a_title_and_the_formula_of_its_description(name):
    equation = EQUATIONS[name]
    assert equation.title and [e.title for e in EQUATIONS.values()].count(equation.title) == 1
    said = "".join(f"{equation.__doc__} {Gas.__doc__ if 'compressible_' in name else ''}".split())
    assert "".join(equation.formula.split(", ")[0].split()) in said


def test_open_sides_are_called_as_readers_know_them():
    name = Compressible2D(boundary_kind="open").published_name
    assert name == "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_trans_128_Train.hdf5"
