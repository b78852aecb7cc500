"""What an architecture is: a network of increments, its settings, and what outsiders must know of its inside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import nn

from ups.config.settings import Strict
from ups.errors import UserError
from ups.fields import TaskSpec

if TYPE_CHECKING:
    from ups.models.saved import TrainedTask


@runtime_checkable
class Layered(Protocol):
    """A module that says what of it is treated piece by piece; one that does not is treated as a whole."""

    def layers(self) -> list[nn.Module]:
        """The blocks that are recomputed and sharded one by one; one with an attribute `products` may round them."""
        ...

    def matrices(self) -> list[nn.Parameter]:
        """The parameters that Muon trains: matrices, or stacks of them."""
        ...


def matrices_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [p for module in modules for p in module.parameters() if p.dim() in (2, 3)]


CONDITIONS = ("forcings", "mask")
"""Beside parameters, static fields and lead times, which all take."""


@dataclass(frozen=True)
class Architecture:
    """`build(tasks, settings)` gives the untrained network; `settings` checks what a configuration says.

    A network is called with (task, history, static, conditions, grid) and gives the change of a field over one lead
    time, in the task's units of change; zero before training. `baselines/unet.py` is a plain one.

    `static` are the channels that `TaskSpec.given` names: static fields, and for an architecture that `takes` them
    forcings and masks; tasks that have what it does not take are refused before training.

    `joint`: one network serves several tasks; else each has its own. `keeps_means`: where a task conserves the mean of
    a channel that is learned by its logarithm, steps are corrected to keep it.
    """

    name: str
    settings: type[Strict]
    build: Callable[[Sequence[TrainedTask], Any], nn.Module]
    joint: bool = True
    keeps_means: bool = False
    takes: tuple[str, ...] = ()


def refuse_conditions(what: str, takes: Collection[str], tasks: Iterable[TaskSpec]) -> None:
    """Refuse tasks with conditions that something does not take: nothing is dropped in silence."""
    for task in tasks:
        for kind, names in (("forcings", task.forcings), ("mask", ("mask",) if task.masked else ())):
            if names and kind not in takes:
                raise UserError(
                    f"{what} takes no {kind}, and task {task.name!r} has {', '.join(names)}: use another one, or do "
                    f"without: tasks.{task.name}.drop=[{', '.join(names)}]"
                )
