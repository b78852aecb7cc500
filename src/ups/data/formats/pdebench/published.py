"""What is known of PDEBench's published data beyond what their files say: names, parameters in names, boundaries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ups.data.tasks import task as registered_task
from ups.data.tasks import tasks
from ups.errors import UserError
from ups.fields import Boundary, Channel, Header, TaskSpec

OURS = {"M": "M"} | {name: name.lower() for name in ("beta", "Nu", "rho", "Rho", "eta", "Eta", "zeta", "Zeta")}
"""Published names of parameters, in attributes and file names, and ours."""
PUBLISHED = {"beta": "beta", "nu": "Nu", "rho": "rho", "eta": "eta", "zeta": "zeta"}
_IN_NAME = re.compile(r"(?<![A-Za-z])(beta|Nu|Rho|Eta|Zeta|M)(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_FIXED = {"diffusion_reaction": {"Du": 1e-3, "Dv": 5e-3, "k": 5e-3}, "incompressible": {"nu": 0.01}}
"""Parameters that all published files of a task share and need not say."""
_COMPRESSIBLE_3D = TaskSpec(
    name="compressible_3d",
    dimension=3,
    channels=tuple(Channel(name) for name in ("density", "pressure", "Vx", "Vy", "Vz")),
    boundary=Boundary.all("periodic", 3),
    parameters=("eta", "zeta"),
)


def known_task(task: str | TaskSpec) -> TaskSpec:
    """A task that is given itself, or that of a name: registered, or published without an equation here."""
    if task == _COMPRESSIBLE_3D.name and task not in {spec.name for spec in tasks()}:
        return _COMPRESSIBLE_3D
    return registered_task(task)


def fixed_parameters(task: TaskSpec) -> dict[str, float]:
    return _FIXED.get(task.name, {})


def parameters_of(path: Path, attributes: Mapping[str, Any]) -> dict[str, float]:
    """Parameters from the file's name, and from its attributes where they say more."""
    found = {OURS[name]: float(value) for name, value in _IN_NAME.findall(path.name)}
    for name, value in attributes.items():
        if name in OURS:
            try:
                found[OURS[name]] = float(value)
            except (TypeError, ValueError):
                raise UserError(f"{path}: attribute {name!r} is {value!r}; it must be one number") from None
    return found


def words_of(path: Path) -> list[str]:
    """The words of a file's name: 1D_CFD_Rand_Eta0.1_Zeta0.1_periodic_Train.hdf5 has `periodic` among them."""
    return re.split(r"[_.]", path.name)


def needed(parameters: Mapping[str, float], known: TaskSpec, path: Path) -> dict[str, float]:
    """The parameters, if none of the task's is missing."""
    found = {**fixed_parameters(known), **parameters}
    for name in known.parameters:
        if name not in found:
            raise UserError(
                f"{path}: parameter {name!r} of task {known.name!r} is neither an attribute nor in the file "
                f"name; name the file as published or set the attribute {PUBLISHED.get(name, name)!r}"
            )
    return found


def boundary_of(path: Path, known: TaskSpec) -> Boundary:
    """The boundary that the file's name says (`periodic`, or `trans` for open sides), else the task's."""
    words = words_of(path)
    if "trans" in words:
        return Boundary.all("open", known.dimension)
    return Boundary.all("periodic", known.dimension) if "periodic" in words else known.boundary


def check_fits(known: TaskSpec, channels: int, dimension: int, static: Sequence[str], path: Path) -> None:
    if known.dimension != dimension or len(known.channels) != channels:
        raise UserError(
            f"{path}: holds {channels} field{'s' * (channels > 1)} in {dimension} dimensions, but task {known.name!r} "
            f"has {len(known.channels)} in {known.dimension}; pass the task= of these data"
        )
    if len(known.static) != len(static):
        raise UserError(f"{path}: has static fields {tuple(static)}, task {known.name!r} has {known.static}")


def as_task(header: Header, task: str | TaskSpec | None, path: Path) -> Header:
    """The header of a file we wrote, under the name and with the field names of the task asked for."""
    if task is None or task == header.task:
        return header
    spec = registered_task(task)
    check_fits(spec, len(header.channels), header.grid.dimension, header.static, path)
    ours, theirs = (b.kinds for b in (header.boundary, spec.boundary))
    if ours != theirs:
        raise UserError(
            f"{path}: its sides are {ours}, those of task {spec.name!r} {theirs}; pass the task= of these data"
        )
    return replace(header, task=spec.name, channels=spec.channel_names, static=spec.static)


def parameter_attributes(header: Header) -> dict[str, float]:
    return {PUBLISHED.get(name, name): value for name, value in header.parameters.items() if value is not None}
