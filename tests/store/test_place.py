"""Fields in a device's memory: the windows that mapped files give, and a training that does not know the difference."""

from __future__ import annotations

from pathlib import Path

import pytest
import small
import torch

from ups.data.sampler import Sampler, TaskShare
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.store.place import DeviceStore, place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("steps", "longest"), [(1, 1), (3, 1), (2, 3)])
def test_a_window_is_what_the_mapped_file_gives(tmp_path: Path, dtype: torch.dtype, steps: int, longest: int) -> None:
    for name, task in small.prepared(tmp_path)[1].items():
        store = task.store
        sampler = Sampler((TaskShare(name, store.trajectories, store.frames, 1.0),), seed=0, batch_size=5)
        part = sampler.indices(3, steps, [(stride, 1.0) for stride in range(1, longest + 1)])[0]
        window = DeviceStore(store, torch.device("cpu"), dtype).window(part)
        ours, mapped = window.read(), store.gather(part).to("cpu", dtype)
        assert window.shape == ours.shape
        for one, other in ((ours.values, mapped.values), (ours.times, mapped.times), (ours.ids, mapped.ids)):
            assert torch.equal(one, other) and one.dtype == other.dtype
        for one, other in ((ours.parameters, mapped.parameters), (ours.static, mapped.static)):
            assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_training_is_the_same_wherever_the_fields_are(tmp_path: Path) -> None:
    losses, ends = zip(
        *(
            small.train_small(tmp_path / "data", tmp_path / where, 6, runtime={"placement": where})
            for where in ("device", "mapped")
        ),
        strict=True,
    )
    assert losses[0] == losses[1]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_cpu_keeps_to_the_mapped_files(tmp_path: Path) -> None:
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0, tmp_path / "run") as runtime:
        assert place(small.prepared(tmp_path / "data")[1], runtime, torch.float32) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_what_fits_and_refuses_the_rest_in_a_sentence(tmp_path: Path, monkeypatch) -> None:
    stores = {name: task.store for name, task in small.prepared(tmp_path / "data")[1].items()}
    for choice in ("auto", "device"):
        with Runtime.start(RuntimeConfig(device="cuda", threads=1, placement=choice), 0, tmp_path / choice) as runtime:
            assert place(stores, runtime, torch.float32).keys() == stores.keys()
            monkeypatch.setattr("ups.store.place.ROOM", 1e-9)
            if choice == "auto":
                assert place(stores, runtime, torch.float32) == {}
            else:
                with pytest.raises(UserError, match=r"to spare for them; use runtime\.placement=mapped"):
                    place(stores, runtime, torch.float32)
            monkeypatch.undo()
