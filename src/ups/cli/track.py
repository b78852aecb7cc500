"""What trackers got of a run."""

from __future__ import annotations

from ups.cli.arguments import Run


def sync(run: Run) -> None:
    """Send Weights & Biases what it has not got of a run, and how it ended.

    For runs that were tracked offline, whose network was down or whose job was killed; also for one that was never
    tracked, from its events. What was sent before is not sent again.

    \b
    Example:
      ups track sync runs/quickstart
    """
    from ups.track.tracked import sync as send

    files = send(run)
    print(f"Weights & Biases has {run}, from {len(files)} file{'s' * (len(files) != 1)} in {run / 'wandb'}")
