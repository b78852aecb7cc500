"""Equations as values: parameters, initial conditions, solver, invariants, published name. One file an equation."""

from ups.equations.advection import Advection
from ups.equations.base import Equation
from ups.equations.burgers import Burgers
from ups.equations.darcy import Darcy
from ups.equations.diffusion_reaction import DiffusionReaction
from ups.equations.gray_scott import GrayScott
from ups.equations.incompressible import Incompressible
from ups.equations.initial import RandomWaves
from ups.equations.vorticity import Vorticity
from ups.equations.wave import Wave

__all__ = [
    "Advection",
    "Burgers",
    "Darcy",
    "DiffusionReaction",
    "Equation",
    "GrayScott",
    "Incompressible",
    "RandomWaves",
    "Vorticity",
    "Wave",
]
