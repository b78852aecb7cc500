"""Whole tensors from the safetensors files of a checkpoint, which may hold them in parts.

Torch's own reader does this too, and knows sharded tensors, but importing it takes longer than all the rest of a cold
`ups simulate`: here a file's header and its bytes are enough.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

_PARTS, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""Where torch's safetensors writer notes in a file's header at which place of the whole tensor a part begins."""


def whole_tensors(path: Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The tensors whose names begin with one of the prefixes, joined from the files of all ranks that wrote them."""
    parts: dict[str, list[tuple[list[int], Tensor]]] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            places = json.loads((stored.metadata() or {}).get(_PARTS, "{}"))
            for name in stored.keys():  # noqa: SIM118  (it is no dictionary)
                if name.startswith(prefixes):
                    part = stored.get_tensor(name)
                    begin = places[name][_OFFSETS] if name in places else [0] * part.dim()
                    parts.setdefault(name, []).append((begin, part))
    return {name: _joined(pieces) for name, pieces in parts.items()}


def _joined(pieces: list[tuple[list[int], Tensor]]) -> Tensor:
    """Their parts in memory of our own: what safetensors gives may still be the file's pages."""
    ends = [[at + n for at, n in zip(begin, part.shape, strict=True)] for begin, part in pieces]
    shape = [max(axis) for axis in zip(*ends, strict=True)]
    if math.prod(shape) != sum(part.numel() for _, part in pieces):
        raise ValueError(f"the parts of a tensor do not make up its shape {shape}")
    whole = torch.empty(shape, dtype=pieces[0][1].dtype)
    for (begin, part), end in zip(pieces, ends, strict=True):
        whole[tuple(slice(a, b) for a, b in zip(begin, end, strict=True))] = part
    return whole
