"""What is refused before any work: every task's inputs, by what configuration and files say of themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from layout_cases import header_of

from ups.data.formats.layouts import named_layout
from ups.data.generate.make import generate
from ups.data.inputs import check_inputs
from ups.data.settings import DataConfig, TaskConfig
from ups.equations import Advection
from ups.errors import UserError
from ups.fields import Batch, Boundary, Header, Side

GOOD = {"make": {"equation": "burgers", "trajectories": 4, "values": {"nu": [0.1, 0.2]}, "settings": {"points": 16}}}
HEAT = {"dimension": 1, "channels": ["u"], "boundary": "periodic", "parameters": ["beta"]}


def write(path: Path, header: Header, count: int = 10) -> Path:
    """A grouped file of zeros."""
    values = torch.zeros(count, len(header.times), *header.grid.shape, len(header.channels))
    parameters = {name: torch.full((count,), value, dtype=torch.float64) for name, value in header.parameters.items()}
    times = header.times.expand(count, -1)
    with named_layout("pdebench-grouped").writer(path, header, count) as writer:
        writer.write(
            Batch(header.task, values, times, header.grid, header.boundary, parameters, {}, torch.arange(count))
        )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of 12 points and 5 frames, good and bad, under the names that the cases below give them."""
    plain = header_of((12,), 5, task="heat", channels=("u",), parameters={"beta": 0.4})
    plain = replace(plain, times=torch.arange(5).double())
    walls = Boundary(((Side("value", (1.0,)), Side("flux")),))
    for name, changes in {
        "plain": {},
        "other_beta": {"parameters": {"beta": 0.1}},
        "uneven": {"times": torch.tensor([0.0, 1.0, 2.0, 3.0, 5.0]).double()},
        "steady": {"times": torch.zeros(1).double()},
        "untold": {"parameters": {}},
        "two": {"channels": ("u", "v")},
        "walls": {"boundary": walls},
    }.items():
        write(tmp_path / f"{name}.h5", replace(plain, **changes))
    generate(Advection(points=12, beta=0.4, frames=5), 4, 99, tmp_path / Advection(points=12).published_name)
    return tmp_path


def heat(train: Any = "plain.h5", define: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    files = {"train": [train] if isinstance(train, str) else train} | more.pop("files", {})
    return {"heat": {"define": HEAT | (define or {}), "files": files} | more}


def make(equation: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {name or equation: {"make": {"equation": equation, "trajectories": 4, **more}}}


WALLS = {"boundary": [[{"kind": "value", "value": [1.0]}, "flux"]]}


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        (make("advektion", "advection"), "no equation 'advektion'; did you mean advection"),
        (make("advection", values={"gamma": [1.0]}), "no setting 'gamma'"),
        (make("advection", settings={"points": 2}), "points is 2; give at least 4"),
        (make("advection", "heat"), "task 'heat' is not registered"),
        (make("advection", settings={"points": 12, "frames": 5}), "exists and was not made with this"),
        (make("reaction_diffusion", "darcy"), "the data have 1 dimensions, task 'darcy' 2"),
        (make("darcy", values={"beta": [1.0, 2.0]}), "'beta' varies in the data"),
        (make("reaction_diffusion", "advection"), "do not say the parameter 'beta'"),
        (make("kuramoto_sivashinsky", values={"duration": [5.0, 6.0]}), "made as the same file"),
        (make("diffusion_sorption", settings={"frames": 3}), "has 3 frames, too few for 3 steps of 1"),
        ({"heat": {"files": {"train": ["plain.h5"]}}}, "task 'heat' is not registered"),
        (heat("gone.h5"), "gone.h5 is not there"),
        (heat(define={"chanels": ["u"]}), "did you mean 'channels'"),
        (heat(define={"dimension": 2}), "in 1 dimensions, but task 'heat' has 1 in 2"),
        (heat("two.h5"), "holds 2 fields in 1 dimensions, but task 'heat' has 1"),
        (heat(["plain.h5", "two.h5"]), "two.h5: holds 2 fields"),
        (heat("untold.h5"), "do not say the parameter 'beta'"),
        (heat(["plain.h5", "other_beta.h5"], {"parameters": []}), "'beta' varies in the data"),
        (heat(define={"static": ["c"]}), r"static fields \(\), task 'heat' has \('c',\)"),
        (heat("uneven.h5"), "not equally spaced"),
        (heat("steady.h5"), "task 'heat' is transient, but its data have 1 frame;"),
        (heat(define={"steady": True}), "task 'heat' is steady, but its data have 5 frames"),
        (heat(define={"dt": 0.5}), "defined with dt 0.5, its frames are 1 apart"),
        (heat(define={"boundary": "open"}), "its sides are periodic/periodic, those of task 'heat' open"),
        (heat("walls.h5", {"boundary": [["value", "flux"]]}), "sides value/flux, its data have value 1/flux; correct"),
        (heat(latent_spacing=5 / 12), "12 points along x do not divide into latent cells of 5"),
        (heat(define={"latent_spacing": 5 / 12}), "12 points along x do not divide"),
        (heat(define={"history": 3}), "has 5 frames, too few for 5 steps"),
        (heat(files={"validation": 10, "test": {"heat": "plain.h5"}}), "10 validation trajectories of 10 leave none"),
        (heat(files={"validation": 2, "test": {"heat": "gone.h5"}}), "gone.h5 is not there"),
        (heat(files={"validation": 2, "test": {"heat": "uneven.h5"}}), "heat: frames are not equally spaced"),
        (heat(files={"validation": 2, "test": {"burgers": "plain.h5"}}), "both have a test set 'burgers'"),
        (heat(files={"view": "pdebench"}), "no view of 'heat'"),
    ],
)
def test_a_mistake_in_the_last_task_is_found_before_the_first_is_made(folder, tasks, sentence):
    before = sorted(folder.iterdir())
    configs = {name: TaskConfig(**task) for name, task in ({"burgers": GOOD} | tasks).items()}
    with pytest.raises(UserError, match=sentence):
        check_inputs(configs, DataConfig(), folder, unroll=3)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "tasks",
    [
        make("advection", values={"beta": [0.1, 0.7]}),
        heat(),
        heat(["plain.h5", "other_beta.h5"], latent_spacing=0.25),
        heat("walls.h5", WALLS),
        heat(files={"validation": 2, "test": {"heat": "plain.h5", "again": "other_beta.h5"}}),
        make("shallow_water") | make("darcy"),
    ],
)
def test_what_can_be_trained_on_is_let_through(folder, tasks):
    before = sorted(folder.iterdir())
    configs = {name: TaskConfig(**task) for name, task in ({"burgers": GOOD} | tasks).items()}
    check_inputs(configs, DataConfig(root=str(folder)), folder / "run", unroll=3)
    assert sorted(folder.iterdir()) == before


def test_a_built_in_task_takes_the_sides_of_its_files(folder):
    """Published flows come in periodic and in open boxes; nobody has said otherwise."""
    file = header_of((12,), 5, task="burgers", channels=("u",), parameters={"nu": 0.1})
    file = replace(file, boundary=Boundary.all("open", 1))
    write(folder / "open.h5", file)
    spacing = {"latent_spacing": 1 / 12}
    check_inputs({"burgers": TaskConfig(files={"train": ["open.h5"]}, **spacing)}, DataConfig(), folder)
