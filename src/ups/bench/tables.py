"""The results as tables, in Markdown: for the record, and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from ups.bench.contestants import ordered

TARGETS = ("fno_usual", "fno", "neuraloperator")
"""Whose last validation error is the target of the time-to-error column: the first of them that was trained."""

SIZES = (("ours", "", ""), ("small", "small_", " at quickstart width"), ("large", "large_", " at 6M parameters"))
WAYS = (("eager", "the eager loop"), ("dataloader", "the eager loop with a DataLoader"))
OPPONENTS = (
    ("neuraloperator", "neuraloperator's FNO"),
    ("fno", "our FNO in our Trainer"),
    ("fno_usual", "our FNO trained the usual way"),
    ("unet_usual", "our U-Net trained the usual way"),
)
SPEED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "samples/s": lambda speed: f"{speed['samples_per_second']:,.0f}",
    "ms a step": lambda speed: f"{1e3 * speed['step_seconds']:.3g}",
    "GFLOP/s": lambda speed: f"{speed['flop_per_second'] / 1e9:,.3g}",
    "of matmul": lambda speed: f"{100 * speed['share_of_matmul']:.2g} %",
    "× roofline": lambda speed: f"{speed['of_roofline']['moved']:.2g}",
    "data wait": lambda speed: f"{100 * speed['data_wait_share']:.2g} %",
    "peak MB": lambda speed: "–" if (m := speed["peak_memory_bytes"]) is None else f"{m / 1e6:,.0f}",
}
TRAINED: dict[str, Callable[[list[Any], float | None], str]] = {
    "steps": lambda runs, _: f"{mean(r['steps'] for r in runs):,.0f} in {mean(r['seconds'] for r in runs):.3g} s",
    "one step": lambda runs, _: _spread([run["one_step"]["nrmse"] for run in runs]),
    "rollout": lambda runs, _: _spread([run["rollout"]["nrmse"] for run in runs]),
    "pooled": lambda runs, _: _spread([run["rollout"]["pooled"] for run in runs]),
    "s to target": lambda runs, wanted: _reached([seconds_to(run["curve"], wanted) for run in runs]),
}
COLUMNS = ("contestant", "parameters", *SPEED, *TRAINED)
ROLLOUTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "rollouts/s": lambda found: f"{found['rollouts_per_second']:,.3g}",
    "reference solver's": lambda found: f"{found['solver_rollouts_per_second']:,.3g}",
    "ratio": lambda found: f"{found['against_reference']:.3g}",
    "solver of no larger error: points (nRMSE)": lambda found: (
        f"{found['equal_error_points']} ({found['equal_error_nrmse']:.2g})"
    ),
    "ratio to it": lambda found: f"{found['against_equal_error']:.3g}",
    "breakeven (rollouts)": lambda found: _breakeven(found["breakeven"]),
    "with the data's making": lambda found: _breakeven(found["breakeven_with_data"]),
}


def target(content: Mapping[str, Any]) -> float | None:
    """The rollout error to be reached: that of an FNO at its end, mean over seeds."""
    for key in TARGETS:
        if runs := content["contestants"].get(key, {}).get("runs"):
            return mean(run["curve"][-1]["rollout_nrmse"] for run in runs.values())
    return None


def seconds_to(curve: list[dict[str, float]], target: float | None) -> float | None:
    """When validation first saw a rollout error of at most `target`; None if never."""
    return next((p["seconds"] for p in curve if target is not None and p["rollout_nrmse"] <= target), None)


def rows(content: Mapping[str, Any]) -> list[list[str]]:
    """One row a contestant; one that is not there says why."""
    wanted, lines = target(content), []
    for row in ordered(content):
        speed, runs, number = row.get("throughput"), list(row.get("runs", {}).values()), row.get("parameters")
        why = "" if row.get("state") == "done" else f" ({row.get('state', 'not run')}: {row.get('why', '')})"
        lines.append([row.get("title", "?") + why, "–" if number is None else f"{number / 1e6:.2f}M"])
        lines[-1] += [show(speed) if speed else "–" for show in SPEED.values()]
        lines[-1] += [show(runs, wanted) if runs else "–" for show in TRAINED.values()]
    return lines


def _spread(errors: list[float | None]) -> str:
    """The mean over seeds, and how far they lie apart where there are several."""
    if None in errors:
        return "not finite"
    known = [error for error in errors if error is not None]
    middle = f"{mean(known):.3g}"
    return middle if len(known) == 1 else f"{middle} ({min(known):.3g} to {max(known):.3g})"


def _reached(seconds: list[float | None]) -> str:
    known = [value for value in seconds if value is not None]
    return f"{mean(known):.3g}" if len(known) == len(seconds) else "–"


def _breakeven(rollouts: float | None) -> str:
    return "never" if rollouts is None else f"{rollouts:,.0f}"


def speedups(content: Mapping[str, Any]) -> list[str]:
    """Sentences: our throughput over that of the same model run otherwise, where blocks of both were timed in turn, and
    error at equal time over theirs.
    """
    rows = content["contestants"]

    def timed(key: str) -> Mapping[str, Any]:
        return rows.get(key, {}).get("throughput", {})

    def trained(key: str) -> tuple[float, float] | None:
        runs = rows.get(key, {}).get("runs", {}).values()
        errors = [run["rollout"]["nrmse"] for run in runs]
        return (mean(errors), mean(run["seconds"] for run in runs)) if errors and None not in errors else None

    lines = []
    for own, prefix, label in SIZES:
        for other, name in WAYS:
            fast, slow = timed(own), timed(prefix + other)
            if fast and slow and fast.get("session") == slow.get("session") is not None:
                ratios = sorted(b / a for a, b in zip(fast["blocks"], slow["blocks"], strict=True))
                lines.append(
                    f"Our step{label} trains on {median(ratios):.2f} times the samples a second of {name} "
                    f"({ratios[0]:.2f} to {ratios[-1]:.2f} over blocks timed in turn)."
                )
    for other, name in OPPONENTS:
        ours, theirs = trained("ours"), trained(other)
        if ours and theirs and theirs[0]:
            lines.append(
                f"At equal time ({ours[1]:.3g} s and {theirs[1]:.3g} s) our rollout nRMSE is {ours[0] / theirs[0]:.3f} "
                f"of that of {name}."
            )
    return lines


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """`bench.md`: every task's tables, with where and how they were measured."""
    parts = ["# ups bench", ""]
    for task, content in found.items():
        where = content.get("machine", {})
        parts += [f"## {task}", ""]
        if where:
            machine = f"{where['device']}, torch {where['torch']}, CPU threads: {where['threads']}"
            commands = ", ".join(f"`{command}`" for command in content["commands"])
            parts += [f"{machine}, {where['date']}, {commands}.", ""]
        if "ceilings" in content:
            limits = content["ceilings"]
            rates = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in limits["matmul"].items())
            parts += [f"Measured ceilings: matrix product {rates}; copy {limits['bandwidth'] / 1e9:.4g} GB/s.", ""]
        if "persistence" in content:
            still, wanted = content["persistence"], target(content)
            line = f"Persistence: one step {still['one_step']['nrmse']:.3g}, rollout {still['rollout']['nrmse']:.3g}."
            parts += [line + (f" Target: a validation rollout nRMSE of {wanted:.3g}." if wanted else ""), ""]
        parts += [*table(COLUMNS, rows(content)), ""]
        parts += [f"- {line}" for line in speedups(content)] + [""]
        counted: dict[str, Mapping[str, Any]] = {}  # ways to run one model count the same
        for row in ordered(content):
            if "throughput" in row:
                counted.setdefault(_arithmetic(row["throughput"]["counts"]), row)
        for arithmetic, row in counted.items():
            least, moved = (1e3 * row["throughput"]["roofline_seconds"][k] for k in ("least", "moved"))
            bounds = f"{moved:.3g} ms by what is moved, {least:.3g} ms by what must be"
            parts += [f"- Roofline of {row['title']}: {arithmetic}; {bounds}."]
        if lines := [
            [row["title"], *(show(row["rollouts"]) for show in ROLLOUTS.values())]
            for row in ordered(content)
            if "rollouts" in row
        ]:
            parts += ["", *table(("model", *ROLLOUTS), lines)]
        if solver := content.get("solver"):
            ladder = [[str(r["points"]), f"{r['nrmse']:.3g}", f"{1 / r['seconds']:,.3g}"] for r in solver]
            parts += ["", *table(("solver's points", "nRMSE", "rollouts/s"), ladder)]
        parts += [""]
    return "\n".join(parts)


def _arithmetic(counts: Mapping[str, float]) -> str:
    """How a step's FLOP and bytes came about."""
    megabytes = {name: f"{count / 1e6:.4g} MB" for name, count in counts.items()}
    return (
        f"{counts['flop'] / 1e9:.4g} GFLOP; bytes moved operation by operation {megabytes['moved']}; at least "
        f"7 × {megabytes['parameters']} of weights (2 read, 3 gradients, 2 updated) + 2 × {megabytes['moments']} of "
        f"the optimiser's moments + 2 × {megabytes['kept']} kept for the backward pass = {megabytes['least']}"
    )


def table(header: Sequence[str], lines: list[list[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *cells)]
