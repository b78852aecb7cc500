"""One table from the same run with several seeds: mean and range of nRMSE, and the ratio to the FNO seed by seed.

ups run quickstart
ups run quickstart seed=1 name=seed1
ups run quickstart seed=2 name=seed2
python benchmarks/seeds.py runs/quickstart runs/seed1 runs/seed2
"""

import argparse
import json
from pathlib import Path


def spread(values: list[float]) -> str:
    return f"{sum(values) / len(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def main(runs: list[Path]) -> None:
    metrics = [json.loads((run / "metrics.json").read_text()) for run in runs]
    print("| task | view | UPS | FNO | persistence | UPS / persistence | UPS / FNO, each seed |")
    print("|---|---|---|---|---|---|---|")
    for task, views in metrics[0]["tasks"].items():
        for view in views:
            entries = [m["tasks"][task][view]["nrmse"] for m in metrics]
            ups, fno, rest = ([entry[who] for entry in entries] for who in ("model", "fno", "persistence"))
            ratio = sum(u / r for u, r in zip(ups, rest, strict=True)) / len(ups)
            against = ", ".join(f"{u / f:.2f}" for u, f in zip(ups, fno, strict=True))
            columns = [task, view.replace("_", " "), spread(ups), spread(fno), f"{sum(rest) / len(rest):.3f}"]
            print(f"| {' | '.join(columns)} | {ratio:.3f} | {against} |")
    for run, m in zip(runs, metrics, strict=True):
        total = sum(m["seconds"].values())
        phases = ", ".join(f"{name} {value:.0f} s" for name, value in m["seconds"].items())
        steps = ", ".join(f"{name} {t['step']}" for name, t in m["training"].items())
        print(f"\n{run.name}: {total:.0f} s ({phases}); steps: {steps}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    main(parser.parse_args().runs)
