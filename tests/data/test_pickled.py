"""A dataset can be handed to other processes: pickled and back, it reads the same."""

import pickle

import h5py
import numpy as np
import pytest
import torch
from layout_cases import batch_of, header_of, named, write

from ups.data.formats.description import to_json
from ups.data.formats.layouts import LAYOUTS, named_layout
from ups.data.open import open_dataset

WRITTEN = {
    "pdebench-tensor": header_of((6,)),
    "pdebench-cfd": header_of((6,), channels=("density", "pressure", "Vx")),
    "pdebench-grouped": header_of((6, 5), channels=("u", "v"), parameters={"nu": None}),
    "pdebench-incompressible": header_of((4, 5), channels=("Vx", "Vy", "particles"), static=("force_x", "force_y")),
    "well": header_of((4, 5), static=("a",), forcings={"g": True}, masked=True, parameters={"nu": None}),
    "netcdf": header_of((4, 5), static=("a",), parameters={"nu": None}),
    "zarr": header_of((4, 5), static=("a",), parameters={"nu": None}),
    "arrays": header_of((4, 5), static=("a",), parameters={"nu": None}),
    "pdegym": header_of((4, 5), static=("c",)),
    "pairs": header_of((4, 5), 1, static=("a",)),
}
GYM = {
    "FLOW": {"velocity": (3, 4, 2, 4, 5)},
    "EULER": {"data": (3, 4, 5, 4, 5)},
    "FORCED": {"solution": (3, 4, 2, 4, 5)},
    "MESHKOV": {"solution": (3, 4, 5, 4, 5)},
    "TAYLOR": {"solution": (3, 4, 6, 4, 5)},
    "ALLEN_CAHN": {"solution": (3, 4, 4, 5)},
    "WAVE": {"solution": (3, 4, 4, 5), "c": (3, 4, 5)},
    "POISSON": {"solution": (3, 4, 5), "source": (3, 4, 5)},
    "AIRFOIL": {"solution": (3, 2, 4, 5)},
    "HELMHOLTZ": {f"Sample_{i}/{name}": shape for i in range(3) for name, shape in (("a", (4, 5)), ("u", (4, 5)))}
    | {f"Sample_{i}/bc": () for i in range(3)},
}


def test_every_layout_is_among_them():
    assert set(WRITTEN) == {layout.name for layout in LAYOUTS}


@pytest.mark.parametrize("name", named([*WRITTEN, *GYM]))
def test_a_pickled_dataset_reads_as_before(tmp_path, name):
    path = tmp_path / "file"
    if name in WRITTEN:
        write(named_layout(name).writer, path, WRITTEN[name], batch_of(WRITTEN[name], 3))
    else:
        generator = np.random.default_rng(0)
        with h5py.File(path, "w") as file:
            for place, shape in GYM[name].items():
                file[place] = np.asarray(generator.random(shape), dtype="f4")
    dataset = open_dataset(path)
    again = pickle.loads(pickle.dumps(dataset))
    assert to_json(again.header) == to_json(dataset.header) and len(again) == len(dataset) == 3
    one, two = (data.read([2, 0], slice(None)) for data in (dataset, again))
    assert torch.equal(one.values, two.values) and torch.equal(one.times, two.times)
    for mine, theirs in ((one.parameters, two.parameters), (one.static, two.static), (one.forcings, two.forcings)):
        assert set(mine) == set(theirs) and all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert (one.mask is None) == (two.mask is None)
    assert one.mask is None or (two.mask is not None and torch.equal(one.mask, two.mask))
