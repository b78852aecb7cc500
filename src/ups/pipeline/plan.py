"""`ups plan`: what a run will need and take, before it is paid for; `--measure`: how fast steps are on this device."""

from __future__ import annotations

import gc
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from ups.data.inputs import Outline
from ups.distributed.runtime.host import memory_of
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime, wants_cuda
from ups.errors import UserError
from ups.ops.plan import MOST, STRATEGIES, USABLE, Estimate, Largest, Phase, Room, estimate, recommended
from ups.ops.rates import DeviceRates, Links, StepRates, fitted, keep, kept, known_devices, workspaces
from ups.ops.rehearsal import links_between
from ups.ops.stand_in import stand_in_data
from ups.ops.step_cost import Cost, recorded, step_cost
from ups.pipeline.check import said_by_ranks, stand_ins, store_bytes
from ups.pipeline.config import RunConfig, load_run
from ups.pipeline.data import look_at_inputs
from ups.pipeline.trainings import stage_plans
from ups.store.place import ROOM
from ups.track.environment import cpu_model, software
from ups.track.progress import Progress
from ups.training.fit import Plan, seconds_of_a_step
from ups.training.trainer import sampler_of

SIZES = ((1.0, 1.0), (1.0, 0.25), (1.0, 0.0625), (0.5, 1.0), (2.0, 1.0), (2.0, 0.25))
"""(width, batch) of the steps that rates are fitted to, in those of the configuration."""
WIDEST = 64
"""Times the configured width, at most, is looked for when asked what fits."""


@dataclass(frozen=True)
class Planned:
    """`rows`: of every stage, each strategy on the ranks asked for, and on fewer of them where that was asked too."""

    ranks: int
    rows: list[Estimate]
    best: dict[str, Estimate | None]
    store: float
    memory: float | None
    assumptions: list[str]

    def on_all(self, stage: str) -> list[Estimate]:
        return [row for row in self.rows if row.stage == stage and row.ranks == self.ranks]


def plan(
    name: str,
    overrides: Sequence[str],
    runs: Path,
    gpus: int,
    nodes: int,
    price: float | None = None,
    device: str | None = None,
    links: Links | None = None,
    curve: bool = False,
) -> Planned:
    """Of a run on `nodes` machines of `gpus` ranks. `device`: another than the one here, of which rates are kept;
    `links`: in place of those measured; `curve`: also on fewer machines.
    """
    ranks = gpus * nodes
    if ranks > MOST:
        raise UserError(
            f"{gpus} x {nodes} are {ranks} ranks and a plan has {MOST} at most; use fewer --gpus or --nodes"
        )
    if price is not None and not 0 < price < math.inf:
        raise UserError(f"--price is {price:g}; give what one GPU costs for an hour, above 0, or leave it out")
    config = load_run(name, overrides, runs)
    directory = runs / config.name
    outlines = look_at_inputs(config, directory)
    known = kept(device or device_name(config.runtime))
    if device is not None and known is None:
        there = ", ".join(known_devices()) or "none"
        raise UserError(f"nothing is known of the device {device!r}; measured ones: {there} (ups plan --measure)")
    ways = _links(known, links)
    store = sum(store_bytes(config, outline) for outline in outlines.values())
    counts = [gpus * n for n in _doublings(nodes)] if curve else [ranks]
    plans = {stage: plan for stage, plan in stage_plans(config, {}, directory).items() if not plan.on}
    rows: list[Estimate] = []
    total = len(plans) * len(counts) * len(STRATEGIES)
    with Progress("counting steps", total=total, unit="steps") as progress:
        for stage, training in plans.items():
            rates = None if known is None else known.steps.get(kind_of(training, config.runtime))
            room = _room(config, known, rates, store)
            for count in counts:
                for strategy in STRATEGIES if count > 1 else STRATEGIES[:1]:
                    layout = _Layout(config, outlines, strategy, count, gpus, known is not None and known.gpu)
                    phases = list(_phases(layout, training))
                    largest = _largest(layout, training, room, phases[-1].cost) if count == ranks else None
                    asked = training.asked or training.training
                    rows.append(
                        estimate(
                            *(stage, strategy, count, phases, room, ways),
                            steps=asked.steps if asked.seconds is None else None,
                            seconds=asked.seconds,
                            price=price,
                            largest=largest,
                        )
                    )
                    progress.update(len(rows))
    best = {stage: recommended(r for r in rows if r.stage == stage and r.ranks == ranks) for stage in plans}
    said = list(_assumptions(config, plans, rows, known, ways, ranks, outlines, gpus))
    return Planned(ranks, rows, best, store, None if known is None else known.memory, said)


