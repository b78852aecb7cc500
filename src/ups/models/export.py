"""A trained model to hand over: as a checkpoint of its own, and as programs that need no `ups`.

    OUT/manifest.json            architecture, tasks, grids, statistics; checksums (a checkpoint's manifest)
    OUT/model.safetensors        the averaged weights
    OUT/TASK.pt2                 one step of a task in physical units, for any batch: torch.export.load(...).module()

A program takes and gives what the simulator does, on the task's own grid:

    state = step(history, static, parameters, lead)      # (B, H, *space, C), {name: (B, *space)}, {name: (B,)}, (B,)
    state = solve(static, parameters)                    # a steady task

Among the static fields of a task that has them are its forcings, (B, 2, *space) at the step's start and end (of a
steady task (B, *space)), and the mask, 1 inside the domain, under the name `mask`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from safetensors.torch import save
from torch import Tensor, nn

from ups import checkpoint
from ups.durable import crc32_of, seal, sync, write
from ups.errors import UserError
from ups.models.given import given_channels
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask, description

WEIGHTS = "model.safetensors"


def export_model(model: Propagator, spec: ModelSpec, out: Path, programs: tuple[str, ...] = ()) -> list[Path]:
    """Write the model into a new directory `out`, whole or not at all, with a program of each task named; the files."""
    tasks = {learned.spec.name: learned for learned in spec.tasks}
    for name in programs:
        if name not in tasks:
            raise UserError(f"this model has no task {name!r} to make a program of; it has {', '.join(tasks)}")
    if out.exists() or not out.absolute().parent.is_dir():
        why = "exists" if out.exists() else "is in a folder that is not there"
        raise UserError(f"{out} {why}; choose another place")
    beside = out.absolute().parent
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=beside, ignore_cleanup_errors=True) as holder:
        temporary = Path(holder) / out.name  # inside, because the holder is for its owner's eyes only
        temporary.mkdir()
        weights = {f"model.{name}": t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
        write(temporary / WEIGHTS, save(weights))
        for name in programs:
            export_program(model, tasks[name], temporary / f"{name}.pt2")
            sync(temporary / f"{name}.pt2")
        names = [WEIGHTS, *(f"{name}.pt2" for name in programs)]
        files = {n: {"bytes": (temporary / n).stat().st_size, "crc32": crc32_of(temporary / n)} for n in names}
        settings = {"architecture": spec.architecture, **spec.settings}
        content = description("operator", "operator", settings, spec.tasks, 0)
        head = {"format": checkpoint.FORMAT, "step": 0, "files": files, "content": content}
        write(temporary / checkpoint.MANIFEST, seal(head))
        temporary.rename(out)
    sync(beside)
    return [out / name for name in (checkpoint.MANIFEST, *names)]


class _Program(nn.Module):
    def __init__(self, model: Propagator, learned: TrainedTask) -> None:
        super().__init__()
        self.model, self.learned = model, learned

    def given(
        self, fields: dict[str, Float[Tensor, "B ..."]], like: Float[Tensor, "B H *space C"]
    ) -> tuple[Float[Tensor, "B *space G"], Bool[Tensor, "B *space one"] | None]:
        """What the network is given of such fields, and the mask among them."""
        spec, normaliser = self.learned.spec, self.learned.normaliser
        mask = fields["mask"] > 0.5 if spec.masked else None
        forcings = normaliser.forcings(fields, like, mask)
        given = given_channels(normaliser.static(fields, like, mask), forcings.values(), mask)
        return given, None if mask is None else mask[..., None]


class ExportedStep(_Program):
    """One step of a transient task, in physical units."""

    def forward(
        self,
        history: Float[Tensor, "B H *space C"],
        static: dict[str, Float[Tensor, "B ..."]],
        parameters: dict[str, Float[Tensor, " B"]],
        lead: Float[Tensor, " B"],
    ) -> Float[Tensor, "B *space C"]:
        learned = self.learned
        given, inside = self.given(static, history)
        frames = learned.normaliser.normalise(history, None if inside is None else inside[:, None])
        state = self.model(learned.spec.name, frames, given, parameters, lead, learned.grid)
        return learned.normaliser.physical(state, inside)


class Solve(_Program):
    """The solution of a steady task, in physical units."""

    def forward(
        self, static: dict[str, Float[Tensor, "B ..."]], parameters: dict[str, Float[Tensor, " B"]]
    ) -> Float[Tensor, "B *space C"]:
        learned = self.learned
        like = next(iter([*static.values(), *parameters.values()]))
        zero = like.new_zeros(like.shape[0], 1, *learned.grid.shape, len(learned.spec.channels))
        given, inside = self.given(static, zero)
        state = self.model(learned.spec.name, zero, given, parameters, None, learned.grid)
        return learned.normaliser.physical(state, inside)


def export_program(model: Propagator, learned: TrainedTask, path: Path) -> None:
    """One step of a task as a torch.export program, for any batch size; its archive holds `task.json` too."""
    spec, weight = learned.spec, next(model.parameters())
    batch = torch.export.Dim("batch", min=1)
    many = 2  # an example of one would be taken for a constant
    space, ends = learned.grid.shape, () if spec.steady else (2,)
    static = {name: weight.new_ones(many, *space) for name in (*spec.static, *(("mask",) if spec.masked else ()))}
    static |= {name: weight.new_ones(many, *ends, *space) for name in spec.forcings}
    parameters = {name: weight.new_ones(many) for name in spec.parameters}
    arguments: tuple = (static, parameters)
    module: nn.Module = Solve(model, learned)
    if not spec.steady:
        module = ExportedStep(model, learned)
        history = weight.new_ones(many, spec.history, *learned.grid.shape, len(spec.channels))
        arguments = (history, static, parameters, weight.new_full((many,), learned.leads[0]))
    axes = tuple({name: {0: batch} for name in a} if isinstance(a, dict) else {0: batch} for a in arguments)
    with torch.no_grad():
        module(*arguments)  # makes the tables of this grid, which the program then holds
        program = torch.export.export(module.eval(), arguments, dynamic_shapes=axes)
    torch.export.save(program, path, extra_files={"task.json": json.dumps(learned.to_dict())})
