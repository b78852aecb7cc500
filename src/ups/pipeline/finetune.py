"""Adapting a trained model to a new system: a run like any other, whose only task is new and whose stage starts from
the model.

    done = ups.finetune("runs/universal", "heat.hdf5", steps=1000)
    done.load().rollout(u0, steps=40, conditions={"nu": 0.1})

What the model knows by name (fields, conditions, the experts of its matrices) is taken over; what is new begins as the
most similar task the model knows (`models/operator/inherit.py`).
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ups.checkpoint import hub
from ups.config.load import made_config
from ups.data.agreement import definition_of, task_of
from ups.data.inputs import check_inputs
from ups.data.open import open_dataset
from ups.data.sources import open_files
from ups.data.tasks import tasks
from ups.distributed.launch.local import refuse_launchers
from ups.durable import read_json
from ups.errors import UserError
from ups.models.operator.inherit import bank_sizes
from ups.models.operator.model import OperatorModel
from ups.models.saved import ModelSpec
from ups.pipeline.config import RunConfig, completed
from ups.pipeline.familiar import unfamiliar
from ups.pipeline.learning_curve import FROM_NOTHING, learning_curve, write_curve
from ups.pipeline.run import finish, report
from ups.simulator import Simulator
from ups.simulator import load as load_simulator
from ups.training.restore import ORDER, load_model, stage_folder

Mode = Literal["all", "adapters", "experts"]
STEPS = 1000
"""Of training, unless steps or seconds say otherwise."""
SLOWER = 1 / 3
"""Of the usual learning rate, where all of a model is trained that knows the equation already (docs/finetune.md)."""
RANK = 4
"""Of adapters, unless stages.operator.adapters says another."""


@dataclass(frozen=True, eq=False)
class Finetuned:
    """`directory` is the new run's; `metrics` what its `metrics.json` holds, `curve` its `curve.json`, if one was asked
    for; `notes` say what of the new data the model had not seen the like of.
    """

    directory: Path
    task: str
    metrics: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    curve: Mapping[str, Any] | None = None

    def load(self, device: str = "cpu") -> Simulator:
        return load_simulator(self.directory, device)


@dataclass(frozen=True, eq=False)
class ParentModel:
    """A trained operator model to start from: its name, where it is (with the revision, on Hugging Face), what it is,
    and the plugins it needs.
    """

    name: str
    place: str
    network: OperatorModel
    spec: ModelSpec
    plugins: tuple[str, ...]

    @classmethod
    def read(cls, run: Path) -> ParentModel:
        there = hub.is_on_hub(run)
        if not there and not run.exists():
            raise UserError(f"there is no {run}; name a run, a stage's folder, an export or hf://owner/name")
        folder = stage_folder(run)
        model, spec = load_model(folder)
        if not isinstance(model.network, OperatorModel):
            raise UserError(
                f"{folder} holds a network of the architecture {spec.architecture!r}, which has no rows by field name "
                "to add to; fine-tune an operator model (spectral, pdet_stack or pdet_unet)"
            )
        order = folder.parent / ORDER
        plugins = read_json(order)["plugins"] if order.is_file() else []
        if there:
            place = hub.pinned(run, folder)
            name = place.rpartition("@")[0].rpartition("/")[2]
        else:
            folder = folder.resolve()
            name, place = (folder.parent.parent if folder.parent.name == "stages" else folder).name, str(folder)
        return cls(name, place, model.network, spec, tuple(plugins))

    def settings(self) -> dict[str, Any]:
        """As a stage of the same network is told them, with as many experts of every matrix."""
        told = {key: value for key, value in self.spec.settings.items() if value is not None}
        experts = {"experts": sizes} if (sizes := bank_sizes(self.network)) else {}
        return {"architecture": self.spec.architecture, **told, **experts}

    def sizes(self) -> dict[str, Any]:
        """As a network of one task of the same width and depth is told them."""
        return {key: value for key, value in self.settings().items() if key not in ("experts", "adapters")}


def finetune(
    run: str | Path,
    data: str | Path | Sequence[str | Path],
    *,
    task: str | None = None,
    define: Mapping[str, Any] | None = None,
    mode: Mode = "all",
    like: str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    curve: Sequence[int] = (),
    name: str | None = None,
    runs: str | Path = "runs",
    overrides: Sequence[str] = (),
    command: str | None = None,
    page: bool = True,
) -> Finetuned:
    """Adapt the model of a run to the system in some files: train, evaluate and report, as a new run that goes on where
    an interrupted one stopped.

    `task` names the system where its files do not, `define` says what it is where they do not (as `define:` of a
    configuration). `mode`: train everything; or keep what tasks share as it is and train gates, rows, positions and
    the modulation ("experts"), with low-rank additions to the shared matrices ("adapters"). `like`: the known task to
    begin as, instead of the most alike. `curve`: numbers of trajectories at which fine-tuning is compared with training
    from nothing, in the same time each. Without its `page` no report is written.
    """
    refuse_launchers()
    if mode not in get_args(Mode):
        raise UserError(f"mode is {mode!r}; use one of {', '.join(get_args(Mode))}")
    if steps is not None and seconds is not None:
        raise UserError("give either steps or seconds, not both")
    parent = ParentModel.read(Path(run).expanduser())
    if mode == "adapters" and parent.spec.architecture != "spectral":
        raise UserError(f"adapters are for the spectral architecture, not {parent.spec.architecture}; use another mode")
    if like is not None and like not in parent.network.tasks:
        raise UserError(f"like is {like!r}, which {run} does not know; it knows {', '.join(parent.network.tasks)}")
    listed = [data] if isinstance(data, str | Path) else list(data)
    files = [str(Path(file).expanduser().resolve()) for file in listed]
    system, config = _system(files, task, define)
    values: dict[str, Any] = {
        "name": name or f"{parent.name}-{system}",
        "plugins": list(parent.plugins),
        "tasks": {system: config},
        "training": {"seconds": seconds} if seconds is not None else _paced(steps or STEPS),
        "stages": {"operator": _stage(parent, mode, like)},
        "compare": {},
    }
    if curve:
        values["compare"] = {FROM_NOTHING: parent.sizes()}
    runs, words = Path(runs), list(overrides)
    chosen = completed(made_config(values, words, "ups finetune"), runs)[0]
    if mode == "all" and system in parent.network.tasks and not any("learning_rate" in word for word in words):
        values["stages"]["operator"]["training"] = {"learning_rate": SLOWER * chosen.training.learning_rate}
        chosen = completed(made_config(values, words, "ups finetune"), runs)[0]
    directory = runs / chosen.name
    points = {count: _limited(values, system, count, words, directory / "curve") for count in sorted(set(curve))}
    for each in (chosen, *points.values()):  # all of them, before any is trained
        check_inputs(each.tasks, each.data, directory / "data", seed=each.seed)
    source = open_files(task_of(system, chosen.tasks[system]), chosen.tasks[system], Path())
    notes = tuple(unfamiliar(parent.spec.tasks, source.spec, source.train))
    for note in notes:
        print(f"note: {note}")
    by = command or shlex.join(["ups", "finetune", str(run), *(word for file in files for word in ("--data", file))])
    found = {count: finish(config, directory / "curve", by, page=page) for count, config in points.items()}
    metrics = finish(chosen, runs, by, page=page)
    if not found:
        return Finetuned(directory, system, metrics, notes)
    measured = learning_curve(system, mode, {**found, len(source.train): metrics})
    write_curve(directory, measured)
    if page:
        report(directory)
    return Finetuned(directory, system, metrics, notes, measured)


def _paced(steps: int) -> dict[str, Any]:
    """What is counted in steps, for so many of them: few data are soon learned by heart, so validation comes often."""
    often = max(1, steps // 8)
    return {"steps": steps, "warmup": min(100, steps // 10), "validate_every": often, "checkpoint_every": often}


def _stage(parent: ParentModel, mode: Mode, like: str | None) -> dict[str, Any]:
    """The parent's network as a stage that starts from it."""
    stage = parent.settings() | {"start": parent.place}
    if mode == "adapters":
        stage.setdefault("adapters", RANK)
    if mode != "all":
        stage["freeze"] = "shared"
    return stage if like is None else stage | {"like": like}


def _limited(values: dict[str, Any], system: str, count: int, overrides: list[str], runs: Path) -> RunConfig:
    """The same run with so many trajectories to train on."""
    own: dict[str, Any] = {**copy.deepcopy(values), "name": f"{system}-{count}"}
    own["tasks"][system]["files"]["trajectories"] = count
    others = [override for override in overrides if not override.startswith("name=")]
    return completed(made_config(own, others, "ups finetune"), runs)[0]


def _system(files: Sequence[str], task: str | None, define: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """The name of the system and where its data are: a registered task, one that is defined, or one whose files say
    themselves what they hold.
    """
    if not files:
        raise UserError("give the files of the new system (--data FILE)")
    config: dict[str, Any] = {"files": {"train": list(files)}}
    if define is not None:
        name = task or define.get("name")
        if not isinstance(name, str):
            raise UserError("the definition has no name; give one (--task NAME)")
        return name, {**config, "define": {key: value for key, value in define.items() if key != "name"}}
    known = {spec.name for spec in tasks()}
    if task in known:
        return task, config
    header = open_dataset(files[0]).header
    name = task or header.task
    return name, config if name in known else {**config, "define": definition_of(header)}
