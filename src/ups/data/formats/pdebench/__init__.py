"""PDEBench's four file layouts, as published.

    tensor           one field, the one-dimensional tasks and Darcy flow
    cfd              compressible flow, a dataset a field
    grouped          a group a trajectory
    incompressible   forced incompressible flow

Nothing is imported here, so that what needs only one of them stays quick to start.
"""
