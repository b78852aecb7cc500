"""Readers and writers, the task registry, generation, splits, statistics and the sampler.

Nothing is imported here, so that what needs only one of them stays quick to start.
"""
