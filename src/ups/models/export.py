"""A trained model to hand over, as a checkpoint of its own.

    OUT/manifest.json            architecture, tasks, grids, statistics; checksums (a checkpoint's manifest)
    OUT/model.safetensors        the averaged weights
    OUT/README.md                a card for people

It is laid out as a repository of Hugging Face is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save

from ups import checkpoint
from ups.durable import crc32_of, seal, sync, write
from ups.errors import UserError
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, description


def export_model(model: Propagator, spec: ModelSpec, out: Path, card: str | None = None) -> list[Path]:
    """Write the model, and a card of it, into a new directory `out`, whole or not at all; the files."""
    with made_whole(out) as temporary:
        temporary.mkdir()
        weights = {f"model.{name}": t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
        path = temporary / checkpoint.WEIGHTS
        write(path, save(weights))
        file = {"bytes": path.stat().st_size, "crc32": crc32_of(path)}
        settings = {"architecture": spec.architecture, **spec.settings}
        content = description("operator", "operator", settings, spec.tasks, 0)
        head = {"format": checkpoint.FORMAT, "step": 0, "files": {checkpoint.WEIGHTS: file}, "content": content}
        write(temporary / checkpoint.MANIFEST, seal(head))
        if card is not None:
            write(temporary / checkpoint.CARD, card.encode())
    return [out / name for name in (checkpoint.MANIFEST, checkpoint.WEIGHTS, checkpoint.CARD) if (out / name).exists()]


@contextmanager
def made_whole(out: Path) -> Iterator[Path]:
    """A place to write what is to be `out`, a file or a folder: it gets its name when it is done, or never."""
    if out.exists() or not out.absolute().parent.is_dir():
        why = "exists" if out.exists() else "is in a folder that is not there"
        raise UserError(f"{out} {why}; choose another place")
    beside = out.absolute().parent
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=beside, ignore_cleanup_errors=True) as holder:
        temporary = Path(holder) / out.name  # inside, because the holder is for its owner's eyes only
        yield temporary
        sync(temporary)
        temporary.rename(out)
    sync(beside)
