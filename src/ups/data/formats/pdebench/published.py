"""What is known of PDEBench's published data beyond what their files say: names, parameters in names, boundaries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ups.data.tasks import task as registered_task
from ups.data.tasks import tasks
from ups.errors import UserError
from ups.fields import Boundary, Header, Side, TaskSpec

OURS = {
    "beta": "beta",
    "Nu": "nu",
    "rho": "rho",
    "Rho": "rho",
    "eta": "eta",
    "Eta": "eta",
    "zeta": "zeta",
    "Zeta": "zeta",
    "M": "M",
}
"""Published names of parameters, in attributes and file names, and ours."""
PUBLISHED = {"beta": "beta", "nu": "Nu", "rho": "rho", "eta": "eta", "zeta": "zeta"}
_IN_NAME = re.compile(r"(?<![A-Za-z])(beta|Nu|Rho|Eta|Zeta|M)(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True)
class Known:
    """What a task says of its files: the fields they hold, what holds at the walls, and parameters that all published
    files share and need not say."""

    task: str
    channels: tuple[str, ...]
    boundary: Boundary
    parameters: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    fixed: Mapping[str, float] = field(default_factory=dict)

    @property
    def dimension(self) -> int:
        return len(self.boundary.sides)


_NO_SLIP = Boundary.all("value", 2, (0.0, 0.0))  # of the velocity
_FIXED_AND_LEAKING = Boundary(((Side("value", (1.0,)), Side("robin")),))
_FLUID = ("density", "pressure", "Vx", "Vy", "Vz")

_FACTS = {
    known.task: known
    for known in (
        Known("reaction_diffusion", ("u",), Boundary.all("periodic", 1), ("nu", "rho")),
        Known("diffusion_sorption", ("u",), _FIXED_AND_LEAKING),
        Known("diffusion_reaction", ("u", "v"), Boundary.all("flux", 2), fixed={"Du": 1e-3, "Dv": 5e-3, "k": 5e-3}),
        Known("shallow_water", ("h",), Boundary.all("open", 2)),
        Known("compressible_1d", _FLUID[:3], Boundary.all("periodic", 1), ("eta", "zeta")),
        Known("compressible_2d", _FLUID[:4], Boundary.all("periodic", 2), ("eta", "zeta")),
        Known("compressible_3d", _FLUID, Boundary.all("periodic", 3), ("eta", "zeta")),
        Known("incompressible", ("Vx", "Vy", "particles"), _NO_SLIP, (), ("force_x", "force_y"), {"nu": 0.01}),
    )
}


def known_task(task: str | TaskSpec) -> Known:
    """What a task says that is given itself; of a name what the registered task says, else what is known of the
    published data of that name.

    A registered task's sides are those of the published data, where these are known.
    """
    facts = None if isinstance(task, TaskSpec) else _FACTS.get(task)
    if facts is not None and facts.task not in {spec.name for spec in tasks()}:
        return facts
    spec = registered_task(task)
    known = Known(spec.name, spec.channel_names, spec.boundary, spec.parameters, spec.static)
    return replace(known, boundary=facts.boundary, fixed=facts.fixed) if facts is not None else known


def published_parameters(path: Path, attributes: Mapping[str, Any]) -> dict[str, float]:
    """Parameters from the file's name, and from its attributes where they say more."""
    found = {OURS[name]: float(value) for name, value in _IN_NAME.findall(path.name)}
    for name, value in attributes.items():
        if name in OURS:
            try:
                found[OURS[name]] = float(value)
            except (TypeError, ValueError):
                raise UserError(f"{path}: attribute {name!r} is {value!r}; it must be one number") from None
    return found


def published_words(path: Path) -> list[str]:
    """The words of a file's name: 1D_CFD_Rand_Eta0.1_Zeta0.1_periodic_Train.hdf5 has `periodic` among them."""
    return re.split(r"[_.]", path.name)


def needed(parameters: Mapping[str, float], known: Known, path: Path) -> dict[str, float]:
    """The parameters, if none of the task's is missing."""
    found = {**known.fixed, **parameters}
    for name in known.parameters:
        if name not in found:
            raise UserError(
                f"{path}: parameter {name!r} of task {known.task!r} is neither an attribute nor in the file "
                f"name; name the file as published or set the attribute {PUBLISHED.get(name, name)!r}"
            )
    return found


def published_boundary(path: Path, known: Known) -> Boundary:
    """The boundary that the file's name says (`periodic`, or `trans` for open sides), else the task's."""
    words = published_words(path)
    if "trans" in words:
        return Boundary.all("open", known.dimension)
    return Boundary.all("periodic", known.dimension) if "periodic" in words else known.boundary


def check_fits(known: Known, channels: int, dimension: int, path: Path) -> None:
    """Refuse a task that is not that of the data."""
    if known.dimension != dimension or len(known.channels) != channels:
        raise UserError(
            f"{path}: holds {channels} field{'s' * (channels > 1)} in {dimension} dimensions, but task {known.task!r} "
            f"has {len(known.channels)} in {known.dimension}; pass the task= of these data"
        )


def as_task(header: Header, task: str | TaskSpec | None, path: Path) -> Header:
    """The header of a file we wrote, under the name and with the field names of the task asked for."""
    if task is None or task == header.task:
        return header
    spec = registered_task(task)
    known = known_task(task)
    check_fits(known, len(header.channels), header.grid.dimension, path)
    kinds = [[[side.kind for side in pair] for pair in b.sides] for b in (header.boundary, spec.boundary)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{path}: its sides are {_words(header.boundary)}, those of task {spec.name!r} {_words(spec.boundary)}; "
            "pass the task= of these data"
        )
    if len(spec.static) != len(header.static):
        raise UserError(f"{path}: has static fields {header.static}, task {spec.name!r} has {spec.static}")
    return replace(header, task=spec.name, channels=spec.channel_names, static=spec.static)


def _words(boundary: Boundary) -> str:
    return ", ".join("/".join(side.kind for side in pair) for pair in boundary.sides)


def parameter_attributes(header: Header) -> dict[str, float]:
    """The parameters as the published root attributes."""
    return {PUBLISHED.get(name, name): value for name, value in header.parameters.items() if value is not None}


def refuse_varying(header: Header, path: Path) -> None:
    """Root attributes have one value a file."""
    for name, value in header.parameters.items():
        if value is None:
            raise UserError(
                f"{path}: {name} differs between trajectories, and this layout has one value a file; "
                "write one file a value, or choose another layout"
            )
