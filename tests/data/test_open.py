"""Files are opened by what they hold, not by what they are called."""

import numpy as np
import pytest
import torch

from ups.data.formats.pairs import PairsFile
from ups.data.formats.pdebench.arrays import TensorFile
from ups.data.generate.make import generate
from ups.data.open import open_dataset
from ups.equations import Advection
from ups.errors import UserError


def test_content_decides_not_the_extension(tmp_path):
    tensor = generate(Advection(points=8, frames=2), 2, 0, tmp_path / "tensor.pt")
    assert isinstance(open_dataset(tensor), TensorFile)
    x, y = torch.rand(2, 4, 4), torch.rand(2, 4, 4)
    torch.save({"x": x, "y": y}, tmp_path / "pairs.hdf5")
    np.savez(tmp_path / "pairs.npz", x=x.numpy(), y=y.numpy())
    torch.save({"x": x, "y": y}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    for name in ("pairs.hdf5", "pairs.npz", "legacy.pt"):
        dataset = open_dataset(tmp_path / name, convention="nodal")
        assert isinstance(dataset, PairsFile) and dataset.task == "darcy"
        assert torch.equal(dataset.read([1], slice(None)).values[0, 0, ..., 0], y[1])


def test_options_that_do_not_apply_are_refused(tmp_path):
    tensor = generate(Advection(points=8, frames=2), 2, 0, tmp_path / "tensor.hdf5")
    with pytest.raises(UserError, match="option 'convention' does not apply"):
        open_dataset(tensor, convention="nodal")
    torch.save({"x": torch.rand(2, 4, 4), "y": torch.rand(2, 4, 4)}, tmp_path / "pairs.pt")
    with pytest.raises(UserError, match="give convention"):
        open_dataset(tmp_path / "pairs.pt")
    with pytest.raises(UserError, match="option 'grid' does not apply"):
        open_dataset(tmp_path / "pairs.pt", convention="nodal", grid=4)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="not there"):
        open_dataset(tmp_path / "none")
    (tmp_path / "notes.hdf5").write_text("hello")
    with pytest.raises(UserError, match="neither HDF5"):
        open_dataset(tmp_path / "notes.hdf5")
    (tmp_path / "empty.hdf5").write_bytes(b"")
    with pytest.raises(UserError, match="neither HDF5"):
        open_dataset(tmp_path / "empty.hdf5")
