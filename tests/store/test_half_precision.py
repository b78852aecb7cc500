"""Fields in half precision: half the room, rounded by at most 2⁻¹¹, refused where it cannot hold them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import Solved

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import statistics
from ups.data.sampler import TaskIndices
from ups.equations import Advection, Darcy
from ups.errors import UserError
from ups.store.fields import FieldStore
from ups.store.layout import read_index

EQUATIONS = (Advection(points=32, beta=0.4, frames=9, duration=0.8), Darcy(points=16))


def normaliser(data: Solved, equation: Advection | Darcy) -> Normaliser:
    return Normaliser(equation.task(), statistics(data, equation.task()))


def windows(store: FieldStore) -> TaskIndices:
    ids = torch.arange(store.trajectories)
    return TaskIndices(store.normaliser.spec.name, ids, 0 * ids, 0 * ids + 1, ids, torch.ones(len(ids)), store.frames)


@pytest.mark.parametrize("equation", EQUATIONS, ids=lambda equation: equation.name)
def test_a_batch_is_float32_and_within_the_rounding_of_half_precision(tmp_path: Path, equation) -> None:
    data = Solved(equation, 6)
    scales = normaliser(data, equation)
    single, half = (FieldStore.build(tmp_path / dtype, data, scales, dtype=dtype) for dtype in ("float32", "float16"))
    assert half.store.key != single.store.key
    ours, exact = half.gather(windows(half)), single.gather(windows(single))
    # Of a normal number half the last of 11 digits is lost at most; below 2⁻¹⁴ half the smallest number, 2⁻²⁴.
    for one, other in ((ours.values, exact.values), *((ours.static[n], exact.static[n]) for n in exact.static)):
        assert one.dtype == torch.float32
        assert bool(((one - other).abs() <= (2**-11 * other.abs()).clamp(min=2**-25)).all())
        assert not torch.equal(one, other)
    assert ours.parameters.keys() == exact.parameters.keys()
    assert all(torch.equal(ours.parameters[name], exact.parameters[name]) for name in exact.parameters)
    sizes = [sum(s.bytes for s in read_index(tmp_path / d).arrays["fields"].shards) for d in ("float32", "float16")]
    assert sizes[0] == 2 * sizes[1]


def test_a_store_of_another_precision_is_refused(tmp_path: Path) -> None:
    data = Solved(EQUATIONS[0], 6)
    scales = normaliser(data, EQUATIONS[0])
    FieldStore.build(tmp_path / "s", data, scales)
    with pytest.raises(UserError, match="of other data or settings"):
        FieldStore.build(tmp_path / "s", data, scales, dtype="float16")


def test_fields_that_half_precision_cannot_hold_are_refused_with_the_remedy(tmp_path: Path) -> None:
    data = Solved(EQUATIONS[0], 6)
    scales = normaliser(data, EQUATIONS[0])
    values = data.batch.values.clone()
    values[4, 3, 7] = 1e6
    data.batch = replace(data.batch, values=values)
    with pytest.raises(UserError, match=r"'advection': the fields of trajectory 4 reach .*e\+06.*data.store=float32"):
        FieldStore.build(tmp_path / "s", data, scales, dtype="float16")
    assert not list((tmp_path / "s").glob("*.bin"))


def test_a_damaged_shard_of_half_precision_is_written_again_in_half_precision(tmp_path: Path) -> None:
    data = Solved(EQUATIONS[0], 6)
    store = FieldStore.build(tmp_path / "s", data, normaliser(data, EQUATIONS[0]), dtype="float16")
    shard = next((tmp_path / "s").glob("fields.*.bin"))
    content = shard.read_bytes()
    shard.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    with pytest.warns(UserWarning, match="written again from the data"):
        store.gather(windows(store))
    assert shard.read_bytes() == content


def test_the_stored_bytes_do_not_follow_the_number_of_threads(tmp_path: Path) -> None:
    """Ranks share the cores out, so their threads differ; a logarithm is where torch's threads could show."""
    equation = EQUATIONS[0]
    data = Solved(equation, 200)
    data.batch = replace(data.batch, values=data.batch.values.exp())
    spec = equation.task()
    spec = replace(spec, channels=tuple(replace(channel, transform="log") for channel in spec.channels))
    scales = Normaliser(spec, statistics(data, spec))
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            FieldStore.build(tmp_path / str(threads), data, scales)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
        found.append({file.name: file.read_bytes() for file in (tmp_path / str(threads)).iterdir()})
    assert found[0] == found[1]
