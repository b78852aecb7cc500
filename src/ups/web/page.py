"""The playground as one HTML text that asks for nothing from elsewhere: a server sends it, a file may hold it.

    page(["remote.js"], {})              # talks to the server that sent it
    page(["runtime.js", "local.js"], {"weights": base64})      # computes by itself; data are read by their ids

The scripts and the style are allowed by their hashes, and nothing else is.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from ups.errors import UserError

FOLDER = Path(__file__).parent / "page"
OWN = (
    "colours.js",
    "numbers.js",
    "archive.js",
    "film.js",
    "charts.js",
    "field.js",
    "panel.js",
    "player.js",
    "views.js",
    "ui.js",
)
"""What every page has, in the order in which it is read; a backend comes after it."""


def page(scripts: Sequence[str], data: Mapping[str, str], title: str = "Playground") -> str:
    """`scripts` are files beside this page's own, which start it with a backend; `data` are texts by id."""
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in (*OWN, *scripts)]
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    for name, text in [*zip((*OWN, *scripts), texts, strict=True), *data.items()]:
        if "</script" in text.lower():
            raise UserError(f"{name} ends the script that it stands in; write its `</script` otherwise")
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, texts))} 'wasm-unsafe-eval' blob:; "
        f"style-src {_hash(style)}; img-src data: blob:; media-src blob:; connect-src 'self' blob: data:; "
        "worker-src blob:; form-action 'none'; base-uri 'none'"
    )
    parts = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(title),
        "STYLE": style,
        "DATA": "\n".join(
            f'<script type="text/plain" id="{html.escape(name)}">{text}</script>' for name, text in data.items()
        ),
        "SCRIPTS": "\n".join(f"<script>{text}</script>" for text in texts),
    }
    whole = (FOLDER / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        whole = whole.replace(f"{{{{{name}}}}}", part, 1)
    return whole


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
