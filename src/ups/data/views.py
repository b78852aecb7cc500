"""Every n-th point and frame of a dataset: how publications train and test on their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from ups.data.joined import Joined
from ups.errors import UserError
from ups.fields import Batch, Dataset, Grid


class View(Dataset):
    """Every `space_stride`-th point along each axis and the first `frames` of every `frame_stride`-th frame.

    Points keep the positions they have: the first is the dataset's first, half a fine cell from the wall, not half a
    coarse one. Nothing is averaged. `given` is the number of first frames that a test gives to a model, of those that
    are kept; the dataset's own number if none is said.
    """

    def __init__(
        self,
        dataset: Dataset,
        space_stride: int = 1,
        frame_stride: int = 1,
        frames: int | None = None,
        given: int | None = None,
    ) -> None:
        header = dataset.header
        given = header.given if given is None else given
        for name, stride in (("space_stride", space_stride), ("frame_stride", frame_stride), ("given", given)):
            if stride < 1:
                raise UserError(f"view of {header.task!r}: {name} is {stride}; give at least 1")
        kept = range(len(header.times))[::frame_stride]
        if frames is not None and not 1 <= frames <= len(kept):
            raise UserError(
                f"view of {header.task!r}: {frames} frames of stride {frame_stride} are asked for, the data have "
                f"{len(kept)}; use data of more frames"
            )
        self.dataset = dataset
        self._frames = kept[:frames]
        if given > max(1, len(self._frames) - 1):
            raise UserError(
                f"view of {header.task!r}: {given} of its {len(self._frames)} frames are given, which leaves none to "
                "predict; use data of more frames"
            )
        self._stride = space_stride
        self.header = replace(
            header,
            grid=Grid(tuple(p[::space_stride].clone() for p in header.grid.positions), header.grid.extent),
            times=header.times[::frame_stride][:frames].clone(),
            own_times=None if header.own_times is None else header.own_times[:, ::frame_stride][:, :frames].clone(),
            given=given,
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        wanted = self._frames[frames]
        batch = self.dataset.read(indices, slice(wanted.start, wanted.stop, wanted.step))
        timed = self.header.forcings
        return replace(
            batch,
            values=self._thin(batch.values, 2),
            grid=self.header.grid,
            static={name: self._thin(field, 1) for name, field in batch.static.items()},
            forcings={name: self._thin(field, 2 if timed[name] else 1) for name, field in batch.forcings.items()},
            mask=None if batch.mask is None else self._thin(batch.mask, 1),
        )

    def _thin(self, field: Tensor, before: int) -> Tensor:
        space = (slice(None, None, self._stride),) * self.header.grid.dimension
        return field[(slice(None),) * before + space].contiguous()


class PublishedView(NamedTuple):
    """PDEBench's view of a task: points along each axis, frame stride, frames given, frames (all if none)."""

    points: int
    frame_stride: int = 1
    given: int = 1
    frames: int | None = None


PDEBENCH = {
    "advection": PublishedView(256, 5, 10, 41),
    "burgers": PublishedView(256, 5, 10, 41),
    "reaction_diffusion": PublishedView(256, 1, 5, 30),
    "diffusion_sorption": PublishedView(1024, 1, 10, 101),
    "compressible_1d": PublishedView(128, 5, 10),
    "compressible_2d": PublishedView(64, 1, 10, 21),
    "darcy": PublishedView(64),
    "diffusion_reaction": PublishedView(128, 1, 10, 101),
    "shallow_water": PublishedView(128, 1, 10, 101),
}


def pdebench_view(dataset: Dataset) -> View | Joined:
    """The view in which PDEBench's results are published, by the data's task; data of other sizes are refused.

    Of joined data it is the joined views of their parts, which are split part by part as the data are.
    """
    if isinstance(dataset, Joined):
        return Joined([pdebench_view(part) for part in dataset.parts])
    task, grid = dataset.task, dataset.grid
    if task not in PDEBENCH:
        raise UserError(f"PDEBench publishes no view of {task!r}; those of {', '.join(PDEBENCH)} are known")
    view = PDEBENCH[task]
    if len(set(grid.shape)) != 1 or grid.shape[0] % view.points != 0:
        raise UserError(
            f"PDEBench's view of {task!r} has {view.points} points an axis, the data have {grid.shape}; "
            "use data of that many points or a multiple"
        )
    return View(dataset, grid.shape[0] // view.points, view.frame_stride, view.frames, view.given)
