"""Whether the equation itself can tell the truth from what an operator makes of it, and whether choosing pays.

    python benchmarks/choice.py                                    (two CPU cores, or one H200: minutes of training)
    python benchmarks/choice.py training.steps=20 stages.codec.training.steps=20 stages.corrector.training.steps=20

Two systems are learned by one run: operator, codec and corrector. Test trajectories are cut into pieces of a few
frames. A piece is scored by ‖u(t₁) − u(t₀) − ∫ rate dt‖ over its frames (`ups.metrics.balance.imbalance`, whose mode of
wavenumber zero is the drift of an invariant), which needs no truth. Each row is of one system and of pieces of so many
frames:

- truth first: of the true piece and 7 others, the truth plus the operator's errors on pieces of other test
  trajectories, how often the truth has the least score (to be 95 %; by chance 12.5 %);
- the truth's own score over the mean score of the others: what the quadrature and the grid leave of it;
- of 8 members that the corrector samples, the relative error of their last frames: of their mean; of one, on average;
  of the one with the least score; of the one with the least error, which no score can beat; and how the scores of a
  piece's members correlate with their errors, on average.

Then rollouts over all frames: the mean of 8 members, one of them, and the beam search of `ups.rollout.chosen`, which
computes three times as many steps as the 8 members do.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from ups import pipeline
from ups.data.sources import open_source
from ups.equations import Equation
from ups.evaluation.choice import CANDIDATES, pieces, scored, truth_first
from ups.fields import Batch
from ups.models.predictor import Predictor
from ups.pipeline.config import run_config
from ups.rollout.chosen import Chosen
from ups.rollout.corrected import CorrectedPredictor
from ups.rollout.members import ensembles
from ups.rollout.predict import read_all, rollout
from ups.training.restore import restored

LENGTHS = (1, 4, 8)
BEAM = 2
TRAJECTORIES = 40
ROLLOUTS = 16
CONFIG: dict[str, Any] = {
    "tasks": {
        "burgers": {
            "make": {
                "equation": "burgers",
                "trajectories": 400,
                "settings": {"points": 64, "nu": 0.05, "frames": 65, "duration": 0.5},
            }
        },
        "kuramoto_sivashinsky": {
            "make": {
                "equation": "kuramoto_sivashinsky",
                "trajectories": 400,
                "settings": {"points": 64, "length": 22.0, "frames": 65, "duration": 16.0, "warm_up": 50.0},
            }
        },
    },
    "stages": {
        "operator": {},
        "codec": {"width": 24, "training": {"steps": 500, "batch_size": 32}},
        "corrector": {"on": ["operator", "codec"], "width": 24, "training": {"steps": 400}},
    },
    "training": {"steps": 1200, "validate_every": 200, "checkpoint_every": 200},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    name = f"choice_{options.seed}"
    written = options.runs / f"{name}.yaml"
    written.write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    pipeline.train(str(written), [*options.overrides, f"seed={options.seed}"], options.runs)
    run = options.runs / name
    operator, corrector = (restored(run / "stages" / stage).predictor() for stage in ("operator", "corrector"))
    assert isinstance(corrector, CorrectedPredictor)
    config = run_config(run)
    print(f"\n{'':20} frames  truth first  its score  error: mean of {CANDIDATES}  one   chosen  least  correlation")
    for task, settings in config.tasks.items():
        source = open_source(task, settings, config.data, run / "data", config.data_seed, lambda *_: None)
        equation, test = source.solvers[0][0], source.tests[task]
        for length in LENGTHS:
            batch = pieces(read_all(test, TRAJECTORIES), length)
            first, ratio = truth_first(operator, equation, batch, options.seed)
            ranked = f"{100 * first:9.1f} % {ratio:10.2f}"
            print(f"{task:20} {length:6}  {ranked}  {chosen(corrector, equation, batch, options.seed)}", flush=True)
    print(f"\nrollouts, error after: {CANDIDATES} members' mean    one   search")
    for task, settings in config.tasks.items():
        source = open_source(task, settings, config.data, run / "data", config.data_seed, lambda *_: None)
        for row in searched(corrector, read_all(source.tests[task], ROLLOUTS), options.seed):
            print(f"{task:20} {row}", flush=True)


def chosen(corrector: Predictor, equation: Equation, batch: Batch, seed: int) -> str:
    """Members that the corrector samples of each piece; by their scores, and by their errors."""
    parts = [found for _, found in ensembles(corrector, batch.task, batch, 1, CANDIDATES, seed)]
    members, truth = torch.cat(parts, 1), batch.values[:, 1:]
    scores = torch.stack([scored(equation, batch, member) for member in members])
    errors = torch.stack([relative(member, truth) for member in members])
    best = errors.gather(0, scores.argmin(0)[None])[0]
    numbers = [relative(members.mean(0), truth), errors.mean(0), best, errors.amin(0)]
    centred = [values - values.mean(0) for values in (scores, errors)]
    correlation = (centred[0] * centred[1]).sum(0) / (centred[0].norm(dim=0) * centred[1].norm(dim=0))
    return " ".join(f"{float(n.mean()):8.4f}" for n in numbers) + f" {float(correlation.mean()):10.2f}"


def searched(corrector: CorrectedPredictor, batch: Batch, seed: int) -> list[str]:
    """Rollouts of all frames: of members, and of the beam search, which computes as many members' steps a step."""
    every = dict.fromkeys(corrector.tasks, 1.0)  # whatever its equation can tell
    search = Chosen(corrector, every, CANDIDATES, BEAM, CANDIDATES * (1 + BEAM), corrector.horizon)
    path, truth = rollout(search, batch.task, batch), batch.values[:, 1:]
    parts = [found for _, found in ensembles(corrector, batch.task, batch, 1, CANDIDATES, seed)]
    members = torch.cat(parts, 1)
    rows = []
    for frames in (truth.shape[1] // 4, truth.shape[1] // 2, truth.shape[1]):
        one = torch.stack([relative(member[:, :frames], truth[:, :frames]) for member in members]).mean(0)
        numbers = [relative(members.mean(0)[:, :frames], truth[:, :frames]), one]
        numbers += [relative(path[:, :frames], truth[:, :frames])]
        rows.append(f"{frames:4} frames " + " ".join(f"{float(n.mean()):10.4f}" for n in numbers))
    return rows


def relative(frames: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"]) -> Float[Tensor, " N"]:
    """Of the last frame."""
    error = (frames[:, -1] - truth[:, -1]).flatten(1).norm(dim=1)
    return error / truth[:, -1].flatten(1).norm(dim=1)


if __name__ == "__main__":
    main()
