"""An exponential moving average of the weights: what is evaluated, saved and used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ups.distributed.parallel import local


class EMA:
    """average ← d · average + (1 − d) · weights, with d = min(decay, (1 + s) / (10 + s)) in step s: a young average is
    not held back by where the weights started. Frozen weights have none.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.averages: dict[str, Tensor] = {name: p.detach().clone() for name, p in self.live.items()}

    def share(self, step: int) -> float:
        """1 − d: the weights' share of the new average."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, share: float | Float[Tensor, ""], skipped: Float[Tensor, ""] | None = None) -> None:
        """`skipped` is 1 where the weights were left as they were, which only a GPU still has to find out. A share that
        is there is not waited for: average ← average − share · (average − weights) is what torch's fused SGD computes
        with weights as gradients to ascend and a decay of 1, in one pass.
        """
        averages = [local(average) for average in self.averages.values()]
        weights = [local(parameter) for parameter in self.live.values()]
        if isinstance(share, float):
            torch._foreach_lerp_(averages, weights, share)  # pyright: ignore[reportPrivateImportUsage]
            return
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            averages,
            weights,
            [],
            lr=share,
            weight_decay=1.0,
            maximize=True,
            momentum=0.0,
            dampening=0.0,
            nesterov=False,
            is_first_step=False,
            found_inf=skipped,
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within, the module computes with the averages."""
        weights = {name: p.detach().clone() for name, p in self.live.items()}
        self._set(self.averages)
        try:
            yield
        finally:
            self._set(weights)

    @torch.no_grad()
    def _set(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self.live.items():
            local(parameter).copy_(local(values[name]))
