"""What all trajectories of a file have in common: known when it is opened, needed before it is written."""

from __future__ import annotations

from dataclasses import replace

from ups.fields import Header, TaskSpec


def named(header: Header, task: str | TaskSpec | None) -> Header:
    """The header under the name of the task asked for, if any."""
    name = task.name if isinstance(task, TaskSpec) else task
    return replace(header, task=name) if name else header


def common(headers: list[Header]) -> Header:
    """The header of data put together: parameters that differ are said to, licences all hold, and only notes that are
    true of every part stay; the key of generated data is of one file, so it never does.
    """
    first = headers[0]
    if len(headers) == 1:
        return first
    parameters = {
        name: value if all(other.parameters.get(name) == value for other in headers) else None
        for name, value in first.parameters.items()
    }
    licences = dict.fromkeys(word for header in headers for word in header.licence.split("; ") if word)
    notes = {
        name: value
        for name, value in first.notes.items()
        if name != "key" and all(name in other.notes and other.notes[name] == value for other in headers)
    }
    return replace(first, parameters=parameters, licence="; ".join(licences), notes=notes)


def keeping(header: Header, static: bool = False, mask: bool = False) -> Header:
    """The header of what is left in a layout without forcings, and without static fields and mask unless said."""
    return replace(header, static=header.static if static else (), forcings={}, masked=header.masked and mask)


def not_kept(header: Header, kept: Header) -> list[str]:
    """In words, what a header has that the header of what was kept does not."""
    lost = [f"static field {name}" for name in header.static if name not in kept.static]
    lost += [f"forcing {name}" for name in header.forcings if name not in kept.forcings]
    return lost + (["the mask"] if header.masked and not kept.masked else [])
