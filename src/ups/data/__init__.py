"""Readers and writers, statistics, splits, and the sampler."""
