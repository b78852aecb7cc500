"""The ensembles of one view of a task: their part of `metrics.json`, and arrays to draw."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
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
SHOWN = 3
"""Members that are pictured themselves."""


@dataclass(frozen=True, eq=False)
class Scored:
    """One number a sample of each metric, the squares of spread and skill, and what is `drawn` of a real ensemble:
    quantiles and a few members of the trajectories that are pictured, ranks, and spectra of the last frames.
    """

    numbers: Mapping[str, Float[Tensor, " N"]]
    spread: Float[Tensor, "N T C"]
    skill: Float[Tensor, "N T C"]
    drawn: Mapping[str, Tensor]

    @classmethod
    def joined(cls, parts: Sequence[Scored]) -> Scored:
        """Of all trajectories, from those of some each."""

        def whole(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
            names = {name: None for own in found for name in own}
            return {name: torch.cat([own[name] for own in found if name in own]) for name in names}

        numbers, drawn = whole([part.numbers for part in parts]), whole([part.drawn for part in parts])
        return cls(numbers, torch.cat([p.spread for p in parts]), torch.cat([p.skill for p in parts]), drawn)

    def arrays(self) -> dict[str, np.ndarray]:
        """To draw: means over samples of all but the pictured trajectories' quantiles and members."""
        if not self.drawn:
            return {}
        found = dict(self.drawn) | {"ranks": self.drawn["ranks"].sum(0)}
        found |= {"spectrum": self.drawn["spectrum"].mean((0, 1, 3))}
        found |= {"spread": self.spread.mean((0, 2)).sqrt(), "skill": self.skill.mean((0, 2)).sqrt()}
        return {name: values.numpy() for name, values in found.items()}


@dataclass(frozen=True, eq=False)
class EnsembleTest:
    """Some trajectories of a test set, how many members predictors are asked for, and the places of those drawn."""

    task: str
    truth: Batch
    given: int
    present: Callable[[Fields], Fields]
    chosen: Sequence[int]
    members: int
    seed: int

    def judged(self, name: str, predictor: Predictor, predicted: Fields | None) -> Scored:
        """Of a few trajectories at a time, whose members are not kept. What was `predicted` without chance is an
        ensemble of one.
        """
        if predicted is not None:
            return self._scored(slice(0, len(self.truth)), predicted[None], drawn=False)
        seed = mix(self.seed, zlib.crc32(name.encode()))
        found = ensembles(predictor, self.task, self.truth, self.given, self.members, seed)
        return Scored.joined([self._scored(rows, members, drawn=True) for rows, members in found])

    def _scored(self, rows: slice, whole: Members, drawn: bool) -> Scored:
        truth = self.truth.values[rows, -whole.shape[2] :]
        members, target = torch.stack([self.present(member) for member in whole]), self.present(truth)
        mask = None if self.truth.mask is None else self.truth.mask[rows]
        spread, skill = spread_and_skill(members, target, mask)
        found = {"crps": crps(members, target, mask), "energy_score": energy_score(members, target, mask)}
        found |= {"mean_nrmse": nrmse(members.double().mean(0), target, mask)}
        found |= {f"coverage_{round(100 * level)}": coverage(members, target, level, mask) for level in LEVELS}
        means = {name: values.flatten(1).mean(1).cpu() for name, values in found.items()}
        pictured: dict[str, Tensor] = {}
        if drawn:
            last = whole[:, :, -1:].transpose(0, 1).flatten(0, 1)
            cells = None if mask is None else mask.repeat_interleave(len(whole), 0)
            pictured = {
                "ranks": rank_histogram(members, target, mask)[None],
                "spectrum": power_spectrum(last, cells)[1],
            }
            if here := [place - rows.start for place in self.chosen if rows.start <= place < rows.stop]:
                pictured["fan"] = torch.quantile(whole[:, here], whole.new_tensor(FAN), dim=0).transpose(0, 1)
                pictured["members"] = whole[:SHOWN, here].transpose(0, 1)
        return Scored(means, spread.cpu(), skill.cpu(), {name: values.cpu() for name, values in pictured.items()})


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
