"""How long work tells how far it is. It imports nothing, so that every room can; `progress.py` shows it."""

from collections.abc import Callable

Tick = Callable[[int, int], None]
"""Called with what is done and with all there is: trajectories, bytes, pieces."""
Report = Callable[[str, int, int], None]
"""The same, with the name of what is worked on first."""
