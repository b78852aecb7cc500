"""What the machine can do, measured in the same run: the rate of a large matrix product and of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

_SIDE = {"cpu": 1536, "cuda": 8192}
_COPY = {"cpu": 2**27, "cuda": 2**31}
_REPEATS = {"cpu": 2, "cuda": 20}
_BLOCKS = 5


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s of a matrix product by precision, bytes/s of a copy (read and write both counted)."""

    matmul: dict[str, float]
    bandwidth: float
    used: str
    """The precision that single-precision products have in this run: fp32, or tf32 where torch was told so."""

    def roofline(self, flop: float, moved: float) -> float:
        """Seconds that the arithmetic or the traffic takes at least: max(FLOP / rate, bytes / bandwidth)."""
        return max(flop / self.matmul[self.used], moved / self.bandwidth)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(device: torch.device) -> Ceilings:
    """The best of a few blocks, for each precision that the device is used with."""
    side = _SIDE[device.type]
    rates = {}
    used = single_precision(device)
    for name, dtype in ((used, torch.float32), ("bf16", torch.bfloat16)):
        if name == "bf16" and device.type == "cpu":
            continue
        a = torch.randn(side, side, device=device, dtype=dtype)
        b = torch.randn(side, side, device=device, dtype=dtype)
        rates[name] = 2 * side**3 / best_seconds(lambda a=a, b=b: a @ b, device)
    source = torch.zeros(_COPY[device.type], dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    seconds = best_seconds(lambda: target.copy_(source), device)
    return Ceilings(rates, 2 * source.numel() / seconds, used)


def single_precision(device: torch.device) -> str:
    tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if tf32 else "fp32"


def best_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Of one call, in the fastest of a few blocks: what the device can do, not what it happened to."""
    repeats = _REPEATS[device.type]
    work()
    best = float("inf")
    for _ in range(_BLOCKS):
        synchronise(device)
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronise(device)
        best = min(best, (time.perf_counter() - began) / repeats)
    return best


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
