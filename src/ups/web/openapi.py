"""The server's own description: OpenAPI 3.1 for programs, and the same as a page."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ups.fields import AXES
from ups.simulator import Simulator
from ups.track.environment import SOFTWARE, version_of
from ups.web.reading import JSON
from ups.web.rollouts import KINDS
from ups.web.settings import ServerSettings

NUMBERS = {"description": "A number, or nested lists of numbers.", "type": ["number", "boolean", "array"]}
LIST = {"type": "array", "items": {"type": "number"}}
ERRORS = {
    400: "The body cannot be read.",
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another origin.",
    406: "There is no answer of the form that is accepted.",
    408: "The body did not come.",
    413: "The body is too large.",
    415: "The body has an unknown form.",
    421: "The request is for another host.",
    422: "A mistake in what is asked.",
    429: "The server is busy; Retry-After says when to come again.",
    503: "No answer within the server's time.",
}
SAID = (
    "The arguments of `Simulator.rollout`. Other forms than JSON have the same as arrays by name: `u0`, "
    "`conditions.beta`, `grid.x`, `grid.extent`, and answer with `values`, `times`, `channels`, `warnings`, the "
    "positions, and `told`, JSON of the task and its units. The answer has the form of the question unless `Accept` "
    "says another."
)
COARSE = 16
"""Points along each axis of an example's start, at most."""


