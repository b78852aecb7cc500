"""The U-shaped transformer: who hears whom on any grid, what attention computes, shifts, channels; and it learns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import small
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import unchecked
from torch import Tensor, nn

from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, Side, TaskSpec
from ups.models.geometry import Frame
from ups.models.operator.model import OperatorModel
from ups.models.operator.pdet_unet import Attention, DistanceBias, PdetUnet, UnetBlock, Windows
from ups.models.operator.tiling import Tiling, window_size
from ups.models.saved import ModelSpec
from ups.track.jsonl import read_events
from ups.training.restore import load_model

AROUND, WALLS = (Side("periodic"), Side("periodic")), (Side("reflecting"), Side("value", (0.0,)))
SETTINGS = {"width": 8, "depth": 2, "levels": 2, "heads": 2, "window": 16, "head": 8, "conditions": 8}


def task_of(name: str, sides: tuple, channels: tuple[str, ...] = ("u",), static: tuple[str, ...] = ()) -> TaskSpec:
    named = tuple(Channel(c) for c in channels)
    return TaskSpec(name, len(sides), named, Boundary(sides), 1 / 8, static=static, dt=0.1)


def model_of(*tasks: tuple[TaskSpec, tuple[int, ...]], **changes) -> OperatorModel:
    """In float64, with every parameter that starts at zero filled."""
    torch.manual_seed(0)
    frames = {t.name: Frame(Grid.cell_centred(shape), t.boundary, (1,) * len(shape)) for t, shape in tasks}
    model = OperatorModel([t for t, _ in tasks], frames, architecture="pdet_unet", **(SETTINGS | changes)).double()
    for parameter in model.parameters():
        if not parameter.detach().any():
            nn.init.normal_(parameter, std=0.3)
    return model


def step(model: OperatorModel, task: TaskSpec, fields: Tensor) -> Tensor:
    """Fields of (B, *space, C and S)."""
    values, static = fields.split([len(task.channels), len(task.static)], -1)
    lead = {"lead": torch.full((len(fields),), 0.1, dtype=torch.float64)}
    return model(task.name, values[:, None], static, lead, model.frames[task.name].grid)


axis = st.tuples(st.integers(1, 13), st.integers(1, 6), st.integers(0, 5), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(axis, min_size=1, max_size=3))
def test_tiles_hold_neighbours_only_and_give_every_cell_back(axes: list[tuple[int, int, int, bool]]) -> None:
    """Two cells of a tile that may hear each other are as far apart as their places in it say, around an axis or
    between walls; and whatever is computed in a tile comes back to the cell that it was computed for.
    """
    shape, size, shift, periodic = (tuple(column) for column in zip(*axes, strict=True))
    size = tuple(min(w, n) for w, n in zip(size, shape, strict=True))
    tiling = Tiling(shape, size, tuple(s % w for s, w in zip(shift, size, strict=True)), periodic)
    places = torch.stack(torch.meshgrid(*(torch.arange(1.0, n + 1) for n in shape), indexing="ij"), -1).double()
    tiles = tiling.divide(places[None])
    assert torch.equal(tiling.join(tiles)[0], places)
    cells = tiles[0].flatten(0, -3)
    apart = tiling.apart()
    hears = torch.ones(len(cells), cells.shape[1], cells.shape[1], dtype=torch.bool) if apart is None else ~apart
    assert hears.diagonal(dim1=1, dim2=2).all()
    within = torch.cartesian_prod(*(torch.arange(w) for w in size)).view(-1, len(size))
    real = (cells > 0).all(-1)  # zeros lie beyond a wall
    assert not (hears & (real[:, :, None] != real[:, None])).any()
    heard = hears & real[:, :, None] & real[:, None]
    for a, (n, wraps) in enumerate(zip(shape, periodic, strict=True)):
        error = (cells[:, :, None, a] - cells[:, None, :, a]) - (within[:, None, a] - within[None, :, a])
        assert not ((error % n if wraps else error) * heard).any()


def test_windows_are_as_large_as_allowed_and_divide_the_axis_where_they_can() -> None:
    assert [window_size(n, 8) for n in (1, 8, 64, 100, 18, 97, 11)] == [1, 8, 8, 5, 6, 8, 6]
    for n in range(1, 200):
        size = window_size(n, 8)
        assert min(n, 4) <= size <= 8 and math.ceil(n / size) * size - n < size


def test_the_bias_is_a_function_of_the_distance_round_the_shorter_way() -> None:
    torch.manual_seed(0)
    bias = DistanceBias(3, [2]).double()
    tiling = Tiling((5, 9), (5, 3), (0, 0), (True, False))  # all around in x, windows of 3 in y
    found = bias(Windows(tiling, None, tiling.distances())).view(3, 5, 3, 5, 3)
    for i, j, k, m in torch.cartesian_prod(*(torch.arange(n) for n in (5, 3, 5, 3))).tolist():
        away = torch.tensor([(i - k + 2) % 5 - 2, j - m], dtype=torch.float64)
        logs = away.sign() * (1 + away.abs()).log()
        expected = nn.functional.silu(logs @ bias.rows["2"] + bias.offset) @ bias.outer
        assert torch.allclose(found[:, i, j, k, m], expected, rtol=0, atol=1e-13)


def test_attention_is_the_textbooks() -> None:
    torch.manual_seed(0)
    attention = Attention(12, 2).double()
    nn.init.normal_(attention.query_scale), nn.init.normal_(attention.key_scale)
    h, bias = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 5, 5, dtype=torch.float64)
    q, k, v = (h @ attention.qkv.weight.T).view(2, 5, 3, 2, 6).unbind(2)
    q, k = (
        x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale
        for x, scale in ((q, attention.query_scale), (k, attention.key_scale))
    )
    logits = torch.einsum("bihc,bjhc->bhij", q, k) / 6**0.5 + bias
    heard = torch.einsum("bhij,bjhc->bihc", logits.softmax(-1), v).flatten(2)
    assert torch.allclose(attention(h, bias, None), attention.mixed(heard), rtol=0, atol=1e-13)


def test_a_wall_is_not_looked_over_and_a_periodic_axis_is() -> None:
    """Ten cells, windows of five moved by two: the first cell hears the last where the axis is periodic alone."""
    for sides, heard in ((AROUND, [0, 1, 7, 8, 9]), (WALLS, [0, 1])):
        frame = Frame(Grid.cell_centred((10,)), Boundary((sides,)), (1,))
        tables = PdetUnet({"line": frame}, width=8, window=5, levels=1).tables("line", frame, lambda t: t)
        torch.manual_seed(0)
        block = UnetBlock(8, 2, 2.0, [1], separate=False).double()
        x = torch.randn(1, 10, 8, dtype=torch.float64, requires_grad=True)
        (gradients,) = torch.autograd.grad(block.hear_window(x, tables[0].windows[1])[0, 0].sum(), x)
        assert gradients[0].abs().amax(-1).nonzero().flatten().tolist() == heard


GRIDS = [
    ((AROUND,), (37,)),
    ((WALLS,), (37,)),
    ((AROUND, WALLS), (9, 11)),
    ((WALLS, AROUND, WALLS), (5, 7, 6)),
    ((AROUND,), (1,)),
    ((AROUND, WALLS), (2, 21)),
]


@pytest.mark.parametrize("channels", ["mixed", "separate"])
def test_one_model_serves_tasks_of_any_dimension_and_size(channels: str) -> None:
    """Grids that neither windows nor halvings divide; every parameter is moved by some task."""
    tasks = [(task_of(f"task{i}", sides, ("u", "v")), shape) for i, (sides, shape) in enumerate(GRIDS)]
    model = model_of(*tasks, levels=3, channels=channels)
    for task, shape in tasks:
        out = step(model, task, torch.randn(2, *shape, 2, dtype=torch.float64))
        assert out.shape == (2, *shape, 2) and out.dtype == torch.float64 and out.isfinite().all()
        out.square().mean().backward()
    parameters = [*model.stem.named_parameters(), *model.blocks.named_parameters()]
    still = [name for name, p in parameters if p.grad is None or not p.grad.abs().max() > 1e-12]
    assert still == []
    assert not any(p.is_complex() for p in model.parameters())


@pytest.mark.parametrize("channels", ["mixed", "separate"])
def test_shifts_commute_by_the_coarsest_cell_where_a_window_is_the_whole_axis(channels: str) -> None:
    task = task_of("tank", (AROUND, WALLS))
    model = model_of((task, (8, 8)), window=64, levels=3, position_modes=0, channels=channels)
    fields = torch.randn(2, 8, 8, 1, dtype=torch.float64)
    out = step(model, task, fields)
    assert torch.allclose(step(model, task, fields.roll(4, 1)), out.roll(4, 1), rtol=0, atol=1e-12)
    assert not torch.allclose(step(model, task, fields.roll(2, 1)), out.roll(2, 1), rtol=0, atol=1e-6)
    assert not torch.allclose(step(model, task, fields.roll(4, 2)), out.roll(4, 2), rtol=0, atol=1e-6)


def test_shifts_commute_by_a_window_of_every_level_where_windows_tile_the_axis() -> None:
    """32 cells in windows of 8, 16 in windows of 8: a coarse window is 16 cells long."""
    task = task_of("ring", (AROUND,))
    model = model_of((task, (32,)), window=8, position_modes=0)
    fields = torch.randn(2, 32, 1, dtype=torch.float64)
    out = step(model, task, fields)
    assert torch.allclose(step(model, task, fields.roll(16, 1)), out.roll(16, 1), rtol=0, atol=1e-12)
    assert not torch.allclose(step(model, task, fields.roll(8, 1)), out.roll(8, 1), rtol=0, atol=1e-6)


def test_the_order_of_separate_channels_means_nothing() -> None:
    one, other = (
        task_of("one", (AROUND,), ("u", "v", "w"), ("a",)),
        task_of("other", (AROUND,), ("w", "u", "v"), ("a",)),
    )
    model = model_of((one, (12,)), (other, (12,)), channels="separate", position_modes=0)
    fields = torch.randn(2, 12, 4, dtype=torch.float64)
    out = step(model, one, fields)
    assert torch.allclose(step(model, other, fields[..., [2, 0, 1, 3]]), out[..., [2, 0, 1]], rtol=0, atol=1e-12)


def test_separate_channels_hear_each_other_through_attention_among_channels_alone() -> None:
    task = task_of("pair", (AROUND,), ("u", "v"))
    model = model_of((task, (12,)), channels="separate")
    for key in ("field_u", "field_v"):  # the head's view of the fields at a point is another way
        nn.init.zeros_(model.head.local[key])
    fields = torch.randn(2, 12, 2, dtype=torch.float64)
    other = torch.cat([fields[..., :1], torch.randn(2, 12, 1, dtype=torch.float64)], -1)
    assert not torch.allclose(step(model, task, fields)[..., 0], step(model, task, other)[..., 0], rtol=0, atol=1e-6)
    for block in model.blocks.modules():
        if isinstance(block, UnetBlock):
            assert block.channels is not None
            nn.init.zeros_(block.channels.mixed.weight)
    assert torch.equal(step(model, task, fields)[..., 0], step(model, task, other)[..., 0])


def test_a_body_names_all_its_layers_and_leaves_networks_of_distances_to_adamw() -> None:
    model = model_of((task_of("tank", (AROUND, WALLS)), (8, 8)), levels=3)
    inside = {name for layer in model.layers() for name in map(id, layer.parameters())}
    assert inside == {id(p) for p in model.blocks.parameters()}
    assert len(model.layers()) == 5 * 2 + 2 * 2
    muon = {id(p) for p in model.matrices()}
    names = {name for name, p in model.blocks.named_parameters() if id(p) not in muon and p.dim() > 1}
    assert names and all(".bias." in name for name in names)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    frame = Frame(Grid.cell_centred((8,)), Boundary((AROUND,)), (1,))
    with pytest.raises(UserError, match="heads 5 does not divide width 12"):
        PdetUnet({"ring": frame}, width=12, heads=5)


@pytest.fixture
def unet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    spec, stores = small.prepared(tmp_path / "data")
    spec = ModelSpec("pdet_unet", SETTINGS, spec.tasks)
    monkeypatch.setattr(small, "prepared", lambda folder: (spec, stores))
    return spec


def test_training_lowers_the_error_and_the_loaded_model_is_the_trained_one(unet: ModelSpec, tmp_path: Path) -> None:
    changes = {"steps": 40, "learning_rate": 1e-2, "rollout": [(0.0, 1)], "noise": 0.0, "ema": 0.9, "clip": 1.0}
    run = tmp_path / "run"
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
        trainer = small.small_trainer(rt, tmp_path / "data", run, **changes, precision="float32")
        first = trainer.stepper.gradients(trainer.micro_batches(0), rt)
        trainer.fit()
        last = [e for e in read_events(run / "events.jsonl") if e["kind"] == "step"][-1]["parts"]
        assert last["advection"] < 0.6 * float(first["advection"])
        assert last["darcy"] < 0.6 * float(first["darcy"])
        micro = next(iter(trainer.micro_batches(0)))
        history, lead = micro.samples.values[:, :1], torch.full((len(micro.samples),), 0.1)
        static = history.new_zeros(len(history), 32, 0)
        inputs = ("advection", history, static, micro.samples.parameters, lead, micro.samples.grid)
        with trainer.ema.applied(), torch.no_grad():
            expected = trainer.model(*inputs)
        assert torch.equal(load_model(run)[0](*inputs), expected)


@pytest.mark.slow
@unchecked()  # dynamo cannot trace jaxtyping's checks
def test_compiled_blocks_compute_the_same(unet: ModelSpec, tmp_path: Path) -> None:
    exact, _ = small.train_small(tmp_path, tmp_path / "exact", steps=5, precision="float32")
    runtime = {"compile": True}
    compiled, _ = small.train_small(tmp_path, tmp_path / "compiled", steps=5, runtime=runtime, precision="float32")
    assert compiled == pytest.approx(exact, rel=1e-4)
