"""Candidates that are chosen among by the equation: which path is taken, and what cannot be chosen from."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ups.data.prepare.statistics import Scale, Statistics
from ups.data.sampler import mix
from ups.equations import Burgers
from ups.errors import UserError
from ups.evaluation.choice import pieces, truth_first
from ups.fields import Conditions, Grid
from ups.models.predictor import Persistence, State, Target
from ups.models.saved import TrainedTask
from ups.rollout.chosen import Chosen
from ups.rollout.members import draws_of_members, folded, lead_of_members
from ups.rollout.predict import rollout

BURGERS = Burgers(points=32, nu=0.1, frames=9, duration=0.08)


SURE = {"burgers": 1.0}


def learned(settings: bool = True) -> TrainedTask:
    source = {"equation": "burgers", "settings": vars(BURGERS)} if settings else {"equation": "burgers"}
    spec = replace(BURGERS.task(), source=source)
    scales = Statistics("burgers", 1, 0.01, (1,), {"u": Scale(0.0, 1.0, 1.0, (1.0,))})
    return TrainedTask(spec, BURGERS.grid, scales, {"nu": (0.1, 0.1)}, (0.01,))


class Noisy:
    """The solver, and after each step an error of each member's own size."""

    chance, like = True, torch.zeros((), dtype=torch.float64)

    def __init__(self, task: TrainedTask | None = None) -> None:
        self.tasks = {"burgers": task or learned()}

    def to(self, where: object) -> Noisy:
        return self

    def start(self, task: str, frames: Tensor, conditions: Conditions, grid: Grid) -> State:
        static = frames.new_zeros(*frames[:, -1, ..., 0].shape, 0)
        return State(task, frames[:, -1:].double(), static, dict(conditions.parameters), grid)  # pyright: ignore[reportArgumentType]

    def step(self, state: State, lead: Tensor | None) -> State:
        assert lead is not None
        after = BURGERS.roll(state.history[:, -1, :, 0], torch.tensor([0.0, float(lead[0])], dtype=torch.float64))
        return replace(state, history=after[:, -1:, :, None], taken=state.taken + 1)

    def sample(self, state: State, lead: Tensor | None, seed: int, members: int) -> State:
        state = folded(state, members)
        after, draws = self.step(state, lead_of_members(state, lead)), draws_of_members(state, seed)
        size = 0.02 * draws.normal("size", ()).square().view(-1, 1, 1, 1)
        return replace(after, history=after.history + size * draws.normal("error", after.history.shape[1:]))

    def decode(self, state: State, target: Target | None = None) -> Tensor:
        values = state.history[:, -1]
        return values if state.members is None else values.unflatten(0, (state.members, -1))


def batch():
    found = BURGERS.solve(0, range(3))
    return replace(found, values=found.values.double())


def error(predictor) -> float:
    truth = batch()
    return float((rollout(predictor, "burgers", truth) - truth.values[:, 1:]).norm() / truth.values[:, 1:].norm())


def test_the_equation_chooses_among_candidates_and_beats_their_mean() -> None:
    truth, parent = batch(), Noisy()
    start = parent.start("burgers", truth.values[:, :1], Conditions(truth.parameters), truth.grid)
    state, members = start, []
    for number in range(8):
        state = parent.sample(state, truth.times[:, 1] - truth.times[:, 0], mix(number), 8)
        members.append(parent.decode(state))
    mean = torch.stack(members, 2).mean(0)
    of_mean = float((mean - truth.values[:, 1:]).norm() / truth.values[:, 1:].norm())
    chosen = error(Chosen(parent, SURE, candidates=8, beam=1, budget=8, stretch=1))
    assert chosen < 0.7 * of_mean
    assert error(Chosen(parent, SURE, candidates=8, beam=1, budget=8, stretch=1)) == chosen  # no chance is left


