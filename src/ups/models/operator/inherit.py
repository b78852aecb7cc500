"""What a model of new tasks takes over from a trained one, beyond the parameters that both have by name.

A new task begins as a known one: it mixes the experts as that one does, and each of its fields that has no rows yet
begins with the rows of the field in the same place there. So the first step is that of a trained simulator. A new
condition begins without effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from ups.errors import UserError
from ups.fields import TaskSpec
from ups.models.operator.model import OperatorModel
from ups.models.operator.spectral import Experts


def nearest(task: TaskSpec, known: Sequence[TaskSpec]) -> list[str]:
    """The known tasks, the most alike first: of the same name; of the same dimension, steady or not, with the same
    sides; then by the channels, the parameters and what else they are given in common.
    """

    def kinds(spec: TaskSpec) -> list[str]:
        return [side.kind for pair in spec.boundary.sides for side in pair]

    def likeness(other: TaskSpec) -> tuple[float, ...]:
        shared = [
            len({*mine} & {*theirs}) / max(1, len({*mine} | {*theirs}))
            for mine, theirs in (
                (task.channel_names, other.channel_names),
                (task.parameters, other.parameters),
                (task.given, other.given),
            )
        ]
        return (
            task.name == other.name,
            task.dimension == other.dimension,
            task.steady == other.steady,
            task.boundary.periodic == other.boundary.periodic,
            sum(a == b for a, b in zip(kinds(task), kinds(other), strict=False)),
            -abs(len(task.channels) - len(other.channels)),
            sum(shared),
        )

    return [spec.name for spec in sorted(known, key=likeness, reverse=True)]


@torch.no_grad()
def inherit(own: OperatorModel, parent: OperatorModel, like: str | None = None) -> dict[str, str]:
    """Fill what `parent` does not have by name and shape; each parameter that was filled, and from what.

    `like`: the known task that new ones begin as, instead of the most alike.
    """
    if like is not None and like not in parent.tasks:
        raise UserError(f"like is {like!r}, which is no task of the model to start from: {', '.join(parent.tasks)}")
    filled: dict[str, str] = {}
    known = {task: _ranked(spec, parent, like) for task, spec in own.tasks.items()}
    for task, others in known.items():
        filled |= _take_rows(own, parent, task, others[0])
    theirs = dict(_banks(parent))
    for path, bank in _banks(own):
        before = theirs.get(path)
        if before is not None and before.count == bank.count and before.weight.shape[1:] == bank.weight.shape[1:]:
            taken = _take_bank(bank, before, known)
            filled |= {f"{path}.{name}": source for name, source in taken.items()}
    for name, rows in own.conditions.rows.items():
        if name not in parent.conditions.rows:
            rows.zero_()
            filled[f"conditions.rows.{name}"] = "zero"
    return filled


def bank_sizes(network: OperatorModel) -> dict[str, int]:
    """How many experts each kind of matrix of a model's blocks has; none where blocks have no experts."""
    sizes: dict[str, int] = {}
    for block in network.layers():
        banks = getattr(block, "banks", dict)()
        sizes |= {name: bank.count for name, bank in banks.items()}
    return sizes


def _banks(network: nn.Module) -> Iterator[tuple[str, Experts]]:
    return ((path, module) for path, module in network.named_modules() if isinstance(module, Experts))


def _ranked(task: TaskSpec, parent: OperatorModel, like: str | None) -> list[str]:
    names = nearest(task, list(parent.tasks.values()))
    return names if like is None else [like, *(name for name in names if name != like)]


def _take_rows(own: OperatorModel, parent: OperatorModel, task: str, donor: str) -> dict[str, str]:
    """Rows of the task's fields that the parent lacks, from the fields in the same places of the donor."""
    filled: dict[str, str] = {}
    for tables, before, mine, theirs in (
        (own.stem.rows, parent.stem.rows, own.stem.inputs[task], parent.stem.inputs[donor]),
        (own.head.local, parent.head.local, own.head.inputs[task], parent.head.inputs[donor]),
        (own.head.outer, parent.head.outer, own.head.outputs[task], parent.head.outputs[donor]),
    ):
        where = next(name for name, module in own.named_modules() if module is tables)
        for new, old in zip(mine, theirs, strict=False):
            if new not in before and _kind(new) == _kind(old) and tables[new].shape == before[old].shape:
                tables[new].copy_(before[old])
                filled[f"{where}.{new}"] = old
    return filled


def _kind(row: str) -> str:
    """A field, a static field, a forcing, the mask or walls; outputs are fields all of them."""
    kinds = ("static", "forcing", "mask", "wall")
    return next((kind for kind in kinds if row == kind or row.startswith(f"{kind}_")), "field")


def _take_bank(bank: Experts, before: Experts, known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The beginning of a stack of another length, nothing beyond it; gates and adapters of tasks without any there."""
    filled: dict[str, str] = {}
    other, shared = bank.stack != before.stack, min(bank.stack, before.stack)
    if other:
        bank.weight.zero_()
        bank.weight[: shared * bank.count] = before.weight[: shared * bank.count]
        filled["weight"] = f"the first {shared} of {before.stack}"
    for table in ("gates", "down", "up"):
        ours, theirs = getattr(bank, table), getattr(before, table)
        for key, values in ours.items():
            donor = next((name for name in known[key.removeprefix("task_")] if f"task_{name}" in theirs), None)
            if donor is None or (key in theirs and not other):
                continue
            source, each = theirs[f"task_{donor}"], len(values) // bank.stack
            if source.shape[1:] == values.shape[1:]:  # adapters may have another rank
                values[: shared * each] = source[: shared * each]
                filled[f"{table}.{key}"] = f"those of {donor}"
    return filled
