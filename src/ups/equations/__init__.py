"""Equations as values: parameters, initial conditions, solver, invariants, published name. One file an equation."""

from ups.equations.advection import Advection
from ups.equations.base import Equation
from ups.equations.burgers import Burgers
from ups.equations.compressible import Compressible1D, Compressible2D
from ups.equations.darcy import Darcy
from ups.equations.diffusion_reaction import DiffusionReaction
from ups.equations.diffusion_sorption import DiffusionSorption
from ups.equations.gray_scott import GrayScott
from ups.equations.incompressible import Incompressible
from ups.equations.initial import RandomWaves
from ups.equations.kuramoto_sivashinsky import KuramotoSivashinsky
from ups.equations.reaction_diffusion import ReactionDiffusion
from ups.equations.shallow_water import ShallowWater
from ups.equations.vorticity import Vorticity
from ups.equations.wave import Wave

__all__ = [
    "Advection",
    "Burgers",
    "Compressible1D",
    "Compressible2D",
    "Darcy",
    "DiffusionReaction",
    "DiffusionSorption",
    "Equation",
    "GrayScott",
    "Incompressible",
    "KuramotoSivashinsky",
    "RandomWaves",
    "ReactionDiffusion",
    "ShallowWater",
    "Vorticity",
    "Wave",
]
