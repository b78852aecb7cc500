"""What evaluating a test set takes: peak memory of host and device, and its time beside that of the predictions alone.

    python benchmarks/evaluation_memory.py --gigabytes 20                                          on a GPU
    python benchmarks/evaluation_memory.py --gigabytes 1 --points 256 --frames 11 --width 8        on a CPU

The test set is a real file in The Well's layout, of waves that drift, written to --folder first and left there for the
next time; the model is untrained, which costs the same. Bars for 20 GB, with 101 frames of 512² points and 4 channels:
less than 4 GB on the host, less than 8 GB on the device, and at least half the speed of the model's own rollouts and
single steps.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch

from ups.bench.tables import table
from ups.data.formats.layouts import named_layout
from ups.data.open import open_dataset
from ups.data.prepare.row_ranges import total_bytes
from ups.data.prepare.statistics import Scale, Statistics
from ups.data.sources import Source
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.evaluation.evaluate import evaluate
from ups.fields import Batch, Boundary, Channel, Dataset, Grid, Header, TaskSpec
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step, rollout
from ups.track.progress import Progress

NAMES = ("density", "pressure", "velocity_x", "velocity_y", "a", "b", "c", "d")


def made(options: argparse.Namespace) -> tuple[Dataset, TaskSpec]:
    """The test set, written unless it is there."""
    channels = NAMES[: options.channels]
    one = 4 * options.frames * options.points**2 * options.channels
    count = max(2, round(options.gigabytes * 1e9 / one))
    path = options.folder / f"waves_{count}x{options.frames}x{options.points}x{options.channels}.hdf5"
    grid, boundary = Grid.cell_centred((options.points,) * 2), Boundary.all("periodic", 2)
    times = 0.1 * torch.arange(options.frames, dtype=torch.float64)
    spec = TaskSpec("waves", 2, tuple(Channel(name) for name in channels), boundary, dt=0.1)
    if not path.is_file():
        options.folder.mkdir(parents=True, exist_ok=True)
        header = Header("waves", channels, grid, times, boundary)
        x = 2 * math.pi * grid.positions[0].float()
        places = torch.arange(options.channels).float()
        with (
            named_layout("well").writer(path, header, count) as writer,
            Progress("writing", count, "trajectories") as bar,
        ):
            for i in range(count):
                frames = [
                    torch.sin(x[:, None, None] - 0.3 * float(t) + i + places) * torch.cos(x[:, None] + places)
                    for t in times
                ]
                values = torch.stack(frames)[None]
                writer.write(Batch("waves", values, times[None], grid, boundary, {}, {}, torch.tensor([i])))
                bar.update(i + 1)
    return open_dataset(path, spec), spec


def peak_of_host(begin: bool = False) -> int:
    """The most bytes this process has held since the last beginning."""
    if begin:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--points", type=int, default=512)
    parser.add_argument("--frames", type=int, default=101)
    parser.add_argument("--channels", type=int, default=4, choices=range(1, len(NAMES) + 1))
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--modes", type=int, default=96)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/ups_evaluation_memory"))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    data, spec = made(options)
    scale = Scale(0.0, 0.5, 0.5, (0.1,))
    statistics = Statistics("waves", len(data), 0.1, (1,), {name: scale for name in data.channels})
    learned = TrainedTask(spec, data.grid, statistics, {}, (0.1,))
    sizes = {"width": options.width, "depth": options.depth, "modes": options.modes}
    with Runtime.start(RuntimeConfig(device=options.device), 0) as runtime:
        model = ModelSpec("spectral", sizes, (learned,)).build().eval()
        predictor = OperatorPredictor(model, [learned]).to(runtime.device)
        few = data.read(range(1), slice(None)).to(runtime.device)
        for predict in (rollout, one_step):  # makes tables, records graphs
            predict(predictor, "waves", few)
        began = time.monotonic()
        for predict in (rollout, one_step):
            predict(predictor, "waves", few)
        if runtime.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        alone = time.monotonic() - began
        del few
        before = peak_of_host(begin=True)
        began = time.monotonic()
        source = Source(spec, data, data, {"waves": data})
        with Progress("evaluating", len(data), "trajectories") as bar:
            evaluate(
                {"operator": predictor}, "operator", learned, source, "waves", seed=0, resamples=1000, pictures=4,
                training_seconds=1.0, runtime=runtime, tick=lambda done, _: bar.update(done),
            )  # fmt: skip
        seconds = time.monotonic() - began
        device = torch.cuda.max_memory_reserved() if runtime.device.type == "cuda" else 0
    whole = alone * len(data)
    rows = [
        ["test set", f"{total_bytes(data) / 1e9:.2f} GB, {len(data)} trajectories"],
        ["host, peak", f"{peak_of_host() / 1e9:.2f} GB ({before / 1e9:.2f} GB before)"],
        ["device, peak", f"{device / 1e9:.2f} GB"],
        ["evaluation", f"{seconds:.1f} s"],
        ["the model's rollouts and single steps alone", f"{whole:.1f} s ({whole / seconds:.2f} of the evaluation)"],
    ]
    print("\n".join(table(["", ""], rows)))


if __name__ == "__main__":
    main()
