"""What a training would take: arithmetic on counted steps (`step_cost.py`) and measured rates (`rates.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ups.ops.findings import counted
from ups.ops.rates import Links, StepRates
from ups.ops.step_cost import Cost

STRATEGIES = ("ddp", "fsdp2", "hsdp")
MOST = 4096
"""Ranks of a plan, at most."""
USABLE = 0.92
"""Of a device's memory: the allocator's gaps take the rest."""


@dataclass(frozen=True)
class Phase:
    """A part of a training, in which all steps cost the same."""

    share: float
    cost: Cost


@dataclass(frozen=True)
class Largest:
    """The widest model that fits; wider ones might, where it is `at_least`."""

    width: int
    parameters: float
    at_least: bool = False


@dataclass(frozen=True)
class Estimate:
    """One training under one strategy: what a rank holds at most, what it computes in a step and sends in the longest
    one, what all ranks compute in all, and what it takes.

    `step` are the shortest and longest seconds of a step, in the mean over the training; None where rates are missing.
    `seconds` and `price` go by the longest.
    """

    stage: str
    strategy: str
    ranks: int
    parameters: float
    state: float
    peak: float
    fits: bool | None
    flop: float
    flop_in_all: float | None
    within: float
    beyond: float
    computing: float | None
    sending: float | None
    step: tuple[float, float] | None
    steps: int | None
    seconds: float | None
    price: float | None
    largest: Largest | None = None

    @property
    def days(self) -> float | None:
        return None if self.seconds is None else self.seconds / 86400


@dataclass(frozen=True)
class Room:
    """Of a device: bytes of memory (None: not known), what training needs of it beside the step, and its rates."""

    memory: float | None
    beside: float = 0.0
    rates: StepRates | None = None

    def needed(self, cost: Cost) -> float:
        return self.beside + (cost.peak if self.rates is None else self.rates.peak(cost))

    def fits(self, needed: float) -> bool | None:
        return None if self.memory is None else needed <= USABLE * self.memory


def estimate(
    stage: str,
    strategy: str,
    ranks: int,
    phases: Sequence[Phase],
    room: Room,
    links: Links,
    steps: int | None,
    seconds: float | None = None,
    price: float | None = None,
    largest: Largest | None = None,
) -> Estimate:
    """`steps` of the training, or the `seconds` that it is given; `price`: of a rank for an hour."""
    last, rates = phases[-1].cost, room.rates
    flop = sum(phase.share * phase.cost.flop for phase in phases)
    computing = None if rates is None else sum(phase.share * rates.seconds(phase.cost) for phase in phases)
    parts = [(phase.share, links.seconds(phase.cost)) for phase in phases]
    known = [share * part for share, part in parts if part is not None]
    sending = sum(known) if len(known) == len(parts) else None
    step = None
    if rates is not None and computing is not None and sending is not None:
        least, most = max(0.0, 1 - rates.error) * computing, (1 + rates.error) * computing
        # Replicated ranks send between two passes; sharded ones within them, so that at best the longer one counts.
        step = (least + sending if strategy == "ddp" else max(least, sending), most + sending)
    if step is not None and seconds is not None:
        steps = max(1, int(seconds / step[1]))
    elif step is not None and steps is not None:
        seconds = steps * step[1]
    return Estimate(
        stage,
        strategy,
        ranks,
        last.parameters,
        last.state,
        room.needed(last),
        room.fits(room.needed(last)),
        flop,
        None if steps is None else ranks * flop * steps,
        last.within,
        last.beyond,
        computing,
        sending,
        step,
        steps,
        seconds,
        None if price is None or seconds is None else price * ranks * seconds / 3600,
        largest,
    )


def recommended(estimates: Iterable[Estimate]) -> Estimate | None:
    """Of those that fit: the fastest; where times are not known, the one that sends least beyond its machine, then
    within. None if none fits.
    """
    fitting = [found for found in estimates if found.fits is not False]

    def rank(found: Estimate) -> tuple[float, ...]:
        return (float("inf") if found.step is None else found.step[1], found.beyond, found.within)

    return min(fitting, key=rank, default=None)


def table(estimates: Sequence[Estimate], best: Estimate | None) -> Table:
    found = Table(box=None, padding=(0, 2, 0, 0))
    headings = ("strategy", "memory a rank", "sent a step", "beyond", "sending", "step", "days", "cost", "widest")
    for heading in headings:
        found.add_column(heading, no_wrap=True)
    for row in estimates:
        star = " *" if row is best else ""
        fits = "" if row.fits is not False else ", too much"
        wide = "-"
        if row.largest is not None:
            more = "+" if row.largest.at_least else ""
            wide = f"{row.largest.width}{more} ({_millions(row.largest.parameters)}{more})"
        step = "-" if row.step is None else " to ".join(map(_seconds, row.step))
        sending = "-" if row.sending is None else _seconds(row.sending)
        days = "-" if row.days is None else f"{row.days:.3g}"
        cost = "-" if row.price is None else f"{row.price:,.2f}"
        sent = (in_bytes(row.within + row.beyond), in_bytes(row.beyond))
        found.add_row(row.strategy + star, in_bytes(row.peak) + fits, *sent, sending, step, days, cost, wide)
    return found


def verdict(rows: Sequence[Estimate], best: Estimate | None) -> str:
    """What is recommended, and why."""
    if best is None:
        return (
            "none fits: give runtime.micro_batch=1 or runtime.checkpoint_activations=true, more ranks, or a smaller "
            "model\n"
        )
    if len(rows) == 1:
        return ""
    why = "sends least" if best.step is None else "takes the shortest time"
    left = "" if all(row.fits is not False for row in rows) else " of those that fit"
    work = "" if best.flop_in_all is None else f"; {best.flop_in_all:.3g} FLOP in {best.steps} steps"
    return f"* recommended: {best.strategy} {why}{left}{work}\n"


def as_plain(row: Estimate) -> dict[str, Any]:
    return asdict(row) | {"days": row.days}


def draw(rows: Sequence[Estimate], best: Estimate | None, memory: float | None, path: Path) -> None:
    """Memory, step time and sent bytes of each strategy against the number of ranks."""
    from matplotlib.figure import Figure

    from ups.report.drawing import plain
    from ups.rollout.pictures import Picture

    def sent(row: Estimate) -> tuple[float, float] | None:
        whole = (row.within + row.beyond) / 1e9
        return (whole, whole) if whole else None

    def step(row: Estimate) -> tuple[float, float] | None:
        return None if row.step is None else (1e3 * row.step[0], 1e3 * row.step[1])

    shown = {"memory a rank (GB)": lambda row: (row.peak / 1e9, row.peak / 1e9)}
    shown |= {
        title: value for title, value in (("sent a step (GB)", sent), ("step (ms)", step)) if any(map(value, rows))
    }
    figure = Figure(figsize=(3.6 * len(shown), 3.0), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    counts = sorted({row.ranks for row in rows})
    for axes, (title, value) in zip(panels, shown.items(), strict=True):
        for strategy, mark in zip(STRATEGIES, "os^", strict=True):
            found = [
                (row.ranks, *ends) for row in rows if row.strategy == strategy and (ends := value(row)) is not None
            ]
            if not found:
                continue
            ranks, least, most = zip(*sorted(found), strict=True)
            down = [high - low for low, high in zip(least, most, strict=True)]
            bars = {"yerr": [down, [0.0] * len(down)], "capsize": 3} if any(down) else {}
            axes.errorbar(ranks, most, marker=mark, markerfacecolor="none", label=strategy, **bars)
        axes.set(xlabel="ranks", xscale="log", title=title)
        if value is step:  # whose range may reach down to 0
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")
        axes.set_xticks(counts, counts, minor=False)
        axes.xaxis.minorticks_off()
    if memory is not None:
        panels[0].axhline(memory / 1e9, color="grey", linestyle="--", label="the device's memory")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STRATEGIES) + 1)
    if best is not None:
        figure.suptitle(plain(f"{best.stage} on {counted(best.ranks, 'rank')}: {best.strategy} is recommended"))
    Picture(figure).save(path)


def in_bytes(count: float) -> str:
    return "0" if count == 0 else f"{count / 1e9:.3g} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"


def _seconds(count: float) -> str:
    return f"{count:.3g} s" if count >= 1 else f"{1e3 * count:.3g} ms"


def _millions(count: float) -> str:
    return f"{count / 1e9:.3g}B" if count >= 1e9 else f"{count / 1e6:.3g}M"
