"""Equations as values: parameters, initial conditions, solver, invariants, published name. One file an equation."""

from ups.equations.advection import Advection
from ups.equations.base import Equation
from ups.equations.burgers import Burgers
from ups.equations.darcy import Darcy
from ups.equations.initial import RandomWaves

__all__ = ["Advection", "Burgers", "Darcy", "Equation", "RandomWaves"]