def measure(name: str, overrides: Sequence[str], runs: Path, gpus: int) -> tuple[DeviceRates, Path]:
    """Rates of this device for the kinds of steps that a run has, and of the links between `gpus` ranks here; and the
    file that keeps them.
    """
    config = load_run(name, overrides, runs)
    directory = runs / config.name
    outlines = look_at_inputs(config, directory)
    here = device_name(config.runtime)
    before, links = kept(here), Links()
    if gpus > 1:
        said, failure = said_by_ranks(
            ["plan", name, *overrides, "--runs", str(runs), "--gpus", str(gpus), "--measure", "--json"], gpus
        )
        if failure is not None:
            raise UserError(f"the links between {gpus} ranks could not be measured: {failure}")
        links = Links(**said)
    elif before is not None:
        links = before.links
    steps = {} if before is None else dict(before.steps)
    single = config.runtime.model_copy(update={"strategy": "ddp"})
    with tempfile.TemporaryDirectory() as scratch, Runtime.start(single, config.seed) as runtime:
        plans = {kind_of(p, single): p for p in stage_plans(config, {}, directory).values() if not p.on}
        with Progress("measuring steps", total=len(plans) * len(SIZES), unit="sizes") as progress:
            for kind, training in plans.items():
                found: list[tuple[Cost, float, float]] = []
                for size in SIZES:
                    one = sized(config, training, outlines, *size)
                    if one is not None:
                        where = Path(scratch) / f"{len(steps)}-{len(found)}"
                        found.append(measured_step(config, one, outlines, runtime, where))
                    progress.update(progress.done + 1)
                steps[kind] = _rates(found, tuple(outlines))
        memory, gpu = float(memory_of(runtime.device)), runtime.device.type == "cuda"
    rates = DeviceRates(here, memory, gpu, software(), steps, links)
    return rates, keep(rates)


def measure_links(name: str, overrides: Sequence[str], runs: Path) -> Links:
    """What one of several ranks does, which torchrun started."""
    config = load_run(name, overrides, runs)
    with Runtime.start(config.runtime, config.seed) as runtime:
        return links_between(runtime)


def kind_of(plan: Plan, runtime: RuntimeConfig) -> str:
    """Trainings of one kind have the same rates."""
    words = [getattr(plan.settings, "architecture", plan.kind), plan.training.precision, plan.training.optimiser]
    return " ".join([*words, *(["compiled"] if runtime.compile else [])])


def device_name(runtime: RuntimeConfig) -> str:
    if wants_cuda(runtime):
        return torch.cuda.get_device_name()
    threads = runtime.threads or torch.get_num_threads()
    return f"{cpu_model() or 'CPU'}, {threads} thread{'s' * (threads > 1)}"


@dataclass(frozen=True, eq=False)
class _Layout:
    """Ranks that do not exist, on which steps are counted."""

    config: RunConfig
    outlines: Mapping[str, Outline]
    strategy: str
    ranks: int
    node: int
    gpu: bool

    def cost(self, plan: Plan, step: int | None = None) -> Cost:
        runtime = self.config.runtime.model_copy(update={"strategy": self.strategy})
        tasks, lengths = stand_ins(self.config, plan, self.outlines)
        cost = step_cost(plan, tasks, lengths, runtime, self.ranks, self.node, step)
        return recorded(cost, runtime, len(plan.training.rollout)) if self.gpu else cost


