"""Subsets and joined datasets read as their parts do, in any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import batch_of, header_of, write

from ups.data.formats.pdebench.arrays import TensorFile
from ups.data.formats.well.writer import WellWriter
from ups.data.generate.make import generate
from ups.data.joined import Joined, Subset
from ups.data.open import open_dataset
from ups.equations import Advection, Burgers
from ups.errors import UserError


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joined")
    return [
        TensorFile(generate(Advection(points=8, beta=beta, frames=3), count, 0, folder / f"{beta}.hdf5"))
        for beta, count in ((0.1, 3), (0.4, 5), (1.0, 2))
    ]


@settings(max_examples=25, deadline=None)
@given(indices=st.lists(st.integers(0, 9), max_size=12), start=st.integers(0, 2))
def test_the_joined_whole_reads_as_its_parts(parts, indices, start):
    batch = Joined(parts).read(indices, slice(start, None))
    owners = [(0, 0)] * 3 + [(1, 3)] * 5 + [(2, 8)] * 2
    assert batch.ids.tolist() == indices and batch.values.shape[:2] == (len(indices), 3 - start)
    for row, index in enumerate(indices):
        part, offset = owners[index]
        single = parts[part].read([index - offset], slice(start, None))
        assert torch.equal(batch.values[row], single.values[0])
        assert batch.parameters["beta"][row] == single.parameters["beta"][0]


def test_what_is_joined_says_which_parameters_differ(parts):
    assert Joined(parts).header.parameters == {"beta": None} and Joined(parts[:1]).header.parameters["beta"] is not None


def test_a_subset_keeps_its_order_and_counts_its_own_positions(parts):
    subset = Subset(Joined(parts), [9, 0, 4])
    assert len(subset) == 3 and subset.task == "advection"
    batch = subset.read([2, 0], slice(None))
    assert batch.ids.tolist() == [2, 0] and batch.parameters["beta"].tolist() == [0.4, 1.0]


def test_only_equals_are_joined(parts, tmp_path):
    other_grid = TensorFile(generate(Advection(points=16, frames=3), 1, 0, tmp_path / "g.hdf5"))
    other_times = TensorFile(generate(Advection(points=8, frames=5), 1, 0, tmp_path / "t.hdf5"))
    other_task = TensorFile(generate(Burgers(points=8, nu=2.0, frames=3), 1, 0, tmp_path / "b.hdf5"))
    other_parameters = TensorFile(
        generate(Burgers(points=8, nu=2.0, frames=3), 1, 0, tmp_path / "p.hdf5"), task="advection"
    )
    for other, what in (
        (other_grid, "grid"),
        (other_times, "number of frames"),
        (other_task, "task"),
        (other_parameters, "set of parameters"),
    ):
        with pytest.raises(UserError, match=f"another {what}"):
            Joined([parts[0], other])
    with pytest.raises(UserError, match="at least one"):
        Joined([])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"forcings": {"g": True}}, "set of forcings"),
        ({"forcings": {"f": False, "g": True}}, "set of forcings"),
        ({"masked": False}, "use of masks"),
        ({"dtype": torch.float64}, "precision"),
    ],
)
def test_only_what_has_the_same_fields_is_joined(tmp_path, change, what):
    same = {"forcings": {"f": True, "g": True}, "masked": True}
    one, two = (
        open_dataset(write(WellWriter, tmp_path / name, header, batch_of(header, 2)))
        for name, header in (("one", header_of(**same)), ("two", header_of(**{**same, **change})))
    )
    Joined([one, one])
    with pytest.raises(UserError, match=f"another {what} than the first"):
        Joined([one, two])


def test_licences_add_up_and_notes_of_one_part_are_not_those_of_the_whole(tmp_path):
    said = [
        ("CC-BY-4.0", {"solver": "exact", "seed": 1, "key": "a"}),
        ("", {"solver": "exact", "seed": 2, "key": "a"}),
        ("CC-BY-NC-4.0", {"solver": "exact", "key": "a"}),
        ("CC-BY-4.0", {"solver": "exact", "seed": 1, "key": "a"}),
    ]
    parts = []
    for number, (licence, notes) in enumerate(said):
        header = header_of(licence=licence, notes=notes)
        parts.append(open_dataset(write(WellWriter, tmp_path / f"{number}", header, batch_of(header, 2))))
    whole = Joined([Joined(parts[:2]), Joined(parts[2:])]).header
    assert whole.licence == "CC-BY-4.0; CC-BY-NC-4.0" and whole.notes == {"solver": "exact"}
    assert Joined(parts[:1]).header.notes == said[0][1]


def test_trajectories_outside_are_refused(parts):
    with pytest.raises(UserError, match="trajectory 10"):
        Joined(parts).read([10], slice(None))
    with pytest.raises(UserError, match="trajectory 3"):
        Subset(parts[0], [3])
