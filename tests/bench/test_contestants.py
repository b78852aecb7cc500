"""All contestants see the same data and minimise the same loss, whatever runs their steps."""

from __future__ import annotations

import gc
import sys
from functools import partial

import pytest
import torch
from shapes import unchecked
from tiny import tiny, tiny_setting

from ups.bench import accuracy, loops
from ups.bench.contestants import Absent, chosen
from ups.bench.loops import Loop, Pairs, loader, on_device, window_batch
from ups.bench.peer import Peer, package
from ups.bench.tasks import TASKS
from ups.bench.trained import Trained
from ups.errors import UserError


def test_the_eager_loop_and_the_trainer_compute_the_same_loss_from_the_same_weights_and_batch(tmp_path):
    with tiny_setting(tmp_path) as setting:
        ours, loop = Trained("ours", setting), Loop("ours", setting, "gather", averaged=True)
        part = ours.trainer.sampler.indices(0, 1)[0]
        sums, _ = ours.trainer.step()
        windows = setting.data.fields[part.ids[:, None], part.starts[:, None] + torch.arange(2)]
        loss = loop.step(window_batch(setting.data, len(part), torch.device("cpu"))(windows))
        # Sums of 4 samples in another order: single precision's rounding, a few times over.
        assert float(loss) == pytest.approx(float(sums["advection"]), rel=1e-6)
        for name, weight in loop.module.state_dict().items():
            torch.testing.assert_close(ours.module.state_dict()[name], weight, rtol=1e-4, atol=1e-6)
        assert loop.ema is not None
        for name, average in loop.ema.averages.items():
            torch.testing.assert_close(ours.trainer.ema.averages[name], average, rtol=1e-4, atol=1e-6)


@unchecked()  # dynamo cannot trace jaxtyping's checks
def test_a_loop_beside_a_compiled_trainer_is_compiled_too_and_counted_as_if_it_were_not(tmp_path, monkeypatch):
    """Dynamo's own backend stands in for the compiler, which would take minutes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with tiny_setting(tmp_path, compiled=True) as setting:
        batch = next(on_device(setting.data, torch.device("cpu"), 0))
        compiled, plain = (Loop("ours", setting, "gather", averaged=True, compiled=c) for c in (None, False))
        parts = [part._compiled_call_impl is not None for part in compiled.module.modules()]
        assert any(parts) and not any(part._compiled_call_impl is not None for part in plain.module.modules())
        assert float(compiled.step(batch)) == pytest.approx(float(plain.step(batch)), rel=1e-6)
        assert compiled.count() == plain.count()
    torch._dynamo.reset()


def test_the_loader_gives_every_pair_of_frames_once_an_epoch(tmp_path):
    with tiny_setting(tmp_path) as setting:
        data = setting.data
        seen = torch.cat(list(loader(data, torch.device("cpu"), 0)))
    count, frames = data.fields.shape[:2]
    assert len(seen) == len(Pairs(data.fields)) == count * (frames - 1)
    wanted = torch.stack([data.fields[i, t : t + 2] for i in range(count) for t in range(frames - 1)])
    key = [tuple(pair.flatten().tolist()) for pair in seen]
    assert sorted(key) == sorted(tuple(pair.flatten().tolist()) for pair in wanted)


def test_a_worker_of_the_loader_frees_nothing_that_was_garbage_before_it(tmp_path, monkeypatch):
    freed = tmp_path / "freed"

    class Thing:
        def __del__(self) -> None:
            freed.touch()

    class Collecting(Pairs):
        def __getitem__(self, index: int) -> torch.Tensor:
            gc.collect()
            return super().__getitem__(index)

    monkeypatch.setattr(loops, "worker_count", lambda device: 1)
    with tiny_setting(tmp_path) as setting:
        monkeypatch.setattr(loops, "Pairs", Collecting)
        made = loader(setting.data, torch.device("cpu"), 0)
        gc.disable()
        try:
            thing = Thing()
            thing.itself = thing  # pyright: ignore[reportAttributeAccessIssue]
            del thing
            assert len(list(made)) > 0
            assert not freed.exists()
        finally:
            gc.enable()
    gc.collect()
    assert freed.exists()


def test_the_gather_on_the_device_gives_every_trajectory_once_an_epoch(tmp_path):
    with tiny_setting(tmp_path) as setting:
        loop = Loop("ours", setting, "gather", averaged=False)
        data = setting.data
        seen = []
        for _ in range(len(data.fields) // data.task.batch_size):
            values = next(loop.batches).values
            where = (data.fields[None, :, :-1] == values[:, None, :1]).flatten(3).all(-1).any(-1)
            seen += where.int().argmax(1).tolist()
    assert sorted(seen) == list(range(len(data.fields)))


def test_steps_on_a_fixed_batch_ask_for_no_other_and_the_trainer_goes_on_with_its_own(tmp_path):
    with tiny_setting(tmp_path) as setting:
        ours = Trained("ours", setting)
        asked = []
        own = ours.trainer.batches
        ours.trainer.batches = lambda step, sizes: asked.append(step) or own(step, sizes)
        ours.advance(3, fixed=True)
        assert asked == [0]
        ours.advance(2)
        assert asked == [0, 3, 4]


def test_neuraloperator_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "neuralop", None)
    with pytest.raises(Absent, match=r"neuraloperator is not installed .*pip install neuraloperator"):
        package()


def test_neuraloperator_s_trainer_takes_the_steps_it_is_given(tmp_path):
    pytest.importorskip("neuralop", exc_type=ImportError)
    with tiny_setting(tmp_path, steps=40) as setting:
        peer = Peer("neuraloperator", setting)
        before = [p.detach().clone() for p in peer.module.parameters()]
        peer.advance(2)
        peer.advance(2, fixed=True)
        assert any(not torch.equal(a, b) for a, b in zip(before, peer.module.parameters(), strict=True))
        peer = Peer("neuraloperator", setting)
        result = accuracy.train(peer, setting.data, "neuraloperator", 40, 0.0, setting.runtime)
        assert result["curve"][-1]["step"] == 40 and result["seconds"] > 0
        assert peer.optimiser.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)  # the schedule ends with the training


def test_a_contestant_or_task_that_nobody_knows_is_refused_by_name():
    from ups.bench.tasks import chosen as chosen_tasks

    with pytest.raises(UserError, match="--only ourz: there is no such contestant; use ours, "):
        chosen(["ourz"], tiny(), quick=False)
    with pytest.raises(UserError, match="no benchmark 'burger'; use burgers"):
        chosen_tasks(["burger"], quick=False)


def test_pinned_sizes_are_those_of_the_bars():
    """Six million parameters, the FNO of 64 channels and 48 modes (32 and 12² in two dimensions), batch 64."""
    assert {task.batch_size for task in TASKS.values()} == {64}
    for key in ("fno", "fno_usual"):
        assert TASKS["burgers"].models[key].settings == {"width": 64, "modes": 48, "depth": 4}
        assert TASKS["diffusion_reaction"].models[key].settings == {"width": 32, "modes": 12, "depth": 4}
    peer = TASKS["burgers"].models["neuraloperator"].settings
    assert (peer["hidden_channels"], peer["modes"]) == (64, 48)
