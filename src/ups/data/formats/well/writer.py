"""Write The Well's HDF5 files, as its own package reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ups.data.formats.hdf5 import rounded
from ups.data.formats.well.boundary import set_names, write_boundary
from ups.data.formats.well.reader import grouped
from ups.data.formats.writing import HDF5Writer
from ups.errors import UserError
from ups.fields import AXES, Batch

_TAKEN = ("dataset_name", "grid_type", "n_spatial_dims", "n_trajectories", "simulation_parameters", "ups", "licence")


class WellWriter(HDF5Writer):
    """One file of The Well, written piece by piece.

    Channels that are components of a vector (`velocity_x`, `velocity_y`) are stored as one t1 field. Static fields and
    forcings are t0 fields that vary with the sample, a mask is the t0 field `mask` (1 where the field lives), and every
    parameter is a scalar. Conditions with values (`value`) are stored as walls with values; `flux`, `robin` and
    `reflecting` as plain walls, which is all the format knows. The attribute `ups` keeps the rest for our reader.
    """

    keeps = ("static", "forcings", "mask", "own_times")

    def refuse(self, path: Path) -> None:
        header = self.header
        fields = [name for name, _ in grouped(header.channels, header.grid.dimension)]
        others = [*header.static, *header.forcings, *(["mask"] if header.masked else [])]
        parameters = list(header.parameters)
        for names, taken in ((fields + others, ()), ([*header.channels, *others], ()), (parameters, _TAKEN)):
            for name in names:
                if names.count(name) > 1 or name in taken or not name.strip(".") or "/" in name or "\0" in name:
                    raise UserError(
                        f"{path}: The Well's format holds no two fields of one name, nor one of the name {name!r}; "
                        "rename it"
                    )
        if min(header.grid.shape) < 2:
            raise UserError(
                f"{path}: the grid has shape {header.grid.shape}; The Well needs two points along each axis"
            )

    def lay_out(self) -> None:
        header, shape, file = self.header, self.header.grid.shape, self.file
        self._fields = grouped(header.channels, len(shape))
        constant = {name: value for name, value in header.parameters.items() if value is not None}
        file.attrs.update(
            {
                "dataset_name": header.task.replace("\0", ""),
                "grid_type": "cartesian",
                "n_spatial_dims": len(shape),
                "n_trajectories": self.count,
                "licence": header.licence.replace("\0", ""),
                **constant,
            }
        )
        set_names(file, "simulation_parameters", list(constant))

        dimensions = file.create_group("dimensions")
        set_names(dimensions, "spatial_dims", AXES[: len(shape)])
        axes = dict(zip(AXES[: len(shape)], header.grid.positions, strict=True))
        times = header.times if header.own_times is None else header.own_times
        for name, values in {"time": times, **axes}.items():
            item = dimensions.create_dataset(name, data=rounded(values))
            item.attrs.update({"sample_varying": values.dim() > 1, "time_varying": name == "time"})

        scalars = file.create_group("scalars")
        set_names(scalars, "field_names", list(header.parameters))
        for name, value in header.parameters.items():
            varies = value is None
            item = scalars.create_dataset(name, (self.count,) if varies else (), dtype="<f8", data=value)
            item.attrs.update({"sample_varying": varies, "time_varying": False})

        names: list[list[str]] = [[], [], []]
        for name, order, varies in self._stored():
            frames = (len(header.times),) if varies else ()
            place = f"t{order}_fields/{name}"
            self.array(place, (self.count, *frames, *shape, *(len(shape),) * order))
            file[place].attrs.update(
                {"dim_varying": [True] * len(shape), "sample_varying": True, "time_varying": varies}
            )
            names[order].append(name)
        for order, listed in enumerate(names):
            set_names(file.require_group(f"t{order}_fields"), "field_names", listed)
        write_boundary(file.create_group("boundary_conditions"), header, self._fields)

    def _stored(self) -> Iterator[tuple[str, int, bool]]:
        """Every field: its name, tensor order, and whether it varies in time."""
        for name, parts in self._fields:
            yield name, 0 if parts == (name,) else 1, True
        for name in self.header.static:
            yield name, 0, False
        for name, varies in self.header.forcings.items():
            yield name, 0, varies
        if self.header.masked:
            yield "mask", 0, False

    def put(self, start: int, batch: Batch) -> None:
        places = {name: number for number, name in enumerate(self.header.channels)}
        for name, parts in self._fields:
            if parts == (name,):
                self.fill(f"t0_fields/{name}", start, batch.values[..., places[name]])
            else:
                self.fill(f"t1_fields/{name}", start, batch.values[..., [places[part] for part in parts]])
        for name in self.header.static:
            self.fill(f"t0_fields/{name}", start, batch.static[name])
        for name in self.header.forcings:
            self.fill(f"t0_fields/{name}", start, batch.forcings[name])
        if self.header.masked and batch.mask is not None:
            self.fill("t0_fields/mask", start, batch.mask)
        for name, value in self.header.parameters.items():
            if value is None:
                self.fill(f"scalars/{name}", start, batch.parameters[name])
