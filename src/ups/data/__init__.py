"""Data: readers and writers, the task registry, generation, splits and statistics.

Nothing is imported here, so that what needs only one of them stays quick to start.
"""
