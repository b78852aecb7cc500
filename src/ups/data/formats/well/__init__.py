"""The Well's HDF5 files."""
