"""A store gives back forcings, masks and times of each trajectory, from mapped files and a device's memory alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ups.data.formats.well.writer import WellWriter
from ups.data.open import open_dataset
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import statistics
from ups.data.sampler import TaskIndices
from ups.data.without import Without, spec_without
from ups.fields import Batch, Boundary, Channel, Dataset, Grid, Header, TaskSpec
from ups.store.fields import FieldStore, store_key
from ups.store.place import DeviceStore

GRID, COUNT, FRAMES = Grid.cell_centred((6, 4)), 5, 8
SPEC = TaskSpec(
    "flow", 2, (Channel("u"), Channel("v")), Boundary.all("periodic", 2), parameters=("nu",), static=("c",),
    forcings=("f", "g"), masked=True,
)  # fmt: skip


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(seed))


def dataset(path: Path) -> Dataset:
    times = (1 + torch.arange(COUNT, dtype=torch.float64))[:, None] * torch.arange(FRAMES) * 0.125
    header = Header(
        "flow", ("u", "v"), GRID, times[0], SPEC.boundary, {"nu": None}, ("c",), {"f": True, "g": False}, True,
        own_times=times,
    )  # fmt: skip
    mask = draw(6, 4, seed=0) > -1
    batch = Batch(
        "flow", draw(FRAMES, 6, 4, 2, seed=1), times, GRID, SPEC.boundary, {"nu": draw(seed=2).double()},
        {"c": draw(6, 4, seed=3)}, torch.arange(COUNT),
        {"f": draw(FRAMES, 6, 4, seed=4), "g": draw(6, 4, seed=5)}, mask,
    )  # fmt: skip
    with WellWriter(path, header, COUNT) as writer:
        writer.write(batch)
    return open_dataset(path)


def test_windows_hold_what_the_file_holds_normalised(tmp_path: Path) -> None:
    data = dataset(tmp_path / "flow.hdf5")
    normaliser = Normaliser(SPEC, statistics(data, SPEC))
    store = FieldStore.build(tmp_path / "store", data, normaliser)
    ids, starts, strides = torch.tensor([3, 0]), torch.tensor([1, 2]), torch.tensor([2, 1])
    part = TaskIndices("flow", ids, starts, strides, torch.arange(2), torch.ones(2), 3)
    whole = normaliser.batch(data.read(ids.tolist(), slice(None)))
    resident = DeviceStore(store, torch.device("cpu"), torch.float32)
    for found in (store.gather(part), resident.gather(resident.window(part))):
        rows = torch.arange(2)[:, None]
        for name, own in (("values", whole.values), ("times", whole.times)):
            assert torch.equal(getattr(found, name), own[rows, part.windows]), name
        assert torch.equal(found.forcings["f"], whole.forcings["f"][rows, part.windows])
        assert torch.equal(found.forcings["g"], whole.forcings["g"])
        assert torch.equal(found.static["c"], whole.static["c"])
        assert found.mask is not None and whole.mask is not None and torch.equal(found.mask, whole.mask)


def test_scales_are_of_the_cells_inside_and_of_lead_times(tmp_path: Path) -> None:
    data = dataset(tmp_path / "flow.hdf5")
    found, read = statistics(data, SPEC), data.read(range(COUNT), slice(None))
    assert read.mask is not None
    inside = [read.forcings["f"][i][:, read.mask[i]].double() for i in range(COUNT)]
    rms = torch.stack([own.square().mean() for own in inside]).mean().sqrt()
    assert abs(found.static["f"].rms - float(rms)) < 1e-6
    assert found.dt is None and found.strides == () and len(found.leads) == len(found.channels["u"].differences)
    assert min(found.leads) >= 0.125 and max(found.leads) <= 4 * 5 * 0.125 and list(found.leads) == sorted(found.leads)


def test_a_store_of_other_conditions_is_another_one(tmp_path: Path) -> None:
    data = dataset(tmp_path / "flow.hdf5")
    keys = set()
    for dropped in ((), ("f",), ("g",), ("mask",)):
        spec, part = spec_without(SPEC, dropped), Without(data, dropped)
        keys.add(store_key(part, Normaliser(spec, statistics(part, spec))))
    assert len(keys) == 4
    same = replace(SPEC, forcings=("f", "g"))
    assert store_key(data, Normaliser(same, statistics(data, same))) in keys
