"""What is written once in torch is the same arithmetic in the kernels made of it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from ups.equations import Compressible2D, shallow_water
from ups.equations.schemes import euler, finite_volume, fused, muscl
from ups.equations.schemes.fused import kernel_source

COMPILER = shutil.which("c++")
STAGE = {"j": 3.0, "mu": 1.2, "nu": -0.3, "rest": 0.1, "share": 0.6}
STRESS = {"dx": 0.1, "eta": 0.3, "zeta": 0.2}
FUNCTIONS: dict[str, tuple[Any, int, dict[str, float], dict[str, int]]] = {
    "difference": (muscl._with_difference, 3, {"dx": 0.1}, {}),
    "primitive": (euler._primitive, 4, {}, {}),
    "positive": (euler._positive, 4, {}, {}),
    "wave speeds": (euler._wave_speeds, 3, {}, {}),
    "moved": (muscl._moved, 3, {}, {}),
    "limited": (muscl._limited, 3, {}, {}),
    "gas 1D": (euler._hllc, 6, {}, {"axis": 0}),
    "gas 2D along x": (euler._hllc, 8, {}, {"axis": 0}),
    "gas 2D along y": (euler._hllc, 8, {}, {"axis": 1}),
    "stress 1D": (euler._stress, 2, STRESS, {"axis": 0, "axes": 1}),
    "stress 2D": (euler._stress, 8, STRESS, {"axis": 1, "axes": 2}),
    "stage": (euler._stage, 8, STAGE, {}),
    "shock": (finite_volume._euler, 7, {"keep": 0.5}, {}),
    "water": (shallow_water._hllc, 6, {}, {"axis": 1}),
}


def inputs(count: int) -> list[torch.Tensor]:
    """Positive, so that roots exist; of several sizes, so that every branch is taken."""
    torch.manual_seed(0)
    return [10 ** torch.randn(4096, dtype=torch.float64) for _ in range(count)]


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_text_of_a_kernel_computes_what_torch_does(name: str, tmp_path: Path) -> None:
    function, count, numbers, fixed = FUNCTIONS[name]
    source, outputs = kernel_source(function.__wrapped__, count, tuple(numbers), fixed)
    given = [f"x[{i}][k]" for i in range(count)] + [repr(value) for value in numbers.values()]
    call = ", ".join([*given, *(f"y[{i}][k]" for i in range(outputs))])
    loop = (
        f'extern "C" void run(long n, double** x, double** y) {{ for (long k = 0; k < n; k++) fused<double>({call}); }}'
    )
    (tmp_path / "kernel.cpp").write_text(f"#include <math.h>\n{source}{loop}")
    library = tmp_path / "kernel.so"
    command = [str(COMPILER), "-O1", "-ffp-contract=off", "-shared", "-fPIC", str(tmp_path / "kernel.cpp")]
    subprocess.run([*command, "-o", str(library)], check=True)
    x = inputs(count)
    made = [torch.empty_like(x[0]) for _ in range(outputs)]

    def pointers(tensors: list[torch.Tensor]) -> Any:
        return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

    ctypes.CDLL(str(library)).run(ctypes.c_long(len(x[0])), pointers(x), pointers(made))
    for ours, theirs in zip(made, function(*x, **numbers, **fixed), strict=True):
        # torch's roots may be off by a last digit; some of these gases have no pressure, and so no speed of sound
        assert torch.allclose(ours, theirs.double(), rtol=1e-12, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_takes_the_text_of_a_kernel(name: str) -> None:
    """It fails on any machine with a torch that no longer has the compiler."""
    function, count, numbers, fixed = FUNCTIONS[name]
    assert callable(fused._kernel(function.__wrapped__, count, tuple(numbers), tuple(fixed.items())))


def test_what_is_not_a_number_stays_so() -> None:
    source, _ = kernel_source(lambda a, b: [torch.minimum(a, b), a.clamp_min(0.0)], 2)
    assert "(x0 < x1 || x0 != x0) ? x0 : x1" in source and "x0 < T(0.0) ? T(0.0) : x0" in source


def test_an_operation_without_a_text_is_refused() -> None:
    with pytest.raises(KeyError, match="exp"):
        kernel_source(lambda a: [a.exp()], 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compiles for a GPU")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gpu_s_kernel_computes_what_torch_does(name: str) -> None:
    """Up to products that are added without rounding between: relative to the largest term, which is 10⁶ at most."""
    function, count, numbers, fixed = FUNCTIONS[name]
    x = [tensor.clamp(0.5, 2.0) for tensor in inputs(count)]
    made = function(*(tensor.cuda() for tensor in x), **numbers, **fixed)
    for there, here in zip(made, function(*x, **numbers, **fixed), strict=True):
        known = here == here  # some of these gases have no pressure, and so no speed of sound
        assert torch.equal(there.cpu() == there.cpu(), known)
        assert (there.cpu() - here)[known].abs().max() < 1e-12 * here[known].abs().max()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compiles for a GPU")
def test_gradients_are_those_of_a_cpu() -> None:
    equation = Compressible2D(points=8)
    state, gradients = equation.start(0, [0]).movedim(1, -1), []
    for device in ("cpu", "cuda"):
        given = state.detach().to(device, copy=True).requires_grad_()
        equation.rate(given, {}).square().sum().backward()
        gradients.append(given.grad)
    assert torch.allclose(gradients[1].cpu(), gradients[0], rtol=1e-9, atol=1e-9 * float(gradients[0].abs().max()))
