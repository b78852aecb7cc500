"""Muon for the matrices of a network's blocks and of their modulation, AdamW for everything else, in one optimiser.

    M ← μ M + (1 − μ) G,    U = (1 − μ) G + μ M
    W ← (1 − η λ) W − 0.2 √max(m, n) · η · O(U)        for every m × n matrix W with gradient G

O(U) is U with its singular values brought near 1: a step changes all directions of a matrix alike, where a gradient
moves the few strongest. An entry of O(U) is 1 / √max(m, n) in the root mean square, so the factor gives an update the
size of AdamW's, whose learning rate η and weight decay λ therefore carry over. A parameter of three axes, such as a
spectral weight (modes, m, n), is that many matrices.

It fails where rows or columns are no directions of a common space: tables of fields and conditions, first and last
layers. Those, and all vectors, are AdamW's. Values that work: μ = 0.95, five iterations, AdamW's η or twice it. The
iterations cost 5 · 2 m² (2 n + m) operations a matrix, m ≤ n, whatever the batch: they are cheap beside large batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim.adamw import adamw
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ups.distributed.parallel import local
from ups.graphs import branches
from ups.kernels import INSTALLED
from ups.training.orthogonalise import orthogonalise

if INSTALLED:
    from ups.training import muon_kernel
else:
    muon_kernel = None


class Muon(torch.optim.Optimizer):
    """`groups` as any optimiser's, each with `orthogonal`: True for Muon, False for AdamW.

    Like torch's fused optimisers it changes nothing where the flag `found_inf` is 1, and takes a learning rate that is
    a tensor; it never waits for the device, so it can be captured. Equal shapes are computed at once. Moments are
    allocated here, as DTensors for DTensors: momentum stays sharded, and only a matrix that is itself cut is gathered.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float = 0.95) -> None:
        defaults = {"lr": lr, "momentum": momentum, "betas": (0.9, 0.999), "eps": 1e-8, "capturable": False}
        super().__init__(groups, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["orthogonal"] and parameter.dim() < 2:
                    raise ValueError(f"a parameter of shape {tuple(parameter.shape)} is no matrix: it is AdamW's")
                names = ["momentum_buffer"] if group["orthogonal"] else ["exp_avg", "exp_avg_sq"]
                self.state[parameter] = {name: torch.zeros_like(parameter).detach() for name in names}
                if not group["orthogonal"]:
                    count = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    self.state[parameter]["step"] = count

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of every parameter that has a gradient."""
        works: list[Callable[[], None]] = []
        for group in self.param_groups:
            touched = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["orthogonal"]:
                works.append(partial(self._adamw, group, touched))
                continue
            alike: dict[tuple, list[nn.Parameter]] = {}
            for parameter in touched:
                if _has_kernel(parameter):
                    works.append(partial(self._by_kernel, group, parameter))
                else:
                    alike.setdefault(_kind(parameter), []).append(parameter)
            works += [partial(self._muon, group, parameters) for parameters in alike.values()]
        branches(works, self.param_groups[0]["params"][0].device)

    def kernels(self) -> str:
        """How many of its matrices' parameters a kernel updates: as many on all ranks, or replicas would not agree."""
        parameters = [p for group in self.param_groups if group["orthogonal"] for p in group["params"]]
        return f"{sum(map(_has_kernel, parameters))} of {len(parameters)}"

    def _muon(self, group: dict[str, Any], parameters: Sequence[nn.Parameter]) -> None:
        """One step of parameters of the same shape, of which each rank holds the same part."""
        mu, decay, scale = group["momentum"], group["weight_decay"], _scale(parameters[0])
        momenta = [local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        weights = [local(parameter) for parameter in parameters]
        gradient = torch.stack([local(parameter.grad) for parameter in parameters if parameter.grad is not None])
        momentum, weight = torch.stack(momenta), torch.stack(weights)
        moved = torch.lerp(momentum, gradient, 1 - mu)
        update = _orthogonal(torch.lerp(gradient, moved, mu), parameters[0])
        self._write(momenta, momentum, moved)
        change = torch.add(update, weight, alpha=decay / scale)
        self._write(weights, weight, torch.addcmul(weight, change, _rate(group, weight), value=-scale))

    def _by_kernel(self, group: dict[str, Any], parameter: nn.Parameter) -> None:
        """The same for one parameter whose matrices are small."""
        assert muon_kernel is not None and parameter.grad is not None
        weight = local(parameter)
        if weight.numel() == 0:  # a rank without a share
            return
        muon_kernel.update(
            weight,
            local(self.state[parameter]["momentum_buffer"]),
            local(parameter.grad).contiguous(),
            _rate(group, weight),
            getattr(self, "found_inf", None),
            group["momentum"],
            group["weight_decay"],
            _scale(parameter),
        )

    def _write(self, tensors: list[Tensor], before: Tensor, after: Tensor) -> None:
        """Their new values; the old ones where the step is skipped, chosen and not weighted: zero times NaN is NaN."""
        flag: Tensor | None = getattr(self, "found_inf", None)
        values = after if flag is None else torch.where(flag == 0, after, before)
        torch._foreach_copy_(tensors, list(values.unbind()))  # pyright: ignore[reportPrivateImportUsage]

    def _adamw(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        """Torch's own fused AdamW."""
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            list(parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            capturable=group["capturable"],
            found_inf=getattr(self, "found_inf", None),
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _scale(parameter: Tensor) -> float:
    return 0.2 * math.sqrt(max(parameter.shape[-2:]))


def _rate(group: dict[str, Any], like: Tensor) -> Float[Tensor, ""]:
    """The learning rate on the device, which is not waited for."""
    rate = group["lr"]
    return rate.to(like) if isinstance(rate, Tensor) else torch.full((), rate, dtype=like.dtype, device=like.device)


def _has_kernel(parameter: Tensor) -> bool:
    """Whether this rank's part of it is whole matrices, and such that a GPU's processor has room for one. Who counts
    or fakes torch's operations would not see the kernel, and gets products.
    """
    if is_in_torch_dispatch_mode():
        return False
    part = local(parameter)
    return muon_kernel is not None and not _cut(parameter) and part.is_contiguous() and muon_kernel.fits(part)


def _cut(parameter: Tensor) -> bool:
    """Whether ranks hold parts of matrices: their shares go through them, and not between them."""
    placements = parameter.placements if isinstance(parameter, DTensor) else ()
    return any(isinstance(p, Shard) and p.dim >= parameter.dim() - 2 for p in placements)


def _kind(parameter: Tensor) -> tuple:
    """What parameters must share to be stacked on every rank."""
    placements = parameter.placements if isinstance(parameter, DTensor) else None
    return parameter.shape, parameter.dtype, parameter.device, placements


def _orthogonal(updates: Tensor, like: nn.Parameter) -> Tensor:
    """`orthogonalise` of what this rank holds of some parameters that are cut as `like` is, stacked."""
    if not isinstance(like, DTensor) or not _cut(like):
        return orthogonalise(updates)
    mesh = like.device_mesh
    shape = torch.Size([len(updates), *like.shape])
    stride = torch.empty(shape, device="meta").stride()
    placements = [Shard(p.dim + 1) if isinstance(p, Shard) else p for p in like.placements]  # the stack is an axis more
    whole = DTensor.from_local(updates, mesh, placements, run_check=False, shape=shape, stride=stride).full_tensor()
    result = DTensor.from_local(orthogonalise(whole), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return result.redistribute(placements=placements).to_local()
