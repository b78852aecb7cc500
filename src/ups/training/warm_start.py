"""Start from the weights of another training: by name, and nothing of it in silence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ups.errors import UserError
from ups.training.restore import averaged_weights, stage_folder


@dataclass(frozen=True)
class WarmStart:
    """`missing`: names of the new module that the old one lacks, which start anew; `surplus`: names that only the old
    one has; `reshaped`: names that both have, in other shapes, which start anew too.
    """

    source: str
    taken: int
    missing: list[str]
    surplus: list[str]
    reshaped: list[str]

    def __str__(self) -> str:
        lines = [f"starting from {self.source}: {self.taken} tensors are taken by name"]
        for label, names in (("not there", self.missing), ("not used", self.surplus), ("reshaped", self.reshaped)):
            if names:
                lines.append(f"  {label}: {', '.join(names)}")
        return "\n".join(lines)


def warm_start(module: nn.Module, source: Path) -> WarmStart:
    """Fill what has the same name and shape from a run's last stage, a stage's folder or an export."""
    given, _ = averaged_weights(stage_folder(source))
    own = module.state_dict()
    reshaped = [name for name in own if name in given and own[name].shape != given[name].shape]
    taken = [name for name in own if name in given and name not in reshaped]
    if not taken:
        raise UserError(f"nothing in {source} has a name and shape of the new model; start from another one")
    with torch.no_grad():
        for name in taken:
            own[name].copy_(given[name])
    return WarmStart(
        str(source),
        len(taken),
        [name for name in own if name not in given],
        [name for name in given if name not in own],
        reshaped,
    )
