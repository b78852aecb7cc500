"""Set before any test imports torch: with other processes on the cores, spinning OpenMP threads starve one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from hypothesis import settings

torch.set_num_threads(1)

# Shared cores make single examples slow now and then; a deadline would fail tests that are right.
settings.register_profile("ups", deadline=None)
settings.load_profile("ups")
