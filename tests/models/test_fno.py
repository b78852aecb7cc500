"""The FNO baseline, and models rebuilt from what a checkpoint says of them."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from ups.data.prepare.statistics import Scale, Statistics
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, TaskSpec
from ups.models.baselines.fno import FNO, FNOBlock
from ups.models.saved import ModelSpec, TrainedTask

WAVES = TaskSpec("waves", 1, (Channel("u"),), Boundary.all("periodic", 1), 1 / 16, parameters=("beta",), dt=0.1)
FLOW = TaskSpec("flow", 2, (Channel("p"),), Boundary.all("value", 2), 1 / 8, static=("a",), steady=True)

CUBE = TaskSpec("cube", 3, (Channel("u"),), Boundary.all("periodic", 3), parameters=("beta",), dt=0.1)


def given(task: TaskSpec, n: int) -> tuple:
    grid = Grid.cell_centred((n,) * task.dimension)
    history = torch.randn(2, 1, *grid.shape, 1)
    static = torch.randn(2, *grid.shape, len(task.static))
    conditions = {"parameter_beta": torch.rand(2), "lead": torch.full((2,), 0.1)}
    return task.name, history, static, conditions, grid


@pytest.mark.parametrize("task", [WAVES, FLOW, CUBE], ids=lambda t: t.name)
def test_an_untrained_fno_changes_nothing_and_learns_with_every_parameter(task: TaskSpec) -> None:
    torch.manual_seed(0)
    network = FNO(task, width=8, modes=4, depth=2, padding=0.25)
    assert not network(*given(task, 16)).any()
    torch.nn.init.normal_(network.outer.weight)
    network(*given(task, 16)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_lengths_in_other_units_change_nothing() -> None:
    """But for a domain within 1, whose coordinates are taken as they are."""
    torch.manual_seed(0)
    network = FNO(WAVES, width=4, modes=4, depth=2)
    torch.nn.init.normal_(network.outer.weight)
    task, *fields, _ = given(WAVES, 16)
    metres, kilometres = (network(task, *fields, Grid.cell_centred((16,), [(0.0, end)])) for end in (9600.0, 9.6))
    assert torch.allclose(metres, kilometres, rtol=1e-5) and metres.abs().max() < 100


def test_a_spectral_convolution_keeps_low_modes_and_drops_the_rest() -> None:
    block = FNOBlock(1, 4, 1)
    with torch.no_grad():
        block.spectral.copy_(torch.tensor([1.0, 0.0]))  # multiply by one
    x = torch.arange(32) / 32 * 2 * torch.pi
    low, high = torch.cos(3 * x), torch.cos(4 * x)
    assert torch.allclose(block.mix((low + high)[None, None])[0, 0], low, atol=1e-5)


@pytest.mark.parametrize("space", [(32,), (9,), (6,), (16, 20), (9, 7), (6, 4), (10, 9, 12), (5, 6, 4)])
def test_modes_are_mixed_by_complex_matrices_and_all_others_are_zero(space: tuple[int, ...]) -> None:
    """Against the definition, frequency by frequency; the smaller grids have fewer of them than the block has modes."""
    modes, axes = 4, tuple(range(-len(space), 0))
    block, x = FNOBlock(3, modes, len(space)).double(), torch.randn(2, 3, *space, dtype=torch.float64)
    a, b = block.spectral.unflatten(0, block.modes).chunk(2, -1)
    given = torch.fft.rfftn(x, dim=axes)
    out = torch.zeros_like(given)
    bands = [min(modes, n // 2) for n in space[:-1]]
    limits = [*bands, min(modes, (space[-1] + 1) // 2)]
    for corner, above in enumerate(itertools.product((False, True), repeat=len(bands))):
        first = [(n - kept) * far for n, kept, far in zip(space, bands, above, strict=False)]
        for mode in itertools.product(*map(range, limits)):
            place = (*(start + k for start, k in zip(first, mode, strict=False)), mode[-1])
            out[:, :, *place] = given[:, :, *place] @ torch.complex(a[corner, *mode], -b[corner, *mode])
    assert torch.allclose(block.mix(x), torch.fft.irfftn(out, s=space, dim=axes))


@pytest.mark.parametrize("space", [(32,), (9,), (6,), (16, 20), (9, 7), (6, 4), (10, 9, 12), (5, 6, 4)])
def test_what_is_transformed_back_is_a_real_signal_s_spectrum(
    space: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuFFT's result is undefined for any other."""
    irfft, transformed = torch.fft.irfft, []

    def strict(spectrum: torch.Tensor, n: int) -> torch.Tensor:
        assert spectrum.shape[-1] <= (n + 1) // 2 and not spectrum[..., 0].imag.any()
        transformed.append(n)
        return irfft(spectrum, n=n)

    monkeypatch.setattr(torch.fft, "irfft", strict)
    FNOBlock(3, 4, len(space)).mix(torch.randn(2, 3, *space))
    assert transformed == [space[-1]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="cuFFT is a GPU's")