def described(sim: Simulator, settings: ServerSettings) -> dict[str, Any]:
    """The document. Its examples are requests that this server answers."""
    everywhere = (403, 421) if settings.token is None else (401, 403, 421)
    refused = {str(status): _error(ERRORS[status]) for status in ERRORS if status in everywhere}
    computed = {str(status): _error(said) for status, said in ERRORS.items() if status != 401 or settings.token}
    asked: dict[str, Any] = {JSON: {"schema": {"$ref": "#/components/schemas/Question"}, "examples": examples(sim)}}
    given: dict[str, Any] = {JSON: {"schema": {"$ref": "#/components/schemas/Rollout"}}}
    binary = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in KINDS if kind != JSON}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "UPS: a learned simulator", "version": version_of(SOFTWARE)},
        "paths": {
            "/v1/rollout": {
                "post": {
                    "operationId": "rollout",
                    "summary": "Advance a start, or solve a steady problem",
                    "description": SAID,
                    "requestBody": {"required": True, "content": asked | binary},
                    "responses": {"200": {"description": "The rollout.", "content": given | binary}, **computed},
                }
            },
            "/v1/tasks": {
                "get": {
                    "operationId": "tasks",
                    "summary": "What can be asked",
                    "description": "Of each task its channels, grid, parameters with their ranges, static fields, "
                    "sides, time step and units.",
                    "responses": {"200": _json("Tasks by name."), **refused},
                }
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "What Prometheus reads",
                    "responses": {"200": _text("Counters and histograms."), **refused},
                }
            },
            "/healthz": {
                "get": {
                    "operationId": "healthz",
                    "summary": "Whether the server is alive; needs no token",
                    "security": [],
                    "responses": {"200": _json("It is."), **{k: v for k, v in refused.items() if k != "401"}},
                }
            },
        },
        "components": {
            "schemas": {
                "Question": question(sim, settings),
                "Rollout": ROLLOUT,
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "string", "description": "One sentence: what to do."}},
                },
            }
        },
    }
    if settings.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def question(sim: Simulator, most: ServerSettings) -> dict[str, Any]:
    """The schema of a request in JSON."""
    names = sorted({name for task in sim.tasks.values() for name in (*task.spec.parameters, *task.spec.static)})
    forcings = sorted({name for task in sim.tasks.values() for name in task.spec.forcings})
    axes = {axis: LIST for axis in AXES}
    properties = {
        "task": {"enum": list(sim.tasks), "description": "Needed where the conditions do not tell it."},
        "u0": NUMBERS | {"description": "The start: (*space), (*space, channel), or a batch of these. None if steady."},
        "steps": {"type": "integer", "minimum": 1, "maximum": most.steps, "description": "Or give times."},
        "times": LIST | {"maxItems": most.steps + 1, "description": "After the start."},
        "dt": {"type": "number", "exclusiveMinimum": 0, "description": "Another step than the task's own."},
        "conditions": {
            "type": "object",
            "properties": {name: NUMBERS for name in names},
            "description": "Parameters, one number or one a start, and static fields on the start's grid.",
        },
        "forcings": {"type": "object", "properties": {name: NUMBERS for name in forcings}},
        "mask": NUMBERS | {"description": "Of a task that has masks: 1 inside."},
        "at": NUMBERS | {"description": "Points (P, dimension) where values are wanted; else on the start's grid."},
        "grid": {
            "type": "object",
            "properties": axes | {"extent": {"type": "array", "items": LIST}},
            "description": "The start's positions along each axis, and the domain; the task's own kind if not given.",
        },
        "members": {"type": "integer", "minimum": 1, "maximum": most.members},
        "seed": {"type": "integer", "minimum": 0},
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


ROLLOUT = {
    "type": "object",
    "required": ["task", "channels", "units", "warnings", "members", "times", "values"],
    "properties": {
        "task": {"type": "string"},
        "channels": {"type": "array", "items": {"type": "string"}},
        "units": {"type": "object"},
        "warnings": {"type": "array", "items": {"type": "string"}, "description": "What not to trust."},
        "members": {"type": "integer"},
        "times": LIST,
        "grid": {"type": "object", "description": "Positions along each axis, and the domain."},
        "at": {"type": "array"},
        "values": {
            "type": "array",
            "description": "(time, *space, channel); batch and members in front. Null: no number.",
        },
    },
}


def examples(sim: Simulator) -> dict[str, Any]:
    """A request for each task, on a coarse grid."""
    found = {}
    for name, learned in sim.tasks.items():
        spec, shape = learned.spec, tuple(min(points, COARSE) for points in learned.grid.shape)
        if spec.masked:  # on its own grid alone, which is too much to show
            continue
        asked: dict[str, Any] = {"task": name}
        if not spec.steady:
            asked |= {"u0": _filled((*shape, len(spec.channels)), learned), "steps": 3}
        conditions = {each: (low + high) / 2 for each, (low, high) in learned.ranges.items()}
        conditions |= {each: _constant(shape, learned.statistics.static[each].mean) for each in spec.static}
        asked |= {"conditions": conditions} if conditions else {}
        asked |= {"forcings": {each: _constant(shape, 0.0) for each in spec.forcings}} if spec.forcings else {}
        found[name] = {"value": asked}
    return found


def page(document: Mapping[str, Any]) -> str:
    """It asks for nothing, and runs nothing."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escaped(document['info']['title'])}</title><style>{STYLE}</style><main>{''.join(_body(document))}</main>"
    )


def _body(document: Mapping[str, Any]) -> Iterator[str]:
    about = document["info"]
    yield f"<h1>{escaped(about['title'])}</h1><p>Version {escaped(about['version'])}. For programs: "
    yield "<a href=/openapi.json>openapi.json</a>. The page to play with it: <a href=/>/</a>.</p>"
    if "security" in document:
        yield "<p>Every request needs the header <code>Authorization: Bearer TOKEN</code>.</p>"
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            yield f"<section><h2><code>{method.upper()} {escaped(path)}</code></h2><p>{escaped(said['summary'])}. "
            yield f"{escaped(said.get('description', ''))}</p>"
            if "requestBody" in said:
                content = said["requestBody"]["content"]
                yield f"<p>Forms: {', '.join(f'<code>{escaped(kind)}</code>' for kind in content)}</p>"
                yield _table(document["components"]["schemas"]["Question"]["properties"])
                for name, example in content[JSON]["examples"].items():
                    text = json.dumps(example["value"])
                    yield f"<details><summary>An example: {escaped(name)}</summary><pre tabindex=0>curl -s "
                    yield f"http://HOST/v1/rollout --json '{escaped(text)}'</pre></details>"
                yield "<h3>The answer</h3>" + _table(document["components"]["schemas"]["Rollout"]["properties"])
            yield "<h3>Status</h3><table>" + "".join(
                f"<tr><th scope=row>{status}<td>{escaped(each['description'])}"
                for status, each in said["responses"].items()
            )
            yield "</table></section>"


def _table(properties: Mapping[str, Any]) -> str:
    rows = []
    for name, said in properties.items():
        kind = said.get("type", "")
        kind = "one of " + ", ".join(map(str, said["enum"])) if "enum" in said else kind
        kind = "numbers" if isinstance(kind, list) else kind
        limits = [f"{word} {said[key]:,}" for key, word in LIMITS.items() if key in said]
        inner = f" ({', '.join(said['properties'])})" if said.get("properties") else ""
        cells = (f"{', '.join([kind, *limits])}{inner}", said.get("description", ""))
        rows.append(f"<tr><th scope=row><code>{escaped(name)}</code>{''.join(f'<td>{escaped(c)}' for c in cells)}")
    return f"<table>{''.join(rows)}</table>"


LIMITS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "maxItems": "at most"}
STYLE = """
:root{color-scheme:light dark} body{font:16px/1.5 system-ui,sans-serif;margin:0}
main{max-width:56rem;margin:auto;padding:1rem;overflow-wrap:anywhere}
code,pre{font-family:ui-monospace,monospace;font-size:.9em} pre{overflow:auto;white-space:pre-wrap;word-break:break-all}
table{border-collapse:collapse;width:100%}
th{white-space:nowrap}
th,td{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;font-weight:400;
border-top:1px solid color-mix(in srgb,currentColor 20%,transparent)} h2{margin-top:2.5rem} h3{font-size:1rem}
"""


def escaped(text: Any) -> str:
    """As HTML, with what stands in backquotes as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(str(text)))


def _error(said: str) -> dict[str, Any]:
    return {"description": said, "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}


def _json(said: str) -> dict[str, Any]:
    return {"description": said, "content": {JSON: {"schema": {"type": "object"}}}}


def _text(said: str) -> dict[str, Any]:
    return {"description": said, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _constant(shape: tuple[int, ...], value: Any) -> Any:
    for points in reversed(shape):
        value = [value] * points
    return value


def _filled(shape: tuple[int, ...], learned: Any) -> Any:
    """A wave along the first axis, in each channel about its mean."""
    rows = []
    for point in range(shape[0]):
        wave = math.sin(2 * math.pi * (point + 0.5) / shape[0])
        row = []
        for channel in learned.spec.channels:
            scale = learned.statistics.channels[channel.name]
            value = scale.mean + 0.5 * scale.std * wave
            row.append(round(math.exp(value) if channel.transform == "log" else value, 6))
        rows.append(_constant(shape[1:-1], row))
    return rows
