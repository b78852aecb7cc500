"""PDEGym's files (netCDF4, which is HDF5)."""
