"""Ranks, faults and checkpoints: what makes a run end as if nothing had happened."""
