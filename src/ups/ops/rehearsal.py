"""What the ranks of a job try before it: on their own backend, with the real step, on data of the real shapes.

All ranks call it together, and all find the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ups.distributed.faults.injection import Fault, expect
from ups.distributed.parallel import fingerprint, reduce_gradients, replicas_agree
from ups.distributed.runtime.start import Runtime
from ups.ops.findings import Finding
from ups.ops.rates import Links
from ups.training.fit import Plan
from ups.training.trainer import Trainer

STEPS = 5
SENT = 2**24
"""Bytes of the all-reduce whose time is taken."""


def rehearse(plan: Plan, runtime: Runtime) -> Iterator[Finding]:
    """The first steps of a plan. Its data and folder are thrown away afterwards."""
    trainer = plan.trainer(runtime)
    yield _told(plan.name, _disjoint(trainer), "every sample of a step is on one rank alone", "ranks share samples")
    yield _told(plan.name, _gradients(trainer), "gradients are equal on all ranks", "gradients differ between ranks")
    began = time.perf_counter()
    for _ in range(STEPS):
        trainer.step()
    took = (time.perf_counter() - began) / STEPS
    same = replicas_agree(_kept(trainer), runtime)
    equal = f"parameters are equal after {STEPS} steps, {1e3 * took:.0f} ms each"
    yield _told(plan.name, same, equal, "parameters differ between ranks")
    trainer.save(wait=True)
    again = plan.trainer(runtime)
    same = again.state.step == trainer.state.step and _digest(again) == _digest(trainer)
    same = all(runtime.gather(same))
    yield _told(plan.name, same, "a checkpoint is saved and loaded as it was", "a checkpoint is not loaded as saved")
    again.events.close()
    yield _out_of_memory(plan.name, trainer)
    trainer.events.close()


def all_reduce(runtime: Runtime) -> Finding:
    """Its value, and at which rate a ring sends what it needs: 2 n (g - 1)/g bytes for n bytes on g ranks."""
    ranks = torch.full((SENT // 4,), runtime.rank + 1.0, device=runtime.device)
    value = float(runtime.sum(ranks)[-1])
    wanted = runtime.size * (runtime.size + 1) / 2
    if value != wanted:
        return Finding("red", "collectives", f"an all-reduce of 1 to {runtime.size} gave {value:g}, not {wanted:g}")
    rate = links_between(runtime).within or 0.0
    backend = "NCCL" if runtime.device.type == "cuda" else "gloo"
    return Finding(
        "green", "collectives", f"all-reduce over {runtime.size} ranks is right; {backend}, {rate / 1e9:.2g} GB/s"
    )


def links_between(runtime: Runtime) -> Links:
    """The rate at which a rank sends in a ring over all of them, and the time of an all-reduce of one number."""

    def least(tensor: Tensor) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            float(runtime.sum(tensor)[0])  # waits for a GPU
            times.append(time.perf_counter() - began)
        return runtime.from_first("time of an all-reduce", lambda: min(times))

    sent = 2 * SENT * (runtime.size - 1) / runtime.size
    latency = least(torch.zeros(1, device=runtime.device))
    return Links(within=sent / least(torch.zeros(SENT // 4, device=runtime.device)), latency=latency)


def _told(name: str, good: bool, right: str, wrong: str) -> Finding:
    return Finding("green" if good else "red", name, right if good else wrong)


def _disjoint(trainer: Trainer) -> bool:
    """Whether the ranks' samples of the first step are all of it, each once."""
    own = [slot for m in trainer.micro_batches(0) for slot in m.slots[m.weights > 0].tolist()]
    every = [slot for slots in trainer.runtime.gather(own) for slot in slots]
    return sorted(every) == list(range(trainer.sampler.batch_size))


def _gradients(trainer: Trainer) -> bool:
    """Whether the ranks have the same gradients after the reduction; they are not used."""
    runtime, stepper = trainer.runtime, trainer.stepper
    stepper.gradients(trainer.micro_batches(0), runtime)
    reduce_gradients(stepper.of_tasks, runtime)
    same = replicas_agree((g for gradients in stepper.of_tasks for g in gradients if g is not None), runtime)
    stepper.forget()
    return same


def _out_of_memory(name: str, trainer: Trainer) -> Finding:
    """Whether a rank that runs out of memory costs a smaller micro-batch, and no more."""
    first = next(iter(trainer.micro))
    if trainer.runtime.mesh is not None or trainer.stepper.replayed or trainer.micro[first] == 1:
        return Finding("green", name, "running out of memory is not rehearsed: it restarts such ranks, or ends the run")
    before = trainer.micro[first]
    expect(Fault("oom", "forward", trainer.runtime.size - 1, trainer.state.step))
    trainer.step()
    good = trainer.micro[first] == before // 2
    return _told(name, good, "a rank out of memory halves its micro-batch", "a rank out of memory was not noticed")


def _kept(trainer: Trainer) -> Iterable[Tensor]:
    return [*trainer.model.state_dict().values(), *trainer.ema.averages.values()]


def _digest(trainer: Trainer) -> int:
    return int(fingerprint(_kept(trainer)))
