"""The results as tables: Markdown for the record, the same rows for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, median
from typing import Any

from ups.bench.accuracy import seconds_to
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
COLUMNS = (
    "contestant",
    "parameters",
    "samples/s",
    "ms a step",
    "GFLOP/s",
    "of matmul",
    "× roofline",
    "data wait",
    "peak MB",
    "steps",
    "one step",
    "rollout",
    "pooled",
    "s to target",
)


def target(content: Mapping[str, Any]) -> float | None:
    """The rollout error to be reached: that of an FNO at its end, mean over seeds."""
    for key in TARGETS:
        if runs := content["contestants"].get(key, {}).get("runs"):
            return mean(run["curve"][-1]["rollout_nrmse"] for run in runs.values())
    return None


def rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row a contestant; one that is not there says why."""
    wanted = target(content)
    return [_row(row, wanted) for row in ordered(content)]


def _row(row: Mapping[str, Any], wanted: float | None) -> tuple[str, ...]:
    speed, runs = row.get("throughput"), list(row.get("runs", {}).values())
    cells = [row.get("title", "?"), _count(row.get("parameters"))]
    if speed:
        memory = speed["peak_memory_bytes"]
        cells += [
            f"{speed['samples_per_second']:,.0f}",
            f"{1e3 * speed['step_seconds']:.3g}",
            f"{speed['flop_per_second'] / 1e9:,.3g}",
            f"{100 * speed['share_of_matmul']:.2g} %",
            f"{speed['of_roofline']['moved']:.2g}",
            f"{100 * speed['data_wait_share']:.2g} %",
            "–" if memory is None else f"{memory / 1e6:,.0f}",
        ]
    else:
        cells += ["–"] * 7
    if runs:
        reached = [seconds_to(run["curve"], wanted) for run in runs] if wanted is not None else [None]
        known = [seconds for seconds in reached if seconds is not None]
        cells += [
            f"{mean(run['steps'] for run in runs):,.0f} in {mean(run['seconds'] for run in runs):.3g} s",
            _spread([run["one_step"]["nrmse"] for run in runs]),
            _spread([run["rollout"]["nrmse"] for run in runs]),
            _spread([run["rollout"]["pooled"] for run in runs]),
            f"{mean(known):.3g}" if known and len(known) == len(reached) else "–",
        ]
    else:
        cells += ["–"] * 5
    if row.get("state") != "done":
        cells[0] += f" ({row.get('state', 'not run')}: {row.get('why', '')})"
    return tuple(cells)


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number / 1e6:.2f}M"


def _spread(errors: list[float | None]) -> str:
    """The mean over seeds, and how far they lie apart where there are several."""
    if None in errors:
        return "not finite"
    known = [error for error in errors if error is not None]
    middle = f"{mean(known):.3g}"
    return middle if len(known) == 1 else f"{middle} ({min(known):.3g} to {max(known):.3g})"


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


def rollout_rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rollouts a second against the solver, for each contestant that has them."""
    lines = []
    for row in ordered(content):
        found = row.get("rollouts")
        if found:
            breakeven = [found["breakeven"], found["breakeven_with_data"]]
            lines.append(
                (
                    row["title"],
                    f"{found['rollouts_per_second']:,.3g}",
                    f"{found['solver_rollouts_per_second']:,.3g}",
                    f"{found['against_reference']:.3g}",
                    f"{found['equal_error_points']} ({found['equal_error_nrmse']:.2g})",
                    f"{found['against_equal_error']:.3g}",
                    *("never" if b is None else f"{b:,.0f}" for b in breakeven),
                )
            )
    return lines


ROLLOUT_COLUMNS = (
    "model",
    "rollouts/s",
    "reference solver's",
    "ratio",
    "solver of no larger error: points (nRMSE)",
    "ratio to it",
    "breakeven (rollouts)",
    "with the data's making",
)


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
        parts += [*_markdown_table(COLUMNS, rows(content)), ""]
        parts += [f"- {line}" for line in speedups(content)] + [""]
        seen = set()
        for row in ordered(content):
            if speed := row.get("throughput"):
                counts = speed["counts"]
                if counts["arithmetic"] not in seen:
                    seen.add(counts["arithmetic"])
                    least, moved = (1e3 * speed["roofline_seconds"][k] for k in ("least", "moved"))
                    parts += [
                        f"- Roofline of {row['title']}: {counts['arithmetic']}; "
                        f"{moved:.3g} ms by what is moved, {least:.3g} ms by what must be."
                    ]
        if lines := rollout_rows(content):
            parts += ["", *_markdown_table(ROLLOUT_COLUMNS, lines)]
        if solver := content.get("solver"):
            ladder = [(str(r["points"]), f"{r['nrmse']:.3g}", f"{1 / r['seconds']:,.3g}") for r in solver]
            parts += ["", *_markdown_table(("solver's points", "nRMSE", "rollouts/s"), ladder)]
        parts += [""]
    return "\n".join(parts)


def _markdown_table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *cells)]
