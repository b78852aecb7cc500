"""Readers and writers of published layouts: a reader gives a Dataset, a writer takes Trajectories."""
