"""A checkpoint belongs to no number of ranks: whoever saved it, whoever loads it goes on as if nothing had happened."""

import os
import subprocess
import sys
import warnings
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import free_port, run_ranks
from safetensors import safe_open
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ups import checkpoint
from ups.checkpoint.optimiser_state import optimiser_tensors, refuse_gradients
from ups.checkpoint.saver import Checkpoints, NotSaved
from ups.distributed.faults import injection
from ups.distributed.faults.injection import Fault
from ups.errors import UserError

ADAMW, SGD = "adamw", "sgd"


class Training:
    """A small training in float64; all ranks see the same batch, so that every layout takes the same path."""

    def __init__(self, strategy, seed=0, optimiser=ADAMW, width=7):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", rank=self.rank, world_size=self.size, timeout=timedelta(seconds=30))
        torch.manual_seed(seed)
        # Odd sizes on purpose: 7 rows over 2 or 3 ranks are uneven, and some ranks hold nothing of 1 row.
        self.model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1), nn.Tanh(), nn.Linear(1, 3))
        self.model.double()
        if strategy != "ddp":
            shape, names = {
                "fsdp2": ((self.size,), ("dp_shard",)),
                "hsdp": ((2, self.size // 2), ("dp_replicate", "dp_shard")),
            }[strategy]
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            for layer in self.model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        parameters = self.model.parameters()
        self.optimiser = (
            torch.optim.AdamW(parameters, lr=1e-2) if optimiser == ADAMW else torch.optim.SGD(parameters, 0.1, 0.9)
        )

    def step(self, number):
        x = torch.randn(16, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        self.optimiser.zero_grad()
        (self.model(x) - x[:, :3]).pow(2).mean().backward()
        self.optimiser.step()
        self.optimiser.zero_grad()

    def tensors(self):
        named = dict(self.model.named_parameters())
        return {
            **{f"model.{name}": parameter for name, parameter in named.items()},
            **optimiser_tensors(self.optimiser, named.items()),
        }

    def whole(self):
        """Every tensor, gathered, as NumPy arrays: torch would send tensors through shared memory."""
        return {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().numpy().copy()
            for name, tensor in self.tensors().items()
        }

    def checkpoints(self, directory):
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=30)) if self.size > 1 else None
        return Checkpoints(directory, rank=self.rank, size=self.size, group=group)

    def close(self):
        dist.destroy_process_group()


def save_after_four_steps(strategy, directory, optimiser):
    """Saves the state after 4 steps while the fifth is taken; the states after 4 and after 5."""
    training = Training(strategy, optimiser=optimiser)
    checkpoints = training.checkpoints(directory)
    for number in range(4):
        training.step(number)
    state = training.whole()
    checkpoints.save(4, training.tensors(), {"loss": 0.5}, best=True)
    training.step(4)
    checkpoints.wait()
    after = training.whole()
    training.close()
    return state, after


def load_and_take_a_step(strategy, directory, optimiser):
    training = Training(strategy, seed=1, optimiser=optimiser)
    refuse_gradients(training.optimiser)
    manifest = training.checkpoints(directory).load(training.tensors())
    assert manifest is not None and manifest.step == 4 and manifest.content == {"loss": 0.5}
    state = training.whole()
    training.step(4)
    after = training.whole()
    training.close()
    return state, after


def assert_same(left, right, tolerance=0.0):
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_allclose(array, right[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("saved", "loaded", "optimiser"),
    [
        ((2, "fsdp2"), (1, "ddp"), ADAMW),
        ((1, "ddp"), (2, "fsdp2"), ADAMW),
        ((2, "ddp"), (3, "fsdp2"), ADAMW),
        ((4, "hsdp"), (2, "fsdp2"), ADAMW),
        ((3, "fsdp2"), (4, "hsdp"), SGD),
        ((2, "fsdp2"), (2, "ddp"), SGD),
    ],
    ids=str,
)
def test_saved_on_some_ranks_and_loaded_on_others_takes_the_same_next_step(tmp_path, saved, loaded, optimiser):
    states = run_ranks(saved[0], save_after_four_steps, saved[1], tmp_path, optimiser)
    alone, _ = checkpoint.load(tmp_path)  # as a simulator does: whole tensors, joined from every rank's parts
    assert_same({name: tensor.numpy() for name, tensor in alone.items()}, states[0][0])
    weights, _ = checkpoint.load(tmp_path, ("model.",))
    assert weights.keys() == {name for name in alone if name.startswith("model.")}
    others = run_ranks(loaded[0], load_and_take_a_step, loaded[1], tmp_path, optimiser)
    for state, after in states[1:] + others:
        assert_same(state, states[0][0])  # what was saved comes back to the last bit
        # The next step sums the same 16 products in another order: a few units in the last place of float64.
        assert_same(after, states[0][1], tolerance=1e-13)


@pytest.mark.parametrize(("size", "strategy"), [(3, "ddp"), (4, "hsdp")])
def test_what_several_ranks_hold_is_written_once_and_all_write_about_as_much(tmp_path, size, strategy):
    state, _ = run_ranks(size, save_after_four_steps, strategy, tmp_path, ADAMW)[0]
    files = sorted((tmp_path / "step_00000004").glob("*.safetensors"))
    assert len(files) == size
    elements = []
    for entry in files:
        with safe_open(entry, framework="pt") as file:
            elements.append(sum(file.get_tensor(name).numel() for name in file.keys()))  # noqa: SIM118
    assert sum(elements) == sum(array.size for array in state.values())
    largest = max(array.size for array in state.values())
    assert max(elements) - min(elements) <= largest


def save_three_the_second_refused(strategy, directory, fault):
    """Steps 10, 20, 30; the disk of one rank refuses 20. What each rank saw."""
    training = Training(strategy)
    checkpoints = training.checkpoints(directory)
    injection._FAULTS = [fault]
    seen = []
    for number in (10, 20, 30):
        training.step(number)
        checkpoints.save(number, training.tensors(), {}, best=False)
        try:
            checkpoints.wait()
            seen.append(None)
        except NotSaved as error:
            seen.append(str(error))
            assert training.checkpoints(directory).load(training.tensors()).step == 10
    injection._FAULTS = []
    training.close()
    return seen


@pytest.mark.parametrize(
    "fault",
    [
        Fault("full", "checkpoint_files", 1, 20),
        Fault("full", "checkpoint", 1, 20),
        Fault("full", "checkpoint", 0, 20),
        Fault("raise", "checkpoint", 2, 20),
    ],
    ids=lambda fault: f"{fault.kind} at {fault.place} on {fault.rank}",
)
def test_where_one_rank_cannot_write_all_say_so_none_waits_and_the_next_save_works(tmp_path, fault):
    seen = run_ranks(3, save_three_the_second_refused, "fsdp2", tmp_path, fault, timeout=20)
    assert all(each == seen[0] for each in seen)
    assert [sentence is None for sentence in seen[0]] == [True, False, True]
    sentence = seen[0][1]
    assert (
        "step 20 could not be written" in sentence and f"rank {fault.rank}: " in sentence and "on purpose" in sentence
    )
    assert checkpoint.steps(tmp_path) == [10, 30]
    assert not list(tmp_path.glob("*.tmp"))


def save_steps(strategy, directory, numbers):
    training = Training(strategy)
    checkpoints = training.checkpoints(directory)
    for number in numbers:
        training.step(number)
        checkpoints.save(number, training.tensors(), {}, best=False)
    checkpoints.wait()
    training.close()


def load_and_count_warnings(strategy, directory):
    training = Training(strategy, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        manifest = training.checkpoints(directory).load(training.tensors())
    training.close()
    return manifest, sum("is damaged" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_damaged_part_of_one_rank_makes_all_use_the_checkpoint_before(tmp_path, damage):
    run_ranks(2, save_steps, "fsdp2", tmp_path, (10, 20))
    file = sorted((tmp_path / "step_00000020").glob("*.safetensors"))[1]
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content if damage == "flip" else content[:-1])
    (first, told), (second, silent) = run_ranks(2, load_and_count_warnings, "fsdp2", tmp_path)
    assert first == second and first.step == 10
    assert (told, silent) == (1, 0) and len(first.warnings) == 1 and file.name in first.warnings[0]


def load_into_a_wider_model(strategy, directory):
    training = Training(strategy, width=9)
    before = training.whole()
    try:
        training.checkpoints(directory).load(training.tensors())
    except UserError as error:
        assert_same(training.whole(), before)
        training.close()
        return str(error)
    raise AssertionError("another model's checkpoint was loaded")


def test_a_checkpoint_of_another_model_is_the_same_sentence_on_every_rank(tmp_path):
    run_ranks(2, save_steps, "fsdp2", tmp_path, (10,))
    sentences = run_ranks(3, load_into_a_wider_model, "fsdp2", tmp_path)
    assert len(set(sentences)) == 1
    assert "is of another model" in sentences[0] and "(7, 6), the model has torch.float64 (9, 6)" in sentences[0]


def fill_a_small_disk(directory):
    """What happens on a disk too small for two checkpoints of 0.6 MB, and after room was made."""
    training = Training("fsdp2")
    checkpoints = training.checkpoints(directory)
    tensors = {"large": torch.arange(300_000.0), "small": torch.ones(3)}
    told = []
    for number in (10, 20, 30):
        checkpoints.save(number, tensors if number < 30 else {"small": torch.ones(3)}, {}, best=False)
        try:
            checkpoints.wait()
            told.append("saved")
        except NotSaved as error:
            told.append(str(error))
            into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
            assert checkpoints.load(into).step == 10 and torch.equal(into["large"], tensors["large"])
    training.close()
    return told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_told_to_all_ranks_and_later_saves_work(tmp_path):
    program = (
        "from pathlib import Path; from ranks import run_ranks;"
        "from test_checkpoint_ranks import fill_a_small_disk;"
        f"print(*run_ranks(2, fill_a_small_disk, Path({str(tmp_path)!r})), sep='\\n')"
    )
    mount = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=2m tmpfs {tmp_path} && exec "$@"', "sh"]
    result = subprocess.run(
        [*mount, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if result.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"no small disk can be mounted here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == second and first.startswith("['saved', ") and first.endswith(", 'saved']")
    assert "No space left on device" in first and "step 20 could not be written" in first


CRASHING = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from ups.distributed.faults import injection
from ups.checkpoint.saver import Checkpoints

dist.init_process_group("gloo")
injection._FAULTS = injection.parse("sleep at checkpoint rank 1 step 1")
checkpoints = Checkpoints(Path(sys.argv[1]), rank=dist.get_rank(), size=2, group=dist.new_group(backend="gloo"))
checkpoints.save(1, {"w": torch.ones(1000)}, {}, best=False)
time.sleep(0.5)
raise RuntimeError("in the middle of a save")
"""


def test_a_save_under_way_does_not_keep_a_crashing_process_alive(tmp_path):
    variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CRASHING, str(tmp_path)],
            env={**variables, "RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        # One thread waits for its peer, the other sleeps at its fault: neither must matter.
        for rank in ranks:
            _, errors = rank.communicate(timeout=60)
            assert b"RuntimeError: in the middle of a save" in errors
            assert rank.returncode == 1, errors.decode()
    finally:
        for rank in ranks:
            rank.kill()
    assert checkpoint.steps(tmp_path) == []


def save_from_a_gpu(directory):
    """Saves DTensors on a GPU while a graph is captured there; what was saved and what came back."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)).cuda()
    fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
    tensors = dict(model.named_parameters())
    before = {name: tensor.full_tensor().detach().cpu().numpy() for name, tensor in tensors.items()}
    checkpoints, x = Checkpoints(directory), torch.ones(8, device="cuda")
    checkpoints.save(1, tensors, {}, best=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # fails if the thread that writes touches the GPU
        while checkpoints._thread.is_alive():
            x += 1
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
    checkpoints.wait()
    checkpoints.load(tensors)
    after = {name: tensor.full_tensor().detach().cpu().numpy() for name, tensor in tensors.items()}
    dist.destroy_process_group()
    return before, after


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_what_is_on_a_gpu_is_saved_without_disturbing_a_capture(tmp_path):
    before, after = run_ranks(1, save_from_a_gpu, tmp_path)[0]
    assert_same(after, before)
