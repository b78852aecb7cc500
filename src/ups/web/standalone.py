"""The playground in one file, `ups export RUN page.html`: it computes the model in the reader's own browser.

The file holds three programs (`traced`) of each task and grid that it offers: a start brought to the task's own grid in
normalised units, one step there, and a state read on the grid of the start, in physical units. Weights are float32,
packed with gzip. Nothing is fetched, so it opens from a disk; the solver stays behind, and so do formats that need
Python.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Grid
from ups.models.export import made_whole
from ups.models.geometry import resampling
from ups.models.given import given_channels
from ups.models.interpolation import apply_along, bringing_matrix, reader
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.rollout.places import grid_like
from ups.rollout.unroll import start_history
from ups.simulator import Simulator
from ups.training.restore import load_model
from ups.web.files import MASK
from ups.web.page import page
from ups.web.play import Begin, Playground, channels_first
from ups.web.traced import Programs
from ups.web.wire import packed

MOST_WEIGHTS = 2**24
"""Numbers: of more, a file would take above 80 MB and a step seconds."""
MOST_PRODUCTS = 2 * 10**9
"""Of numbers in a step: a browser takes some seconds for them."""
STARTS = 6
"""Of each kind. The page goes from seed s to 7 s + 1: each of six in turn."""


def write_page(run: Path, out: Path, task: str | None = None) -> list[Path]:
    """The page of a run's model at `out`, with all tasks that can be played or the one named."""
    model, spec = load_model(run)
    tasks = {learned.spec.name: learned for learned in spec.tasks}
    if task is not None and task not in tasks:
        raise UserError(f"this model has no task {task!r} to make a page of; it has {', '.join(tasks)}")
    weights = sum(parameter.numel() for parameter in model.parameters())
    if weights > MOST_WEIGHTS:
        raise UserError(
            f"the model has {weights:,} weights, too many for a browser, which takes {MOST_WEIGHTS:,}; serve it with "
            f"`ups serve {run}` instead"
        )
    chosen = tuple(tasks.values()) if task is None else (tasks[task],)
    with made_whole(out) as temporary:
        temporary.write_text(standalone(model.eval().requires_grad_(False), chosen, run), encoding="utf-8")
    return [out]


def standalone(model: Propagator, tasks: Iterable[TrainedTask], run: Path | None = None) -> str:
    """The page as a text; starts as in training need the run that made the data."""
    playground = Playground(Simulator(OperatorPredictor(model, tasks), run))
    if not playground.tasks:
        raise UserError("this model has no task in one or two dimensions to play with; look at it with `ups simulate`")
    told, programs = playground.describe(), Programs()
    arrays: dict[str, Any] = {}
    for name, learned in playground.tasks.items():
        about = told["tasks"][name]
        about |= {"solver": False, "members": 1, "seeds": STARTS}
        about["conserved"] = [invariant.channel for invariant in learned.spec.invariants]
        before = programs.products
        about["step"] = programs.trace(*_step(model, learned))
        if (products := programs.products - before) > MOST_PRODUCTS:
            raise UserError(
                f"a step of task {name!r} takes {products:,} products, too many for a browser, which takes "
                f"{MOST_PRODUCTS:,}; serve it with `ups serve`, or choose another with --task"
            )
        about["grids"] = {}
        for factor in about["resolutions"]:
            grid = grid_like(learned.grid, [round(factor * n) for n in learned.grid.shape])
            begin, read = programs.trace(*_start(learned, grid)), programs.trace(*_read(learned, grid))
            about["grids"]["x".join(map(str, grid.shape))] = {"start": begin, "read": read}
        for start in about["starts"]:
            for seed in range(STARTS):
                begin = Begin(
                    task=name,
                    name=start,
                    seed=seed,
                    parameters={each: p["default"] for each, p in about["parameters"].items()},
                    shape=list(learned.grid.shape),
                )
                fields, static = playground.start(begin)
                arrays[f"{name}/{start}/{seed}/fields"] = channels_first(fields)
                arrays |= {f"{name}/{start}/{seed}/{each}": field.numpy() for each, field in static.items()}
    told["formats"], told["model"]["alone"] = [], True
    content = gzip.compress(packed(told, programs.arrays | arrays), 9, mtime=0)
    return page(
        ["products.js", "tensors.js", "local.js"], {"model": base64.b64encode(content).decode()}, told["model"]["name"]
    )


