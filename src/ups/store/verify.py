"""Reading every byte of a store to find damage."""

from __future__ import annotations

from pathlib import Path

from ups.durable import crc32_of
from ups.store.layout import StoreDamaged, content_problem, read_index, size_problem


def verify(path: Path) -> list[str]:
    """What is wrong with the store at `path`, one sentence a file; empty when every byte is as it was written."""
    try:
        index = read_index(path)
    except StoreDamaged as error:
        return [str(error)]
    if index is None:
        return [f"{path} holds no complete store"]
    problems = []
    for array in index.arrays.values():
        for shard in array.shards:
            problem = size_problem(path, shard) or content_problem(path, shard, crc32_of(path / shard.file))
            if problem:
                problems.append(problem)
    return problems
