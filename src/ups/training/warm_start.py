"""Start from the weights of another training: by name, and nothing of it in silence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ups import checkpoint
from ups.errors import UserError
from ups.models.operator.inherit import inherit
from ups.models.operator.model import OperatorModel
from ups.training.restore import best_checkpoint, restored, stage_folder


@dataclass(frozen=True)
class WarmStart:
    """`missing`: names of the new module that the old one lacks, which start anew; `surplus`: names that only the old
    one has; `reshaped`: names that both have, in other shapes, which start anew too. `inherited`: what new tasks,
    fields and conditions of an operator model start from instead.
    """

    source: str
    taken: int
    missing: list[str]
    surplus: list[str]
    reshaped: list[str]
    inherited: dict[str, str]

    def __str__(self) -> str:
        lines = [f"starting from {self.source}: {self.taken} tensors are taken by name"]
        sources: dict[str, list[str]] = {}
        for name, source in self.inherited.items():
            sources.setdefault(source, []).append(name)
        lists = [(f"from {source}", names) for source, names in sources.items()]
        lists += [("not there", self.missing), ("not used", self.surplus), ("reshaped", self.reshaped)]
        lines += [f"  {label}: {', '.join(_shortened(names))}" for label, names in lists if names]
        return "\n".join(lines)


def _shortened(names: Sequence[str]) -> list[str]:
    """The same of every block as one name."""
    return list(dict.fromkeys(re.sub(r"\.blocks\.\d+\.", ".blocks.*.", name) for name in names))


def check_start(source: Path, like: str | None) -> None:
    """Refuse, before any work, a start that is not there, is damaged, or lacks the task `like`."""
    _, manifest = checkpoint.load(best_checkpoint(stage_folder(source)), ("no tensor",))
    known = [task["spec"]["name"] for task in manifest.content["tasks"]]
    if like is not None and like not in known:
        raise UserError(f"like is {like!r}, which is no task of {source}: {', '.join(known)}")


def warm_start(module: nn.Module, source: Path, like: str | None = None) -> WarmStart:
    """Fill what has the same name and shape from a run's last stage, a stage's folder or an export; new tasks of an
    operator model begin as the task `like`, or as the most alike.
    """
    parent = restored(stage_folder(source)).trainable()
    given, own = parent.state_dict(), module.state_dict()
    reshaped = [name for name in own if name in given and own[name].shape != given[name].shape]
    taken = [name for name in own if name in given and name not in reshaped]
    if not taken:
        raise UserError(f"nothing in {source} has a name and shape of the new model; start from another one")
    with torch.no_grad():
        for name in taken:
            own[name].copy_(given[name])
    inherited: dict[str, str] = {}
    ours, theirs = getattr(module, "network", None), getattr(parent, "network", None)
    if isinstance(ours, OperatorModel) and isinstance(theirs, OperatorModel):
        inherited = {f"network.{name}": found for name, found in inherit(ours, theirs, like).items()}
    elif like is not None:
        raise UserError(
            f"like is {like!r}, but {source} is no operator model, whose tasks begin as others; leave it out"
        )
    return WarmStart(
        str(source),
        len(taken),
        [name for name in own if name not in given and name not in inherited],
        [name for name in sorted(given) if name not in own],
        [name for name in reshaped if name not in inherited],
        inherited,
    )
