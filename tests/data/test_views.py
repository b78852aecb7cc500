"""Published views: which points and frames, where they truly lie, and which end of a file is for testing."""

from dataclasses import replace

import pytest
import torch

from ups.data.formats.layouts import named_layout
from ups.data.generate.make import generate
from ups.data.joined import Joined, Subset
from ups.data.open import open_dataset
from ups.data.prepare.cached import cached
from ups.data.prepare.splits import check_disjoint, content_hashes, split
from ups.data.settings import DataConfig, FilesConfig, TaskConfig
from ups.data.sources import open_source
from ups.data.views import PDEBENCH, View, pdebench_view
from ups.equations import Advection, Darcy
from ups.errors import UserError
from ups.fields import Batch, Boundary, Grid, Header


def made(path, task, shape, frames, channels=("u",), count=20, dtype=torch.float32, layout="pdebench-grouped", **more):
    """A file of random fields of a task."""
    header = Header(
        task,
        channels,
        Grid.cell_centred(shape),
        torch.arange(frames).double() * 0.01,
        Boundary.all("periodic", len(shape)),
        dtype=dtype,
        **more,
    )
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, frames, *shape, len(channels), generator=generator, dtype=dtype)
    with named_layout(layout).writer(path, header, count) as writer:
        times = header.times.expand(count, -1)
        writer.write(Batch(task, values, times, header.grid, header.boundary, {}, {}, torch.arange(count)))
    return open_dataset(path), values


def test_a_view_takes_every_nth_point_and_frame_where_they_are(tmp_path):
    dataset, values = made(tmp_path / "a.h5", "burgers", (12,), 11, count=2)
    view = View(dataset, space_stride=4, frame_stride=5, frames=2)
    assert view.grid.positions[0].tolist() == dataset.grid.positions[0][::4].tolist()
    assert view.grid.extent == dataset.grid.extent and view.times.tolist() == [0.0, 0.05]
    batch = view.read([1, 0], slice(None))
    assert torch.equal(batch.values, values[[1, 0], :6:5, ::4]) and batch.grid.same_as(view.grid)
    assert torch.equal(view.read([0], slice(1, 2)).values, values[:1, 5:6, ::4])
    assert view.read([0], slice(2, 2)).values.shape == (1, 0, 3, 1)


def test_a_view_thins_static_fields_too(tmp_path):
    darcy = open_dataset(generate(Darcy(points=16), 2, 0, tmp_path / "d.hdf5"))
    thin, whole = View(darcy, 4).read([1], slice(None)), darcy.read([1], slice(None))
    assert torch.equal(thin.values, whole.values[:, :, ::4, ::4])
    assert torch.equal(thin.static["a"], whole.static["a"][:, ::4, ::4])


@pytest.mark.parametrize(
    ("task", "shape", "frames", "points", "seen", "given"),
    [
        ("advection", (1024,), 201, 256, 41, 10),
        ("burgers", (1024,), 201, 256, 41, 10),
        ("reaction_diffusion", (1024,), 101, 256, 30, 5),
        ("diffusion_sorption", (1024,), 101, 1024, 101, 10),
        ("compressible_1d", (1024,), 101, 128, 21, 10),
        ("compressible_2d", (128, 128), 21, 64, 21, 10),
        ("darcy", (128, 128), 1, 64, 1, 1),
        ("diffusion_reaction", (128, 128), 101, 128, 101, 10),
        ("shallow_water", (128, 128), 101, 128, 101, 10),
    ],
)
def test_published_files_are_seen_as_published(task, shape, frames, points, seen, given):
    class Described:
        header = Header(
            task, ("u",), Grid.cell_centred(shape), torch.arange(frames).double(), Boundary.all("periodic", len(shape))
        )
        grid = header.grid

        def __len__(self):
            return 1

    Described.task = task
    view = pdebench_view(Described())
    assert isinstance(view, View)
    assert view.grid.shape == (points,) * len(shape) and len(view.times) == seen and view.header.given == given
    assert set(PDEBENCH) >= {task}


def test_data_of_other_sizes_have_no_published_view(tmp_path):
    dataset, _ = made(tmp_path / "a.h5", "burgers", (96,), 201, count=1)
    with pytest.raises(UserError, match="has 256 points an axis, the data have"):
        pdebench_view(dataset)
    few, _ = made(tmp_path / "b.h5", "burgers", (256,), 41, count=1)
    with pytest.raises(UserError, match="41 frames of stride 5 are asked for, the data have 9"):
        pdebench_view(few)
    other, _ = made(tmp_path / "c.h5", "heat", (256,), 41, count=1)
    with pytest.raises(UserError, match="no view of 'heat'"):
        pdebench_view(other)
    with pytest.raises(UserError, match="space_stride is 0"):
        View(few, 0)


