"""Splits follow the published convention and never share a trajectory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ups.data.formats.pdebench.arrays import TensorFile
from ups.data.generate.make import generate
from ups.data.joined import Joined, Subset
from ups.data.open import open_dataset
from ups.data.prepare import splits as splits_module
from ups.data.prepare.splits import Splits, check_disjoint, content_hashes, split
from ups.equations import Advection, Darcy, Wave
from ups.errors import UserError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits")
    return [
        TensorFile(generate(Advection(points=8, beta=beta, frames=2), 20, 0, folder / f"{beta}.hdf5"))
        for beta in (0.1, 1.0)
    ]


def test_the_first_tenth_is_the_test_set_and_the_next_is_for_validation(files):
    splits = split(files[0])
    assert (splits.test.indices, splits.validation.indices) == ((0, 1), (2, 3))
    assert splits.train.indices == tuple(range(4, 20))


@pytest.mark.parametrize(("layout", "tested"), [("pdebench-grouped", (9,)), ("pdegym", (9,)), ("well", (0,))])
def test_data_of_ours_are_tested_at_the_end_that_their_layout_is(tmp_path, layout, tested):
    made = open_dataset(generate(Wave(points=32, frames=2, duration=0.02), 10, 0, tmp_path / "made", layout=layout))
    assert split(made).test.indices == tested


def test_a_joined_dataset_is_split_file_by_file(files):
    splits = split(Joined(files))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (32, 4, 4)
    for part in splits:
        betas = part.read(range(len(part)), slice(0, 1)).parameters["beta"]
        assert betas.unique().tolist() == [0.1, 1.0]
    check_disjoint(splits.train, splits.validation, {"test": splits.test})


def test_a_shared_trajectory_is_refused_by_name(files):
    splits = Splits(Subset(files[0], [5, 6, 7]), Subset(files[0], [2, 3]), Subset(files[0], [0, 6]))
    with pytest.raises(UserError, match="test trajectory 1 is the same as train trajectory 1"):
        check_disjoint(splits.train, splits.validation, {"test": splits.test})


def test_a_copy_in_another_file_is_found(tmp_path):
    """The test file was the train file: the same content under another name."""
    equation = Darcy(points=8)
    one, two = (TensorFile(generate(equation, 4, 0, tmp_path / f"{name}.hdf5")) for name in ("train", "test"))
    other = TensorFile(generate(equation, 4, 1, tmp_path / "other.hdf5"))
    check_disjoint(one, Subset(other, [0, 1]), {"test": Subset(other, [2, 3])})
    with pytest.raises(UserError, match="test trajectory 0 is the same as train trajectory 0"):
        check_disjoint(one, other, {"test": two})


def test_the_training_set_is_read_once_for_all_views_and_views_may_share(files, monkeypatch):
    read: list[Any] = []
    rows = splits_module._rows
    monkeypatch.setattr(splits_module, "_rows", lambda data, tick: read.append(data) or rows(data, tick))
    train, validation = Subset(files[0], [5, 6, 7]), Subset(files[0], [2, 3])
    one, two = Subset(files[0], [0, 1]), Subset(files[0], [1, 4])
    check_disjoint(train, validation, {"one": one, "two": two})
    assert read == [train, validation, one, two]
    with pytest.raises(UserError, match="test view fine trajectory 1 is the same as validation trajectory 0"):
        check_disjoint(train, validation, {"coarse": one, "fine": Subset(files[0], [1, 2])})


class Changed:
    """A dataset whose batches lost or changed some conditions."""

    def __init__(self, dataset, **conditions):
        self.dataset, self.conditions = dataset, conditions
        self.task, self.header = dataset.task, dataset.header

    def __len__(self):
        return len(self.dataset)

    def read(self, indices, frames):
        return replace(self.dataset.read(indices, frames), **self.conditions)


def test_a_copy_that_lost_conditions_is_found(files, tmp_path):
    """Layouts without a place for them, and files whose names say them, come without parameters or static fields."""
    train, validation, test = Subset(files[0], range(5)), Subset(files[0], range(5, 8)), Subset(files[0], [9, 3])
    for conditions in ({}, {"speed": torch.ones(2)}, {"beta": torch.full((2,), 0.1)}):
        with pytest.raises(UserError, match="test trajectory 1 is the same as train trajectory 3"):
            check_disjoint(train, validation, {"test": Changed(test, parameters=conditions)})
    check_disjoint(train, validation, {"test": Changed(test, parameters={"beta": torch.full((2,), 0.2)})})
    darcy = TensorFile(generate(Darcy(points=8), 4, 0, tmp_path / "darcy.hdf5"))
    train, validation, test = Subset(darcy, [0, 1]), Subset(darcy, [2]), Subset(darcy, [1])
    for static in ({}, {"permeability": darcy.read([3], slice(None)).static["a"]}):
        with pytest.raises(UserError, match="test trajectory 0 is the same as train trajectory 1"):
            check_disjoint(train, validation, {"test": Changed(test, static=static)})


def test_the_same_start_under_other_parameters_is_another_trajectory(files):
    low, high = files
    assert torch.equal(low.read([3], slice(0, 1)).values, high.read([3], slice(0, 1)).values)
    assert set(content_hashes(low)).isdisjoint(content_hashes(high))
    assert len(set(content_hashes(low))) == 20


def test_too_few_trajectories_are_refused(files):
    with pytest.raises(UserError, match="too few to split"):
        split(Subset(files[0], [0, 1]))
    with pytest.raises(UserError, match="leave some to train on"):
        split(files[0], test=0.5, validation=0.5)
