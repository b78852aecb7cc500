"""`ups bench`: our training step and our surrogates beside the usual ways, in one process and on the same data.

`tasks` says what is pinned, `run.measure` does it, `docs/performance.md` says how to read the table.
"""
