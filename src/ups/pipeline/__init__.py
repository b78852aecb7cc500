"""What `ups run` does, in order."""

from ups.pipeline.run import build_stores, evaluate, evaluate_on_ranks, report, run, train, train_on_ranks

__all__ = ["build_stores", "evaluate", "evaluate_on_ranks", "report", "run", "train", "train_on_ranks"]
