"""The `spectral` operator: axis-wise spectral mixing, neighbours along each axis, a channel MLP, all conditioned.

One block, with h = (1 + γ) ⊙ x + β and γ, β, g from the conditions:

    x ← x + (1 + g) ⊙ W₂ σ( W₁ [h, Σ_axes S_a M_a A_a h, h₋ and h₊ along each axis] )

A_a and S_a are the truncated real transforms of axis a, M_a mixes channels per mode. On a periodic axis M_a has the
complex structure (c, s) → (cA + sB, sA − cB), which commutes with shifts; on a bounded axis it is any real matrix.
Weights belong to an axis and a basis: a kernel shared by x and y could not tell ∂p/∂x from ∂p/∂y. The neighbours h₋, h₊
are a local convolution; they are left out on a periodic axis all of whose modes are kept, where M_a already is every
convolution there is.

Tasks share every matrix, as experts that each mixes in its own way (`Experts`): unlike equations that had to agree on
one kernel would stop learning where a model of one system goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from ups.config.settings import Positive
from ups.fields import AXES, Boundary
from ups.kernels import INSTALLED, differentiable
from ups.models.bases import transforms
from ups.models.geometry import Frame
from ups.models.interpolation import apply_along
from ups.models.operator.body import Stack
from ups.models.operator.pointwise import activated, gated, modulated
from ups.models.operator.settings import OperatorSettings

if INSTALLED:
    from ups.models.operator import mixing_kernel
else:
    mixing_kernel = None


class SpectralSettings(OperatorSettings):
    modes: Positive = Field(default=32, description="kept along each axis, at most")
    experts: Positive | None = Field(
        default=None, description="of every matrix of a block; one for every two tasks that use it, if not given"
    )


@dataclass(frozen=True, eq=False)
class Bases:
    """The truncated transforms A_a and S_a of each axis of a task's frame, and which axes need neighbours."""

    task: str
    boundary: Boundary
    local_axes: tuple[int, ...]
    analysis: tuple[Float[Tensor, "_ _"], ...]  # (2K, n), of each axis its own
    synthesis: tuple[Float[Tensor, "_ _"], ...]  # (n, 2K)


class Spectral:
    """The architecture's blocks, and the tables they need of a frame; `modes` are kept along each axis at most."""

    separate = False

    def __init__(
        self,
        frames: Mapping[str, Frame],
        *,
        width: int,
        modes: int = 16,
        experts: int | None = None,
        expansion: float = 2.0,
    ) -> None:
        self.width, self.modes, self.experts, self.expansion = width, modes, experts, expansion
        self.tasks = list(frames)
        self.bases: dict[str, dict[str, int]] = {}
        self.local: dict[str, list[str]] = {}
        for task, frame in frames.items():
            for axis, (wraps, kept) in enumerate(zip(frame.boundary.periodic, frame.modes(modes), strict=True)):
                self.bases.setdefault(basis_name(axis, wraps), {})[task] = kept
            for axis, needed in enumerate(frame.local(modes)):
                if needed:
                    self.local.setdefault(AXES[axis], []).append(task)

    def body(self, depth: int) -> Stack:
        return Stack(self.block() for _ in range(depth))

    def block(self) -> SpectralBlock:
        return SpectralBlock(self.width, self.tasks, self.bases, self.local, self.expansion, self.experts)

    def tables(self, task: str, frame: Frame, put: Callable[[Tensor], Tensor]) -> Bases:
        latent, boundary, kept = frame.latent, frame.boundary, frame.modes(self.modes)
        pairs = [
            transforms(*axis) for axis in zip(latent.positions, latent.extent, boundary.periodic, kept, strict=True)
        ]
        analysis, synthesis = (tuple(put(table) for table in tables) for tables in zip(*pairs, strict=True))
        local_axes = tuple(axis for axis, needed in enumerate(frame.local(self.modes)) if needed)
        return Bases(task, boundary, local_axes, analysis, synthesis)