def _phases(layout: _Layout, plan: Plan) -> Iterator[Phase]:
    """Of each length of rollout."""
    training = plan.training
    ends = [start for start, _ in training.rollout[1:]] + [1.0]
    for (start, _), end in zip(training.rollout, ends, strict=True):
        if end > start:
            yield Phase(end - start, layout.cost(plan, min(training.steps, int(start * training.steps) + 1)))


def _largest(layout: _Layout, plan: Plan, room: Room, one: Cost) -> Largest | None:
    """The widest model, in whole multiples of the configured width, whose step fits: memory and parameters are
    parabolas of the width, through three that are counted.
    """
    width = getattr(plan.settings, "width", None)
    if room.memory is None or width is None or not room.fits(room.needed(one)):
        return None
    two, three = (
        layout.cost(replace(plan, settings=plan.settings.model_copy(update={"width": times * width})))
        for times in (2, 3)
    )

    def through(values: tuple[float, float, float], at: int) -> float:
        first, second, third = values
        bend = (third - 2 * second + first) / 2
        return first + (second - first - bend) * (at - 1) + bend * (at - 1) ** 2

    peaks = room.needed(one), room.needed(two), room.needed(three)
    counts = one.parameters, two.parameters, three.parameters
    times = max(n for n in range(1, WIDEST + 1) if n == 1 or room.fits(through(peaks, n)))
    return Largest(times * width, through(counts, times), times == WIDEST)


def _room(config: RunConfig, known: DeviceRates | None, rates: StepRates | None, store: float) -> Room:
    """Beside a step a device holds what its libraries need, and training fields where they are placed there."""
    if known is None:
        return Room(None)
    choice = config.runtime.placement
    placed = known.gpu and (choice == "device" or (choice == "auto" and store <= ROOM * known.memory))
    return Room(known.memory, store if placed else 0.0, rates)


def _links(known: DeviceRates | None, told: Links | None) -> Links:
    measured = Links() if known is None else known.links
    if told is None:
        return measured
    return Links(told.within or measured.within, told.beyond or measured.beyond, measured.latency)


def _doublings(nodes: int) -> list[int]:
    powers = [2**n for n in range(nodes.bit_length())]
    return powers if powers[-1] == nodes else [*powers, nodes]


def _assumptions(
    config: RunConfig,
    plans: Mapping[str, Plan],
    rows: Sequence[Estimate],
    known: DeviceRates | None,
    links: Links,
    ranks: int,
    outlines: Mapping[str, Outline],
    gpus: int,
) -> Iterator[str]:
    """What the numbers rest on, and how far they can be trusted."""
    yield (
        "memory: tensors of a whole step, counted; a device keeps "
        f"{100 - 100 * USABLE:.0f} % for what its allocator cannot use"
    )
    for stage, plan in plans.items():
        kind = kind_of(plan, config.runtime)
        rates = None if known is None else known.steps.get(kind)
        if known is None or rates is None:
            here = device_name(config.runtime) if known is None else known.device
            yield f"{stage}: no rates of {kind} on {here}, so no times; measure them there with --measure"
            continue
        low, high = rates.smallest / 1e9, rates.largest / 1e9
        yield (
            f"{stage}: rates of {kind} measured on {known.device} ({known.software}, {rates.measured}) on "
            f"{', '.join(rates.tasks)}, {low:.3g} to {high:.3g} GFLOP a step, off by {rates.error:.0%} at most"
        )
        each = [row.flop for row in rows if row.stage == stage and row.ranks == ranks]
        if any(not rates.smallest <= flop <= rates.largest for flop in each):
            outside = ", ".join(f"{flop / 1e9:.3g}" for flop in dict.fromkeys(each))
            yield f"{stage}: a rank's step has {outside} GFLOP, beyond what was measured: its time is extrapolated"
        if set(rates.tasks) != set(outlines):
            yield f"{stage}: the rates are of other tasks; measure with this configuration to be surer"
    if ranks > 1:
        for way, rate, needed in (("within", links.within, gpus > 1), ("beyond", links.beyond, ranks > gpus)):
            where = "of one machine" if way == "within" else "of different machines"
            if needed and rate is None:
                yield f"links between ranks {where}: not known, so no times; give --{way} in GB/s a rank"
            elif needed and rate is not None:
                yield f"links between ranks {where}: {rate / 1e9:.3g} GB/s a rank"
        yield "a step's range: sending hidden behind computing (fsdp2, hsdp) or not; the longest counts for days"
    yield "data are there when a step needs them; validation, checkpoints and restarts are not counted"
    for stage, settings in config.each_stage().items():
        if settings.on:
            yield f"{stage}: stands on {', '.join(settings.on)}, so what it needs is known once that is trained"
    if config.each_compared() and ranks > 1:
        names = ", ".join(config.each_compared())
        yield (
            f"compared ({names}): each trains for the device-seconds of the model on one device of {ranks}, {ranks} "
            "times as long, while the others idle; leave compare out, or use `ups train`, on many ranks"
        )


