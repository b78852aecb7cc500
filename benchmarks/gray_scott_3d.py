"""Gray-Scott in three dimensions: rollout errors of our model and of a 3D FNO after equal times of training.

    python benchmarks/gray_scott_3d.py --seconds 120                       the packaged configuration `gray_scott_3d`
    python benchmarks/gray_scott_3d.py --seconds 120 --trials              a few settings of both, a third as long each
    python benchmarks/gray_scott_3d.py --points 16 --frames 3 --trajectories 12 --seconds 10        on two cores

The bar is a ratio of rollout errors of at most 0.7. The table ends with the ratio and its 95 % interval over the test
trajectories, which are the same for both. Data are made once in --out; a run there goes on where it stopped, and words
of the form a.b=c override the configuration, as in `ups run`. `--trials` changes one setting at a time, of the model
and of the FNO alike, and judges by the validation trajectories, never by those of the table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ups import pipeline
from ups.bench.ratios import MODEL, Result, average, ratio
from ups.bench.tables import table
from ups.evaluation.labels import PERSISTENCE
from ups.pipeline.config import load_run
from ups.pipeline.defaults import FNO, device_of
from ups.training.fit import progress_of

CONFIG = TASK = "gray_scott_3d"
BAR = 0.7
RATES = (0.5, 2.0)
"""Learning rates that are tried, in units of the default one."""


def compared(told: Sequence[str], out: Path) -> None:
    began = time.monotonic()
    pipeline.run(CONFIG, ["name=compared", *told], out, page=False)
    result = Result.of(out / "compared")
    rows = []
    for kind, errors in result.errors[TASK].items():
        own, fno = errors[MODEL], errors["fno"]
        rows.append([kind.replace("_", " "), *(f"{average(errors[w]):.4f}" for w in (MODEL, "fno", PERSISTENCE))])
        rows[-1].append(str(ratio(own, fno)))
    trained = result.training
    steps = ", ".join(f"{who} {sum(p['steps'] for p in parts.values()):.0f}" for who, parts in trained.items())
    print("\n".join(table(["nRMSE", "UPS", "FNO", "persistence", "UPS / FNO (95 %)"], rows)))
    reached = ratio(result.errors[TASK]["rollout"][MODEL], result.errors[TASK]["rollout"]["fno"]).value
    print(f"\n{result.machine}; steps: {steps}; {time.monotonic() - began:.0f} s in all")
    print(f"rollout ratio {reached:.2f}, bar {BAR}: {'reached' if reached <= BAR else 'missed'}")


def trials(told: Sequence[str], seconds: float, out: Path) -> None:
    """One setting at a time differs from the defaults."""
    config = load_run(CONFIG, told)
    rate, model = config.training.learning_rate, config.stages.operator
    points = config.training.sampling.points
    fno = FNO[device_of(config)][3]
    sizes = {key: value for key, value in fno.items() if key != "training"}
    tried: dict[str, list[dict[str, Any]]] = {
        "operator": [
            {},
            *({"training": {"learning_rate": factor * rate}} for factor in RATES),
            {"width": model.width * 3 // 2},
            {"training": {"sampling": {"points": 2 * points}}},
        ],
        "fno": [
            {},
            *({"training": {"learning_rate": factor * fno["training"]["learning_rate"]}} for factor in RATES),
            {"width": sizes["width"] * 3 // 2},
            {"modes": sizes["modes"] * 3 // 2},
        ],
    }
    rows = []
    for family, settings in tried.items():
        for number, changes in enumerate(settings):
            stage = changes
            if family == "fno":
                training = {**fno["training"], **changes.get("training", {})}
                stage = {"architecture": "fno", **sizes, **changes, "training": training}
            name = f"trial-{family}-{number}"
            asked = [f"name={name}", f"stages={json.dumps({family: stage})}", f"training.seconds={seconds / 3:g}"]
            pipeline.train(CONFIG, [*told, *asked, "compare={}"], out)
            done = progress_of(out / name / "stages" / family)
            assert done is not None
            rows.append([family, _said(changes), f"{done['step']}", f"{done['best']:.4f}"])
    print("\n".join(table(["trained", "changed", "steps", "validation error over the trivial one"], rows)))


def _said(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes).replace('"', "").strip("{}") or "nothing: the defaults"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="a.b=c")
    parser.add_argument("--seconds", type=float, default=120.0, help="of training, each")
    parser.add_argument("--points", type=int, default=32)
    parser.add_argument("--frames", type=int, default=21, help="10 time units apart")
    parser.add_argument("--trajectories", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/gray_scott_3d"))
    options = parser.parse_args()
    made = {
        "trajectories": options.trajectories,
        "settings.points": options.points,
        "settings.frames": options.frames,
        "settings.duration": 10.0 * (options.frames - 1),
    }
    told = [f"tasks.{TASK}.make.{key}={value}" for key, value in made.items()]
    told += [f"data.root={options.out / 'data'}", f"seed={options.seed}", *options.overrides]
    if options.trials:
        trials(told, options.seconds, options.out)
    else:
        compared([*told, f"training.seconds={options.seconds:g}"], options.out)


if __name__ == "__main__":
    main()
