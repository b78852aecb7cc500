"""What losses of a task's equation (`training.physics`) change, beside the same training without them.

    python benchmarks/physics.py                                     (two CPU cores: 4 minutes)
    python benchmarks/physics.py --seeds 0 1 2 --steps 4000          (a GPU)

Of each task a run with a stage for each choice of weights, all on the same data and of as many steps: the nRMSE and the
balance of its hardest view, and both over those of the stage without. Finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from ups import pipeline

SIZES = {
    "spectral": {"width": 16, "depth": 2, "modes": 16, "head": 16},
    "fno": {"architecture": "fno", "width": 16, "modes": 12},
}
MADE = {
    "burgers": {"trajectories": 60, "values": {"nu": [0.01, 0.1]}, "settings": {"points": 64, "frames": 21}},
    "kuramoto_sivashinsky": {
        "trajectories": 150,
        "settings": {"points": 32, "length": 22.0, "frames": 21, "duration": 20.0},
    },
    "darcy": {"trajectories": 200, "settings": {"points": 32}},
}
STAGES: dict[str, tuple[str, dict[str, float]]] = {
    "without": ("spectral", {}),
    "balance_001": ("spectral", {"balance": 0.01}),
    "balance_01": ("spectral", {"balance": 0.1}),
    "balance_1": ("spectral", {"balance": 1.0}),
    "boundary_1": ("spectral", {"boundary": 1.0}),
    "fno_without": ("fno", {}),
    "fno_conservation_1": ("fno", {"conservation": 1.0}),
}
HAS = {
    "burgers": ("balance", "conservation"),
    "kuramoto_sivashinsky": ("balance", "conservation"),
    "darcy": ("balance", "boundary"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tasks", nargs="+", default=list(MADE))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    rows = []
    for task in options.tasks:
        for seed in options.seeds:
            rows += measured(task, seed, options.steps, options.runs)
    print("\ntask                  seed  weights             nRMSE   / without  balance  / without")
    print("\n".join(rows))


def stages_of(task: str) -> dict[str, Any]:
    """Those whose weights mean something for the task; an FNO where there are means that it does not keep."""
    return {
        name: {"kind": "operator", **SIZES[architecture], "training": {"physics": {task: weights}}}
        for name, (architecture, weights) in STAGES.items()
        if set(weights) <= set(HAS[task]) and (architecture == "spectral" or "conservation" in HAS[task])
    }


def measured(task: str, seed: int, steps: int, runs: Path) -> list[str]:
    config = {
        "name": f"physics_{task}_{seed}",
        "seed": seed,
        "tasks": {task: {"make": {"equation": task, **MADE[task]}}},
        "stages": stages_of(task),
        "training": {"steps": steps, "validate_every": steps // 4, "checkpoint_every": steps // 4},
        "evaluation": {"solved": 0},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "physics.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        pipeline.run(str(path), [], runs, page=False)
    kinds = json.loads((runs / config["name"] / "metrics.json").read_text())["tasks"][task]
    numbers = kinds.get("rollout", kinds["one_step"])
    rows = []
    for name, (architecture, _) in STAGES.items():
        if name in config["stages"]:
            base = "without" if architecture == "spectral" else "fno_without"
            columns = [
                f"{numbers[m][name]:8.4f} {numbers[m][name] / numbers[m][base]:8.2f}" for m in ("nrmse", "balance")
            ]
            rows.append(f"{task:21} {seed:4}  {name:18} {'  '.join(columns)}")
    return rows


if __name__ == "__main__":
    main()
