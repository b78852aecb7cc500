"""Muon: against singular values by LAPACK, torch's own Muon and AdamW; skipped, untouched and resumed as AdamW is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import small
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from ups import checkpoint
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import Stopped, UserError
from ups.fields import Boundary, Channel, TaskSpec
from ups.models.baselines.fno import FNO
from ups.models.conditions import Modulation
from ups.models.network import matrices_of
from ups.track.jsonl import read_events
from ups.training import muon
from ups.training.muon import Muon
from ups.training.optimisers import build_optimiser
from ups.training.orthogonalise import orthogonalise
from ups.training.settings import TrainingConfig

SHAPES = [(5, 12), (12, 5), (9, 9), (3, 8, 16), (2, 3, 10, 4)]


def draw(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def polynomial(values: Tensor) -> Tensor:
    """What five iterations make of a singular value, one number at a time."""
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


def by_singular_values(matrices: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    return u @ torch.diag_embed(polynomial(s / s.norm(dim=-1, keepdim=True))) @ vh


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_end_near_one_and_directions_are_kept(shape: tuple[int, ...]) -> None:
    matrices = draw(shape)
    result = orthogonalise(matrices)
    assert torch.allclose(result, by_singular_values(matrices), rtol=0, atol=1e-11)
    values = torch.linalg.svdvals(matrices)
    started = values / values.norm(dim=-1, keepdim=True)
    ended = torch.linalg.svdvals(result)[started > 0.002]
    assert ended.min() > 0.68 and ended.max() < 1.21


def test_the_bounds_of_a_singular_value_are_those_of_the_docstring() -> None:
    ended = polynomial(torch.logspace(-2.7, 0, 100_001, dtype=torch.float64))  # from 0.002
    assert ended.min() > 0.68 and ended.max() < 1.21
    small_ones = torch.logspace(-9, -2.7, 1001, dtype=torch.float64)
    assert (polynomial(small_ones) <= 485 * small_ones).all()


def test_a_batch_is_its_matrices_one_by_one_and_zero_stays_zero() -> None:
    matrices = draw((7, 24, 48), dtype=torch.float32)
    matrices[3] = 0
    result = orthogonalise(matrices)
    one_by_one = torch.stack([orthogonalise(matrix) for matrix in matrices])
    # Rounding of float32, 6e-8, of sums of 48 terms, in directions that grow up to 485 times.
    assert torch.allclose(result, one_by_one, rtol=0, atol=48 * 485 * 6e-8 / 10)
    assert torch.equal(result[3], torch.zeros(24, 48))


def group(parameters: list[nn.Parameter], orthogonal: bool, decay: float = 0.1) -> dict:
    return {"params": parameters, "weight_decay": decay, "orthogonal": orthogonal}


def test_updates_are_those_of_torch_s_own_muon_up_to_its_bfloat16() -> None:
    ours, theirs = (nn.Parameter(draw((32, 64), dtype=torch.float32)) for _ in range(2))
    start = ours.detach().clone()
    optimisers = [
        Muon([group([ours], True)], lr=0.01),
        torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    for step in range(5):
        ours.grad = draw((32, 64), step, torch.float32)
        theirs.grad = ours.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    moved = (ours.detach() - start).norm()
    # Bfloat16 rounds to 2⁻⁹, in each of fifteen products.
    assert float((ours - theirs).detach().norm() / moved) < 15 * 2**-9


def test_one_step_is_the_documented_formula_for_every_shape() -> None:
    """Momentum, Nesterov's step, decay and scale in float64, with singular values by LAPACK."""
    for shape in SHAPES:
        weight = nn.Parameter(draw(shape, 1))
        optimiser = Muon([group([weight], True)], lr=0.02)
        momentum, expected = torch.zeros(shape), weight.detach().clone()
        for step in range(3):
            gradient = draw(shape, 10 + step)
            weight.grad = gradient.clone()
            optimiser.step()
            momentum = 0.95 * momentum + 0.05 * gradient
            update = by_singular_values(0.05 * gradient + 0.95 * momentum)
            expected = (1 - 0.02 * 0.1) * expected - 0.02 * 0.2 * max(shape[-2:]) ** 0.5 * update
        assert torch.allclose(weight, expected, rtol=0, atol=1e-11)


