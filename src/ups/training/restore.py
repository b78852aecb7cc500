"""A trained stage from its checkpoint: built as it was for training, its averaged weights in place, its parents too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from ups import checkpoint
from ups.checkpoint import hub
from ups.config.plugins import load_plugins
from ups.distributed.runtime.settings import RuntimeConfig
from ups.durable import read_json, write
from ups.errors import UserError
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.training.kinds import STAGES, StageContext
from ups.training.settings import TrainingConfig
from ups.training.stage import Stage
from ups.training.stages.operator import OperatorStage, OperatorStageSettings

CHECKPOINTS = "checkpoints"
ORDER = "order.json"
LIGHTNING = "ups"
"""Under which a checkpoint of Lightning holds what is ours."""


def best_checkpoint(folder: Path) -> Path:
    """The checkpoint of a stage's folder that validation chose, else the newest; or the folder itself if it is one."""
    if checkpoint.is_one(folder):
        return folder
    directory = folder / CHECKPOINTS
    best = checkpoint.find(directory, "best")
    if best is not None:
        return best
    if not (steps := checkpoint.steps(directory)):
        raise UserError(f"{folder} holds no trained model (no checkpoint in {directory}); train it with `ups run`")
    return directory / checkpoint.name_of(steps[-1])


def checksum_of(folder: Path) -> str:
    """Of the checkpoint that a stage's children stand on: its manifest has the checksums of its files."""
    return hashlib.sha256((best_checkpoint(folder) / checkpoint.MANIFEST).read_bytes()).hexdigest()[:16]


def averaged_weights(folder: Path) -> tuple[dict[str, Tensor], checkpoint.Manifest]:
    """Those that validation chose, averaged where there are averages, and what their checkpoint says of itself."""
    if folder.suffix == ".ckpt":
        return _of_lightning(folder)
    tensors, manifest = checkpoint.load(best_checkpoint(folder), ("model.", "ema."))
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    weights |= {name.removeprefix("ema."): t for name, t in tensors.items() if name.startswith("ema.")}
    return weights, manifest


def _of_lightning(path: Path) -> tuple[dict[str, Tensor], checkpoint.Manifest]:
    """The same of a checkpoint that Lightning's `Trainer` wrote of a `UPSModule`."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        ours = saved[LIGHTNING]
        weights = {name.removeprefix("model."): tensor for name, tensor in saved["state_dict"].items()}
        return weights | ours["averages"], checkpoint.Manifest(ours["step"], json.loads(ours["content"]), path)
    except (
        OSError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        UnpicklingError,
    ) as error:
        raise UserError(
            f"{path} is no checkpoint of a UPSModule in one file ({type(error).__name__}: {str(error)[:200]}); name "
            "another one"
        ) from error


def restored(folder: Path, runtime: RuntimeConfig | None = None) -> Stage:
    """The stage of a folder (`RUN/stages/NAME`, or an export), with the weights that validation chose."""
    return _restored(folder, runtime)[0]


def _restored(folder: Path, runtime: RuntimeConfig | None = None) -> tuple[Stage, Mapping[str, Any]]:
    """And what its checkpoint says of it."""
    weights, manifest = averaged_weights(folder)
    try:
        stage = _built(manifest.content, folder, runtime or RuntimeConfig())
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise UserError(
            f"the checkpoint {manifest.path} describes no model that this version knows ({type(error).__name__}: "
            f"{str(error)[:200]}); use the version it was made with"
        ) from error
    module = stage.trainable()
    if {weights[name].dtype for name, _ in module.named_parameters() if name in weights} == {torch.float64}:
        module.double()  # as it was trained
    own = {name: (tuple(t.shape), t.dtype) for name, t in module.state_dict().items()}
    if own != {name: (tuple(t.shape), t.dtype) for name, t in weights.items()}:
        raise UserError(
            f"the checkpoint {manifest.path} does not fit the model it describes; use the version it was made with"
        )
    module.load_state_dict(weights)
    module.eval().requires_grad_(False)
    return stage, manifest.content


def _built(content: Mapping[str, Any], folder: Path, runtime: RuntimeConfig) -> Stage:
    described = content["stage"]
    kind = STAGES[described["kind"]]
    parents, checksums = {}, content.get("parents", {})
    for parent, checksum in checksums.items():
        if Path(parent).name != parent:
            raise UserError(f"{folder} stands on {parent!r}, which is outside of its run; use another one")
        if checksum_of(folder.parent / parent) != checksum:
            raise UserError(
                f"{folder} stands on another {parent} than the one in {folder.parent / parent}, which was trained "
                f"since; train {folder.name} again"
            )
        parents[parent] = restored(folder.parent / parent, runtime)
    settings = kind.settings(described["settings"]).model_validate(described["settings"])
    tasks = tuple(TrainedTask.from_dict(task) for task in content["tasks"])
    name, seed = described["name"], described["seed"]
    return kind.build(StageContext(name, settings, tasks, TrainingConfig(), runtime, seed, parents, checksums))


def load_model(run: str | Path) -> tuple[Propagator, ModelSpec]:
    """The model of a run whose last stage is an operator, of such a stage's folder or of an export."""
    folder = stage_folder(Path(run))
    stage, content = _restored(folder)
    if not isinstance(stage, OperatorStage):
        kinds = {file.parent: read_json(file)["kind"] for file in folder.parent.glob("*/stage.json")}
        others = [str(other) for other, kind in kinds.items() if kind == "operator"]
        remedy = f"name one: {', '.join(sorted(others))}" if others else "train one"
        raise UserError(f"{folder} holds a {kinds.get(folder, 'stage')}, and this takes an operator; {remedy}")
    settings = dict(content["stage"]["settings"])
    own = {name: value for name, value in settings.items() if name not in OperatorStageSettings.model_fields}
    return stage.model, ModelSpec(settings["architecture"], own, stage.tasks)


def stage_folder(run: Path) -> Path:
    """The folder of the last stage of a run; a stage's folder or an export is its own, hf://owner/name is fetched."""
    if hub.is_on_hub(run):
        return hub.fetch(run)
    if not (run / "config.yaml").is_file():
        return run
    order = run / "stages" / ORDER
    if not order.is_file():
        raise UserError(f"{run} holds no trained model that this version reads; train it with `ups run`")
    known = read_json(order)
    load_plugins(known["plugins"])
    return run / "stages" / known["stages"][-1]


def note_order(run: Path, stages: Sequence[str], plugins: Sequence[str]) -> None:
    """Keep, beside the stages, their order and what must be imported to build them."""
    (run / "stages").mkdir(parents=True, exist_ok=True)
    write(run / "stages" / ORDER, json.dumps({"stages": list(stages), "plugins": list(plugins)}).encode())
