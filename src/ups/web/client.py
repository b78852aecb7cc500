"""A simulator on a server, asked like one that is here.

sim = ups.connect("http://127.0.0.1:8000")
sim.rollout(u0, steps=40, conditions={"beta": 0.4})
"""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cached_property
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from ups.errors import UserError
from ups.fields import AXES, Conditions, Grid, Trajectory
from ups.rollout.domain import in_time
from ups.rollout.result import Rollout
from ups.web.settings import is_local


def connect(url: str, token: str | None = None, timeout: float = 300.0) -> RemoteSimulator:
    """The simulator that `ups serve RUN` serves at this address; `timeout` are seconds for an answer."""
    sim = RemoteSimulator(url, token, timeout)
    sim.tasks  # noqa: B018  (whether anything answers)
    return sim


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for this address alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class RemoteSimulator:
    """`tasks` says what can be asked, by name: channels, grid, parameters and their ranges, static fields."""

    def __init__(self, url: str, token: str | None = None, timeout: float = 300.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8000")
        self.url, self.timeout = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", timeout
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        direct = [urllib.request.ProxyHandler({})] if is_local(parts.hostname) else []
        self._opener = urllib.request.build_opener(_NoRedirect, *direct)

    def __repr__(self) -> str:
        return f"simulator at {self.url}, tasks {', '.join(self.tasks)}"

    @cached_property
    def tasks(self) -> Mapping[str, Any]:
        return json.loads(self._asked("/v1/tasks"))["tasks"]

    def rollout(
        self,
        u0: Tensor | np.ndarray | Trajectory | None = None,
        steps: int | None = None,
        times: Sequence[float] | Tensor | None = None,
        conditions: Mapping[str, Any] | Conditions | None = None,
        at: Tensor | np.ndarray | None = None,
        *,
        task: str | None = None,
        dt: float | None = None,
        grid: Grid | None = None,
        members: int = 1,
        seed: int = 0,
        forcings: Mapping[str, Any] | None = None,
        mask: Tensor | np.ndarray | None = None,
    ) -> Rollout:
        """As `Simulator.rollout`, but that a forcing is given as an array, and that nothing is differentiable."""
        if isinstance(u0, Trajectory):
            if conditions is None:
                conditions = u0.conditions
                forcings = forcings or in_time(conditions.forcings, u0.times, u0.space.dimension)
            mask = u0.mask if mask is None else mask
            grid, known = grid or u0.space, self.tasks.get(task or u0.task)
            task = task or u0.task or None
        else:
            known = None
        if isinstance(conditions, Conditions):
            forcings, mask = forcings or conditions.forcings, conditions.mask if mask is None else mask
            conditions = {**conditions.parameters, **conditions.static}
        given, forced = dict(conditions or {}), dict(forcings or {})
        if known is not None:  # a trajectory also says what its task does not vary
            given = {n: v for n, v in given.items() if n in known["parameters"] or n in known["static"]}
            forced = {n: v for n, v in forced.items() if n in known["forcings"]}
            mask = mask if known["masked"] else None
        if any(callable(value) for value in forced.values()):
            step = dt or (known or {}).get("dt")
            if steps is None or not step:
                raise UserError(
                    "a forcing that is a function cannot be sent; give an array, with a field for each step"
                )
            when = [number * step for number in range(steps + 1)]
            forced = {
                n: torch.stack([torch.as_tensor(v(t)) for t in when]) if callable(v) else v for n, v in forced.items()
            }
        start = u0.values[0] if isinstance(u0, Trajectory) else u0
        asked = {"u0": start, "times": times, "at": at, "mask": mask, "steps": steps, "dt": dt, "task": task}
        asked |= {"members": members, "seed": seed}
        asked |= {f"conditions.{name}": value for name, value in given.items()}
        asked |= {f"forcings.{name}": value for name, value in forced.items()}
        if grid is not None:
            asked |= {f"grid.{axis}": p for axis, p in zip(AXES, grid.positions, strict=False)}
            asked["grid.extent"] = np.array(grid.extent)
        content = io.BytesIO()
        np.savez(content, **{n: _array(v, n) for n, v in asked.items() if v is not None})  # pyright: ignore[reportArgumentType]
        return _rollout(self._asked("/v1/rollout", content.getvalue()))

    def _asked(self, path: str, body: bytes | None = None) -> bytes:
        headers = self._headers | ({} if body is None else {"content-type": "application/x-npz"})
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise UserError(f"{self.url}: {_sentence(error)}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                why = f"no answer within {self.timeout:g} seconds; ask for less, or connect with a longer timeout"
                raise UserError(f"{self.url}: {why}") from None
            raise UserError(f"nothing answers at {self.url} ({reason}); is `ups serve` running there?") from None


def _sentence(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (ValueError, KeyError, TypeError, OSError, HTTPException):
        return f"status {error.code}; is it a server of ups?"


def _array(value: Any, name: str) -> np.ndarray:
    try:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biufU":
        raise UserError(f"{name} is {str(value)[:80]}; give numbers")
    return array


def _rollout(content: bytes) -> Rollout:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    told = json.loads(str(arrays["told"]))
    if "points" in arrays:
        where = torch.from_numpy(arrays["points"])
    else:
        positions = tuple(torch.from_numpy(arrays[axis]) for axis in AXES if axis in arrays)
        where = Grid(positions, tuple((float(a), float(b)) for a, b in arrays["extent"]))
    return Rollout(
        torch.from_numpy(arrays["values"]),
        torch.from_numpy(arrays["times"]),
        tuple(arrays["channels"].tolist()),
        told["task"],
        tuple(arrays["warnings"].tolist()),
        where,
        told["units"],
        told["members"],
    )
