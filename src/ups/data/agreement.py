"""Whether data are those of a task, judged by what they say of themselves: none of their fields are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ups.data.partial import partial_spec
from ups.data.settings import TaskConfig
from ups.data.tasks import task, task_from_mapping
from ups.data.without import spec_without
from ups.errors import UserError
from ups.fields import AXES, Boundary, Header, Side, TaskSpec


def task_of(name: str, config: TaskConfig) -> TaskSpec:
    """The task that a configuration defines for itself alone, or the registered one, with its latent spacing if any and
    without what is dropped or hidden.
    """
    spec = spec_without(
        task_from_mapping({**config.define, "name": name}) if config.define else task(name), config.drop
    )
    spec = spec if config.known is None else partial_spec(spec)
    return spec if config.latent_spacing is None else replace(spec, latent_spacing=config.latent_spacing)


def definition_of(header: Header) -> dict[str, Any]:
    """What a file says of itself, as `define:` has it."""
    sides = [
        [{"kind": side.kind, **({"value": list(side.value)} if side.value else {})} for side in pair]
        for pair in header.boundary.sides
    ]
    told: dict[str, Any] = {"dimension": header.grid.dimension, "channels": list(header.channels), "boundary": sides}
    told |= {"parameters": list(header.parameters), "static": list(header.static), "steady": header.steady}
    told |= {"forcings": list(header.forcings), "masked": header.masked}
    told |= {"units": header.units}
    return {key: value for key, value in told.items() if value}


def settled(spec: TaskSpec, header: Header, defined: bool, times: str | None = None) -> TaskSpec:
    """The task with the sides and the time between frames of its training data, which must agree with all else.

    Published flows come in periodic and in open boxes, with frames at any distance: that is the data's to say. Only
    what a configuration has defined itself must not contradict them. Where frames are not equally spaced it has to say
    what is meant by `times`; the task has no dt then.
    """
    check_fields(spec.name, spec, header)
    told, found = (_sides(boundary, len(header.channels)) for boundary in (spec.boundary, header.boundary))
    if defined and told != found:
        raise UserError(
            f"task {spec.name!r} is defined with the sides {_words(told)}, its data have {_words(found)}; "
            "correct boundary"
        )
    for axis, (n, patch) in enumerate(zip(header.grid.shape, spec.patch(header.grid), strict=True)):
        if n % patch:
            raise UserError(
                f"task {spec.name!r}: the {n} points along {AXES[axis]} do not divide into latent cells of {patch}; "
                "give a latent_spacing into which a whole number of points fits"
            )
    spec = replace(spec, boundary=header.boundary, units={**header.units, **spec.units})
    if spec.steady:
        return spec
    dt = header.dt
    if dt is None:
        _check_uneven(spec, times, defined)
    elif defined and spec.dt is not None and abs(spec.dt - dt) > 1e-3 * dt:
        raise UserError(f"task {spec.name!r} is defined with dt {spec.dt:g}, its frames are {dt:g} apart; correct dt")
    return replace(spec, dt=dt)


def check_fields(name: str, spec: TaskSpec, header: Header) -> None:
    """Refuse data of another dimension, of other channels, that lack what the task depends on, or that have fields of
    which it does not speak: nothing is dropped in silence.
    """
    if header.grid.dimension != spec.dimension:
        raise UserError(
            f"{name}: the data have {header.grid.dimension} dimensions, task {spec.name!r} {spec.dimension}"
        )
    if header.channels != spec.channel_names:
        told = f"{name}: the data have channels {header.channels}, task {spec.name!r} {spec.channel_names}"
        missing = [channel for channel in spec.channel_names if channel not in header.channels]
        raise UserError(f"{told}; {', '.join(missing)} is missing" if missing else told)
    for parameter in spec.parameters:
        if parameter not in header.parameters:
            raise UserError(f"{name}: the data do not say the parameter {parameter!r} of task {spec.name!r}")
    for kind, told, held in (
        ("static field", spec.static, header.static),
        ("forcing", spec.forcings, tuple(header.forcings)),
        ("mask", ("mask",) if spec.masked else (), ("mask",) if header.masked else ()),
    ):
        if missing := [field for field in told if field not in held]:
            raise UserError(f"{name}: the data do not have the {kind} {missing[0]!r} of task {spec.name!r}")
        if unused := [field for field in held if field not in told]:
            raise UserError(
                f"{name}: the data have the {kind} {unused[0]!r}, of which task {spec.name!r} does not speak; add it "
                f"to its definition, or do without it: tasks.{spec.name}.drop=[{unused[0]}]"
            )
    for what, unit in header.units.items():
        if (told := spec.units.get(what, unit)) != unit:
            raise UserError(f"{name}: the data have {what} in {unit}, task {spec.name!r} in {told}; convert them")
    if spec.steady != header.steady:
        kind = "steady" if spec.steady else "transient"
        raise UserError(
            f"{name}: task {spec.name!r} is {kind}, but its data have {len(header.times)} frame"
            f"{'' if header.steady else 's'}; use the data of that task"
        )


def check_test(view: str, spec: TaskSpec, header: Header) -> None:
    """Refuse a test set that is of another kind than the training data, after which the task is `settled`."""
    check_fields(view, spec, header)
    trained, tested = (_sides(boundary, len(header.channels)) for boundary in (spec.boundary, header.boundary))
    if trained != tested:
        raise UserError(f"{view}: the sides are {_words(tested)}, those of the training data {_words(trained)}")
    if not spec.steady and spec.dt is not None and header.dt is None:
        raise UserError(f"{view}: {_UNEVEN}, those of the training data are; {_CHOICE.format(spec.name)}")


def check_parameters(name: str, spec: TaskSpec, headers: Iterable[Header]) -> None:
    """Refuse files that differ in a parameter of which the model is not told."""
    seen: dict[str, float] = {}
    for header in headers:
        for parameter, value in header.parameters.items():
            if value is None or parameter in spec.parameters:
                continue
            if seen.setdefault(parameter, value) != value:
                raise untold(name, spec, parameter)


def untold(name: str, spec: TaskSpec, parameter: str) -> UserError:
    return UserError(
        f"{name}: {parameter!r} varies in the data, but task {spec.name!r} does not have it as a parameter; "
        f"define the task with it, or do without it: tasks.{spec.name}.drop=[{parameter}]"
    )


def check_frames(spec: TaskSpec, header: Header, unroll: int, stride: int) -> None:
    """Refuse trajectories too short for the steps of training, or for the frames that a test gives."""
    frames, steps = len(header.times), spec.history - 1 + unroll
    if not spec.steady and steps * stride >= frames:
        raise UserError(
            f"task {spec.name!r} has {frames} frames, too few for {steps} steps of {stride}; "
            "shorten the rollout (of a corrector, its horizon), the history or the strides"
        )
    if not spec.steady and header.given >= frames:
        raise UserError(f"task {spec.name!r} has {frames} frames, and {header.given} are given; use longer data")


_UNEVEN = "frames are not equally spaced in time, or not equally in all trajectories"
_CHOICE = (
    "bring all to equal steps with tasks.{0}.times=resample, or let the model be told each step's own lead time with "
    "tasks.{0}.times=own"
)


def _check_uneven(spec: TaskSpec, times: str | None, defined: bool) -> None:
    """Refuse frames that are not equally spaced, unless it is said what is meant by them, and can be."""
    if times is None:
        raise UserError(f"{spec.name}: {_UNEVEN}; {_CHOICE.format(spec.name)}")
    if defined and spec.dt is not None:
        raise UserError(f"task {spec.name!r} is defined with dt {spec.dt:g}, but its {_UNEVEN}; leave dt out")
    if spec.history > 1:
        raise UserError(
            f"task {spec.name!r} has a history of {spec.history} frames, which must be equally spaced; use "
            f"tasks.{spec.name}.times=resample"
        )


def _sides(boundary: Boundary, channels: int) -> list[tuple[Side, Side]]:
    """Every side with its values: none said are zeros, and some kinds have none."""

    def full(side: Side) -> Side:
        return Side(side.kind, (side.value or (0.0,) * channels) if side.kind in ("value", "flux", "robin") else ())

    return [(full(lower), full(upper)) for lower, upper in boundary.sides]


def _words(sides: Sequence[tuple[Side, Side]]) -> str:
    return " × ".join("/".join(dict.fromkeys(map(str, pair))) for pair in sides)
