"""What is done to a model from the outside: precision, recomputation, compilation, cutting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from shapes import unchecked
from small import prepared, small_trainer, train_small

from ups.distributed import parallel
from ups.distributed.parallel import _placement, blocks, enough_memory, parallelise
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, Invariant, TaskSpec
from ups.models.geometry import Frame
from ups.models.operator.model import OperatorModel
from ups.models.propagator import Propagator


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    prepared(folder)
    return folder


def test_bfloat16_is_for_products_in_blocks_and_nothing_else(data: Path, tmp_path: Path) -> None:
    """Weights, gradients, averages and moments stay float32; the losses are those of float32 to bfloat16's 8 bits."""
    exact, _ = train_small(data, tmp_path / "exact", precision="float32", noise=0.0)
    rounded, tensors = train_small(data, tmp_path / "rounded", precision="bfloat16", noise=0.0)
    assert rounded != exact and rounded == pytest.approx(exact, rel=2**-6)
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
        trainer = small_trainer(rt, data, tmp_path / "gradients", precision="bfloat16")
        trainer.stepper.gradients(trainer.micro_batches(0), rt)
        assert {g.dtype for task in trainer.stepper.of_tasks for g in task if g is not None} == {torch.float32}


def test_blocks_are_found_by_name(data: Path) -> None:
    model = prepared(data)[0].build(0)
    assert len(blocks(model)) == 2


@pytest.mark.parametrize(
    ("shape", "ranks", "axis"),
    [((32, 96, 192), 8, None), ((32, 96, 192), 64, 2), ((32, 128, 128), 64, 1), ((5, 7), 4, None), ((1, 8), 2, 1)],
)
def test_a_parameter_is_cut_where_it_divides(shape: tuple[int, ...], ranks: int, axis: int | None) -> None:
    """Along the first axis (None) if that divides or if none does; else along the longest that does."""
    placed = _placement(ranks)(torch.nn.Parameter(torch.empty(shape)))
    assert placed is None if axis is None else placed is not None and placed.dim == axis


@unchecked()  # dynamo cannot trace jaxtyping's checks
def test_many_tasks_are_compiled_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's own backend stands in for the compiler, which would take minutes: what is counted is the same."""
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part: compile_module(part, backend="eager"))
    monkeypatch.setattr(parallel, "RECOMPILATIONS", 16)
    boundary = Boundary.all("periodic", 1)
    channel = (Channel("u"),)
    kept = (Invariant("u"),)
    tasks = [
        TaskSpec(f"t{i}", 1, channel, boundary, 1 / 8, parameters=(f"p{i}",), dt=0.1, invariants=kept if i % 2 else ())
        for i in range(4)
    ]
    grid = Grid.cell_centred((8,))
    frames = {t.name: Frame(grid, boundary, (1 + number // 2,)) for number, t in enumerate(tasks)}
    network = OperatorModel(tasks, frames, width=4, depth=1, modes=2)
    scales = {t.name: (torch.tensor([0.1, 0.2]), torch.tensor([[0.5], [0.9]])) for t in tasks}
    model = Propagator(network, tasks, scales)
    for kind in {type(part) for part in model.modules() if hasattr(part.forward, "__wrapped__")}:
        # jaxtyping's wrappers are one piece of code to dynamo, which would count all parts' recompilations together
        monkeypatch.setattr(kind, "forward", kind.forward.__wrapped__)
    with Runtime.start(RuntimeConfig(device="cpu", threads=1, compile=True), 0) as runtime:
        parallelise(model, runtime, "float32", lambda module: torch.optim.SGD(module.parameters(), 0.1))
    inner = [network.stem, network.conditions, network.modulation, *network.blocks, network.head]
    parts = [*inner, model.get_submodule("scales_t0")]
    assert all(part._compiled_call_impl is not None for part in parts)
    for task in tasks:
        for batch in (2, 3, 5):
            given = torch.zeros(batch, 8, 0), {f"p{task.name[1:]}": torch.ones(batch)}, torch.full((batch,), 0.1), grid
            state = model(task.name, torch.randn(batch, 1, 8, 1), *given)
            model(task.name, state[:, None], *given).sum().backward()
            with torch.no_grad():
                model(task.name, state[:, None], *given)
    torch._dynamo.reset()


@pytest.mark.slow
@unchecked()  # dynamo cannot trace jaxtyping's checks
def test_compiled_blocks_compute_the_same(data: Path, tmp_path: Path) -> None:
    exact, _ = train_small(data, tmp_path / "exact", precision="float32")
    compiled, _ = train_small(data, tmp_path / "compiled", runtime={"compile": True}, precision="float32")
    assert compiled == pytest.approx(exact, rel=1e-4)


def test_only_deterministic_operations_are_used_when_asked(data: Path, tmp_path: Path) -> None:
    """Torch raises where an operation has no deterministic form: a whole training and its validation have none such."""
    losses, _ = train_small(data, tmp_path / "switched", 3, runtime={"deterministic": True})
    assert losses == train_small(data, tmp_path / "plain", 3)[0]
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_model_that_does_not_fit_is_no_bug_of_ours() -> None:
    here = torch.device("cpu")
    with pytest.raises(UserError, match=r"do not fit on cpu.*choose a smaller operator"), enough_memory(here, 0):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="size"), enough_memory(here, 0):
        torch.zeros(2) @ torch.zeros(3)


def test_memory_that_is_missing_after_a_crash_is_a_reason_to_try_again() -> None:
    with pytest.raises(RuntimeError) as missing, enough_memory(torch.device("cpu"), 1):
        torch.empty(2**50)  # a mistake of the user would end the job
    assert not isinstance(missing.value, UserError)