@pytest.mark.parametrize(
    ("end", "test", "validation", "train"), [("first", [0, 1], [2, 3], [4, 19]), ("last", [18, 19], [16, 17], [0, 15])]
)
def test_the_test_set_is_the_end_that_publications_test_on(tmp_path, end, test, validation, train):
    dataset, _ = made(tmp_path / "a.h5", "burgers", (8,), 2, test_at=end)
    splits = split(View(dataset, 2))
    assert splits.test.indices == tuple(test) and splits.validation.indices == tuple(validation)
    assert [splits.train.indices[0], splits.train.indices[-1]] == train and len(splits.train) == 16
    check_disjoint(splits.train, splits.validation, {"test": splits.test})


def test_a_copy_in_another_precision_is_found(tmp_path):
    double, values = made(tmp_path / "double.h5", "burgers", (8,), 2, dtype=torch.float64, count=3)
    header = replace(double.header, dtype=torch.float32)
    with named_layout("pdebench-tensor").writer(tmp_path / "single.hdf5", header, 3) as writer:
        writer.write(replace(double.read(range(3), slice(None)), values=values.float()))
    single = open_dataset(tmp_path / "single.hdf5")
    assert single.read([0], slice(None)).values.dtype == torch.float32
    assert content_hashes(single) == content_hashes(double) and len(set(content_hashes(single))) == 3
    other, _ = made(tmp_path / "other.h5", "burgers", (8,), 1, count=1)
    with pytest.raises(UserError, match="test trajectory 0 is the same as train trajectory 0"):
        check_disjoint(double, other, {"test": single})


def test_a_parameter_in_another_precision_is_the_same_parameter(tmp_path):
    dataset = open_dataset(generate(Advection(points=8, beta=0.1, frames=2), 2, 0, tmp_path / "a.hdf5"))

    class Single:
        header = dataset.header

        def __len__(self):
            return len(dataset)

        def read(self, indices, frames):
            batch = dataset.read(indices, frames)
            return replace(batch, parameters={"beta": batch.parameters["beta"].float()})

    assert content_hashes(Single()) == content_hashes(dataset)


def test_a_view_of_a_folder_has_every_parameter_value_in_every_split(tmp_path):
    for beta in (0.1, 0.4, 1.0):
        generate(Advection(points=256, beta=beta, frames=201), 4, 0, tmp_path / f"{beta}.hdf5")
    view = pdebench_view(open_dataset(tmp_path))
    assert view.grid.shape == (256,) and len(view.times) == 41 and len(view) == 12
    for part in split(view):
        assert sorted(set(part.read(range(len(part)), slice(0, 1)).parameters["beta"].tolist())) == [0.1, 0.4, 1.0]


def test_a_run_trains_in_the_published_view(tmp_path):
    name = Advection(points=512, frames=201).published_name
    generate(Advection(points=512, frames=201), 12, 0, tmp_path / name)
    config = TaskConfig(files=FilesConfig(train=[name], view="pdebench"))
    source = open_source("advection", config, DataConfig(), tmp_path, 0, lambda *_: None)
    assert source.train.grid.shape == (256,) and len(source.train.times) == 41 and len(source.train) == 10
    assert source.spec.dt == pytest.approx(0.05) and source.tests["advection"].grid.same_as(source.train.grid)
    assert source.tests["advection"].header.given == source.validation.header.given == 10


def test_the_number_of_given_frames_is_kept_by_all_that_is_made_of_a_view(tmp_path):
    dataset, _ = made(tmp_path / "a.h5", "burgers", (8,), 6, count=10)
    view = View(dataset, given=3)
    assert dataset.header.given == 1 and view.header.given == 3
    kept = [Joined([view, view]), Subset(view, [0]), View(view, 2), *split(view), *split(Joined([view, view]))]
    assert [one.header.given for one in kept] == [3] * 9
    with pytest.raises(UserError, match="another number of given frames"):
        Joined([view, dataset])
    with pytest.raises(UserError, match="3 of its 3 frames are given, which leaves none"):
        View(view, frames=3)
    steady, _ = made(tmp_path / "s.h5", "burgers", (8,), 1, count=1)
    assert View(steady, 2).header.given == 1


def test_what_is_known_of_data_does_not_depend_on_the_frames_given(tmp_path):
    dataset, _ = made(tmp_path / "a.h5", "burgers", (8,), 6, count=3)
    one, three = View(dataset, given=1), View(dataset, given=3)
    assert cached(tmp_path / "kept", [one], "", lambda: "found") == "found"
    assert cached(tmp_path / "kept", [three], "", lambda: "looked for again") == "found"