def test_the_first_stretch_of_the_best_path_is_taken() -> None:
    """All 3 × 3 paths of two stretches of one step, tried one by one."""
    truth, parent = batch(), Noisy()
    lead = truth.times[:, 1] - truth.times[:, 0]
    search = Chosen(parent, SURE, candidates=3, beam=3, budget=3 + 9, stretch=1)
    assert search.depth == 2
    start = parent.start("burgers", truth.values[:, :1], Conditions(truth.parameters), truth.grid)
    one = parent.sample(start, lead, mix(0, 0, 0), 3)
    first, best = parent.decode(one), {}
    steps = torch.stack([folded(start, 3).history[:, -1].unflatten(0, (3, -1)), first], 2)
    before = search._scores(one, steps, lead)
    order = before.topk(3, 0, largest=False).indices  # whose places decide what is drawn after them
    for sample in range(3):
        parents = order[:, sample].repeat_interleave(3)
        history = torch.zeros(9, 3, *one.history.shape[1:], dtype=torch.float64)
        history[:, sample] = one.history.unflatten(0, (3, 3))[parents, sample]
        state = replace(folded(start, 9), history=history.flatten(0, 1), taken=1)
        after = parent.decode(parent.sample(state, lead, mix(0, 1, 0), 9))
        scores = search._scores(state, torch.stack([history[:, :, -1], after], 2), lead)[:, sample]
        totals = {place: float(scores[place] + before[parents[place], sample]) for place in range(9)}
        best[sample] = int(parents[min(totals, key=totals.__getitem__)])
    taken = search.decode(
        search.step(search.start("burgers", truth.values[:, :1], Conditions(truth.parameters), truth.grid), lead)
    )
    for sample, place in best.items():
        torch.testing.assert_close(taken[sample], first[place, sample])


def test_a_stretch_is_one_members_own() -> None:
    truth, parent = batch(), Noisy()
    search = Chosen(parent, SURE, candidates=4, beam=2, budget=12, stretch=3)
    state = search.start("burgers", truth.values[:, :1], Conditions(truth.parameters), truth.grid)
    lead = truth.times[:, 1] - truth.times[:, 0]
    shown = []
    for _ in range(3):
        state = search.step(state, lead)
        shown.append(search.decode(state))
    every = folded(parent.start("burgers", truth.values[:, :1], Conditions(truth.parameters), truth.grid), 4)
    paths = []
    for number in range(3):
        every = parent.sample(every, lead, mix(0, 0, number), 4)
        paths.append(parent.decode(every))
    for sample, member in itertools.product(range(3), range(4)):
        same = [torch.equal(a[sample], b[member, sample]) for a, b in zip(shown, paths, strict=True)]
        assert all(same) or not any(same)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"budget": 0}, "budget is 0"),
        ({"candidates": 1}, "candidates is 1"),
        ({"candidates": 10**6}, "candidates is 1000000"),
        ({"beam": 0}, "beam is 0"),
        ({"stretch": 0}, "stretch is 0"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(settings: dict[str, int], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Chosen(Noisy(), SURE, **settings)


@pytest.mark.parametrize(
    ("truth_first", "told"),
    [({"burgers": 0.344}, "in 34% of cases, and choosing needs 95%"), ({}, "measure it with `ups evaluate`")],
)
def test_a_task_whose_equation_cannot_tell_the_truth_is_refused(truth_first: dict[str, float], told: str) -> None:
    with pytest.raises(UserError, match=told):
        error(Chosen(Noisy(), truth_first))


class Drifting(Noisy):
    """Without chance, each step is wrong by so much of its own rms at every other point."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def step(self, state: State, lead: Tensor | None) -> State:
        after = super().step(state, lead)
        comb = (-1.0) ** torch.arange(32, dtype=torch.float64)[:, None]
        return replace(after, history=after.history + self.size * after.history.square().mean().sqrt() * comb)


class Told(Noisy):
    """Never wrong."""

    def __init__(self, truth: Tensor) -> None:
        super().__init__()
        self.truth = truth

    def decode(self, state: State, target: Target | None = None) -> Tensor:
        return self.truth[:, state.taken]


def test_the_truth_is_first_where_errors_are_larger_than_what_the_quadrature_leaves() -> None:
    truth = pieces(batch(), 4)
    assert truth.values.shape[:2] == (6, 5) and truth.ids.tolist() == [0, 0, 1, 1, 2, 2]
    shares = [truth_first(predictor, BURGERS, truth, 0)[0] for predictor in (Drifting(0.1), Told(truth.values))]
    assert shares == [1.0, 0.0]  # where nothing is wrong, nothing is first


def test_what_has_no_chance_or_no_equation_is_refused() -> None:
    with pytest.raises(UserError, match="without chance"):
        Chosen(Persistence([learned()]), SURE)
    with pytest.raises(UserError, match="settings of the equation"):
        error(Chosen(Noisy(learned(settings=False)), SURE))
