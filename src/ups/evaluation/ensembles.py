"""The ensembles of one view of a task: their part of `metrics.json`, and arrays to draw."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.sampler import mix
from ups.evaluation.scores import entry, mean_entry
from ups.fields import Batch
from ups.metrics import nrmse, power_spectrum
from ups.metrics.bootstrap import resampled_means
from ups.metrics.ensembles import (
    LEVELS,
    Members,
    coverage,
    crps,
    energy_score,
    rank_histogram,
    spread_and_skill,
)
from ups.metrics.layout import Fields
from ups.models.predictor import Predictor
from ups.rollout.members import ensembles

FAN = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles that fans are drawn of."""


@dataclass(frozen=True, eq=False)
class Scored:
    """One number a sample of each metric, the squares of spread and skill, and what is drawn of a real ensemble."""

    numbers: Mapping[str, Float[Tensor, " N"]]
    spread: Float[Tensor, "N T C"]
    skill: Float[Tensor, "N T C"]
    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class EnsembleTest:
    """A test set, as many members as predictors are asked for, and the trajectories that are drawn."""

    task: str
    truth: Batch
    given: int
    present: Callable[[Fields], Fields]
    chosen: Int[Tensor, " S"]
    members: int
    seed: int

    def judged(self, name: str, predictor: Predictor, predicted: Fields | None) -> Scored:
        """Of a few trajectories at a time, whose members are not kept. What was `predicted` without chance is an
        ensemble of one.
        """
        if predicted is not None:
            return self._scored([(slice(0, len(self.truth)), predicted[None])], drawn=False)
        seed = mix(self.seed, zlib.crc32(name.encode()))
        return self._scored(ensembles(predictor, self.task, self.truth, self.given, self.members, seed), drawn=True)

    def _scored(self, parts: Iterable[tuple[slice, Members]], drawn: bool) -> Scored:
        numbers: dict[str, list[Tensor]] = defaultdict(list)
        arrays: dict[str, list[Tensor]] = defaultdict(list)
        for rows, whole in parts:
            truth = self.truth.values[rows, -whole.shape[2] :]
            members, target = torch.stack([self.present(member) for member in whole]), self.present(truth)
            mask = None if self.truth.mask is None else self.truth.mask[rows]
            spread, skill = spread_and_skill(members, target, mask)
            found = {"crps": crps(members, target, mask), "energy_score": energy_score(members, target, mask)}
            found |= {"mean_nrmse": nrmse(members.double().mean(0), target, mask), "spread": spread, "skill": skill}
            found |= {f"coverage_{round(100 * level)}": coverage(members, target, level, mask) for level in LEVELS}
            for key, values in found.items():
                numbers[key].append(values)
            if drawn:
                here = [int(place) - rows.start for place in self.chosen if rows.start <= place < rows.stop]
                arrays["fan"].append(torch.quantile(whole[:, here], whole.new_tensor(FAN), dim=0).transpose(0, 1))
                arrays["ranks"].append(rank_histogram(members, target, mask)[None])
                arrays["spectrum"].append(power_spectrum(whole[:, :, -1:].transpose(0, 1).flatten(0, 1))[1])
        whole_numbers = {key: torch.cat(values) for key, values in numbers.items()}
        spread, skill = whole_numbers.pop("spread"), whole_numbers.pop("skill")
        kept = {key: torch.cat(values) for key, values in arrays.items()}
        if drawn:
            kept["spread"], kept["skill"] = (square.mean((0, 2)).sqrt() for square in (spread, skill))
            kept["ranks"] = kept["ranks"].sum(0)
            kept["spectrum"] = kept["spectrum"].mean((0, 1, 3))
        means = {key: values.flatten(1).mean(1) for key, values in whole_numbers.items()}
        return Scored(means, spread, skill, {key: values.numpy() for key, values in kept.items()})


def entries_of(model: str, found: Mapping[str, Scored], drawn: Int[Tensor, "R N"]) -> dict[str, Any]:
    """`crps` and the others, of every predictor; spread over skill is that of the means over samples, a mean over
    times: 1 where an ensemble knows how wrong it is, below where it is too sure.
    """
    names = found[model].numbers
    entries = {name: mean_entry(model, {who: own.numbers[name] for who, own in found.items()}, drawn) for name in names}
    ratios = {who: (own.spread.mean(0) / own.skill.mean(0)).sqrt().mean() for who, own in found.items()}
    resampled = {
        who: (resampled_means(own.spread, drawn) / resampled_means(own.skill, drawn)).sqrt().mean((1, 2))
        for who, own in found.items()
    }
    return entries | {"spread_skill": entry(model, ratios, resampled)}
