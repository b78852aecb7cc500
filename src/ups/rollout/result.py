"""What a rollout gives: values with their channels, times, places and units; to print, draw, compare and keep."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from ups import metrics
from ups.durable import write
from ups.errors import UserError
from ups.fields import AXES, Batch, Boundary, Grid, Header, Trajectory

if TYPE_CHECKING:
    from ups.rollout.films import Film
    from ups.rollout.pictures import Picture


FILMED = 4
"""Members that move side by side."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """Values in physical units at `times`, on the grid or at the points asked for; `warnings` say what not to trust.

    `where` is that grid, or the points (P, dim). `units` are by channel, "time" and axis, as far as the data said them.
    `count` is the number of members.
    """

    values: Float[Tensor, "... C"]  # (B, T, *points, C), or (T, *points, C) from a start without B; members before B
    times: Float[Tensor, " T"]
    channels: tuple[str, ...]
    task: str
    warnings: tuple[str, ...] = ()
    where: Grid | Tensor | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    count: int = 1

    @property
    def members(self) -> Float[Tensor, "M ..."]:
        """Each member's values; of a rollout without members, itself as the only one."""
        return self.values if self.count > 1 else self.values[None]

    @property
    def mean(self) -> Float[Tensor, "... C"]:
        """Over members."""
        return self.members.mean(0)

    def quantile(self, share: float) -> Float[Tensor, "... C"]:
        """Over members, of which `share` are below."""
        if not 0 <= share <= 1:
            raise UserError(f"the quantile's share is {share}; give a number from 0 to 1")
        return torch.quantile(self.members, share, dim=0)

    @property
    def spread(self) -> Float[Tensor, "... C"]:
        """The standard deviation of members, of which there must be two at least."""
        if self.count == 1:
            raise UserError("a rollout of one member has no spread; ask for several: members=16")
        return self.members.std(0)

    @property
    def dimension(self) -> int:
        """Axes of space of the values: points in a list have one."""
        return self.where.dimension if isinstance(self.where, Grid) else 1

    @cached_property
    def samples(self) -> Float[Tensor, "N T *points C"]:
        """The values with all members and starts along one axis, detached and on the CPU."""
        values = self.values.detach().cpu()
        return values.reshape(-1, *values.shape[-2 - self.dimension :])

    def named(self, name: str) -> str:
        """A channel, an axis or the time with its unit: `temperature [K]`."""
        short = {"time": "t"}.get(name, name)
        return f"{short} [{self.units[name]}]" if self.units.get(name) else short

    def __repr__(self) -> str:
        return "\n".join(f"{what:9}{value}" for what, value in self._said())

    def _repr_html_(self) -> str:
        """For notebooks: what `repr` says, and the picture of the first sample."""
        from ups.rollout.pictures import table

        drawn = self.plot()._repr_html_() if isinstance(self.where, Grid) else ""
        return table(self._said()) + drawn

    def _said(self) -> list[tuple[str, str]]:
        lead = tuple(self.values.shape[: -2 - self.dimension])
        shape = " × ".join(map(str, self.values.shape[-1 - self.dimension : -1]))
        place = f"{shape} {'grid' if isinstance(self.where, Grid) else 'points'}"
        when = f"{len(self.times)} from {float(self.times[0]):.4g} to {float(self.times[-1]):.4g}"
        said = [("task", self.task), ("samples", " × ".join(map(str, lead)) or "1"), ("on", place)]
        said.append(("times", f"{when} {self.units.get('time', '')}".rstrip()))
        for number, name in enumerate(self.channels):
            values = self.samples[..., number]
            said.append(("channel", f"{self.named(name)}: {float(values.min()):.4g} to {float(values.max()):.4g}"))
        return said + [("warning", note) for note in self.warnings]

    def plot(self, channel: str | None = None, sample: int = 0) -> Picture:
        """One sample over time: 1D fields over (x, t) and as profiles, 2D ones as frames, 3D ones by their middle
        plane. All channels unless one is named. Of several members, those of one sample: mean, spread and fan.
        """
        if self.count > 1:
            from ups.rollout.fans import draw_members

            return draw_members(self, self._channels(channel), self._sample(sample))
        from ups.rollout.pictures import draw

        return draw(self, self._channels(channel), self._sample(sample))

    def animate(self, channel: str | None = None, sample: int = 0, seconds: float = 5.0) -> Film:
        """One sample moving: shown in notebooks, and `save`d as .gif, or as .mp4 where there is ffmpeg. Of several
        members, a few of that sample.
        """
        from ups.rollout.films import film

        few = {f"member {i}": replace(self, values=values, count=1) for i, values in enumerate(self.members[:FILMED])}
        shown = few if self.count > 1 else {"": self}
        return film(shown, self._channels(channel)[0], self._sample(sample), seconds)

    def compare(self, truth: Rollout | Trajectory | Num[Tensor, "..."] | Num[np.ndarray, "..."]) -> Comparison:
        """Beside what is right at the same times and places."""
        if isinstance(truth, Rollout | Trajectory):
            truth = truth.values
        right = torch.as_tensor(truth).detach().cpu().to(self.values.dtype)
        if right.dim() == self.values.dim() - 1 and len(self.channels) == 1:
            right = right[..., None]
        if right.shape != self.values.shape:
            raise UserError(
                f"the truth has the shape {tuple(right.shape)} and the rollout {tuple(self.values.shape)}; give the "
                "same samples, times and points (a rollout of N steps has the N frames after the start)"
            )
        return Comparison(self, replace(self, values=right, warnings=()))

    def spectrum(self, channel: str | None = None, sample: int = 0) -> Picture:
        """Energy by wave number at the first, the middle and the last time."""
        from ups.rollout.pictures import draw_spectrum

        if not isinstance(self.where, Grid):
            raise UserError("a spectrum needs values on a grid; leave out at=")
        return draw_spectrum({"": self}, self._channels(channel)[0], self._sample(sample))

    def to_xarray(self) -> Any:
        """An xarray Dataset: a variable a channel, with coordinates and units."""
        try:
            import xarray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError(
                "xarray is not installed; pip install 'universal-physics-stack[arrays]', or save(\"x.nc\") without it"
            ) from None
        lead = ("member", "sample")[2 - (self.values.dim() - 2 - self.dimension) :]
        on_grid = isinstance(self.where, Grid)
        space = AXES[: self.dimension] if on_grid else ("point",)
        dims = (*lead, "time", *space)
        places = self.where.positions if isinstance(self.where, Grid) else ()
        coordinates: dict[str, Any] = {"time": self.times.numpy()} | dict(
            zip(space, (p.numpy() for p in places), strict=False)
        )
        if isinstance(self.where, Tensor):
            coordinates |= {axis: ("point", each.numpy()) for axis, each in zip(AXES, self.where.T, strict=False)}
        values = self.values.detach().cpu().numpy()
        variables = {
            name: (dims, values[..., number], {"units": unit} if (unit := self.units.get(name)) else {})
            for number, name in enumerate(self.channels)
        }
        made = xarray.Dataset(variables, coordinates, {"task": self.task, "warnings": list(self.warnings)})
        for name in made.coords:
            if self.units.get(str(name)):
                made[name].attrs["units"] = self.units[str(name)]
        return made

    def arrays(self) -> dict[str, np.ndarray]:
        """What `save` writes into an archive, by name."""
        found = {"values": self.values.detach().cpu().numpy(), "times": self.times.numpy()}
        found |= {"channels": np.array(self.channels), "warnings": np.array(self.warnings, dtype=str)}
        if isinstance(self.where, Grid):
            found |= {axis: p.numpy() for axis, p in zip(AXES, self.where.positions, strict=False)}
        elif self.where is not None:
            found["points"] = self.where.numpy()
        return found

    def save(self, path: str | Path) -> Path:
        """As netCDF (`.nc`, of values on a grid; members and starts along one axis), or as arrays (`.npz`)."""
        path = Path(path)
        if path.suffix not in (".nc", ".npz"):
            raise UserError(f"{path}: a rollout is saved as .nc or .npz; plot() and animate() make pictures")
        if path.exists() or not path.absolute().parent.is_dir():
            raise UserError(
                f"{path} {'exists' if path.exists() else 'is in a folder that is not there'}; choose another"
            )
        if path.suffix == ".npz":
            content = io.BytesIO()
            np.savez(content, **self.arrays())  # pyright: ignore[reportArgumentType]
            write(path, content.getbuffer())
            return path
        self._write_netcdf(path)
        return path

    def _write_netcdf(self, path: Path) -> None:
        from ups.data.formats.arrays.writer import NetCDFWriter

        if not isinstance(self.where, Grid):
            raise UserError(f"{path}: values at single points have no grid; save them as .npz")
        header = Header(
            task=self.task,
            channels=self.channels,
            grid=self.where,
            times=self.times,
            boundary=Boundary.all("open", self.dimension),
            dtype=torch.float64 if self.values.dtype == torch.float64 else torch.float32,
            notes={"units": dict(self.units), "warnings": list(self.warnings)},
        )
        count = len(self.samples)
        batch = Batch(
            self.task,
            self.samples,
            self.times.expand(count, -1),
            self.where,
            header.boundary,
            {},
            {},
            torch.arange(count),
        )
        with NetCDFWriter(path, header, count) as writer:
            writer.write(batch)

    def _channels(self, name: str | None) -> list[int]:
        if name is None:
            return list(range(len(self.channels)))
        if name not in self.channels:
            raise UserError(f"there is no channel {name!r}; there are {', '.join(self.channels)}")
        return [self.channels.index(name)]

    def _sample(self, number: int) -> int:
        """Members of one start are one sample."""
        if not 0 <= number < (count := len(self.samples) // self.count):
            raise UserError(f"sample is {number}; there are {count}, counted from 0")
        return number


@dataclass(frozen=True, eq=False)
class Comparison:
    """A rollout beside the truth. `errors` are nRMSE of each sample, time and channel."""

    rollout: Rollout
    truth: Rollout

    @cached_property
    def errors(self) -> Float[Tensor, "N T C"]:
        return metrics.nrmse(self.rollout.samples.double(), self.truth.samples.double())

    def __repr__(self) -> str:
        return "\n".join(f"{what:9}{value}" for what, value in self._said())

    def _repr_html_(self) -> str:
        from ups.rollout.pictures import table

        return table(self._said()) + self.plot()._repr_html_()

    def _said(self) -> list[tuple[str, str]]:
        by_time = self.errors.mean(0)
        return [("nRMSE", "mean over time, first and last time")] + [
            (name, f"{float(row.mean()):.4g}, {float(row[0]):.4g}, {float(row[-1]):.4g}")
            for name, row in zip(self.rollout.channels, by_time.T, strict=True)
        ]

    def plot(self, channel: str | None = None, sample: int = 0) -> Picture:
        """The truth, the rollout and their difference, and the error over time."""
        from ups.rollout.pictures import draw_comparison

        rollout = self.rollout
        return draw_comparison(rollout, self.truth, self.errors, rollout._channels(channel), rollout._sample(sample))

    def animate(self, channel: str | None = None, sample: int = 0, seconds: float = 5.0) -> Film:
        """Both moving side by side."""
        from ups.rollout.films import film

        rollout = self.rollout
        both = {"truth": self.truth, "rollout": rollout}
        return film(both, rollout._channels(channel)[0], rollout._sample(sample), seconds)

    def spectrum(self, channel: str | None = None, sample: int = 0) -> Picture:
        """Energy by wave number of both."""
        from ups.rollout.pictures import draw_spectrum

        rollout = self.rollout
        both = {"truth": self.truth, "rollout": rollout}
        return draw_spectrum(both, rollout._channels(channel)[0], rollout._sample(sample))
