"""One codec for eight systems of `ups run universal`, beside as many principal components of each.

    python benchmarks/codecs.py --seconds 200                                                   (one H200)
    python benchmarks/codecs.py --seconds 60 --task burgers --task darcy tasks.burgers.make.trajectories=40 \\
        tasks.darcy.make.trajectories=40 tasks.darcy.make.settings.points=16                    (two CPU cores: minutes)

What follows the options are overrides of the packaged configuration; data that a run of it made serve, by
data.root=FOLDER. The table has, for each task, the numbers of a field and of its latent, the nRMSE of what the codec
gives back of test frames, that of as many principal components of the training frames (up to 4,096 of them), and the
ratio, which is to be at most 0.5. A training goes on where it stopped; numbers are kept in OUT/codecs_SEED.json, from
which the table is printed again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ups.bench.tables import table
from ups.distributed.runtime.start import Runtime
from ups.errors import Stopped, UserError
from ups.evaluation.reconstruction import reconstruction
from ups.pipeline.bench import UNIVERSAL, chosen, write_json
from ups.pipeline.config import load_run
from ups.pipeline.data import timed_data
from ups.pipeline.trainings import stage_plans
from ups.training.fit import fit
from ups.training.restore import restored
from ups.training.stages.codec import CodecStage

TASKS = [
    "burgers",
    "kuramoto_sivashinsky",
    "compressible_1d",
    "darcy",
    "diffusion_reaction",
    "shallow_water",
    "vorticity",
    "compressible_2d",
]
CODEC, MOST = "codec", 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200.0, help="of the codec's training")
    parser.add_argument("--task", action="append", default=[], help="repeat for several; eight of them if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as in `ups run universal`")
    options = parser.parse_args()
    print(markdown(numbers(options)))


def numbers(options: argparse.Namespace) -> dict[str, Any]:
    """By task: those that are kept, or those of the codec, which is trained or gone on with."""
    name = f"codecs_{options.seed}"
    path, told = options.out / f"{name}.json", [options.seconds, options.task, options.overrides]
    if path.is_file():
        known = json.loads(path.read_text())
        if known["asked"] != told:
            raise UserError(f"{path} holds results of other settings; choose another --out, or remove it")
        return known["tasks"]
    stages = {CODEC: {"training": {"seconds": options.seconds}}, "operator": {}}  # a run ends in what predicts
    asked = [f"name={name}", f"seed={options.seed}", f"stages={json.dumps(stages)}", "compare={}"]
    config = load_run(UNIVERSAL, [*chosen(options.task or TASKS), *asked, *options.overrides], options.out)
    directory = options.out / name
    with Runtime.start(config.runtime, config.seed, directory) as runtime:
        tasks, sources = timed_data(runtime, config, directory)
        plan = stage_plans(config, tasks, directory)[CODEC]
        fit(runtime, plan, seconds=options.seconds)
        stage = restored(plan.directory, config.runtime)
        assert isinstance(stage, CodecStage)
        codec = stage.model.to(runtime.device)
        found = {task: reconstruction(codec, data.learned, sources[task], task) for task, data in tasks.items()}
    write_json(path, {"asked": told, "tasks": found})
    return found


def markdown(found: Mapping[str, Any]) -> str:
    lines = []
    for task, own in found.items():
        error, pca = (own["nrmse"][who] for who in ("codec", "pca"))
        lines.append([task, str(own["of"]), str(own["numbers"]), f"{error:.4f}", f"{pca:.4f}", f"{error / pca:.2f}"])
    good = sum(own["nrmse"]["codec"] <= MOST * own["nrmse"]["pca"] for own in found.values())
    rows = table(["task", "numbers", "of a latent", "codec", "PCA", "codec / PCA"], lines)
    return "\n".join(
        [*rows, "", f"at most {MOST} of as many principal components' error on {good} of {len(found)} tasks"]
    )


if __name__ == "__main__":
    try:
        main()
    except (UserError, Stopped) as error:
        sys.exit(f"error: {error}" if isinstance(error, UserError) else 75)
