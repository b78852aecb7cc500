"""One table from the same run with one or several seeds: nRMSE of the model, and its ratio to whatever the run compares
it with, seed by seed, with 95 % intervals over the same test trajectories; how many tasks are below which ratio.

ups run quickstart
ups run quickstart seed=1 name=seed1
ups run quickstart seed=2 name=seed2
python benchmarks/seeds.py runs/quickstart runs/seed1 runs/seed2
"""

import argparse
import json
from pathlib import Path
from statistics import mean

LIMITS = (0.5, 0.7, 0.9, 1.0, 1.3)


def spread(values: list[float]) -> str:
    return f"{mean(values):.2g}" + (f" ({min(values):.2g} to {max(values):.2g})" if len(values) > 1 else "")


def main(runs: list[Path]) -> None:
    metrics = [json.loads((run / "metrics.json").read_text()) for run in runs]
    rivals = [p["name"] for p in metrics[0]["predictors"] if p["kind"] == "compared"]
    print(f"| task | view | model | persistence | {' | '.join(f'model / {rival}' for rival in rivals)} |")
    print("|---|---|---|---|" + "---|" * len(rivals))
    hardest: dict[str, dict[str, list[float]]] = {rival: {} for rival in rivals}
    for task, views in metrics[0]["tasks"].items():
        for view in views:
            entries = [m["tasks"][task][view]["nrmse"] for m in metrics]
            columns = [
                task,
                view.replace("_", " "),
                *(spread([e[who] for e in entries]) for who in ("model", "persistence")),
            ]
            for rival in rivals:
                ratios = [entry["model"] / entry[rival] for entry in entries]
                ends = [entry["ratio95_of"][rival] for entry in entries]
                hardest[rival][task] = ratios  # rollouts come after single steps
                columns.append(
                    ", ".join(f"{r:.2f} ({low:.2f} to {high:.2f})" for r, (low, high) in zip(ratios, ends, strict=True))
                )
            print(f"| {' | '.join(columns)} |")
    for rival, tasks in hardest.items():
        counted = ", ".join(f"{sum(mean(r) <= limit for r in tasks.values())} at most {limit}" for limit in LIMITS)
        print(f"\nmodel / {rival}, mean over seeds, rollouts or solutions of {len(tasks)} tasks: {counted}")
    for run, m in zip(runs, metrics, strict=True):
        phases = ", ".join(f"{name} {value:.0f} s" for name, value in m["seconds"].items())
        steps = ", ".join(f"{name} {t['step']}" for name, t in m["training"].items())
        print(f"\n{run.name}: {sum(m['seconds'].values()):.0f} s ({phases}); steps: {steps}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    main(parser.parse_args().runs)
