"""Data from the package's own solvers."""