def basis_name(axis: int, periodic: bool) -> str:
    return f"{AXES[axis]}_{'periodic' if periodic else 'bounded'}"


def complex_as_real(weight: Float[Tensor, "K D two_D"]) -> Float[Tensor, "K two_D two_D"]:
    """[A | B] of each mode as the matrix of (c, s) → (cA + sB, sA − cB), applied from the right."""
    if (kernel := differentiable(mixing_kernel, weight)) is not None:
        return kernel.complex_as_real(weight)
    a, b = weight.chunk(2, -1)
    return torch.cat([torch.cat([a, -b], -1), torch.cat([b, a], -1)], 1)


def mix_modes(
    matrices: Float[Tensor, "K two_D two_D"], coefficients: Float[Tensor, "B *modes D"], axis: int
) -> Float[Tensor, "B *modes D"]:
    """Each mode's cosine and sine parts, side by side along `axis`, times its own matrix. All else is a batch."""
    names = [f"n{i}" for i in range(coefficients.dim() - 2)]
    batch = " ".join(["b", *names[:axis], *names[axis + 1 :]])
    names[axis] = "(k two)"
    apart, together = f"b {' '.join(names)} d", f"k ({batch}) (two d)"
    sizes = {f"n{i}": n for i, n in enumerate(coefficients.shape[1:-1]) if i != axis}
    mixed = torch.bmm(rearrange(coefficients, f"{apart} -> {together}", two=2), matrices)
    return rearrange(mixed, f"{together} -> {apart}", two=2, b=coefficients.shape[0], **sizes)


def neighbours(x: Float[Tensor, "B *space D"], axis: int, boundary: Boundary) -> tuple[Tensor, Tensor]:
    """The fields one latent point below and above; beyond a wall: zero for a prescribed value, else the edge itself."""
    dim, n = axis + 1, x.shape[axis + 1]
    lower, upper = boundary.sides[axis]
    if lower.kind == "periodic":
        return torch.roll(x, 1, dim), torch.roll(x, -1, dim)
    first, last = x.narrow(dim, 0, 1), x.narrow(dim, n - 1, 1)
    below = torch.zeros_like(first) if lower.kind == "value" else first
    above = torch.zeros_like(last) if upper.kind == "value" else last
    return torch.cat([below, x.narrow(dim, 0, n - 1)], dim), torch.cat([x.narrow(dim, 1, n - 1), above], dim)


def beside(
    h: Float[Tensor, "B *space D"], mixed: Float[Tensor, "B *space D"], bases: Bases
) -> Float[Tensor, "B *space parts_D"]:
    """All that the channel MLP sees of a point: h, what the modes made of it, and its neighbours where needed."""
    if (kernel := differentiable(mixing_kernel, h)) is not None:
        ends = [[side.kind for side in bases.boundary.sides[axis]] for axis in bases.local_axes]
        beyond = {"periodic": kernel.WRAPS, "value": kernel.ZERO}
        return kernel.beside(h, mixed, bases.local_axes, [tuple(beyond.get(k, kernel.EDGE) for k in e) for e in ends])
    near = [field for axis in bases.local_axes for field in neighbours(h, axis, bases.boundary)]
    return torch.cat([h, mixed, *near], -1)


