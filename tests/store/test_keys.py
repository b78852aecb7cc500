"""A store is of its data and of what its columns mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small import Solved

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import statistics
from ups.equations import Compressible1D
from ups.errors import UserError
from ups.store.fields import FieldStore

EQUATION = Compressible1D(points=16, eta=0.02, zeta=0.01, frames=3, duration=0.1)


@pytest.mark.parametrize("names", [("zeta", "eta"), ("eta",)])
def test_parameters_are_never_read_under_another_s_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    data, spec = Solved(EQUATION, 3), EQUATION.task()
    assert spec.parameters == ("eta", "zeta")
    FieldStore.build(tmp_path / "s", data, Normaliser(spec, statistics(data, spec)))
    other = replace(spec, parameters=names)
    with pytest.raises(UserError, match="of other data or settings"):
        FieldStore.build(tmp_path / "s", data, Normaliser(other, statistics(data, other)))
