"""One codec for eight systems of `ups run universal`, beside as many principal components of each.

    python benchmarks/codecs.py --seconds 200                                                   (one H200)
    python benchmarks/codecs.py --seconds 60 --task burgers --task darcy tasks.burgers.make.trajectories=40 \\
        tasks.darcy.make.trajectories=40 tasks.darcy.make.settings.points=16                    (two CPU cores: minutes)

What follows the options are overrides of the packaged configuration; data that a run of it made serve, by
data.root=FOLDER. The table has, for each task, the numbers of a field and of its latent, the nRMSE of what the codec
gives back of test frames, that of as many principal components of the training frames (up to 4,096 of them), and the
ratio, which is to be at most 0.5. A training goes on where it stopped; numbers are kept in OUT/codecs_SEED.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ups.bench.tables import table
from ups.distributed.runtime.start import Runtime
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
    name = f"codecs_{options.seed}"
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
    write_json(options.out / f"{name}.json", {"seconds": options.seconds, "tasks": found})
    lines = []
    for task, own in found.items():
        error, pca = (own["nrmse"][who] for who in ("codec", "pca"))
        lines.append([task, str(own["of"]), str(own["numbers"]), f"{error:.4f}", f"{pca:.4f}", f"{error / pca:.2f}"])
    print("\n".join(table(["task", "numbers", "of a latent", "codec", "PCA", "codec / PCA"], lines)))
    good = sum(own["nrmse"]["codec"] <= MOST * own["nrmse"]["pca"] for own in found.values())
    print(f"\nat most {MOST} of as many principal components' error on {good} of {len(found)} tasks")


if __name__ == "__main__":
    main()