class Experts(nn.Module):
    """Matrices that several tasks share, or a stack of them: a task's own are Σ_e g_e W_e, with gates g of its own for
    each matrix of the stack. A single expert is every task's, without gates.
    """

    def __init__(self, tasks: Sequence[str], weights: Callable[..., Tensor], stack: int, count: int | None) -> None:
        """`weights(n)` draws n matrices; `count` experts, or one for every two tasks."""
        super().__init__()
        self.stack, self.count = stack, min(len(tasks), count or max(1, len(tasks) // 2))
        self.weight = nn.Parameter(weights(stack * self.count))  # a matrix's experts beside one another
        several = tasks if self.count > 1 else ()
        self.gates = nn.ParameterDict(
            {f"task_{task}": nn.Parameter(torch.randn(stack * self.count) / math.sqrt(self.count)) for task in several}
        )

    def forward(self, task: str, kept: int | None = None) -> Float[Tensor, "K m n"]:
        """The task's own, the first `kept` of the stack."""
        kept = self.stack if kept is None else kept
        # A slice of all would cost a backward pass that fills zeros in.
        weight = self.weight if kept == self.stack else self.weight[: kept * self.count]
        if self.count == 1:
            return weight
        gates = self.gates[f"task_{task}"]
        gates = gates if kept == self.stack else gates[: kept * self.count]
        mixed = torch.bmm(gates.view(kept, 1, self.count), weight.view(kept, self.count, -1))
        return mixed.view(kept, *weight.shape[1:])


class SpectralBlock(nn.Module):
    """One residual block on latents of any dimension."""

    compiled = True
    products: torch.dtype | None = None
    """The type that the factors of the channel MLP are rounded to; None: not at all."""

    def __init__(
        self,
        width: int,
        tasks: Sequence[str],
        bases: Mapping[str, Mapping[str, int]],
        local: Mapping[str, Sequence[str]],
        expansion: float,
        experts: int | None = None,
    ) -> None:
        """`bases`: the modes that tasks keep of each axis and basis, such as {"x_periodic": {"burgers": 32}}; `local`:
        the axes along which some tasks need neighbours, and which.
        """
        super().__init__()
        self.modulated, hidden = 3 * width, int(expansion * width)

        def normal(rows: int, columns: int, size: float) -> Callable[..., Tensor]:
            return lambda n: torch.randn(n, rows, columns) / math.sqrt(size)

        self.spectral = nn.ModuleDict()
        for name, modes in sorted(bases.items()):
            rows = width if name.endswith("periodic") else 2 * width
            draw = normal(rows, 2 * width, 2 * rows)
            self.spectral[name] = Experts(list(modes), draw, max(modes.values()), experts)
        self.stencil = nn.ModuleDict(
            {
                axis: Experts(users, normal(2 * width, hidden, 4 * width), 1, experts)
                for axis, users in sorted(local.items())
            }
        )
        self.inner, self.inner_bias = _linear(tasks, 2 * width, hidden, experts)
        self.outer, self.outer_bias = _linear(tasks, hidden, width, experts)

    def mix(self, h: Float[Tensor, "B *space D"], bases: Bases) -> Float[Tensor, "B *space D"]:
        mixed: Tensor | None = None
        for axis, periodic in enumerate(bases.boundary.periodic):
            analysis, synthesis = bases.analysis[axis], bases.synthesis[axis]
            weight = self.spectral[basis_name(axis, periodic)](bases.task, len(analysis) // 2)
            part = mix_modes(complex_as_real(weight) if periodic else weight, apply_along(analysis, h, axis), axis)
            part = apply_along(synthesis, part, axis)
            mixed = part if mixed is None else mixed + part
        assert mixed is not None, "a field has an axis"
        return mixed

    def forward(
        self, x: Float[Tensor, "B *space D"], modulation: Float[Tensor, "B three_D"], bases: Bases
    ) -> Float[Tensor, "B *space D"]:
        gain, shift, gate = modulation.chunk(3, -1)
        h = modulated(x, gain, shift)
        seen = beside(h, self.mix(h, bases), bases)
        stencils = [self.stencil[AXES[axis]](bases.task).squeeze(0) for axis in bases.local_axes]
        weight = torch.cat([self.inner(bases.task).squeeze(0).T, *stencils]).T
        active = activated(seen, weight, self.inner_bias, self.products)
        return gated(x, gate, active, self.outer(bases.task).squeeze(0), self.outer_bias, self.products)


def _linear(tasks: Sequence[str], inputs: int, outputs: int, experts: int | None) -> tuple[Experts, nn.Parameter]:
    """Matrices and bias, drawn as torch's linear layer draws its own."""
    bound = 1 / math.sqrt(inputs)
    matrices = Experts(tasks, lambda n: torch.empty(n, outputs, inputs).uniform_(-bound, bound), 1, experts)
    return matrices, nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
