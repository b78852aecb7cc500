r"""The operator architectures beside one another: rollout errors after equal processor time on one core.

    python benchmarks/architectures.py --seconds 60                                  (a quarter of an hour)
    python benchmarks/architectures.py --tasks diffusion_reaction --only pdet_unet --settings '{"levels": 2}'

One model a task, Muon at 0.01 falling to zero over the time, noise of 0.002, averages of 0.98. Relative L2 of rollouts
from the first frame of 24 held-out trajectories, mean over 40 steps; error of one step over persistence's. The time is
the process's own, not the clock's: other processes slow all alike.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ups.data.prepare.statistics import statistics
from ups.equations import Equation
from ups.equations.named import named_equation
from ups.fields import Batch, Dataset, Header
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.training.optimisers import build_optimiser
from ups.training.settings import TrainingConfig

TASKS: dict[str, tuple[dict[str, Any], int, int]] = {
    "kuramoto_sivashinsky": ({"points": 128, "frames": 41, "duration": 20.0}, 400, 16),
    "burgers": ({"points": 128, "frames": 41}, 400, 16),
    "diffusion_reaction": ({"points": 32, "frames": 41}, 200, 4),
}
"""Settings, trajectories, samples a step."""
MODELS: dict[str, dict[str, Any]] = {
    "spectral": {"width": 24, "depth": 3, "modes": 32},
    "pdet_stack": {"width": 32, "depth": 4, "heads": 2},
    "pdet_unet": {"width": 32, "depth": 1, "levels": 3, "heads": 2},
}
HELD = 24
RATE, NOISE, AVERAGED = 1e-2, 2e-3, 0.02


class Solved(Dataset):
    """Trajectories that were solved here and now."""

    def __init__(self, equation: Equation, count: int) -> None:
        self.batch = equation.solve(0, range(count))
        self.header = Header(equation.name, equation.channels, equation.grid, equation.times, equation.boundary)

    def __len__(self) -> int:
        return len(self.batch) - HELD

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        part = self.batch.select(list(indices))
        return replace(part, values=part.values[:, frames], times=part.times[:, frames])


class Trial:
    """A task's scaled trajectories, and what is trained on them."""

    def __init__(self, task: str) -> None:
        settings, count, self.samples = TASKS[task]
        equation = named_equation(task, settings)
        data, spec = Solved(equation, count), equation.task()
        self.known = {name: value for name, value in equation.parameters.items() if name in spec.parameters}
        ranges = {name: (value, value) for name, value in self.known.items()}
        self.learned = TrainedTask(spec, data.grid, statistics(data, spec), ranges, (spec.dt or 0.0,))
        values = self.learned.normaliser.normalise(data.batch.values).float()
        self.train, self.held = values[:-HELD], values[-HELD:]

    def step(self, model: Propagator, state: Tensor) -> Tensor:
        count, spec = len(state), self.learned.spec
        parameters = {name: torch.full((count,), value) for name, value in self.known.items()}
        lead = torch.full((count,), spec.dt or 0.0)
        return model(spec.name, state[:, None], state[..., :0], parameters, lead, self.learned.grid)

    def trained(self, architecture: str, settings: dict[str, Any], seconds: float, seed: int) -> tuple[Propagator, int]:
        """The averaged model and its number of steps."""
        model = ModelSpec(architecture, settings, (self.learned,)).build(seed)
        optimiser = build_optimiser(model, TrainingConfig(optimiser="muon", learning_rate=RATE))
        averages = copy.deepcopy(model).requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        begun, steps = time.process_time(), 0
        while (share := (time.process_time() - begun) / seconds) < 1:
            which = torch.randint(len(self.train), (self.samples,), generator=generator)
            frame = torch.randint(self.train.shape[1] - 1, (self.samples,), generator=generator)
            now, then = self.train[which, frame], self.train[which, frame + 1]
            noise = NOISE * now.square().mean().sqrt() * torch.randn(now.shape, generator=generator)
            loss = _over_persistence(self.step(model, now + noise), now, then).mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1.0, (steps + 1) / 100) * 0.5 * (1 + math.cos(math.pi * share))
            optimiser.step()
            steps += 1
            with torch.no_grad():
                for average, parameter in zip(averages.parameters(), model.parameters(), strict=True):
                    average.lerp_(parameter, AVERAGED)
        return averages, steps

    @torch.no_grad()
    def errors(self, model: Propagator) -> tuple[float, float]:
        """Of rollouts, and of one step over persistence's."""
        state, rollout, one = self.held[:, 0], [], []
        for now, then in zip(self.held.unbind(1)[:-1], self.held.unbind(1)[1:], strict=True):
            state = self.step(model, state)
            rollout.append((state - then).flatten(1).norm(dim=1) / then.flatten(1).norm(dim=1))
            one.append(_over_persistence(self.step(model, now), now, then))
        return float(torch.stack(rollout).mean()), float(torch.stack(one).mean())


def _over_persistence(prediction: Tensor, now: Tensor, then: Tensor) -> Tensor:
    wrong, change = ((then - other).flatten(1).norm(dim=1) for other in (prediction, now))
    return wrong / change.clamp_min(1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, each")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--settings", type=json.loads, default={}, help="of the models, instead of some of MODELS'")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | architecture | parameters | steps | rollout | one step / persistence |\n|---|---|---|---|---|---|")
    for task in options.tasks:
        trial = Trial(task)
        for name in options.only:
            model, steps = trial.trained(name, MODELS[name] | options.settings, options.seconds, options.seed)
            size = sum(p.numel() for p in model.parameters())
            rollout, one = trial.errors(model)
            print(f"| {task} | {name} | {size:,} | {steps} | {rollout:.4f} | {one:.4f} |", flush=True)


if __name__ == "__main__":
    main()
