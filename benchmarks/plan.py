"""`ups plan` beside what is measured: peak memory and step time of both architectures in three sizes, on this device.

    python benchmarks/plan.py                         # a GPU where there is one, else a CPU
    python benchmarks/plan.py --device cpu

Rates are measured as `ups plan --measure` does, on six sizes around a middle one; then steps of three other sizes are
planned and measured. Bars on an H200: peak within 15 %, step within 25 %; the exit code is 1 where one is missed there.
On a CPU nobody knows what a step's tensors took, so only times are compared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import torch

from ups.distributed.runtime.start import Runtime
from ups.pipeline.config import load_run
from ups.pipeline.data import look_at_inputs
from ups.pipeline.plan import device_name, kind_of, measure, measured_step, sized
from ups.pipeline.trainings import stage_plans

CONFIG = """
name: planned
tasks:
  burgers: {{make: {{equation: burgers, trajectories: 64, settings: {{points: 256, frames: 21}}}}}}
  vorticity: {{make: {{equation: vorticity, trajectories: 64, settings: {{points: 64, frames: 21}}}}{spacing}}}
stages: {{operator: {{architecture: {architecture}, width: {width}, depth: {depth}}}}}
training: {{batch_size: {batch}}}
runtime: {{device: {device}}}
"""
MIDDLE = {
    "cuda": {"width": 256, "depth": 8, "batch": 32, "spacing": ""},
    "cpu": {"width": 64, "depth": 3, "batch": 8, "spacing": ", latent_spacing: 0.5"},
}
SIZES = {"small": (0.75, 0.5), "medium": (1.25, 1.0), "large": (1.5, 1.0)}
"""(width, batch) in those of the middle one."""
PEAK, STEP = 0.15, 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    device, missed = parser.parse_args().device, False
    print("| architecture | size | parameters | peak planned (GB) | measured | step planned (ms) | measured | off |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # what the user has measured stays
        for architecture in ("spectral", "pdet_stack"):
            path = Path(folder) / f"{architecture}.yaml"
            path.write_text(CONFIG.format(architecture=architecture, device=device, **MIDDLE[device]))
            missed |= compared(path, architecture, Path(folder))
    print(f"\n{torch.__version__}, {datetime.now(UTC):%-d %B %Y}")
    sys.exit(missed and device == "cuda")


def compared(path: Path, architecture: str, folder: Path) -> bool:
    """Print the rows of an architecture; whether a bar was missed."""
    known, _ = measure(str(path), [], folder, 1)
    config = load_run(path, [])
    outlines, missed = look_at_inputs(config, folder / "run"), False
    with Runtime.start(config.runtime, config.seed) as runtime:
        plan = stage_plans(config, {}, folder / "run")["operator"]
        rates = known.steps[kind_of(plan, config.runtime)]
        for size, (wide, many) in SIZES.items():
            one = sized(config, plan, outlines, wide, many)
            assert one is not None
            cost, seconds, measured = measured_step(config, one, outlines, runtime, folder / architecture / size)
            planned, step = rates.peak(cost), rates.seconds(cost)
            off = step / seconds - 1
            gpu = runtime.device.type == "cuda"
            missed |= abs(off) > STEP or (gpu and abs(planned / measured - 1) > PEAK)
            peak = f"{measured / 1e9:.3g} ({planned / measured - 1:+.0%})" if gpu else "-"
            cells = [architecture, size, f"{cost.parameters / 1e6:.3g}M", f"{planned / 1e9:.3g}", peak]
            cells += [f"{1e3 * step:.3g}", f"{1e3 * seconds:.3g}", f"{off:+.0%}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"{device_name(config.runtime)}: the fit itself is off by {rates.error:.0%} at most", file=sys.stderr)
    return missed


if __name__ == "__main__":
    main()
