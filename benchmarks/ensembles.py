"""The ensembles of `ups run generative`, of several seeds, beside what they have to beat.

    python benchmarks/ensembles.py                                             (two CPU cores: 5 minutes a seed)
    python benchmarks/ensembles.py --seeds 0 1 2 training.steps=20000 stages.codec.training.steps=8000 \
        stages.corrector.training.steps=12000 stages.distilled.training.steps=4000               (one H200)

What follows the options are overrides of the packaged configuration. The table has, of each seed, every predictor's
CRPS and its ratio to the better of the dressed and the perturbed operator (to be at most 0.9), spread over skill (0.8
to 1.25), coverage of 50 % and 90 % intervals, and the largest departure of members' final spectra from the truth's in
an octave that holds more than 10⁻⁶ of the energy (at most 0.2). Then the share of the corrector's gain in CRPS over
the operator that is left after distillation (at least 0.95), and the codec's error over that of as many principal
components (at most 0.5) and over the operator's rollout error (at most 0.2). Finished seeds are not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ups import pipeline

TASK = "kuramoto_sivashinsky"
ENSEMBLES = ("corrector", "distilled", "dressed", "perturbed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    names = {seed: f"generative_{seed}" for seed in options.seeds}
    for seed, name in names.items():
        pipeline.run("generative", [*options.overrides, f"name={name}", f"seed={seed}"], options.runs, page=False)
    print("\nseed  predictor     CRPS  / cheap  spread/skill  50 %  90 %  spectra")
    for seed, name in names.items():
        for row in rows(options.runs / name):
            print(f"{seed:4}  {row}")


def rows(run: Path) -> list[str]:
    metrics = json.loads((run / "metrics.json").read_text())
    rollout, floor = metrics["tasks"][TASK]["rollout"], metrics["reconstruction"]["codec"][TASK]["nrmse"]
    crps = rollout["crps"]
    cheap = min(crps["dressed"], crps["perturbed"])
    with np.load(run / "evaluation" / f"{TASK}.npz") as arrays:
        spectra = {who: octaves(arrays[f"spectrum_{who}"], arrays["spectrum_truth"]) for who in ENSEMBLES}
    found = [f"{'operator':10} {crps['operator']:7.4f} {crps['operator'] / cheap:8.3f}"]
    for who in ENSEMBLES:
        numbers = [rollout[name][who] for name in ("spread_skill", "coverage_50", "coverage_90")]
        judged = f"{numbers[0]:13.2f} {numbers[1]:5.2f} {numbers[2]:5.2f} {spectra[who]:8.2f}"
        found.append(f"{who:10} {crps[who]:7.4f} {crps[who] / cheap:8.3f} {judged}")
    gain = (crps["operator"] - crps["distilled"]) / (crps["operator"] - crps["corrector"])
    found.append(f"distilled's share of the corrector's gain: {gain:.2f}")
    found.append(
        f"codec: {floor['codec']:.4f}, {floor['codec'] / floor['pca']:.3f} of as many principal components', "
        f"{floor['codec'] / rollout['nrmse']['operator']:.3f} of the operator's rollout error"
    )
    return found


def octaves(power: np.ndarray, truth: np.ndarray) -> float:
    """The largest |energy / true energy − 1| of the octaves 1, 2 … 3, 4 … 7, … that hold enough."""
    worst, first = 0.0, 1
    while first < len(truth):
        own, right = power[first : 2 * first].sum(), truth[first : 2 * first].sum()
        if right > 1e-6 * truth.sum():
            worst = max(worst, abs(float(own / right) - 1))
        first *= 2
    return worst


if __name__ == "__main__":
    main()
