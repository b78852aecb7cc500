"""An error of the GPU, which comes late and names no kernel, carries what the process knows."""

from __future__ import annotations

import pytest
import torch

from ups import graphs
from ups.distributed.faults.cuda_errors import cuda_errors

ILLEGAL = "CUDA error: an illegal memory access was encountered"


class Graph:
    def replay(self) -> None:
        pass


def noted(error: Exception, device: str = "cuda", directory=None) -> str:
    with pytest.raises(type(error)) as caught, cuda_errors(torch.device(device), directory, 1, 2):
        raise error
    return "\n".join(getattr(caught.value, "__notes__", []))


def test_an_illegal_memory_access_names_the_last_graph_and_counts_launches(monkeypatch):
    monkeypatch.setattr(graphs, "launches", graphs.Launches(recorded=2))
    for step in range(3):
        graphs.replay(Graph(), ("gradients", step))  # pyright: ignore[reportArgumentType]
    said = noted(RuntimeError(ILLEGAL))
    assert "2 graphs were recorded and 3 replayed, last: ('gradients', 2)" in said and "allocated_bytes" in said


@pytest.mark.parametrize(
    ("error", "device"), [(RuntimeError("shapes differ"), "cuda"), (RuntimeError(ILLEGAL), "cpu"), (OSError(), "cuda")]
)
def test_other_errors_are_left_alone(error, device):
    assert noted(error, device) == ""


def test_the_allocators_history_is_kept_where_it_is_asked_for(monkeypatch, tmp_path):
    """Here without a GPU: what torch is asked for, by the names it must have."""
    asked = []
    memory = torch.cuda.memory
    monkeypatch.setenv("UPS_CUDA_HISTORY", "1")
    monkeypatch.setattr(memory, "_record_memory_history", lambda **how: asked.append(how))
    monkeypatch.setattr(memory, "_dump_snapshot", lambda path: asked.append(path))
    said = noted(RuntimeError(ILLEGAL), directory=tmp_path)
    path = tmp_path / "crash" / "attempt_002" / "rank_1.memory.pickle"
    assert asked == [{"max_entries": 200_000, "stacks": "python"}, str(path)]
    assert path.parent.is_dir() and f"history is in {path}" in said


@pytest.mark.skipif(not torch.cuda.is_available(), reason="an allocator with a history is a GPU's")
def test_a_gpu_writes_its_allocators_history(monkeypatch, tmp_path):
    monkeypatch.setenv("UPS_CUDA_HISTORY", "1")
    with pytest.raises(RuntimeError, match="illegal"), cuda_errors(torch.device("cuda"), tmp_path, 0, 0):
        torch.ones(1000, device="cuda")
        raise RuntimeError(ILLEGAL)
    torch.cuda.memory._record_memory_history(enabled=None)
    assert (tmp_path / "crash" / "attempt_000" / "rank_0.memory.pickle").stat().st_size > 1000
