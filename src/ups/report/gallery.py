"""The tasks of a page at a glance: a small picture and the error of each, which lead to its section."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import matplotlib
import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image

from ups.report.contents import SummaryRow, TaskPage, values_of
from ups.report.drawing import field_limits
from ups.report.legend import FIELD_MAP, REFERENCE
from ups.report.sections import slug
from ups.report.verdict import judged_rows, number

FEWEST = 4
"""Fewer tasks are found without an index."""
SIZE = (240, 120)
"""Pixels of a picture, truth and model beside one another."""


def gallery(tasks: Sequence[TaskPage], summary: Sequence[SummaryRow]) -> str:
    if len(tasks) < FEWEST:
        return ""
    rows = {row.task: row for row in judged_rows(summary)}
    cards = "".join(_card(task, rows[task.name]) for task in tasks)
    return f"""<section id="gallery">
<h2>All tasks</h2>
<p>Of each the first sample, {escape(_shown(tasks))}: the truth and, to its right, what the model made of it.</p>
<ul class="gallery">{cards}</ul>
</section>"""


def _shown(tasks: Sequence[TaskPage]) -> str:
    """What a picture is of, in the words of the kinds that there are."""
    kinds = {"over x and t" if task.dimension == 1 and not task.steady else "at its last time" for task in tasks}
    return " or ".join(sorted(kinds, reverse=True))


def _card(task: TaskPage, row: SummaryRow) -> str:
    data = base64.b64encode(thumbnail(task)).decode()
    width, height = SIZE
    return (
        f'<li><a href="#{slug(task.name)}"><img alt="" width="{width}" height="{height}" '
        f'src="data:image/png;base64,{data}"><b>{escape(task.title)}</b>'
        f"<span>{escape(row.view)} {escape(row.metric)} {number(row.own)}</span></a></li>"
    )


def thumbnail(task: TaskPage) -> bytes:
    """The first channel of the first sample as a PNG, the truth on the left and the model on the right."""
    sample, name = task.plane.samples[0], task.legend.model
    both = [_plane(values_of(sample, who)[..., 0], task.steady) for who in (REFERENCE, name)]
    low, high = field_limits(both[:1])
    width, height = SIZE
    halves = [_painted(plane, low, high).resize((width // 2 - 1, height), Image.Resampling.BILINEAR) for plane in both]
    picture = Image.new("RGB", SIZE, "white")
    for place, half in zip((0, width // 2 + 1), halves, strict=True):
        picture.paste(half, (place, 0))
    content = io.BytesIO()
    picture.quantize(64).save(content, "PNG", optimize=True)
    return content.getvalue()


def _plane(values: Float[ndarray, "T *space"], steady: bool) -> Float[ndarray, "H W"]:
    """Rows from top to bottom: of one dimension the frames, the last on top (a steady one is a band), else y."""
    if values.ndim == 2:
        return values[::-1] if not steady else values[:1]
    return values[-1].T[::-1]


def _painted(plane: Float[ndarray, "H W"], low: float, high: float) -> Image.Image:
    shares = np.clip((np.nan_to_num(plane, nan=low) - low) / (high - low), 0, 1)
    colours: UInt8[ndarray, "H W 3"] = (matplotlib.colormaps[FIELD_MAP](shares)[..., :3] * 255).astype(np.uint8)
    return Image.fromarray(colours)