def test_what_is_not_muon_s_is_torch_s_fused_adamw_to_the_last_bit() -> None:
    ours, theirs = (nn.Linear(6, 3), nn.Linear(6, 3))
    theirs.load_state_dict(ours.state_dict())
    optimisers = [
        Muon([group([ours.weight], False), group([ours.bias], False, 0.0)], lr=0.01),
        torch.optim.AdamW(
            [{"params": [theirs.weight]}, {"params": [theirs.bias], "weight_decay": 0.0}],
            0.01,
            fused=True,
            weight_decay=0.1,
        ),
    ]
    for step in range(5):
        for layer, optimiser in zip((ours, theirs), optimisers, strict=True):
            for parameter in layer.parameters():
                parameter.grad = draw(tuple(parameter.shape), step, torch.float32)
            optimiser.found_inf = torch.tensor(float(step == 2))
            optimiser.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
        assert all(torch.equal(optimisers[0].state[a][name], value) for name, value in optimisers[1].state[b].items())


class Net(nn.Module):
    """Two equal blocks, modulated, between a table of rows and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(4, 6)
        self.blocks = nn.ModuleList(
            nn.ParameterDict({"stack": torch.randn(3, 6, 12), "matrix": torch.randn(6, 6), "vector": torch.randn(6)})
            for _ in range(2)
        )
        self.modulation = Modulation(5, [18, 18])
        self.head = nn.Linear(6, 2)

    def layers(self) -> list[nn.Module]:
        return list(self.blocks)

    def matrices(self) -> list[nn.Parameter]:
        return matrices_of([*self.blocks, self.modulation])


def built(**changes) -> tuple[Net, torch.optim.Optimizer]:
    net = Net()
    return net, build_optimiser(net, TrainingConfig(optimiser="muon", **changes))


def bits(net: Net, optimiser: torch.optim.Optimizer) -> list[Tensor]:
    state = [value for p in net.parameters() for value in optimiser.state[p].values()]
    return [tensor.detach().clone().view(torch.int32) for tensor in [*net.parameters(), *state]]


def give_gradients(net: Net, step: int) -> None:
    for number, parameter in enumerate(net.parameters()):
        parameter.grad = draw(tuple(parameter.shape), 100 * step + number, torch.float32)


def test_muon_has_the_matrices_of_blocks_and_what_modulates_them_and_adamw_the_rest_without_decay_of_vectors() -> None:
    net, optimiser = built(weight_decay=0.5)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    seen = [({names[id(p)] for p in g["params"]}, g["orthogonal"], g["weight_decay"]) for g in optimiser.param_groups]
    inside = {f"blocks.{i}.{kind}" for i in (0, 1) for kind in ("stack", "matrix")} | {
        f"modulation.weights.{i}" for i in (0, 1)
    }
    vectors = {
        "stem.bias",
        "head.bias",
        "blocks.0.vector",
        "blocks.1.vector",
        "modulation.biases.0",
        "modulation.biases.1",
    }
    assert seen == [(inside, True, 0.5), ({"stem.weight", "head.weight"}, False, 0.5), (vectors, False, 0.0)]
    assert isinstance(build_optimiser(net, TrainingConfig()), torch.optim.AdamW)


def test_a_model_without_blocks_is_left_to_adamw() -> None:
    optimiser = build_optimiser(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), TrainingConfig(optimiser="muon"))
    assert [g["orthogonal"] for g in optimiser.param_groups] == [False, False]


@pytest.mark.parametrize("dimension", [1, 2])
def test_muon_has_an_fno_s_modes_and_layers_and_adamw_its_first_and_last(dimension: int) -> None:
    task = TaskSpec("t", dimension, (Channel("u"),), Boundary.all("periodic", dimension), 1 / 16, dt=0.1)
    network = FNO(task, width=8, modes=4, depth=2)
    inside, outside, _ = build_optimiser(network, TrainingConfig(optimiser="muon")).param_groups
    shapes = [(2 ** (dimension - 1) * 4**dimension, 8, 16), (8, 8)]
    assert inside["orthogonal"] and [tuple(p.shape) for p in inside["params"]] == shapes * 2
    assert [id(p) for p in outside["params"]] == [
        id(layer.weight) for layer in (network.lift, network.inner, network.outer)
    ]


@pytest.mark.parametrize(("axis", "taken"), [(0, True), (1, False), (2, False)])
def test_a_kernel_updates_what_is_cut_between_matrices_and_not_through_them(
    monkeypatch: pytest.MonkeyPatch, axis: int, taken: bool
) -> None:
    """Rank 7 of eight, which has no share of four matrices, decides as those that have one."""
    monkeypatch.setattr(muon, "muon_kernel", SimpleNamespace(fits=lambda matrices: matrices.shape[-2:] == (8, 16)))
    dist.init_process_group("fake", rank=7, world_size=8, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (8,))
        weight = nn.Parameter(distribute_tensor(torch.randn(4, 8, 16), mesh, [Shard(axis)]))
        assert (weight.to_local().numel() == 0) is (axis == 0)
        assert Muon([group([weight], True)], lr=0.1).kernels() == f"{int(taken)} of 1"
    finally:
        dist.destroy_process_group()


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="no matrix"):
        Muon([group([nn.Parameter(torch.zeros(3))], True)], lr=0.1)


def test_a_skipped_step_leaves_no_trace() -> None:
    plain, disturbed = built(), built()
    for net, optimiser in (plain, disturbed):
        give_gradients(net, 0)
        optimiser.found_inf = torch.zeros(())
        optimiser.step()
    net, optimiser = disturbed
    before = bits(net, optimiser)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    optimiser.found_inf = torch.ones(())
    optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(before, bits(net, optimiser), strict=True))
    for net, optimiser in (plain, disturbed):
        give_gradients(net, 1)
        optimiser.found_inf = torch.zeros(())
        optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(bits(*plain), bits(*disturbed), strict=True))
    assert not torch.equal(before[0], bits(*plain)[0])


def test_a_parameter_without_a_gradient_is_left_alone_and_one_of_zeros_is_not() -> None:
    net, optimiser = built()
    give_gradients(net, 0)
    optimiser.step()
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    state = {name: {k: v.clone() for k, v in optimiser.state[p].items()} for name, p in net.named_parameters()}
    for name, parameter in net.named_parameters():
        parameter.grad = None if name.startswith(("blocks.0", "stem")) else torch.zeros_like(parameter)
    optimiser.step()
    for name, parameter in net.named_parameters():
        untouched = name.startswith(("blocks.0", "stem"))
        assert torch.equal(parameter, before[name]) == untouched
        assert all(torch.equal(optimiser.state[parameter][k], v) for k, v in state[name].items()) == untouched


def test_a_learning_rate_may_be_a_tensor_that_changes_in_place() -> None:
    (first, numbers), (second, tensors) = built(), built()
    rate = torch.zeros((), dtype=torch.float64)
    for g in tensors.param_groups:
        g["lr"] = rate
    for step, value in enumerate((0.1, 0.02)):
        rate.fill_(value)
        for g in numbers.param_groups:
            g["lr"] = value
        for net, optimiser in ((first, numbers), (second, tensors)):
            give_gradients(net, step)
            optimiser.step()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def runtime():
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as started:
        yield started


def test_a_stopped_run_resumes_bit_for_bit_and_not_with_another_optimiser(
    data: Path, tmp_path: Path, runtime: Runtime
) -> None:
    settings = {"optimiser": "muon", "precision": "float32", "steps": 12}
    small.small_trainer(runtime, data, tmp_path / "whole", **settings).fit()
    halted = small.small_trainer(runtime, data, tmp_path / "halted", **settings)

    def stop(step: int, text: str) -> None:
        runtime.stop.asked = step == 6

    with pytest.raises(Stopped, match="step 7 of 12"):
        halted.fit(stop)
    runtime.stop.asked = False
    with pytest.raises(UserError, match="use the config it was trained with"):
        small.small_trainer(runtime, data, tmp_path / "halted", **settings | {"optimiser": "adamw"})
    again = small.small_trainer(runtime, data, tmp_path / "halted", **settings)
    assert again.state.step == 7
    again.fit()
    whole, resumed = (checkpoint.load(tmp_path / name / "checkpoints")[0] for name in ("whole", "halted"))
    assert any(name.endswith(".momentum_buffer") for name in whole) and whole.keys() == resumed.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def test_training_lowers_the_error_below_persistence(data: Path, tmp_path: Path, runtime: Runtime) -> None:
    settings = {"steps": 60, "learning_rate": 1e-2, "rollout": [(0.0, 1)], "noise": 0.0, "precision": "float32"}
    run = small.small_trainer(runtime, data, tmp_path, optimiser="muon", clip=1.0, **settings)
    first = {name: float(value) for name, value in run.stepper.gradients(run.micro_batches(0), runtime).items()}
    run.fit()
    last = [e for e in read_events(tmp_path / "events.jsonl") if e["kind"] == "step"][-1]["parts"]
    assert last["advection"] < 0.5 * first["advection"]
    assert last["darcy"] < 0.5 * first["darcy"]
