"""The array store: what training reads again and again, as plain bytes in memory-mapped shards.

`build(path, key, arrays)` writes it, `ArrayStore.open(path, key)` reads windows of it, `verify(path)` finds damage.
"""
