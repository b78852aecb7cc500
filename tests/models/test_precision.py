"""Which type each part of a model computes in when `training.precision` is bfloat16."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import small
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ups.distributed.parallel import blocks
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.models.saved import ModelSpec
from ups.training.trainer import Trainer

SETTINGS = {
    "spectral": small.SETTINGS,
    "pdet_stack": {"width": 16, "depth": 2, "heads": 2, "head": 8, "conditions": 8},
    "pdet_unet": {"width": 8, "depth": 1, "levels": 2, "window": 16, "heads": 2, "head": 8, "conditions": 8},
}
HALF, WHOLE = torch.bfloat16, torch.float32


class Products(TorchDispatchMode):
    """Notes the types of the factors of every product of matrices, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[tuple[torch.dtype, ...]]] = defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "native_layer_norm", "silu", "_softmax") or "attention" in name:
            floats = [a for a in args if isinstance(a, Tensor)]
            self.seen[name].append(tuple(dict.fromkeys(a.dtype for a in floats)))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def trainer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spec, stores = small.prepared(tmp_path / "data")
    described = ModelSpec(request.param, SETTINGS[request.param], spec.tasks)
    monkeypatch.setattr(small, "prepared", lambda folder: (described, stores))
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
        yield small.small_trainer(rt, tmp_path / "data", tmp_path / "run", precision="bfloat16")


def stream(trainer: Trainer) -> tuple[list[torch.dtype], Products]:
    """A pass of one step: the types of what goes into and comes out of blocks, and of the products within them."""
    types: list[torch.dtype] = []
    products = Products()

    def enter(module, inputs) -> None:
        types.extend(t.dtype for t in inputs if isinstance(t, Tensor))
        products.__enter__()

    def leave(module, inputs, output) -> None:
        products.__exit__(None, None, None)
        types.append(output.dtype)

    for block in blocks(trainer.model):
        block.register_forward_pre_hook(enter)
        block.register_forward_hook(leave)
    trainer.stepper.gradients(trainer.micro_batches(0), trainer.runtime)
    return types, products


@pytest.mark.parametrize("trainer", ["spectral"], indirect=True)
def test_spectral_transforms_and_mixing_are_not_rounded_but_the_channel_mlp_is(trainer: Trainer) -> None:
    types, products = stream(trainer)
    assert set(types) == {WHOLE}
    # Per block: both transforms of every axis in float32, the MLP's two products in bfloat16.
    assert set(products.seen["bmm"]) == {(WHOLE,)}
    passes = len(products.seen["silu"])
    assert products.seen["silu"] == [(HALF,)] * passes
    assert products.seen["addmm"] == [(HALF,)] * (2 * passes)


@pytest.mark.parametrize("trainer", ["pdet_stack"], indirect=True)
def test_attention_and_products_are_rounded_but_the_stream_and_norms_are_not(trainer: Trainer) -> None:
    types, products = stream(trainer)
    assert set(types) == {WHOLE}
    attention = [kinds for name, seen in products.seen.items() if "attention" in name for kinds in seen]
    passes = len(products.seen["silu"])
    assert attention and set(attention) == {(HALF,)} and len(attention) == passes
    assert products.seen["native_layer_norm"] == [(WHOLE,)] * (2 * passes)
    assert set(products.seen["mm"]) == {(HALF,)}  # q, k and v
    assert products.seen["addmm"] == [(HALF,)] * (3 * passes)


@pytest.mark.parametrize("trainer", ["pdet_unet"], indirect=True)
def test_windows_are_rounded_but_their_bias_softmax_and_what_goes_between_levels_are_not(trainer: Trainer) -> None:
    types, products = stream(trainer)
    assert set(types) == {WHOLE}
    assert set(products.seen["bmm"]) == {(HALF,)}  # logits, and the sum of values
    assert set(products.seen["_softmax"]) == {(WHOLE,)}
    # of the network of distances, and of the MLP
    assert products.seen["silu"] == [(WHOLE,), (HALF,)] * (len(products.seen["silu"]) // 2)


@pytest.mark.parametrize("trainer", list(SETTINGS), indirect=True)
def test_gradients_weights_averages_and_moments_stay_float32(trainer: Trainer) -> None:
    trainer.stepper.gradients(trainer.micro_batches(0), trainer.runtime)
    assert {g.dtype for task in trainer.stepper.of_tasks for g in task if g is not None} == {WHOLE}
    trainer.step()
    held = {t.dtype for name, t in trainer._tensors().items() if not name.startswith(("model.leads", "model.scales"))}
    assert held == {WHOLE}


@pytest.mark.parametrize(("asked", "precision"), [(True, "high"), (False, "highest")])
def test_products_of_float32_are_cut_to_tf32_only_where_asked(asked: bool, precision: str) -> None:
    with Runtime.start(RuntimeConfig(device="cpu", threads=1, tf32=asked), 0):
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cudnn.allow_tf32 is asked
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
