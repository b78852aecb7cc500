"""The operator model: persistence before training, shifts, walls, conditions; every architecture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ups.data.prepare.statistics import Scale, Statistics
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, Side, TaskSpec
from ups.models.conditions import Modulation
from ups.models.geometry import Frame, averaged, position_waves, resampling
from ups.models.operator.model import OperatorModel
from ups.models.operator.spectral import Spectral, expert_count
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask

PERIODIC, WALLS = Boundary.all("periodic", 1), Boundary.all("value", 2, (0.0,))
WAVES = TaskSpec("waves", 1, (Channel("u"),), PERIODIC, 1 / 16, parameters=("beta",), dt=0.1)
FLOW = TaskSpec("flow", 2, (Channel("p"),), WALLS, 1 / 8, static=("a",), steady=True)
TANK = TaskSpec(
    "tank",
    2,
    (Channel("vx", vector="v"), Channel("vy", vector="v")),
    Boundary(((Side("periodic"), Side("periodic")), (Side("reflecting"), Side("open")))),
    1 / 8,
    history=2,
    dt=0.1,
)
TASKS = (WAVES, FLOW, TANK)
FRAMES = {
    "waves": Frame(Grid.cell_centred((32,)), WAVES.boundary, (2,)),
    "flow": Frame(Grid.cell_centred((16, 16)), FLOW.boundary, (2, 2)),
    "tank": Frame(Grid.cell_centred((16, 16)), TANK.boundary, (2, 2)),
}
SCALES = {
    "waves": (torch.tensor([0.1, 0.2]), torch.tensor([[0.5], [0.9]])),
    "tank": (torch.tensor([0.1]), torch.tensor([[0.5, 0.5]])),
}


SETTINGS = {"spectral": {"modes": 6}, "pdet_stack": {"heads": 2}, "pdet_unet": {"heads": 2, "levels": 2}}


@pytest.fixture(params=SETTINGS)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


def model(trained: bool, architecture: str = "spectral", **settings: int) -> Propagator:
    """Untrained as built; "trained" fills every parameter that starts at zero, so that nothing is hidden by zeros."""
    torch.manual_seed(0)
    chosen = {"width": 12, "depth": 2, "head": 10, "conditions": 8} | SETTINGS[architecture] | settings
    network = OperatorModel(TASKS, FRAMES, architecture=architecture, **chosen)
    propagator = Propagator(network, TASKS, SCALES).double()
    if trained:
        for parameter in propagator.parameters():
            if not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=0.3)
    return propagator


def inputs(task: TaskSpec, batch: int = 3, shape: tuple[int, ...] | None = None) -> dict:
    torch.manual_seed(7)
    grid = FRAMES[task.name].grid if shape is None else Grid.cell_centred(shape)
    return {
        "task": task.name,
        "history": torch.randn(batch, task.history, *grid.shape, len(task.channels), dtype=torch.float64),
        "static": torch.randn(batch, *grid.shape, len(task.static), dtype=torch.float64),
        "parameters": {name: torch.rand(batch, dtype=torch.float64) + 0.1 for name in task.parameters},
        "lead": None if task.steady else torch.full((batch,), 0.1, dtype=torch.float64),
        "grid": grid,
    }


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_the_untrained_model_is_persistence(task: TaskSpec, architecture: str) -> None:
    given = inputs(task)
    assert torch.equal(model(trained=False, architecture=architecture)(**given), given["history"][:, -1])


@pytest.mark.parametrize(
    ("architecture", "settings"),
    # 8 is every mode of 16 latent points: then there are no neighbours
    [("spectral", {"modes": 6}), ("spectral", {"modes": 8}), ("pdet_stack", {}), ("pdet_stack", {"heads": 3})],
)
@pytest.mark.parametrize("shift", [2, 6, 30])
def test_shifts_by_the_patch_commute_on_a_periodic_axis(shift: int, architecture: str, settings: dict) -> None:
    step, given = model(True, architecture, position_modes=0, **settings), inputs(WAVES)
    moved = given | {"history": given["history"].roll(shift, 2)}
    # Round-off of sums over 12 channels and 16 modes in float64, through two blocks.
    assert torch.allclose(step(**moved), step(**given).roll(shift, 1), rtol=0, atol=1e-12)


def test_shifts_commute_along_the_periodic_axis_of_a_tank_and_not_across_it(architecture: str) -> None:
    step, given = model(trained=True, architecture=architecture, position_modes=0), inputs(TANK)
    along = given | {"history": given["history"].roll(4, 2)}
    across = given | {"history": given["history"].roll(4, 3)}
    assert torch.allclose(step(**along), step(**given).roll(4, 1), rtol=0, atol=1e-12)
    assert not torch.allclose(step(**across), step(**given).roll(4, 2), rtol=0, atol=1e-3)


@pytest.mark.parametrize("task", [WAVES, TANK], ids=lambda t: t.name)
def test_shifts_commute_until_a_task_has_learned_a_field_of_its_own(task: TaskSpec, architecture: str) -> None:
    step, given = model(trained=True, architecture=architecture), inputs(task)
    moved = given | {"history": given["history"].roll(4, 2)}
    own = step.network.stem.positions[f"task_{task.name}"]
    assert not torch.allclose(step(**moved), step(**given).roll(4, 1), rtol=0, atol=1e-3)
    torch.nn.init.zeros_(own)
    assert torch.allclose(step(**moved), step(**given).roll(4, 1), rtol=0, atol=1e-12)


def test_only_tasks_with_a_periodic_axis_learn_fields_of_positions(architecture: str) -> None:
    shapes = {name: tuple(own.shape) for name, own in model(False, architecture).network.stem.positions.items()}
    # of 5 modes as the latent points allow: 1 and 4 pairs of waves, or 3 of 8 points; 4 cosines between walls
    assert shapes == {"task_waves": (9, 12), "task_tank": (7, 4, 12)}
    assert not model(False, architecture, position_modes=0).network.stem.positions


def test_position_waves_are_the_axes_own() -> None:
    x, y = position_waves(FRAMES["tank"], 2)
    at_x, at_y = FRAMES["tank"].latent.positions
    assert torch.allclose(x, torch.stack([torch.ones(8), (2 * torch.pi * at_x).cos(), (2 * torch.pi * at_x).sin()], -1))
    assert torch.allclose(y, torch.stack([torch.ones(8), (torch.pi * at_y).cos()], -1))


@pytest.mark.parametrize(("modes", "learned"), [(0, False), (3, True)])
def test_a_force_that_is_fixed_in_space_needs_positions(modes: int, learned: bool, architecture: str) -> None:
    """From fields without any feature, a model that commutes with shifts can predict a constant change only."""
    step = model(False, architecture, position_modes=modes)
    given = inputs(WAVES) | {"history": torch.ones(3, 1, 32, 1, dtype=torch.float64)}
    force = torch.sin(4 * torch.pi * given["grid"].positions[0])[:, None].expand(3, 32, 1)
    optimiser = torch.optim.Adam(step.parameters(), lr=0.02)
    errors = []
    for _ in range(100):
        error = (step(**given) - given["history"][:, -1] - force).square().mean() / force.square().mean()
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        errors.append(error.item())
    assert errors[0] == pytest.approx(1.0)
    assert min(errors) < 0.05 if learned else min(errors) > 0.9


def test_x_and_y_have_weights_of_their_own(architecture: str) -> None:
    step, given = model(trained=True, architecture=architecture), inputs(FLOW)
    turned = given | {"static": given["static"].transpose(1, 2)}
    assert not torch.allclose(step(**turned), step(**given).transpose(1, 2), rtol=0, atol=1e-3)


def test_neighbours_are_heard_where_modes_are_cut_or_walls_are() -> None:
    assert FRAMES["waves"].local(6) == (True,) and FRAMES["waves"].local(8) == (False,)
    assert FRAMES["tank"].local(8) == (False, True)
    alone = OperatorModel([WAVES], FRAMES | {"flow": FRAMES["waves"], "tank": FRAMES["waves"]}, modes=8)
    assert len(alone.blocks[0].stencil) == 0


def test_parameters_lead_time_and_static_fields_are_heard(architecture: str) -> None:
    step = model(trained=True, architecture=architecture)
    waves, flow = inputs(WAVES), inputs(FLOW)
    base = step(**waves)
    assert not torch.allclose(
        step(**waves | {"parameters": {"beta": waves["parameters"]["beta"] * 2}}), base, atol=1e-4
    )
    assert not torch.allclose(step(**waves | {"lead": waves["lead"] * 2}), base, atol=1e-4)
    assert not torch.allclose(step(**flow | {"static": -flow["static"]}), step(**flow), atol=1e-4)


def test_each_block_is_modulated_by_its_own_numbers() -> None:
    modulation = Modulation(4, [5, 5, 5])
    for parameter in modulation.parameters():
        torch.nn.init.normal_(parameter)
    conditions = torch.randn(2, 4)
    for numbers, weight, bias in zip(modulation(conditions), modulation.weights, modulation.biases, strict=True):
        assert torch.allclose(numbers, conditions @ weight + bias, atol=1e-6)


def test_every_parameter_is_moved_by_the_tasks_together(architecture: str) -> None:
    step = model(trained=True, architecture=architecture)
    torch.stack([step(**inputs(task)).square().mean() for task in TASKS]).sum().backward()
    still = [name for name, p in step.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-12]
    assert still == []


def test_resampling_keeps_the_mean_of_a_finer_field() -> None:
    for periodic in (True, False):
        fine, coarse = Grid.cell_centred((48,)).positions[0], Grid.cell_centred((16,)).positions[0]
        matrix = resampling(fine, coarse, (0.0, 1.0), periodic)
        values = torch.randn(48, dtype=torch.float64)
        assert torch.allclose(matrix @ values, values.view(16, 3).mean(1), rtol=0, atol=1e-14)


def test_nodes_are_averaged_over_their_own_cells() -> None:
    """Points at i/n: a coarse node's cell spans half of each fine neighbour's."""
    fine, coarse = Grid.nodal((8,)).positions[0], Grid.nodal((4,)).positions[0]
    matrix = resampling(fine, coarse, (0.0, 1.0), False)
    expected = torch.tensor([0, 0.25, 0.5, 0.25, 0, 0, 0, 0], dtype=torch.float64)
    assert torch.allclose(matrix[1], expected, rtol=0, atol=1e-14)
    assert torch.allclose(matrix.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "grid", [Grid.cell_centred((64,)), Grid.nodal((32,)), Grid.cell_centred((32,), ((0.0, 2.0),))], ids=str
)
def test_any_grid_but_the_trained_one_is_refused(grid: Grid) -> None:
    given = inputs(WAVES, shape=grid.shape) | {"grid": grid}
    with pytest.raises(UserError, match=r"fields are on .* task 'waves' was trained on \(32,\)"):
        model(trained=False)(**given)


def test_coefficients_stay_in_their_range_on_every_grid() -> None:
    torch.manual_seed(0)
    coefficient = (torch.rand(1, 12, 12, 1) > 0.5).double()
    for shape in ((7, 9), (12, 12), (20, 24)):
        for target in (Grid.cell_centred(shape), Grid.nodal(shape)):
            there = averaged(coefficient, Grid.cell_centred((12, 12)), target, (True, False))
            assert float(there.min()) >= 0 and float(there.max()) <= 1 + 1e-12


def test_points_that_do_not_fill_patches_are_refused() -> None:
    with pytest.raises(UserError, match="do not divide into latent cells of 4"):
        Frame(Grid.cell_centred((30,)), PERIODIC, (4,))


@pytest.mark.parametrize(
    ("shape", "extent", "patch"),
    [((32, 16), ((0.0, 1.0), (0.0, 1.0)), (4, 2)), ((16, 16), ((0.0, 1.0), (0.0, 0.5)), (2, 4))],
    ids=["more points along x", "shorter along y"],
)
def test_latent_cells_are_as_long_as_the_task_says_along_every_axis(
    shape: tuple[int, int], extent: tuple, patch: tuple[int, int], architecture: str
) -> None:
    grid = Grid.cell_centred(shape, extent)
    statistics = Statistics("flow", 1, None, (), {"p": Scale(0.1, 0.1, 0.2)}, {"a": Scale(0.5, 0.4, 0.6)})
    frame = TrainedTask(FLOW, grid, statistics, {}, ()).frame
    assert frame.patch == patch and frame.latent.spacing == pytest.approx((1 / 8, 1 / 8))
    torch.manual_seed(0)
    network = OperatorModel([FLOW], {"flow": frame}, architecture=architecture, width=12, **SETTINGS[architecture])
    torch.nn.init.normal_(network.head.outer["p"])
    given = torch.zeros(2, 1, *shape, 1), torch.randn(2, *shape, 1), {}, grid
    out = network("flow", *given)
    assert out.shape == (2, *shape, 1)
    turned = Frame(Grid(grid.positions[::-1], grid.extent[::-1]), FLOW.boundary, patch[::-1])
    both = OperatorModel([FLOW, replace(FLOW, name="turned")], {"flow": frame, "turned": turned}, width=12)
    assert not set(both.stem.inputs["flow"]) & set(both.stem.inputs["turned"])


def test_step_scales_follow_the_strides() -> None:
    step = model(trained=False)

    def scale(lead: float) -> Tensor:
        return step.scales_waves(torch.tensor([lead], dtype=torch.float64))[0, 0]

    assert scale(0.1) == pytest.approx(0.5)
    assert scale(0.2) == pytest.approx(0.9)
    assert scale(0.1 * 2**0.5) == pytest.approx((0.5 * 0.9) ** 0.5)  # half-way in log Δ
    assert scale(0.05) == pytest.approx(0.25)  # proportional to Δ below the first stride
    assert scale(0.8) == pytest.approx(0.9)  # and no larger than the last above it


def test_every_expert_learns_from_every_task_that_uses_it() -> None:
    """Tasks mix the same matrices, each in its own way: nothing of a block but a task's gates is its own alone."""
    step = model(trained=True, experts=2)
    blocks = {name: p for name, p in step.named_parameters() if ".blocks." in name}
    touched: dict[str, set[str]] = {name: set() for name in blocks}
    for task in TASKS:
        found = torch.autograd.grad(step(**inputs(task)).square().sum(), list(blocks.values()), allow_unused=True)
        for (name, parameter), gradient in zip(blocks.items(), found, strict=True):
            if gradient is not None and bool((gradient != 0).any()):
                touched[name].add(task.name)
                if name.endswith("inner.weight"):
                    assert (gradient.flatten(1) != 0).any(1).all() and len(parameter) == 2  # both experts
    shared = sum(blocks[name].numel() for name, tasks in touched.items() if len(tasks) > 1)
    own = sum(blocks[name].numel() for name, tasks in touched.items() if ".gates." in name)
    assert all(len(tasks) == 1 for name, tasks in touched.items() if ".gates." in name)
    assert len(touched["network.blocks.0.inner.weight"]) == 3 and own < 0.1 * shared


