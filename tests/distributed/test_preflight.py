"""What is said and settled before a run starts; what NCCL needs is row 18 of the fault matrix."""

from __future__ import annotations

import os

import pytest
import torch

from ups.distributed.runtime.preflight import left_idle
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime


@pytest.mark.parametrize(("tf32", "capability", "said"), [(False, (9, 0), 1), (True, (9, 0), 0), (False, (7, 5), 0)])
def test_a_gpu_whose_tensor_cores_are_left_idle_is_named_with_the_remedy(tf32, capability, said):
    notes = left_idle(tf32, capability)
    assert len(notes) == said and all("runtime.tf32=true" in note for note in notes)


def test_the_configs_threads_win_over_the_users_variable_and_that_over_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(3)))

    def threads(**given) -> int:
        with Runtime.start(RuntimeConfig(device="cpu", **given), 0) as runtime:
            assert torch.get_num_threads() == runtime.threads
            return runtime.threads

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torch has read it: tests run with one thread
    assert (threads(), threads(threads=2)) == (1, 2)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert (threads(), threads(threads=2)) == (3, 2)