Traced = tuple[Any, ...]
"""A function and what it is called with."""


def _start(learned: TrainedTask, grid: Grid) -> Traced:
    """Physical fields on a grid (C, *space) and what is given beside them (each *space): a normalised history on the
    task's own grid, and the channels that a step is given.
    """
    spec, normaliser, own = learned.spec, learned.normaliser, learned.grid
    periodic, same = spec.boundary.periodic, grid.same_as(own)
    like = torch.zeros(1, 1, *grid.shape, len(spec.channels))
    bring = reader(grid, periodic, own, normaliser.walls(), like[0], bringing_matrix)
    averages = [
        resampling(source, target, span, wraps).to(like)
        for source, target, span, wraps in zip(grid.positions, own.positions, own.extent, periodic, strict=True)
    ]

    def averaged(field: Tensor) -> Tensor:
        for axis, matrix in enumerate(() if same else averages):
            field = apply_along(matrix, field, axis)
        return field

    names = [*spec.static, *spec.forcings, *([MASK] if spec.masked else [])]

    def function(fields: Float[Tensor, "C *space"], *beside: Float[Tensor, "*space"]) -> tuple[Tensor, Tensor]:
        given = {name: field[None] for name, field in zip(names, beside, strict=True)}
        mask = given[MASK] > 0.5 if spec.masked else None
        frames = fields.movedim(0, -1)[None, None]
        static = averaged(normaliser.static(given, frames, mask))
        forcings = {n: averaged(f[..., None])[..., 0] for n, f in normaliser.forcings(given, frames, mask).items()}
        if spec.steady:
            history = frames.new_zeros(1, 1, *own.shape, len(spec.channels))
        else:
            history = normaliser.normalise(frames, None if mask is None else mask[:, None, ..., None])
            history = history if same else bring(history[0])[None]
        return start_history(history, spec.history), given_channels(static, forcings.values(), mask)

    return function, like[0, 0].movedim(-1, 0).contiguous() + 1, *(torch.ones(grid.shape) for _ in names)


def _step(model: Propagator, learned: TrainedTask) -> Traced:
    """History, what is given, the parameters in the task's order and the lead time (1 each): the history after."""
    spec, own = learned.spec, learned.grid
    count = sum(1 if name not in spec.forcings else 2 for name in [*spec.static, *spec.forcings]) + spec.masked

    def function(history: Tensor, given: Tensor, *numbers: Float[Tensor, " one"]) -> Tensor:
        parameters: Mapping[str, Tensor] = dict(zip(spec.parameters, numbers, strict=False))
        lead = None if spec.steady else numbers[-1]
        after = model(spec.name, history, given, parameters, lead, own)
        return torch.cat([history[:, 1:], after[:, None]], 1)

    numbers = [torch.ones(1) for _ in (*spec.parameters, *(() if spec.steady else ("lead",)))]
    history = torch.ones(1, spec.history, *own.shape, len(spec.channels))
    return function, history, torch.ones(1, *own.shape, count), *numbers


def _read(learned: TrainedTask, grid: Grid) -> Traced:
    """A history and what is given: its last field on a grid, physical, (C, *space)."""
    spec, normaliser, own = learned.spec, learned.normaliser, learned.grid
    example = torch.ones(1, spec.history, *own.shape, len(spec.channels))
    read: Callable[[Tensor], Tensor] = learned.reader(grid, example)

    def function(history: Tensor, *mask: Tensor) -> Tensor:
        inside = mask[0][None, ..., None] > 0.5 if mask else None
        return normaliser.physical(read(history[:, -1]), inside)[0].movedim(-1, 0).contiguous()

    return function, example, *([torch.ones(grid.shape)] if spec.masked else [])
