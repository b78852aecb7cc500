"""What is said before a run starts; what NCCL needs is row 18 of the fault matrix."""

from __future__ import annotations

import pytest

from ups.distributed.runtime.preflight import left_idle


@pytest.mark.parametrize(("tf32", "capability", "said"), [(False, (9, 0), 1), (True, (9, 0), 0), (False, (7, 5), 0)])
def test_a_gpu_whose_tensor_cores_are_left_idle_is_named_with_the_remedy(tf32, capability, said):
    notes = left_idle(tf32, capability)
    assert len(notes) == said and all("runtime.tf32=true" in note for note in notes)