@pytest.mark.parametrize(
    "space", [(256,), (128,), (1000,), (8192,), (64, 64), (72, 72), (16, 256), (32, 32, 32), (20, 36, 24)]
)
def test_a_gpu_mixes_as_a_cpu_does(space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    block, x = FNOBlock(8, 8, len(space)), 1 + torch.randn(4, 8, *space)
    with torch.no_grad():
        here, there = block.mix(x), block.cuda().mix(x.cuda()).cpu()
    assert float((there - here).abs().max()) < 1e-5 * float(here.abs().max())


def test_the_same_weights_give_nearly_the_same_solution_on_a_finer_grid() -> None:
    """Smooth inputs, the padded domain the same: what differs is quadrature, of first order at the padding's edge."""
    torch.manual_seed(0)
    network = FNO(FLOW, width=8, modes=4, depth=2, padding=0.25)
    torch.nn.init.normal_(network.outer.weight)
    solutions = {}
    for n in (64, 128):
        name, _, _, conditions, grid = given(FLOW, n)
        x, y = (2 * torch.pi * p.float() for p in grid.points().T)
        a = (torch.sin(x) * torch.cos(y)).view(1, n, n, 1)
        one = {key: value[:1] for key, value in conditions.items()}
        solutions[n] = network(name, torch.zeros(1, 1, n, n, 1), a, one, grid)
    coarse = solutions[128].view(1, 64, 2, 64, 2, 1).mean((2, 4))
    error = (coarse - solutions[64]).norm() / coarse.norm()
    assert float(error.detach()) < 0.05


def learned() -> TrainedTask:
    scale = Scale(0.1, 0.8, 0.9, (0.2, 0.3))
    statistics = Statistics("waves", 10, 0.1, (1, 2), {"u": scale})
    return TrainedTask(WAVES, Grid.cell_centred((32,)), statistics, {"beta": (0.1, 1.0)}, (0.1,))


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("fno", {"width": 8, "modes": 4, "depth": 2, "padding": 0.0}, (learned(),)),
        ModelSpec("spectral", {"width": 8, "depth": 1, "modes": 4}, (learned(),)),
        ModelSpec("pdet_stack", {"width": 8, "depth": 1, "heads": None}, (learned(),)),
        ModelSpec("unet", {"width": 4}, (learned(),)),
    ],
    ids=lambda s: s.architecture,
)
def test_a_model_is_rebuilt_from_json_alone(spec: ModelSpec) -> None:
    told = json.loads(json.dumps([task.to_dict() for task in spec.tasks]))
    again = ModelSpec(spec.architecture, spec.settings, tuple(TrainedTask.from_dict(task) for task in told))
    first, second = spec.build(3).state_dict(), again.build(3).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again.tasks[0].spec == WAVES
    assert again.tasks[0].grid.same_as(spec.tasks[0].grid)


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ModelSpec("spectral", {"width": 8, "depth": 1, "modes": 4}, (learned(),)).build(1)
    assert torch.equal(torch.rand(3), expected)


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(UserError, match="known: spectral, pdet_stack, pdet_unet, fno, unet"):
        ModelSpec("transformer", {}, (learned(),)).build()
