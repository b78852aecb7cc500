"""Make a data set with our own solvers: the same bytes whatever the number of workers, and resumable.

Trajectories are solved in chunks of fixed size (`chunks.py`), by one thread of a CPU worker or by a GPU, so neither the
number of workers nor of GPUs changes a trajectory's rounding. Finished chunks are kept in a hidden folder beside the
file until it is whole, and are put together in order while later ones are still being solved. CPUs and GPUs may differ
in the last digits: the data's key says which made them, and the data of either are taken for the other's.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ups.data.formats.layouts import Layout, named_layout
from ups.data.formats.writing import Writer
from ups.data.generate.chunks import Chunks, gpus
from ups.data.open import open_dataset
from ups.durable import check_space, room_for, sync
from ups.equations import Equation
from ups.equations.named import named_equation
from ups.errors import UserError
from ups.fields import Batch, Header
from ups.locks import held
from ups.track.progress import Progress
from ups.track.tick import Tick

VERSION = 4  # of the bytes a solver makes; raised when any solver's output changes


def generate(
    equation: Equation | str,
    count: int,
    seed: int,
    path: str | Path,
    workers: int = 1,
    progress: Tick | None = None,
    *,
    device: str = "cpu",
    layout: str | None = None,
) -> Path:
    """Solve trajectories 0 … count − 1 of the family `seed` and write them in a layout, the equation's own by default.

    An equation's name stands for it with settings that work. `workers` are CPU processes; with `device="cuda"` every
    visible GPU has one. If the file is there and was made with the same equation, count, seed, layout and version, on
    whatever device, it is kept; any other file under that name is refused. Interrupted, a second call on the same kind
    of device goes on where the first stopped. `progress(done, total)` is called with numbers of trajectories; without
    it they are shown. With more than one worker, a script must call this under `if __name__ == "__main__"`.
    """
    if progress is None:
        with Progress(Path(path).name, count, "trajectories") as display:
            return generate(equation, count, seed, path, workers, display.tick, device=device, layout=layout)
    path, equation = Path(path), named_equation(equation, {}) if isinstance(equation, str) else equation
    if count < 1 or workers < 1:
        raise UserError(f"{path}: count is {count} and workers {workers}; both must be at least 1")
    if device != "cpu":
        gpus(device)
    kind = named_layout(layout or equation.layout)
    equation.check_memory()
    keys = data_keys(equation, count, seed, kind.name)
    key = keys[device.partition(":")[0]]
    folders = {made: path.with_name(f".{path.name}.chunks-{made[:16]}") for made in keys.values()}
    if is_made(path, keys.values()):
        progress(count, count)
        return path
    chunks = Chunks(equation, seed, count, device, folders[key])
    # The chunks still to make and the final file lie on the disk together.
    fields = len(equation.times) * len(equation.channels) + len(equation.static)
    missing = count - sum(chunks.held(chunk) for chunk in chunks.finished())
    check_space(path, 4 * fields * math.prod(equation.grid.shape) * (count + missing) + 2**20)
    with _alone(path):
        if is_made(path, keys.values()):  # by another process in the meantime
            progress(count, count)
            return path
        chunks.folder.mkdir(exist_ok=True)
        with room_for(path, "and start again, finished parts are kept"):
            whole = _make(chunks, kind, key, workers, path.name, progress)
        if path.exists():
            raise UserError(f"{path} came into being while the data were made; remove it and start again")
        whole.rename(path)
        sync(path.parent)
        for folder in folders.values():  # those of the other device too, where it was interrupted
            shutil.rmtree(folder, ignore_errors=folder != chunks.folder)
    return path


def file_name(equation: Equation, layout: str | None = None) -> str:
    """The published name of the data, with the extension of the layout."""
    published = equation.published_name
    return published if layout is None else str(Path(published).with_suffix(named_layout(layout).extension))


def data_key(equation: Equation, count: int, seed: int, layout: str = "", device: str = "cpu") -> str:
    """A hash of everything the file's bytes follow from."""
    content = {
        "equation": equation.name,
        "settings": {name: v if isinstance(v, str) else float(v) for name, v in vars(equation).items()},
        "parameters": equation.parameters,
        "solver": equation.solver,
        "grid": [positions.tolist() for positions in equation.grid.positions],
        "times": equation.times.tolist(),
        "count": count,
        "seed": seed,
        "layout": layout or equation.layout,
        "device": device.partition(":")[0],
        "version": VERSION,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def data_keys(equation: Equation, count: int, seed: int, layout: str = "") -> dict[str, str]:
    """The key of the data as each kind of device makes them: any of these is the data asked for."""
    return {device: data_key(equation, count, seed, layout, device) for device in ("cpu", "cuda")}


def _make(chunks: Chunks, kind: Layout, key: str, workers: int, name: str, progress: Tick) -> Path:
    """The whole data in the chunks' folder, under their final name."""
    whole = chunks.folder / name
    for left in (whole, *chunks.folder.glob("*.tmp"), *chunks.folder.glob(".*.tmp")):
        left.unlink(missing_ok=True)  # of a process that was killed while it wrote
    finished = chunks.finished()
    missing = sorted(set(range(len(chunks))) - set(finished))
    done = sum(chunks.held(chunk) for chunk in finished)
    progress(done, chunks.count)
    waiting, following = set(finished), 0
    with ExitStack() as stack:
        writer: Writer | None = None
        # A chunk is written as soon as it and all before it are made; None: before the first of them.
        for made in itertools.chain([None], chunks.make(missing, workers)):
            if made is not None:
                waiting.add(made)
                done += chunks.held(made)
                progress(done, chunks.count)
            while following in waiting:
                batch = chunks.read(following)
                if writer is None:
                    header = _header(chunks, kind, batch, key)
                    writer = stack.enter_context(kind.writer(whole, header, chunks.count))
                writer.write(batch)
                following += 1
    return whole


def equation_header(equation: Equation) -> Header:
    """What the equation's file says at least."""
    return Header(
        task=equation.name,
        channels=equation.channels,
        grid=equation.grid,
        times=equation.times,
        boundary=equation.boundary,
        parameters=equation.parameters,
        static=equation.static,
    )


def _header(chunks: Chunks, kind: Layout, first: Batch, key: str) -> Header:
    equation = chunks.equation
    return replace(
        equation_header(equation),
        parameters={name: equation.parameters.get(name) for name in first.parameters},
        static=tuple(first.static),
        forcings={name: field.dim() == first.values.dim() - 1 for name, field in first.forcings.items()},
        masked=first.mask is not None,
        test_at=kind.test_at,
        notes={
            "equation": equation.name,
            "solver": equation.solver,
            "seed": chunks.seed,
            "device": chunks.device.partition(":")[0],
            "version": VERSION,
            "key": key,
        },
    )


def is_made(path: Path, keys: Collection[str]) -> bool:
    """Whether data of one of the keys are there; anything else under that name is refused."""
    if not path.exists():
        return False
    try:
        found = open_dataset(path).header.notes.get("key")
    except UserError:  # damaged, or none of ours
        found = None
    if found not in keys:
        raise UserError(
            f"{path} exists and was not made with this equation, count, seed and layout; "
            "remove it or choose another path"
        )
    return True


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two processes that make one file would take each other's chunks away, or one the other's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.name}.lock")
    with name.open("w") as lock:
        if not held(lock, name):
            raise UserError(f"{path} is being made by another process; wait for it or choose another path")
        try:
            yield
        finally:
            name.unlink()
