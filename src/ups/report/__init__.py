"""The report of a run: one HTML file with fields, errors, animations, curves and the numbers, readable offline."""
