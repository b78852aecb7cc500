"""Writing a store by all ranks together: each writes its share of the shards, rank 0 the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from ups.distributed.runtime.start import Runtime
from ups.store.build import build, write_shards
from ups.store.claim import ArraySource, BuildPlan, MissingShard, finish, planned
from ups.store.layout import Shard
from ups.track.tick import Tick


def build_on_ranks(
    runtime: Runtime,
    path: Path,
    key: str,
    arrays: Mapping[str, ArraySource],
    progress: Tick,
    workers: int = 1,
) -> None:
    """`build`, on a file system that all ranks see. When a rank fails, the others end too and say which and why.

    `workers` are processes of a single rank: several ranks are processes enough. A rank's `progress` counts its share.
    """
    if runtime.size == 1:
        build(path, key, arrays, progress, workers=workers)
        return
    with ExitStack() as claim:  # held by rank 0 until the index is written

        def begin() -> BuildPlan:
            return claim.enter_context(planned(path, key, arrays, progress))

        todo = runtime.from_first(f"plan {path.name}", begin)
        mine = todo.missing[runtime.rank :: runtime.size]

        def write(check_others: Callable[[], None]) -> dict[MissingShard, Shard]:
            written = {}
            for wanted, shard in write_shards(path, mine, arrays):
                written[wanted] = shard
                progress(sum(s.bytes for s in written.values()), todo.total)
                check_others()
            return written

        shares = runtime.together(f"write {path.name}", write)
        written = {wanted: shard for share in shares for wanted, shard in share.items()}
        runtime.from_first(f"finish {path.name}", lambda: finish(path, todo, written))
