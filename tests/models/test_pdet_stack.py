"""The plain transformer: what its attention computes, what its positions mean, what it refuses; and it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import small
import torch
from shapes import unchecked
from torch import Tensor

from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Boundary, Grid, Side
from ups.models.architectures import ARCHITECTURES
from ups.models.geometry import Frame
from ups.models.operator.pdet_stack import PdetBlock, PdetStack, Rotation, frequencies
from ups.models.saved import ModelSpec
from ups.track.jsonl import read_events
from ups.training.restore import load_model

TANK = Boundary(((Side("periodic"), Side("periodic")), (Side("reflecting"), Side("open"))))
SETTINGS = {"width": 16, "depth": 2, "heads": 2, "head": 8, "conditions": 8}


def rotation(frame: Frame, width: int, heads: int) -> Rotation:
    return PdetStack({"waves": frame}, width=width, heads=heads).tables("waves", frame, lambda table: table)


def awake(width: int, heads: int) -> PdetBlock:
    torch.manual_seed(0)
    block = PdetBlock(width, heads, 2.0).double()
    for parameter in block.parameters():
        if parameter.dim() == 1 or not parameter.detach().any():
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    return block


def test_attention_is_the_textbooks_with_pairs_turned_as_complex_numbers() -> None:
    """Term by term in complex numbers: (q̂_a + i q̂_b) e^{iθ}, logits Re(q conj k) / √d, softmax, mean of v."""
    frame = Frame(Grid.cell_centred((6, 4)), TANK, (1, 1))
    block, turn = awake(12, 2), rotation(frame, 12, 2)
    h = torch.randn(2, 24, 12, dtype=torch.float64)
    points = frame.grid.points()
    angles = torch.cat(
        [points[:, :1] * frequencies(1.0, 6, True, 2), points[:, 1:] * frequencies(1.0, 4, False, 1)], -1
    )
    q, k, v = (h @ block.qkv.weight.T).view(2, 24, 3, 2, 6).unbind(2)

    def turned(x: Tensor, scale: Tensor) -> Tensor:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale
        return torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angles), angles)[:, None]

    logits = torch.einsum("bihp,bjhp->bhij", turned(q, block.query_scale), turned(k, block.key_scale).conj()).real
    expected = torch.einsum("bhij,bjhc->bihc", (logits / 6**0.5).softmax(-1), v).flatten(2)
    assert torch.allclose(block.attend(h, turn), expected, rtol=0, atol=1e-13)


def test_a_periodic_axis_turns_by_whole_waves_and_a_bounded_one_by_length() -> None:
    waves = (frequencies(3.0, 64, True, 8) * 3.0 / (2 * torch.pi)).tolist()
    assert waves == pytest.approx([round(k) for k in waves], abs=1e-12)
    assert waves[:2] == pytest.approx([0, 1]) and sorted({round(k) for k in waves}) == [round(k) for k in waves]
    assert round(waves[-1]) == round(64 / (2 * torch.pi))  # a radian a cell, to a whole number of waves
    few = frequencies(3.0, 8, True, 8) * 3.0 / (2 * torch.pi)
    assert few.tolist() == pytest.approx([0, 1, 2, 3, 4, 4, 4, 4])  # eight points know no more than four waves
    bounded = frequencies(3.0, 64, False, 8)
    ratios = bounded[2:] / bounded[1:-1]
    assert torch.allclose(ratios, ratios[:1].expand_as(ratios))
    assert bounded[1].item() == pytest.approx(torch.pi / 3.0) and bounded[-1].item() == pytest.approx(64 / 3.0)


def test_positions_are_lengths_not_numbers_of_points() -> None:
    """Cells of the same middles turn alike, however many points they hold; uneven ones by their own distances."""
    boundary = Boundary.all("flux", 1)
    plain = Frame(Grid.cell_centred((8,)), boundary, (1,))
    finer = Frame(Grid.cell_centred((16,)), boundary, (2,))
    moved = Frame(Grid.cell_centred((8,), ((5.0, 6.0),)), boundary, (1,))
    uneven = Frame(Grid((plain.grid.positions[0] ** 2,), plain.grid.extent), boundary, (1,))
    own = rotation(plain, 8, 1).cos
    assert torch.allclose(rotation(finer, 8, 1).cos, own, rtol=0, atol=1e-14)
    assert torch.allclose(rotation(moved, 8, 1).cos, own, rtol=0, atol=1e-13)
    angles = uneven.grid.positions[0][:, None] * frequencies(1.0, 8, False, 4)
    assert torch.allclose(rotation(uneven, 8, 1).cos[:, 0, 0, :4], angles.cos(), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("width", "heads"), [(12, 5), (12, 4), (6, 2)])
def test_heads_that_do_not_fit_are_refused(width: int, heads: int) -> None:
    frame = Frame(Grid.cell_centred((8, 8)), TANK, (1, 1))
    with pytest.raises(UserError, match="even number of channels, at least 4"):
        PdetStack({"waves": frame}, width=width, heads=heads)


def test_each_architecture_is_given_its_own_settings_only() -> None:
    spectral, stack = (ARCHITECTURES[name].settings for name in ("spectral", "pdet_stack"))
    assert "heads" not in spectral().model_dump() and spectral().model_dump()["modes"] == 32
    assert "modes" not in stack(width=256).model_dump()
    frame = Frame(Grid.cell_centred((8,)), Boundary.all("periodic", 1), (1,))
    assert PdetStack({"waves": frame}, width=256).heads == 4


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    spec, stores = small.prepared(tmp_path / "data")
    spec = ModelSpec("pdet_stack", SETTINGS, spec.tasks)
    monkeypatch.setattr(small, "prepared", lambda folder: (spec, stores))
    return spec


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_lowers_the_error_and_the_loaded_model_is_the_trained_one(
    stack: ModelSpec, tmp_path: Path, precision: str
) -> None:
    settings = {"steps": 80, "learning_rate": 1e-2, "rollout": [(0.0, 1)], "noise": 0.0, "ema": 0.9, "clip": 1.0}
    run = tmp_path / "run"
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
        trainer = small.small_trainer(rt, tmp_path / "data", run, **settings, precision=precision)
        first = trainer.stepper.gradients(trainer.micro_batches(0), rt)
        trainer.fit()
        last = [e for e in read_events(run / "events.jsonl") if e["kind"] == "step"][-1]["parts"]
        assert last["advection"] < 0.6 * float(first["advection"])
        assert last["darcy"] < 0.6 * float(first["darcy"])
        if precision == "float32":
            micro = next(iter(trainer.micro_batches(0)))
            history, lead = micro.samples.values[:, :1], torch.full((len(micro.samples),), 0.1)
            static = history.new_zeros(len(history), 32, 0)
            given = ("advection", history, static, micro.samples.parameters, lead, micro.samples.grid)
            with trainer.ema.applied(), torch.no_grad():
                expected = trainer.model(*given)
            assert torch.equal(load_model(run)[0](*given), expected)


@pytest.mark.slow
@unchecked()  # dynamo cannot trace jaxtyping's checks
def test_compiled_blocks_compute_the_same(stack: ModelSpec, tmp_path: Path) -> None:
    exact, _ = small.train_small(tmp_path, tmp_path / "exact", steps=5, precision="float32")
    runtime = {"compile": True}
    compiled, _ = small.train_small(tmp_path, tmp_path / "compiled", steps=5, runtime=runtime, precision="float32")
    assert compiled == pytest.approx(exact, rel=1e-4)
