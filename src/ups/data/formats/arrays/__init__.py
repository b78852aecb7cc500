"""Plain arrays, from memory or from files that say little of what is in them: found, understood, read and written."""
