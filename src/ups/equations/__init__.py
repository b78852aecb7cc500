"""Equations as values: parameters, initial conditions, solver, invariants, published name. One file an equation."""

from ups.equations.advection import Advection
from ups.equations.base import Equation
from ups.equations.burgers import Burgers
from ups.equations.darcy import Darcy
from ups.equations.diffusion_sorption import DiffusionSorption
from ups.equations.initial import RandomWaves
from ups.equations.kuramoto_sivashinsky import KuramotoSivashinsky
from ups.equations.reaction_diffusion import ReactionDiffusion

__all__ = [
    "Advection",
    "Burgers",
    "Darcy",
    "DiffusionSorption",
    "Equation",
    "KuramotoSivashinsky",
    "RandomWaves",
    "ReactionDiffusion",
]