def sized(config: RunConfig, plan: Plan, outlines: Mapping[str, Outline], wide: float, many: float) -> Plan | None:
    """The plan with so many times its width and its batch; None where there is no such width."""
    settings, width = plan.settings, getattr(plan.settings, "width", None)
    if wide != 1:
        if width is None or wide * width % 8:
            return None
        settings = settings.model_copy(update={"width": int(wide * width)})
    tasks, lengths = stand_ins(config, plan, outlines)
    batch = sampler_of(tasks, lengths, plan.shares, plan.training, plan.seed).batch_size
    training = plan.training.model_copy(update={"batch_size": max(len(tasks), int(many * batch))})
    return replace(plan, settings=settings, training=training)


def measured_step(
    config: RunConfig, plan: Plan, outlines: Mapping[str, Outline], runtime: Runtime, folder: Path
) -> tuple[Cost, float, float]:
    """A step counted, its seconds, and the most memory that it took on a GPU (elsewhere nothing is known of it)."""
    training = plan.training
    step = int(training.rollout[-1][0] * training.steps) + 1
    tasks, lengths = stand_ins(config, plan, outlines)
    cost = step_cost(plan, tasks, lengths, runtime.config, step=step)
    frames = max(unroll for _, unroll in training.rollout) * max(stride for stride, _ in training.stride_table()) + 1
    data = {
        name: stand_in_data(
            outlines[name], task, plan.shares[name], folder / "store", frames + outlines[name].spec.history
        )
        for name, task in tasks.items()
    }
    gpu = runtime.device.type == "cuda"
    if gpu:
        cost = recorded(cost, runtime.config, 1)
        gc.collect()  # what an earlier one left would be taken for this one's, or go while it is measured
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if gpu else 0
    folder.mkdir(parents=True, exist_ok=True)
    trainer = replace(plan, tasks=data, directory=folder).trainer(runtime)
    seconds = seconds_of_a_step(trainer, step)
    trainer.events.close()
    peak = torch.cuda.max_memory_allocated() - held if gpu else cost.peak
    trainer.stepper.forget()
    return cost, seconds, float(peak)


def _rates(found: Sequence[tuple[Cost, float, float]], tasks: tuple[str, ...]) -> StepRates:
    costs, seconds, peaks = zip(*found, strict=True)
    operation, flop, byte, error = fitted(costs, seconds)
    done = [cost.flop for cost in costs]
    today = f"{datetime.now(UTC):%-d %B %Y}"
    return StepRates(operation, flop, byte, min(done), max(done), error, *workspaces(costs, peaks), tasks, today)


def as_json(planned: Planned) -> str:
    from ups.ops.plan import as_plain

    plain = {
        "ranks": planned.ranks,
        "store_bytes": planned.store,
        "device_memory": planned.memory,
        "plans": [as_plain(row) for row in planned.rows],
        "recommended": {stage: None if best is None else best.strategy for stage, best in planned.best.items()},
        "assumptions": planned.assumptions,
    }
    return json.dumps(plain, indent=1)
