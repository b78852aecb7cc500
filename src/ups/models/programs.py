"""One step of a trained task as a program that needs no `ups`: by torch, by ONNX Runtime, or compiled.

    state = step(history, static, parameters, lead)      # (B, H, *space, C), {name: (B, *space)}, {name: (B,)}, (B,)
    state = solve(static, parameters)                    # a steady task

A program takes and gives what the simulator does: physical units, on the task's own grid, for any batch. Among the
static fields of a task that has them are its forcings, (B, 2, *space) at the step's start and end (of a steady task
(B, *space)), and the mask, 1 inside the domain, under the name `mask`. Inside each program, `task.json` says of what
task it is.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ups.errors import UserError
from ups.models.given import given_channels
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask

OPSET = 20
"""Of the ONNX programs: what torch's exporter writes best, and every runtime since 2023 reads."""
TASK = "task.json"


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


def program_of(model: Propagator, learned: TrainedTask) -> torch.export.ExportedProgram:
    """One step of a task, or its solution, for any batch size."""
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
        return torch.export.export(module.eval(), arguments, dynamic_shapes=axes)


def write_torch(model: Propagator, learned: TrainedTask, path: Path) -> None:
    """A program of torch: `torch.export.load(path).module()`."""
    torch.export.save(program_of(model, learned), path, extra_files={TASK: _said(learned)})


def write_onnx(model: Propagator, learned: TrainedTask, path: Path) -> None:
    """A program of ONNX, whose inputs are `history`, `static_NAME`, `parameters_NAME` and `lead`."""
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise UserError(f"writing ONNX needs {package}; pip install 'universal-physics-stack[export]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about constants that are not folded
        try:
            written = torch.onnx.export(
                program_of(model, learned), dynamo=True, opset_version=OPSET, output_names=["state"], verbose=False
            )
        except torch.onnx.OnnxExporterError as error:
            raise UserError(_refusal(learned.spec.name, str(error))) from error
    assert written is not None
    written.model.metadata_props[TASK] = _said(learned)
    written.save(path)


def _refusal(task: str, said: str) -> str:
    """Why torch could not say a program in ONNX: the operator, and what of it is missing."""
    found = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", said)
    operator = found[1] if found else "one of its operators"
    of = " of complex numbers" if "complex" in said else ""
    return (
        f"task {task!r} cannot be an ONNX program: it computes {operator}{of}, which ONNX (opset {OPSET}) has no form "
        "for; use --to torch"
    )


def write_aoti(model: Propagator, learned: TrainedTask, path: Path) -> None:
    """Compiled for the device and kind of processor that it is made on: `torch._inductor.aoti_load_package(path)`."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise UserError("compiling a program needs a C++ compiler, such as g++; install one, or use --to torch")
    from torch._inductor import aoti_compile_and_package

    aoti_compile_and_package(
        program_of(model, learned),
        package_path=str(path),
        inductor_configs={
            "aot_inductor.metadata": {TASK: _said(learned)},
            "always_keep_tensor_constants": True,  # else torch 2.13 fails on one number repeated for any batch
        },
    )


def _said(learned: TrainedTask) -> str:
    return json.dumps(learned.to_dict())
