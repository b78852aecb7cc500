"""Conditions travel whole: a forced task, a masked one and one with times of each trajectory go from file to score, and
each differs from the same task without its condition.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

import ups
from ups import pipeline
from ups.data.formats.well.writer import WellWriter
from ups.errors import UserError
from ups.fields import Batch, Boundary, Conditions, Grid, Header
from ups.models.programs import write_torch
from ups.rollout.operator import OperatorPredictor

POINTS, FRAMES, COUNT = 16, 7, 20
GRID = Grid.cell_centred((POINTS,))
X = GRID.positions[0]
SMALL = [
    "stages.operator.width=8", "stages.operator.depth=1", "stages.operator.modes=4", "stages.operator.head=8",
    "training.batch_size=8", "training.validate_every=200", "training.checkpoint_every=200", "training.warmup=5",
    "evaluation.resamples=100", "evaluation.pictures=1", "runtime.threads=1", "runtime.device=cpu",
]  # fmt: skip


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def waves(seed: int, count: int = COUNT) -> Tensor:
    """One wave of random height and place a trajectory, (B, X)."""
    height, place = uniform(2, count, 1, seed=seed)
    return (0.5 + height) * torch.sin(2 * math.pi * (X - place))


def write(path: Path, values: Tensor, times: Tensor, **more: Any) -> Path:
    """A file of The Well with fields (B, T, X) of the channel u; `times` (T) or (B, T)."""
    fields = {name: more.pop(name, {}) for name in ("forcings",)}
    mask = more.pop("mask", None)
    own = times if times.dim() == 2 else None
    header = Header(
        "made", ("u",), GRID, times if own is None else times[0], Boundary.all("periodic", 1), own_times=own,
        forcings={name: field.dim() == 3 for name, field in fields["forcings"].items()}, masked=mask is not None,
    )  # fmt: skip
    batch = Batch(
        "made", values[..., None].float(), times.expand(len(values), -1), GRID, header.boundary, {}, {},
        torch.arange(len(values)), {name: field.float() for name, field in fields["forcings"].items()}, mask,
    )  # fmt: skip
    with WellWriter(path, header, len(values)) as writer:
        writer.write(batch)
    return path


def trained(
    file: Path, name: str, *overrides: str, told: str = "", steps: int = 60, page: bool = False
) -> dict[str, Any]:
    """What the run `name` of a task of this file finds; with a `page`, its report is there in the end."""
    define = f"{{dimension: 1, channels: [u], boundary: periodic{told}}}"
    config = file.parent / f"{name}.yaml"
    config.write_text(
        f"name: {name}\ntasks: {{made: {{define: {define}, files: {{train: [{file}]}}}}}}\n"
        f"training: {{steps: {steps}}}\n"
    )
    pipeline.run(str(config), [*SMALL, *overrides], file.parent / "runs", page=page)
    assert (file.parent / "runs" / name / "report.html").exists() == page
    return json.loads((file.parent / "runs" / name / "metrics.json").read_text())["tasks"]["made"]


# Forcings -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor, Tensor]:
    """∂u/∂t = f(t, x), so that u is the integral of f: waves that come and go at random."""
    times = torch.arange(FRAMES, dtype=torch.float64)
    pace = 0.5 + uniform(COUNT, 1, 1, seed=3)
    force = waves(1)[:, None] * torch.cos(pace * times[:, None]) + waves(2)[:, None] * torch.sin(pace * times[:, None])
    grown = waves(1)[:, None] * torch.sin(pace * times[:, None]) - waves(2)[:, None] * torch.cos(pace * times[:, None])
    values = grown / pace
    path = tmp_path_factory.mktemp("forced") / "forced.hdf5"
    return write(path, values, times, forcings={"f": force}), values, force


def test_a_forcing_that_is_known_is_used(forced: tuple[Path, Tensor, Tensor], tmp_path: Path) -> None:
    file, values, force = forced
    known = trained(file, "known", told=", forcings: [f]", steps=120, page=True)
    without = trained(file, "without", "tasks.made.drop=[f]", told=", forcings: [f]", steps=120)
    errors = [found["rollout"]["nrmse"]["model"] for found in (known, without)]
    assert errors[0] < 0.6 * errors[1], errors

    sim = ups.load(file.parent / "runs" / "known")
    start, drive = values[0, 0].float(), force[0].float()
    rolled = sim.rollout(start, steps=3, forcings={"f": drive[:4]}).values
    assert torch.equal(rolled, sim.rollout(start, steps=3, forcings={"f": drive}).values)  # later frames play no part
    assert not torch.equal(rolled, sim.rollout(start, steps=3, forcings={"f": -drive}).values)
    of_time = sim.rollout(start, times=[1.0, 2.0, 3.0], forcings={"f": lambda time: drive[round(time)]}).values
    assert torch.equal(rolled, of_time)
    batch = sim.rollout(values[:2, 0].float()[..., None], steps=3, forcings={"f": force[:2].float()}).values
    torch.testing.assert_close(batch[0], rolled)
    still = sim.rollout(start, steps=3, forcings={"f": drive[0]}).values
    assert torch.equal(still, sim.rollout(start, steps=3, forcings={"f": drive[:1].expand(4, -1)}).values)
    for given, said in (
        ({"f": drive[:3]}, "'f' has 3 frames, too few for 3 steps"),
        ({}, "needs the forcing 'f'"),
        ({"f": drive, "g": drive}, "no forcing 'g'"),
    ):
        with pytest.raises(UserError, match=said):
            sim.rollout(start, steps=3, forcings=given)

    predictor = sim.predictor
    assert isinstance(predictor, OperatorPredictor)
    write_torch(predictor.model, sim.tasks["made"], tmp_path / "made.pt2")
    step = torch.export.load(tmp_path / "made.pt2").module()
    forcings, lead = {"f": drive[None, :2]}, torch.tensor([1.0])
    torch.testing.assert_close(step(start[None, None, :, None], forcings, {}, lead), rolled[None, 0])


def test_a_forcing_that_is_not_spoken_of_is_not_dropped_in_silence(forced: tuple[Path, Tensor, Tensor]) -> None:
    with pytest.raises(UserError, match=r"have the forcing 'f'.*tasks.made.drop=\[f\]"):
        trained(forced[0], "silent")
    with pytest.raises(UserError, match=r"'g' is to be dropped, but the data have f"):
        trained(forced[0], "unknown", "tasks.made.drop=[g]", told=", forcings: [f]")


def test_a_forcing_shorter_than_its_trajectory_is_refused(forced: tuple[Path, Tensor, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "short.hdf5"
    file.write_bytes(forced[0].read_bytes())
    with h5py.File(file, "r+") as stored:
        fields: Any = stored["t0_fields"]
        short, attributes = fields["f"][:, :-1], dict(fields["f"].attrs)
        del fields["f"]
        fields["f"] = short
        fields["f"].attrs.update(attributes)
    with pytest.raises(UserError, match=r"short.hdf5: t0_fields/f has shape .* say"):
        trained(file, "short", told=", forcings: [f]")


# Masks ----------------------------------------------------------------------------------------------------------------


def masked_file(path: Path, garbage: float) -> Path:
    """Heat in a rod with a gap of a random place: nothing flows through it, and the file has garbage there."""
    first = (uniform(COUNT, seed=5) * POINTS).long()
    gap = (torch.arange(POINTS) - first[:, None]) % POINTS < 4
    u, frames = waves(4), []
    through = (~gap & ~gap.roll(-1, 1)).double()
    for _ in range(FRAMES):
        frames.append(u)
        for _ in range(8):
            flux = through * (u.roll(-1, 1) - u)
            u = u + 0.2 * (flux - flux.roll(1, 1))
    write(path, torch.stack(frames, 1), torch.arange(FRAMES, dtype=torch.float64), mask=~gap)
    with h5py.File(path, "r+") as file:
        stored: Any = file["t0_fields/u"]
        stored[()] = np.where(gap[:, None].numpy(), garbage, stored[()])
    return path


def test_what_is_outside_the_domain_changes_no_digit(tmp_path: Path) -> None:
    found = []
    for number, garbage in enumerate((math.nan, 1e6)):
        (tmp_path / str(number)).mkdir()
        file = masked_file(tmp_path / str(number) / "rod.hdf5", garbage)
        found.append(trained(file, "rod", told=", masked: true", page=number == 0))
    assert found[0] == found[1]
    assert found[0]["rollout"]["nrmse"]["model"] < found[0]["rollout"]["nrmse"]["persistence"]
    file = tmp_path / "0" / "rod.hdf5"
    whole = trained(file, "whole", "tasks.made.drop=[mask]", told=", masked: true")
    assert found[0]["rollout"]["nrmse"]["model"] < whole["rollout"]["nrmse"]["model"]  # which does not know the gap
    assert found[0]["rollout"]["vrmse"]["persistence"] != whole["rollout"]["vrmse"]["persistence"]

    sim, batch = ups.load(file.parent / "runs" / "rod"), ups.open_dataset(file).read([0], slice(None))
    mask, u0 = batch.mask, batch.values[:, 0]
    assert mask is not None and float(batch.values[:, :, ~mask[0]].abs().max()) == 0
    rolled = sim.rollout(u0, steps=2, mask=mask).values
    assert float(rolled[:, :, ~mask[0]].abs().max()) == 0 < float(rolled.abs().min(1).values.max())
    broken = u0.masked_fill(~mask[..., None], math.nan)
    assert torch.equal(rolled, sim.rollout(broken, steps=2, conditions=Conditions(mask=mask)).values)
    with pytest.raises(UserError, match="needs a mask"):
        sim.rollout(u0, steps=2)
    with pytest.raises(UserError, match="mask covers everything"):
        sim.rollout(u0, steps=2, mask=torch.zeros_like(mask))
    with pytest.raises(UserError, match="has a mask, beyond which there is nothing"):
        sim.rollout(u0, steps=2, mask=mask, at=torch.tensor([[0.3]]))


def test_a_mask_that_covers_everything_and_nan_inside_are_refused(tmp_path: Path) -> None:
    file = masked_file(tmp_path / "rod.hdf5", 0.0)
    with h5py.File(file, "r+") as stored:
        stored["t0_fields/u"][2, 3, np.argmax(stored["t0_fields/mask"][2] > 0.5)] = math.nan  # pyright: ignore
        stored["t0_fields/mask"][4] = 0  # pyright: ignore
    with pytest.raises(UserError, match=r"rod.hdf5: sample 2 has NaN .* channel 'u', from frame 3 on"):
        ups.open_dataset(file).read([2], slice(1, None))
    with pytest.raises(UserError, match=r"rod.hdf5: the mask of sample 4 covers everything"):
        ups.open_dataset(file).read([4], slice(None))
    with pytest.raises(UserError, match=r"have the mask 'mask'.*drop=\[mask\]"):
        trained(file, "silent")


# Times ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decaying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """∂u/∂t = −u, in every second trajectory with frames six times as far apart; and without saying so."""
    pace = torch.where(torch.arange(COUNT) % 2 == 0, 0.1, 0.6)[:, None]
    times = pace.double() * torch.arange(FRAMES)
    values = waves(6)[:, None] * torch.exp(-times)[..., None]
    folder = tmp_path_factory.mktemp("decaying")
    write(folder / "unsaid.hdf5", values, torch.arange(FRAMES, dtype=torch.float64))
    return write(folder / "said.hdf5", values, times)


def test_trajectories_of_two_time_steps_are_learned_with_their_times_and_not_without(decaying: Path) -> None:
    with pytest.raises(UserError, match=r"not equally spaced.*tasks.made.times=resample.*tasks.made.times=own"):
        trained(decaying, "neither")
    said = trained(decaying, "own", "tasks.made.times=own", steps=120, page=True)
    unsaid = trained(decaying.parent / "unsaid.hdf5", "unsaid", steps=120)
    errors = [found["rollout"]["nrmse"]["model"] for found in (said, unsaid)]
    assert errors[0] < 0.6 * errors[1], errors

    sim = ups.load(decaying.parent / "runs" / "own")
    u0 = waves(6)[0].float()
    quick, slow = (sim.rollout(u0, times=[lead, 2 * lead]).values for lead in (0.1, 0.6))
    assert slow.square().sum() < 0.8 * quick.square().sum()
    with pytest.raises(UserError, match="say how long yours are"):
        sim.rollout(u0, steps=2)


def test_resampling_in_time_is_of_fourth_order(tmp_path: Path) -> None:
    from ups.data.resampled import resampled

    errors = []
    for frames in (16, 32):
        share = torch.linspace(0, 1, frames, dtype=torch.float64)
        times = torch.stack([2 * share**1.5, 0.1 + 2.2 * share])
        values = torch.sin(3 * (times - times[:, :1]))[..., None] * torch.ones(POINTS, dtype=torch.float64)
        dataset = ups.open_dataset(write(tmp_path / f"{frames}.hdf5", values, times))
        found = resampled(dataset)
        assert found.header.dt == pytest.approx(2 / (frames - 1)) and found.header.own_times is None
        read = found.read([0, 1], slice(1, None))
        true = torch.sin(3 * read.times)[..., None].expand(-1, -1, POINTS)
        errors.append(float((read.values[..., 0] - true)[1].abs().max()))  # the evenly timed one, between its frames
    assert errors[1] < errors[0] / 10, errors
    equal = resampled(ups.open_dataset(tmp_path / "32.hdf5"), 0.1)
    assert equal.times.diff().tolist() == pytest.approx([0.1] * 20)


def test_resampled_trajectories_are_trained_at_one_step(decaying: Path) -> None:
    trained(decaying, "resampled", "tasks.made.times=resample", steps=2)
    assert ups.load(decaying.parent / "runs" / "resampled").tasks["made"].spec.dt == pytest.approx(0.1)


def test_times_that_go_backwards_are_refused(decaying: Path, tmp_path: Path) -> None:
    file = tmp_path / "back.hdf5"
    file.write_bytes(decaying.read_bytes())
    with h5py.File(file, "r+") as stored:
        stored["dimensions/time"][3, 2] = 0.0  # pyright: ignore
    with pytest.raises(UserError, match=r"back.hdf5: 'time' .* must be increasing"):
        ups.open_dataset(file)


def test_a_trajectory_s_forcing_is_that_of_the_time_of_each_step(
    forced: tuple[Path, Tensor, Tensor], tmp_path: Path
) -> None:
    """Its frames are not a rollout's steps: of a file at half the step, every frame once was taken for a step's."""
    file, values, force = forced
    if not (file.parent / "runs" / "known" / "metrics.json").is_file():
        trained(file, "known", told=", forcings: [f]", steps=120, page=True)
    sim = ups.load(file.parent / "runs" / "known")
    between = (force[:, 1:] + force[:, :-1]) / 2
    finer = torch.stack([force[:, :-1], between], 2).flatten(1, 2)
    path = write(
        tmp_path / "finer.hdf5", values[:, :1].expand(-1, 12, -1), 0.5 * torch.arange(12), forcings={"f": finer}
    )
    trajectory = ups.open_dataset(path)[0]
    found = sim.rollout(trajectory, steps=3, task="made").values
    assert torch.equal(found, sim.rollout(values[0, 0].float(), steps=3, forcings={"f": force[0].float()}).values)
    assert sim.rollout(trajectory, times=[0.75, 1.6], task="made").values.isfinite().all()
    with pytest.raises(UserError, match=r"'f' of the trajectory ends after a time of 5.5, and 6 is needed"):
        sim.rollout(trajectory, steps=6, task="made")


def test_stages_that_cannot_use_a_condition_are_refused_before_any_is_trained(
    forced: tuple[Path, Tensor, Tensor], decaying: Path, tmp_path: Path
) -> None:
    stages = "stages={operator: {width: 8}, codec: {width: 8}, corrector: {on: [operator, codec]}}"
    rod = masked_file(tmp_path / "rod.hdf5", 0.0)
    for file, told, more, said in (
        (forced[0], ", forcings: [f]", [], r"'corrector' takes no forcings, .* has f; .*tasks.made.drop=\[f\]"),
        (decaying, "", ["tasks.made.times=own"], r"'corrector' corrects rollouts at equal steps.*times=resample"),
        (rod, ", masked: true", [], r"'codec' compresses whole grids.*tasks.made.drop=\[mask\]"),
    ):
        with pytest.raises(UserError, match=said):
            trained(file, "refused", stages, *more, told=told)
        assert not (file.parent / "runs" / "refused").exists()
