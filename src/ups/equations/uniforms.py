"""Random numbers that belong to a trajectory.

A trajectory's numbers follow from (seed, trajectory index) alone: not from the chunk it is made in, the process that
makes it, nor how many others are made. Only uniform doubles are drawn, and everything else is computed from them,
because NumPy keeps that stream fixed for a bit generator. (torch's CPU generator takes 32 bits of a seed: among 10,000
hashed seeds two would coincide in 1 case of 100, and two equal trajectories are a leak between train and test.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError


def uniforms(seed: int, ids: Sequence[int], count: int) -> Float[Tensor, "B count"]:
    """`count` numbers in [0, 1) for each trajectory, float64, on the CPU."""
    if seed < 0 or any(i < 0 for i in ids):
        raise UserError(f"seed is {seed} and trajectory indices start at {min(ids, default=0)}; both must be 0 or more")
    rows = np.empty((len(ids), count))
    for row, i in enumerate(ids):
        rows[row] = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, i)))).random(count)
    return torch.from_numpy(rows)
