"""A task as a frozen codec sees it: its training fields as latents, in a store of their own, ready to train on.

    z = E(u)      frame by frame, of normalised fields

What else a step is given (static fields, forcings) is averaged over the latent cells. The store is one of fields
(`store/fields.py`), whose channels are a latent cell's numbers; its key is made of the fields' own (data, statistics,
precision) and of the codec's weights, which come from a checkpoint: no other codec's latents can be read for them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from ups.data.generate.workers import all_cores
from ups.data.joined import end_to_end
from ups.data.prepare.cached import cached
from ups.data.prepare.statistics import Scale, Statistics, statistics
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Batch, Boundary, Channel, Dataset, Side, TaskSpec
from ups.models.codec import Codec
from ups.models.saved import TrainedTask
from ups.store.fields import FieldStore, field_arrays
from ups.store.ranks import build_on_ranks
from ups.track.progress import Progress
from ups.training.data import TaskData
from ups.training.stages.codec import CodecStage

LATENTS = 1
"""Counts the changes to how fields become stored latents."""
POINTS = 2**18
"""So many are encoded at once, at most, unless a frame has more."""
UNIT = Scale(mean=0.0, std=1.0, rms=1.0)
"""Of what is in its units already: a codec keeps latents at one size."""


class Latents(Dataset):
    """A dataset's trajectories in latents. Each is encoded alone: its numbers do not depend on its neighbours."""

    def __init__(self, dataset: Dataset, learned: TrainedTask, codec: Codec) -> None:
        self.dataset, self.learned, self.codec = dataset, learned, codec
        self.own = latent_task(learned, codec)
        spec = self.own.spec
        self.header = replace(
            dataset.header,
            channels=spec.channel_names,
            grid=self.own.grid,
            boundary=spec.boundary,
            static=spec.static,
            dtype=torch.float32,
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        return end_to_end([self._encoded(i, frames) for i in indices])

    @torch.no_grad()
    def _encoded(self, index: int, frames: slice) -> Batch:
        batch = self.learned.normaliser.batch(self.dataset.read([index], frames))
        batch = batch.to(next(self.codec.parameters()).device, next(self.codec.parameters()).dtype)
        return in_latents(batch, self.own, self.codec).to("cpu", torch.float32)


def in_latents(batch: Batch, own: TrainedTask, codec: Codec) -> Batch:
    """Normalised fields of a task as latents, its `own` being the task in these."""
    grid, fields = batch.grid, batch.values.flatten(0, 1)
    at_once = max(1, POINTS // math.prod(grid.shape))
    return replace(
        batch,
        values=torch.cat([codec.encode(batch.task, part) for part in fields.split(at_once)]).unflatten(
            0, batch.values.shape[:2]
        ),
        grid=own.grid,
        boundary=own.spec.boundary,
        static={name: own.brought_forcing(field, grid) for name, field in batch.static.items()},
        forcings={name: own.brought_forcing(field, grid) for name, field in batch.forcings.items()},
    )


def latent_task(learned: TrainedTask, codec: Codec) -> TrainedTask:
    """The task whose fields are latents, before their changes are measured: nothing is prescribed on its walls, and no
    mean is conserved.
    """
    spec, frame = learned.spec, codec.frames[learned.spec.name]
    channels = tuple(Channel(f"{spec.name}_latent_{i}") for i in range(codec.numbers[spec.name]))
    free = (Side("open"), Side("open"))
    sides = tuple(pair if pair[0].kind == "periodic" else free for pair in spec.boundary.sides)
    own: TaskSpec = replace(
        spec, channels=channels, boundary=Boundary(sides), latent_spacing=None, invariants=(), source={}, units={}
    )
    scales = replace(
        learned.statistics,
        channels={channel.name: UNIT for channel in channels},
        static={name: UNIT for name in learned.statistics.static},
    )
    return replace(learned, spec=own, grid=frame.latent, statistics=scales)


def weights_checksum(module: nn.Module) -> str:
    """Of every number that a module computes with, and its name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def latents_of(runtime: Runtime, task: TaskData, codec: CodecStage, workers: int | None = None) -> TaskData:
    """The task in a trained codec's latents, whose store all ranks build, or the worker processes of a single one; its
    validation trajectories stay fields, which is what errors are measured in.
    """
    fields, name = task.store, task.learned.spec.name
    if name not in codec.tasks:
        raise UserError(
            f"there are no latents of task {name!r}, which {codec.name!r} never saw; train a codec of this task"
        )
    known = codec.tasks[name]
    if known.statistics != task.learned.statistics or not known.grid.same_as(task.learned.grid):
        raise UserError(
            f"{codec.name!r} was trained on other data of task {name!r} than this run's; train one on these"
        )
    codec.model.to(runtime.device).eval()
    made_from = [fields.store.key, weights_checksum(codec.model), LATENTS]
    key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]
    path = fields.store.path.with_name(f"{name}@{codec.name}")
    latents = Latents(fields.dataset, task.learned, codec.model)
    dtype, own = fields.store["fields"].dtype, latents.own
    with ExitStack() as shown:
        display: list[Progress] = []

        def built(done: int, total: int) -> None:
            runtime.heartbeat.mark("data")
            if done < total and not display:
                title = f"encoding {name} by {codec.name}"
                display.append(shown.enter_context(Progress(title, total=0, unit="MB", size=10**6)))
            for each in display:
                each.tick(done, total)
            runtime.check_stop(f"{done} of {total} bytes of the latents of {name} are kept in {path}")

        processes = 1 if runtime.device.type == "cuda" else workers or all_cores()
        build_on_ranks(runtime, path, key, field_arrays(latents, own.normaliser, dtype), built, processes)
    store = FieldStore(path, latents, own.normaliser, key)
    measured = runtime.from_first(f"changes of {path.name}", lambda: _measured(store, key))
    return TaskData(replace(own, statistics=measured), store, task.validation, task.share)


def _measured(store: FieldStore, key: str) -> Statistics:
    """Ranges and changes of the stored latents, in the units they are in."""
    spec, path = store.normaliser.spec, store.store.path
    stored = _Stored(store)
    kept = path.with_name(f"{path.name}.learned.json")
    found = Statistics.from_dict(cached(kept, [stored], key, lambda: statistics(stored, spec).to_dict()))
    scales = {name: replace(UNIT, differences=s.differences, range=s.range) for name, s in found.channels.items()}
    return replace(found, channels=scales, static=store.normaliser.statistics.static)


class _Stored(Dataset):
    """What a store holds, as a dataset: whole trajectories."""

    def __init__(self, store: FieldStore) -> None:
        self.store, self.path, header = store, store.store.path, store.dataset.header
        self.header = replace(header, static=(), forcings={}, parameters={})

    def __len__(self) -> int:
        return self.store.trajectories

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        ids = torch.tensor(list(indices))
        values = self.store.rows("fields", ids)[:, frames].float()
        times = self.store.times[..., frames]
        times = times[ids] if times.dim() > 1 else times.expand(len(ids), -1)
        return Batch(self.task, values, times, self.grid, self.boundary, {}, {}, ids)
