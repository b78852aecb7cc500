"""A step repeated is a loop, on a GPU as well."""

from __future__ import annotations

import pytest
import torch

from ups.equations import GrayScott, Vorticity
from ups.equations.schemes import repeated
from ups.equations.schemes.repeated import repeat


def turned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + y.sin(), y


@pytest.mark.parametrize("times", [0, 1, 2, 7])
def test_so_many_steps_are_taken(times: int) -> None:
    x = torch.linspace(0, 1, 5, dtype=torch.float64)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        start = x.to(device)
        made, kept = repeat(turned, (start, start.clone()), times, "turned")
        assert torch.allclose(made.cpu(), x + times * x.sin(), rtol=1e-14) and torch.equal(kept.cpu(), x)
        assert torch.equal(start.cpu(), x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU")
@pytest.mark.parametrize("equation", [GrayScott(points=32), Vorticity(points=32)], ids=lambda e: e.name)
def test_recorded_transforms_give_what_a_loop_gives(
    equation: GrayScott | Vorticity, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = equation.times[:4]
    recorded = equation.solve(0, range(3), times, "cuda").values
    monkeypatch.setattr(repeated, "_WORTH", 10**9)
    assert torch.equal(recorded, equation.solve(0, range(3), times, "cuda").values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU")
def test_more_recordings_than_are_kept_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "_MOST", 2)
    for number in range(7):
        x = torch.full((4,), float(number), device="cuda")
        made, _ = repeat(turned, (x, torch.zeros_like(x)), 5, ("many", number))
        assert torch.equal(made, x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU")
def test_what_was_recorded_without_gradients_is_used_with_them() -> None:
    """States of inference mode must not be written to outside of it."""
    x = torch.ones(4, dtype=torch.float64, device="cuda")
    with torch.inference_mode():
        first, _ = repeat(turned, (x + 0, x + 0), 5, "inference")
    second, _ = repeat(turned, (x, x.clone()), 5, "inference")
    followed = x.clone().requires_grad_()
    third, _ = repeat(turned, (followed, x), 5, "inference")
    assert torch.equal(first, second) and torch.equal(second, third) and third.requires_grad
