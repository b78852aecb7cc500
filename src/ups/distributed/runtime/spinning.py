"""How long OpenMP's threads spin when they wait for one another. It imports nothing: the variable is read when torch is
loaded, and must be there before.

libgomp's own 300,000 rounds are long: beside other processes, a thread that waits holds the core that the other one
needs, and a step takes up to 40 times as long. Not to spin at all costs small models half their speed where nothing
else runs. `ROUNDS` costs them 4 % (docs/performance.md has the measurements).
"""

from __future__ import annotations

from collections.abc import MutableMapping

SPIN = "GOMP_SPINCOUNT"
ROUNDS = "3000"


def spin_briefly(environment: MutableMapping[str, str]) -> None:
    """Unless the user has said how threads are to wait."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault(SPIN, ROUNDS)