def test_a_model_of_one_task_has_no_gates_and_many_tasks_have_an_expert_for_every_two() -> None:
    alone = OperatorModel([WAVES], FRAMES, modes=6)
    assert not [name for name, _ in alone.named_parameters() if "gates" in name]
    for users, experts in ((1, 1), (3, 1), (4, 2), (12, 6)):  # too few tasks to be in each other's way share all
        assert expert_count("inner", users, None) == experts


def test_a_silent_unit_leaves_no_denormal_numbers() -> None:
    """A CPU computes those many times slower: a training in which units fall silent would become slow."""
    frame = Frame(Grid.cell_centred((16,)), Boundary.all("periodic", 1), (1,))
    spectral = Spectral({"waves": frame}, width=4, modes=4)
    block, bases = spectral.block(), spectral.tables("waves", frame, lambda table: table.float())
    with torch.no_grad():
        block.inner.weight.zero_()
        block.inner_bias.fill_(-95.0)
        for stencil in block.stencil.values():
            stencil.weight.zero_()
    block(torch.randn(2, 16, 4), torch.randn(2, 12), bases).sum().backward()
    sizes = torch.cat([p.grad.abs().flatten() for p in block.parameters() if p.grad is not None])
    assert not ((sizes > 0) & (sizes < torch.finfo(torch.float32).tiny)).any()
    assert block.outer.weight.grad is not None and (block.outer.weight.grad != 0).any()
