"""`ups export` and `ups push`: the forms in which a trained model leaves, by name; a form is one entry of `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ups import checkpoint
from ups.checkpoint.hub import publish
from ups.errors import UserError
from ups.models.export import export_model, made_whole
from ups.models.programs import write_aoti, write_onnx, write_torch
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.report.card import model_card
from ups.training.restore import load_model, stage_folder
from ups.web.standalone import write_page


@dataclass(frozen=True)
class Target:
    """A form to leave in. `write(run, out, task)` makes it of a run's model, or of one task; the files it made. The
    name of what it makes ends in `suffix`, any if that is None.
    """

    write: Callable[[Path, Path, str | None], list[Path]]
    suffix: str | None


def _folder(run: Path, out: Path, task: str | None) -> list[Path]:
    if task is not None:
        raise UserError(f"a safetensors folder holds the whole model; leave out --task {task}")
    model, spec = load_model(run)
    return export_model(model, spec, out, card(run, model, spec))


def card(run: Path, model: Propagator, spec: ModelSpec) -> str:
    """The model's card: that of an export is its own, which a person may have written."""
    folder = stage_folder(run)
    if (own := folder / checkpoint.CARD).is_file():
        return own.read_text()
    root = None if checkpoint.is_one(folder) else folder.parents[1]
    weights = sum(parameter.numel() for parameter in model.parameters())
    return model_card((root or folder).name, spec, weights, root, folder.name)


def _program(write: Callable[[Propagator, TrainedTask, Path], None]) -> Callable[[Path, Path, str | None], list[Path]]:
    """A file with the step of one task."""

    def made(run: Path, out: Path, task: str | None) -> list[Path]:
        model, spec = load_model(run)
        tasks = {learned.spec.name: learned for learned in spec.tasks}
        if task is None and len(tasks) > 1:
            raise UserError(f"a program is of one task; say which with --task: {', '.join(tasks)}")
        if task is not None and task not in tasks:
            raise UserError(f"this model has no task {task!r} to make a program of; it has {', '.join(tasks)}")
        with made_whole(out) as temporary:
            write(model, tasks[task or next(iter(tasks))], temporary)
        return [out]

    return made


TARGETS = {
    "safetensors": Target(_folder, None),
    "torch": Target(_program(write_torch), ".pt2"),
    "onnx": Target(_program(write_onnx), ".onnx"),
    "aoti": Target(_program(write_aoti), ".pt2"),
    "html": Target(write_page, ".html"),
}


def export(run: Path, out: Path, to: str | None = None, task: str | None = None) -> list[Path]:
    """Write a trained run's model to `out` in the form `to`, which the ending of `out` tells if it is not given."""
    if to is None:
        told = [name for name, target in TARGETS.items() if target.suffix == (out.suffix or None)]
        if not told:
            raise UserError(f"the ending of {out} tells no form of a model; say --to {', --to '.join(TARGETS)}")
        to = told[0]  # .pt2 is also what is compiled, which must be said
    if to not in TARGETS:
        raise UserError(f"a model does not leave as {to!r}; use --to {', --to '.join(TARGETS)}")
    suffix = TARGETS[to].suffix
    if suffix is not None and out.suffix != suffix:
        raise UserError(f"{out}: the name of what --to {to} makes ends in {suffix}")
    return TARGETS[to].write(run, out, task)


def push(run: Path, name: str, private: bool = False) -> str:
    """Publish a trained run's model with its card as `owner/name` on Hugging Face; its address."""
    with TemporaryDirectory() as holder:
        _folder(run, folder := Path(holder) / "model", None)
        return publish(folder, name, private)
