"""What every reader does alike: only the rows asked for, nothing outside the domain, nothing that is not finite."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.errors import UserError
from ups.fields import Batch, Dataset, Header, TaskSpec


class LazyFile(Dataset):
    """A file as a Dataset. It is opened for each read, so that the dataset can be handed to other processes.

    A layout gives `path`, `header` and `count` when it is opened, and what `batch` reads.
    """

    path: Path
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """The given trajectories at the given frames, reading only those bytes. NaN and infinities are refused; what
        the file has in cells that its mask excludes is replaced by zero.
        """
        rows = checked_rows(indices, len(self), self.path)
        with refused(self.path):
            batch = inside(self.batch(rows, frames), rows, self.path)
            check_finite(batch, self.channels, rows, self.path, range(len(self.times))[frames].start)
        return batch

    @abstractmethod
    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        """Rows that are there, in any order."""


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Whatever a library says of a file that is not what it should be, as one sentence."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, OSError) as error:
        what = str(error).strip().split("\n")[0][:300]
        raise UserError(
            f"{path} is damaged or not what its layout says ({type(error).__name__}: {what}); fetch or make it again"
        ) from error
    except (MemoryError, AssertionError) as error:
        raise UserError(f"{path} is damaged or needs more memory than there is; fetch or make it again") from error


def checked_rows(indices: Any, count: int, path: Path) -> np.ndarray:
    rows = np.asarray(indices, dtype=np.int64).reshape(-1)
    if len(rows) and (rows.min() < 0 or rows.max() >= count):
        bad = rows.max() if rows.max() >= count else rows.min()
        raise UserError(f"{path}: trajectory {bad} is not among the {count} of this file")
    return rows


def inside(batch: Batch, rows: Int[np.ndarray, " B"], path: Path) -> Batch:
    """The batch with zeros in all cells that are no part of a sample's domain; a sample without any cell is refused.
    Static fields keep the numbers they have there: an obstacle's shape is one.
    """
    mask = batch.mask
    if mask is None:
        return batch
    empty = ~mask.flatten(1).any(1).numpy()
    if empty.any():
        raise UserError(
            f"{path}: the mask of sample {rows[empty][0]} covers everything, so no cell is left to learn from; "
            "remove the sample or mend its mask"
        )

    def kept(field: Tensor, before: int) -> Tensor:
        """A field with so many axes before those of space."""
        cells = mask[(slice(None), *(None,) * (before - 1))]
        return torch.where(cells.reshape(*cells.shape, *(1,) * (field.dim() - cells.dim())), field, 0.0)

    space = mask.dim() - 1
    return replace(
        batch,
        values=kept(batch.values, 2),
        static={name: torch.where(mask | field.isfinite(), field, 0.0) for name, field in batch.static.items()},
        forcings={name: kept(field, field.dim() - space) for name, field in batch.forcings.items()},
    )


def check_finite(
    batch: Batch, channels: Sequence[str], rows: Int[np.ndarray, " B"], path: Path, first: int = 0
) -> None:
    """Refuse NaN and infinities in any field; `rows` are the samples' numbers in the file, `first` that of the frame
    the batch begins with.
    """
    fields: dict[str, Tensor] = {}
    if not np.isfinite(batch.values.numpy()).all():  # all channels at once, as they lie: much sooner than one by one
        fields = {f"channel {name!r}": batch.values[..., number] for number, name in enumerate(channels)}
    fields |= {f"static field {name!r}": field for name, field in batch.static.items()}
    fields |= {f"forcing {name!r}": field for name, field in batch.forcings.items()}
    fields |= {f"parameter {name!r}": values for name, values in batch.parameters.items()}
    for what, field in fields.items():
        finite = np.isfinite(field.numpy())
        if not finite.all():
            places = np.argwhere(~finite)[0]
            in_time = field.dim() == batch.grid.dimension + 2
            frame = f", from frame {first + places[1]} on" if in_time else ""
            raise UserError(
                f"{path}: sample {rows[places[0]]} has NaN or infinite values in {what}{frame}; "
                "remove the sample or make the file anew"
            )


def named(header: Header, task: str | TaskSpec | None) -> Header:
    """The header under the name of the task asked for, if any."""
    name = task.name if isinstance(task, TaskSpec) else task
    return replace(header, task=name) if name else header


def batch_from(
    header: Header,
    rows: Int[np.ndarray, " B"],
    frames: slice,
    values: Float[np.ndarray, "B T *space C"],
    static: Mapping[str, Float[np.ndarray, "B *space"]] | None = None,
    parameters: Mapping[str, Float[Tensor, " B"]] | None = None,
) -> Batch:
    """What a reader has read, as a batch; `parameters` are those that differ between trajectories."""
    shared = {name: value for name, value in header.parameters.items() if value is not None}
    return Batch(
        task=header.task,
        values=torch.from_numpy(values),
        times=header.times[frames].expand(len(rows), -1),
        grid=header.grid,
        boundary=header.boundary,
        parameters={
            **{name: torch.full((len(rows),), value, dtype=torch.float64) for name, value in shared.items()},
            **(parameters or {}),
        },
        static={name: torch.from_numpy(np.ascontiguousarray(field)) for name, field in (static or {}).items()},
        ids=torch.from_numpy(rows),
    )
