"""A checkpoint is loaded bit for bit, or not at all."""

import json
import os
import resource
import shutil
import warnings

import pytest
import torch
from torch import nn

from ups import checkpoint
from ups.checkpoint.files import find, load, point, prune, steps
from ups.checkpoint.optimiser_state import allocate, optimiser_tensors, refuse_gradients
from ups.checkpoint.saver import Checkpoints, NotSaved
from ups.errors import UserError


def save(directory, step, tensors, manifest, best=False):
    checkpoints = Checkpoints(directory)
    checkpoints.save(step, tensors, manifest, best=best)
    checkpoints.wait()
    return directory / f"step_{step:08d}"


def some_tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(7, 5, generator=generator)
    return {
        "model.weight": weight,
        "model.tied": weight,
        "model.transposed": weight.t(),
        "model.row": weight[2],
        "step": torch.tensor(12.0),
        "count": torch.tensor(2**40 + seed),
        "double": torch.randn(3, dtype=torch.float64, generator=generator),
        "half": torch.randn(4, generator=generator).bfloat16(),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0]),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
    }


def bits(tensor):
    return (tensor.dtype, tuple(tensor.shape), tensor.contiguous().flatten().view(torch.uint8).tolist())


def assert_equal_bits(loaded, saved):
    assert {name: bits(tensor) for name, tensor in loaded.items()} == {name: bits(t) for name, t in saved.items()}


def tensor_file(path):
    return next(path.glob("*.safetensors"))


