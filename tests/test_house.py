"""The rules of the house: rooms import only from rooms before them, files hold one idea."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ups"

# In the order of the flow: each may import from those before it.
FLOW = [
    "fields",
    "equations",
    "data",
    "store",
    "metrics",
    "models",
    "rollout",
    "training",
    "evaluation",
    "simulator",
    "report",
    "bench",
    "ops",
    "web",
    "pipeline",
    "lightning",
    "cli",
]
# Usable by every room, and by one another; of the flow they know only its words, `fields`.
BESIDE = {"errors", "durable", "locks", "graphs", "kernels", "config", "distributed", "checkpoint", "track"}
# The lazy public face and `python -m ups`, which stand for the whole package.
FACE = {"__init__", "__main__"}

LONGEST = 400
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "tools"}


def room_of(path: Path) -> str:
    """The room a file belongs to: `equations` for equations/burgers.py, `fields` for fields.py."""
    return path.parts[0] if len(path.parts) > 1 else path.stem


def imported_rooms(path: Path, source: str) -> set[str]:
    """Every room that a file imports, at its top, inside functions, relatively, or by `import_module("ups...")`."""
    modules: set[str] = set()
    package = ["ups", *path.parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            # `from ups import data` imports the room data; `from ups import load` the face.
            modules |= {f"ups.{alias.name}" for alias in node.names} if module == "ups" else {module}
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            modules |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    rooms = {
        module.split(".")[1] if "." in module else "__init__" for module in modules if module.split(".")[0] == "ups"
    }
    return {room if room in {*FLOW, *BESIDE, *FACE} or room_exists(room) else "__init__" for room in rooms}


def room_exists(room: str) -> bool:
    return (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").is_file()


def violations(path: Path, source: str) -> list[str]:
    """The rules a file breaks; `path` is relative to src/ups."""
    room = room_of(path)
    if room in {*FACE, "cli"}:
        return []
    if room not in {*FLOW, *BESIDE}:
        return [f"{path}: {room} is not a room of the house; see FLOW and BESIDE"]
    allowed = BESIDE | {room} | ({"fields"} if room in BESIDE else set(FLOW[: FLOW.index(room)]))
    return [f"{path}: {room} imports {other}" for other in sorted(imported_rooms(path, source) - allowed)]


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_rooms_import_only_from_rooms_before_them():
    found = [v for path in sources() for v in violations(path.relative_to(SOURCE), path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("equations/burgers.py", "from ups.training.trainer import Trainer", ["training"]),
        ("equations/burgers.py", "def f():\n    import ups.report.plots", ["report"]),
        ("equations/burgers.py", "from ups import data, errors", ["data"]),
        ("equations/burgers.py", "from ..models import stem", ["models"]),
        ("equations/burgers.py", "from .. import pipeline", ["pipeline"]),
        ("equations/burgers.py", "import importlib\nimportlib.import_module('ups.simulator')", ["simulator"]),
        ("equations/burgers.py", "import ups", ["__init__"]),
        ("equations/burgers.py", "from ups import load", ["__init__"]),
        ("equations/burgers.py", "if TYPE_CHECKING:\n    from ups.cli import main", ["cli"]),
        ("fields.py", "from ups.data import tasks", ["data"]),
        ("config/load.py", "from ups.data import tasks\nfrom ups import fields", ["data"]),
        ("pipeline.py", "from ups.cli.main import main", ["cli"]),
        ("equations/burgers.py", "from ups.fields import Grid\nfrom . import base\nimport torch, ups.config.load", []),
        ("simulator.py", "from ups.rollout import guards\nfrom ups.track.jsonl import Events", []),
        ("cli/run.py", "from ups import pipeline", []),
    ],
)
def test_a_planted_import_is_judged_rightly(path, source, expected):
    assert violations(Path(path), source) == [f"{path}: {room_of(Path(path))} imports {room}" for room in expected]


def test_a_room_that_is_not_in_the_plan_is_found():
    assert violations(Path("attic/boxes.py"), "") == [
        "attic/boxes.py: attic is not a room of the house; see FLOW and BESIDE"
    ]


def test_no_file_holds_two_ideas():
    lines = {path.relative_to(SOURCE): path.read_text(encoding="utf-8").count("\n") for path in sources()}
    assert not {str(path): count for path, count in lines.items() if count > LONGEST}


def test_names_say_what_is_inside():
    names = {part.removesuffix(".py") for path in sources() for part in path.relative_to(SOURCE).parts}
    assert not names & VAGUE


def test_a_name_of_a_public_class_is_one_class():
    found: dict[str, list[str]] = {}
    for path in sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_the_design_page_names_what_is_there():
    """Every file and folder that it quotes is there, every other name stands in the code."""
    root = SOURCE.parents[1]
    quoted = re.findall(r"`([^`\n]+)`", (root / "docs" / "design.md").read_text(encoding="utf-8"))
    places = {word for word in quoted if re.fullmatch(r"[a-z_/]+(\.py|/)", word)}
    names = {
        word.split("(")[0].split(".")[-1] for word in set(quoted) - places if re.fullmatch(r"[\w.]+(\(.*\))?", word)
    }
    known = set(re.findall(r"\w+", " ".join(path.read_text(encoding="utf-8") for path in sources())))
    gone = [place for place in places if not (root / place).exists() and not any(SOURCE.glob(f"**/{place}"))]
    assert len(places) > 50 and len(names) > 50 and [*gone, *sorted(names - known)] == []


def test_the_house_is_not_empty():
    assert len(sources()) > 10
