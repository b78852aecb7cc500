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
    experts: Positive | dict[str, Positive] | None = Field(
        default=None,
        description="of every matrix of a block, of single ones by name (x_periodic, y_bounded, x, inner, outer) if "
        "they are to be those of another model; one for every two tasks that use it, if not given",
    )
    adapters: Positive | None = Field(
        default=None, description="rank of what each task adds to every matrix of a block; nothing, if not given"
    )


OTHERS = 0.1
"""The size of all gates together, at first, of the experts that a task has in common with others only."""


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
        experts: int | Mapping[str, int] | None = None,
        adapters: int | None = None,
        expansion: float = 2.0,
    ) -> None:
        self.width, self.modes, self.expansion = width, modes, expansion
        self.experts, self.adapters, self.tasks = experts, adapters or 0, list(frames)
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
        return SpectralBlock(
            self.width, self.tasks, self.bases, self.local, self.expansion, self.experts, self.adapters
        )

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
    h: Float[Tensor, "B *space D"], mixed: Float[Tensor, "B *space D"], bases: Bases, training: bool
) -> Float[Tensor, "B *space parts_D"]:
    """All that the channel MLP sees of a point: h, what the modes made of it, and its neighbours where needed."""
    if training and (kernel := differentiable(mixing_kernel, h)) is not None:
        ends = [[side.kind for side in bases.boundary.sides[axis]] for axis in bases.local_axes]
        beyond = {"periodic": kernel.WRAPS, "value": kernel.ZERO}
        return kernel.beside(h, mixed, bases.local_axes, [tuple(beyond.get(k, kernel.EDGE) for k in e) for e in ends])
    near = [field for axis in bases.local_axes for field in neighbours(h, axis, bases.boundary)]
    return torch.cat([h, mixed, *near], -1)


class Experts(nn.Module):
    """Matrices that several tasks share, or a stack of them: a task's own are Σ_e g_e W_e, with gates g of its own for
    each matrix of the stack. A single expert is every task's, without gates. With a `rank` each task adds A B to them,
    zero at first.

    At first a task's gates are 1 for the expert that it shares with its neighbours in the list of tasks, and small for
    the others: where every task began as a sum of all, each held all others back from the first step.
    """

    def __init__(
        self, tasks: Sequence[str], weights: Callable[..., Tensor], stack: int, count: int, rank: int = 0
    ) -> None:
        """`weights(n)` draws n matrices."""
        super().__init__()
        self.stack, self.count = stack, count
        self.weight = nn.Parameter(weights(stack * count))  # a matrix's experts beside one another
        self.gates = nn.ParameterDict()
        for place, task in enumerate(tasks if count > 1 else ()):
            gates = OTHERS * torch.randn(stack, count) / math.sqrt(count)
            gates[:, place * count // len(tasks)] += 1
            self.gates[f"task_{task}"] = nn.Parameter(gates.flatten())
        rows, columns = self.weight.shape[1:]
        adding = [f"task_{task}" for task in tasks] if rank else []
        self.down = nn.ParameterDict(
            {key: nn.Parameter(torch.randn(stack, rows, rank) / math.sqrt(rows)) for key in adding}
        )
        self.up = nn.ParameterDict({key: nn.Parameter(torch.zeros(stack, rank, columns)) for key in adding})

    def forward(self, task: str, kept: int | None = None) -> Float[Tensor, "K m n"]:
        """The task's own, the first `kept` of the stack."""
        kept, key = self.stack if kept is None else kept, f"task_{task}"
        own = self._first(self.weight, kept, self.count)
        if self.count > 1:
            gates = self._first(self.gates[key], kept, self.count).view(kept, 1, self.count)
            own = torch.bmm(gates, own.view(kept, self.count, -1)).view(kept, *own.shape[1:])
        if key not in self.down:
            return own
        return torch.baddbmm(own, self._first(self.down[key], kept), self._first(self.up[key], kept))

    def _first(self, table: Float[Tensor, "S *rest"], kept: int, each: int = 1) -> Float[Tensor, "K *rest"]:
        """A slice of all would cost a backward pass that fills zeros in."""
        return table if kept == self.stack else table[: kept * each]


def expert_count(name: str, users: int, told: int | Mapping[str, int] | None) -> int:
    """Experts of the matrices of that name: as told of them, else at most one a task, by default one for every two."""
    if isinstance(told, Mapping):
        if name in told:
            return told[name]
        told = None
    return min(users, told or max(1, users // 2))


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
        experts: int | Mapping[str, int] | None = None,
        adapters: int = 0,
    ) -> None:
        """`bases`: the modes that tasks keep of each axis and basis, such as {"x_periodic": {"burgers": 32}}; `local`:
        the axes along which some tasks need neighbours, and which; `adapters`: the rank of each task's additions.
        """
        super().__init__()
        self.modulated, hidden = 3 * width, int(expansion * width)

        def shared(name: str, users: Sequence[str], draw: Callable[..., Tensor], stack: int = 1) -> Experts:
            return Experts(users, draw, stack, expert_count(name, len(users), experts), adapters)

        def normal(rows: int, columns: int, size: float) -> Callable[..., Tensor]:
            return lambda n: torch.randn(n, rows, columns) / math.sqrt(size)

        self.spectral = nn.ModuleDict()
        for name, modes in sorted(bases.items()):
            rows = width if name.endswith("periodic") else 2 * width
            draw = normal(rows, 2 * width, 2 * rows)
            self.spectral[name] = shared(name, list(modes), draw, max(modes.values()))
        self.stencil = nn.ModuleDict(
            {axis: shared(axis, users, normal(2 * width, hidden, 4 * width)) for axis, users in sorted(local.items())}
        )
        self.inner = shared("inner", tasks, lambda n: _linear(2 * width, n, hidden, 2 * width))
        self.inner_bias = nn.Parameter(_linear(2 * width, hidden))
        self.outer = shared("outer", tasks, lambda n: _linear(hidden, n, width, hidden))
        self.outer_bias = nn.Parameter(_linear(hidden, width))

    def banks(self) -> dict[str, Experts]:
        """Its matrices, by the names that settings know them by."""
        axes = {str(name): bank for name, bank in [*self.spectral.items(), *self.stencil.items()]}
        return {**axes, "inner": self.inner, "outer": self.outer}  # pyright: ignore[reportReturnType]

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
        h = modulated(x, gain, shift, self.training)
        seen = beside(h, self.mix(h, bases), bases, self.training)
        stencils = [self.stencil[AXES[axis]](bases.task).squeeze(0) for axis in bases.local_axes]
        weight = torch.cat([self.inner(bases.task).squeeze(0).T, *stencils]).T
        active = activated(seen, weight, self.inner_bias, self.products, self.training)
        outer = self.outer(bases.task).squeeze(0)
        return gated(x, gate, active, outer, self.outer_bias, self.products, self.training)


def _linear(inputs: int, *shape: int) -> Float[Tensor, "..."]:
    """Matrices or a bias, drawn as torch's linear layer of so many inputs draws its own."""
    bound = 1 / math.sqrt(inputs)
    return torch.empty(*shape).uniform_(-bound, bound)