def flip_a_byte(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.fixture
def two(tmp_path):
    """A directory with good checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path, step, some_tensors(step), {"loss": step / 10})
    return tmp_path


def test_every_bit_comes_back(tmp_path):
    tensors = some_tensors()
    manifest = {"config": {"width": 48}, "loss": 0.1, "schedule": [1, 2.5, None], "best": float("inf")}
    path = save(tmp_path / "checkpoints", 1200, tensors, manifest)
    assert path == tmp_path / "checkpoints" / "step_00001200"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded, found = load(tmp_path / "checkpoints")
    assert_equal_bits(loaded, tensors)
    assert found.step == 1200 and found.content == manifest and found.path == path and found.warnings == ()


def test_nothing_in_a_checkpoint_is_a_pickle(two):
    written = [file for file in two.rglob("*") if file.is_file()]
    assert {file.suffix for file in written} == {".safetensors", ".json", ""}
    for file in written:
        assert file.read_bytes()[:2] != b"\x80\x02" and not file.read_bytes().startswith(b"PK")


def test_what_is_loaded_is_the_state_when_save_was_called(tmp_path):
    checkpoints, tensors, manifest = Checkpoints(tmp_path), some_tensors(), {"losses": [1.0]}
    checkpoints.save(1, tensors, manifest, best=False)
    for tensor in tensors.values():  # training goes on at once
        tensor.zero_()
    manifest["losses"].append(2.0)
    checkpoints.wait()
    loaded, found = load(tmp_path)
    assert_equal_bits(loaded, some_tensors())
    assert found.content == {"losses": [1.0]}


def test_loading_fills_tensors_in_place_and_there_may_be_nothing_to_load(tmp_path):
    into = {name: torch.zeros_like(tensor) for name, tensor in some_tensors().items()}
    assert Checkpoints(tmp_path / "none").load(into) is None and not into["model.weight"].any()
    save(tmp_path, 3, some_tensors(), {})
    places = {name: tensor.data_ptr() for name, tensor in into.items()}
    manifest = Checkpoints(tmp_path).load(into)
    assert manifest is not None and manifest.step == 3
    assert_equal_bits(into, some_tensors())
    assert places == {name: tensor.data_ptr() for name, tensor in into.items()}


def test_the_newest_is_loaded_and_latest_names_it(two):
    loaded, manifest = load(two)
    assert manifest.step == 20 and find(two, "latest") == two / "step_00000020"
    assert_equal_bits(loaded, some_tensors(20))
    assert load(two / "step_00000010")[1].step == 10


def damage_flip_a_weight(path):
    flip_a_byte(tensor_file(path), -3)


def damage_flip_a_header(path):
    flip_a_byte(tensor_file(path), 12)


def damage_truncate(path):
    file = tensor_file(path)
    file.write_bytes(file.read_bytes()[:-1])


def damage_remove_tensors(path):
    tensor_file(path).unlink()


def damage_add_a_foreign_shard(path):
    shutil.copy(tensor_file(path), path / "shard-00002-model-00001-of-00001.safetensors")


def damage_change_the_manifest(path):
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"loss": 2.0', '"loss": 1.0'))


def damage_cut_the_manifest(path):
    manifest = path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:40])


def damage_remove_the_manifest(path):
    (path / "manifest.json").unlink()


@pytest.mark.parametrize("damage", [value for name, value in globals().items() if name.startswith("damage_")])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(two, damage):
    damage(two / "step_00000020")
    with pytest.warns(RuntimeWarning, match=r"step_00000020 is damaged .* the one before is used"):
        loaded, manifest = load(two)
    assert manifest.step == 10 and len(manifest.warnings) == 1 and "step_00000020" in manifest.warnings[0]
    assert_equal_bits(loaded, some_tensors(10))
    assert (two / "step_00000020.bad").is_dir() and steps(two) == [10]
    assert find(two, "latest") is None
    save(two, 20, some_tensors(20), {})
    assert load(two)[1].step == 20


def test_when_none_is_good_the_error_names_each(two):
    for step in (10, 20):
        damage_truncate(two / f"step_000000{step}")
    with pytest.warns(RuntimeWarning), pytest.raises(UserError, match=r"step_00000020 .* step_00000010"):
        load(two)
    with pytest.raises(UserError, match="no usable checkpoint"):
        load(two / "nowhere")


def test_a_damaged_checkpoint_asked_for_by_name_is_not_replaced_by_another(two):
    damage_flip_a_weight(two / "step_00000020")
    with pytest.raises(UserError, match="step_00000020 is damaged"):
        load(two / "step_00000020")
    assert steps(two) == [10, 20]
    with pytest.raises(UserError, match="no checkpoint at"):
        load(two / "step_00000030")


def test_a_crash_before_the_rename_leaves_the_older_one_in_use(two):
    shutil.copytree(two / "step_00000020", two / "step_00000030.tmp")
    tensor_file(two / "step_00000030.tmp").write_bytes(b"half")
    assert load(two)[1].step == 20
    save(two, 40, some_tensors(40), {})
    assert steps(two) == [20, 40] and not list(two.glob("*.tmp"))


def test_a_step_saved_twice_is_replaced_even_if_killed_half_way(two):
    save(two, 20, some_tensors(21), {"loss": 7})
    assert load(two)[1].content == {"loss": 7} and steps(two) == [10, 20]
    (two / "step_00000020").rename(two / "step_00000020.old")  # killed between the two renames
    assert load(two)[1].step == 20
    assert not list(two.glob("*.old")) and not list(two.glob("*.tmp"))


def test_the_last_two_and_the_best_are_kept(tmp_path):
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step, {"w": torch.ones(1) * step}, {}, best=step == 20)
    assert steps(tmp_path) == [20, 40, 50] and find(tmp_path, "best") == tmp_path / "step_00000020"
    point(tmp_path, "best", 50)
    assert prune(tmp_path, keep=1) == [20, 40]
    assert float(load(tmp_path)[0]["w"]) == 50


def test_a_kill_between_the_name_and_the_pointer_does_not_lose_the_best(tmp_path):
    save(tmp_path, 10, {"w": torch.ones(1)}, {}, best=True)
    save(tmp_path, 20, {"w": torch.ones(1)}, {}, best=True)
    point(tmp_path, "best", 10)
    Checkpoints(tmp_path).load({"w": torch.zeros(1)})
    assert find(tmp_path, "best") == tmp_path / "step_00000020"


def test_a_checkpoint_of_another_model_is_refused_by_name(two):
    other = some_tensors()
    del other["flags"]
    other["model.weight"] = torch.zeros(7, 6)
    other["double"] = torch.zeros(3)
    other["model.extra"] = torch.zeros(1)
    with pytest.raises(UserError, match="another model") as refusal:
        Checkpoints(two).load(other)
    assert "model.weight is torch.float32 (7, 5), the model has torch.float32 (7, 6)" in str(refusal.value)
    assert "double is torch.float64" in str(refusal.value) and "1 more" in str(refusal.value)
    assert not other["model.weight"].any() and steps(two) == [10, 20]  # a foreign checkpoint is not a damaged one


def test_a_newer_format_is_refused_and_left_alone(two, monkeypatch):
    monkeypatch.setattr(checkpoint.files, "FORMAT", checkpoint.FORMAT + 1)
    with pytest.raises(UserError, match=f"has format {checkpoint.FORMAT}, this program reads {checkpoint.FORMAT + 1}"):
        load(two)
    assert steps(two) == [10, 20]


def test_a_disk_that_refuses_leaves_the_old_checkpoints_as_they_were(two):
    before = {file: file.read_bytes() for file in two.rglob("*") if file.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the kernel refuses larger files, as a full disk would
    try:
        with pytest.raises(NotSaved, match="step 30 could not be written"):
            save(two, 30, some_tensors(30), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file: file.read_bytes() for file in two.rglob("*") if file.is_file()} == before
    save(two, 30, some_tensors(30), {})
    assert load(two)[1].step == 30


def test_a_failed_save_is_forgotten_when_another_is_started(two):
    checkpoints = Checkpoints(two)
    (two / "step_00000030.tmp").write_text("in the way: cannot be removed as a directory can")
    checkpoints.save(30, some_tensors(30), {}, best=False)
    with pytest.raises(NotSaved):
        checkpoints.wait()
    assert not checkpoints.busy and steps(two) == [10, 20]
    (two / "step_00000030.tmp").unlink()
    checkpoints.save(30, some_tensors(30), {}, best=False)
    checkpoints.wait()
    assert steps(two) == [20, 30]


def test_a_directory_that_cannot_be_made_is_a_users_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotSaved, match="earlier checkpoints are untouched"):
        save(tmp_path / "file" / "checkpoints", 1, some_tensors(), {})


def test_a_manifest_json_cannot_hold_fails_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError):
        save(tmp_path / "new", 1, some_tensors(), {"model": nn.Linear(1, 1)})
    assert not (tmp_path / "new").exists()


class Training:
    """A small real training: two heads, of which each step touches one, AdamW, an exponential average."""

    def __init__(self, seed, **options):
        torch.manual_seed(seed)
        self.model = nn.ModuleDict({"body": nn.Linear(6, 8), "even": nn.Linear(8, 3), "odd": nn.Linear(8, 3)})
        kind = torch.optim.SGD if "momentum" in options else torch.optim.AdamW
        self.optimiser = kind(self.model.parameters(), lr=1e-2, weight_decay=0.1, **options)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def step(self, step):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        self.optimiser.zero_grad(set_to_none=True)
        head = self.model["odd" if step % 2 else "even"]
        loss = (head(torch.tanh(self.model["body"](x))) - x[:, :3]).pow(2).mean()
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        for name, parameter in self.model.named_parameters():
            self.average[name].lerp_(parameter.detach(), 0.01)
        return loss.item()

    def tensors(self):
        return {
            **{f"model.{name}": parameter for name, parameter in self.model.named_parameters()},
            **{f"ema.{name}": average for name, average in self.average.items()},
            **optimiser_tensors(self.optimiser, self.model.named_parameters()),
        }


@pytest.mark.parametrize(
    "options",
    [{}, {"fused": True}, {"amsgrad": True}, {"foreach": True}, {"momentum": 0.0}, {"momentum": 0.9, "nesterov": True}],
    ids=str,
)
@pytest.mark.parametrize("saved_at", [0, 1, 5])
def test_a_resumed_training_continues_with_the_same_losses_to_the_last_bit(tmp_path, options, saved_at):
    # saved_at 0 and 1: parameters that no step has touched yet have no moments of their own.
    undisturbed, first = Training(0, **options), Training(0, **options)
    losses = [undisturbed.step(step) for step in range(12)]
    for step in range(saved_at):
        assert first.step(step) == losses[step]
    save(tmp_path, saved_at, first.tensors(), {})

    resumed = Training(1, **options)
    manifest = Checkpoints(tmp_path).load(resumed.tensors())
    assert [resumed.step(step) for step in range(manifest.step, 12)] == losses[saved_at:]
    assert_equal_bits(resumed.tensors(), undisturbed.tensors())


def test_allocated_moments_are_those_the_optimiser_would_have_made():
    for options in ({}, {"fused": True}, {"amsgrad": True}, {"momentum": 0.9}):
        allocated, lazy = Training(0, **options), Training(0, **options)
        allocate(allocated.optimiser)
        assert [allocated.step(s) for s in range(4)] == [lazy.step(s) for s in range(4)]
        assert_equal_bits(allocated.tensors(), lazy.tensors())


def test_an_optimiser_is_not_loaded_after_a_gradient():
    training = Training(0)
    refuse_gradients(training.optimiser)
    training.model["body"].weight.grad = torch.zeros(8, 6)
    with pytest.raises(RuntimeError, match="before any gradient"):
        refuse_gradients(training.optimiser)


def test_every_parameter_of_an_optimiser_needs_a_name_and_a_start_of_zero():
    training = Training(0)
    with pytest.raises(ValueError, match="6 parameters, 2 of them"):
        optimiser_tensors(training.optimiser, training.model["body"].named_parameters())
    with pytest.raises(ValueError, match="dampening"):
        allocate(Training(0, momentum=0.9, dampening=0.1).optimiser)
    with pytest.raises(TypeError, match="RMSprop has not allocated its moments"):
        allocate(torch.optim.RMSprop(training.model.parameters()))


def test_a_manifest_can_be_read_by_any_program(two):
    manifest = json.loads((two / "step_00000020" / "manifest.json").read_text())["content"]
    file = tensor_file(two / "step_00000020")
    assert manifest["format"] == checkpoint.FORMAT and manifest["step"] == 20 and manifest["content"] == {"loss": 2.0}
    assert manifest["files"][file.name]["bytes"] == os.path.getsize(file)
