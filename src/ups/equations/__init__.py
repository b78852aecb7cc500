"""Equations as values: parameters, initial conditions, solver, invariants, published name. One file an equation."""

from ups.equations.advection import Advection as Advection
from ups.equations.base import Equation as Equation
from ups.equations.burgers import Burgers as Burgers
from ups.equations.compressible import Compressible1D as Compressible1D
from ups.equations.compressible import Compressible2D as Compressible2D
from ups.equations.darcy import Darcy as Darcy
from ups.equations.diffusion_reaction import DiffusionReaction as DiffusionReaction
from ups.equations.diffusion_sorption import DiffusionSorption as DiffusionSorption
from ups.equations.gray_scott import GrayScott as GrayScott
from ups.equations.gray_scott import GrayScott3D as GrayScott3D
from ups.equations.incompressible import Incompressible as Incompressible
from ups.equations.initial import RandomWaves as RandomWaves
from ups.equations.kuramoto_sivashinsky import KuramotoSivashinsky as KuramotoSivashinsky
from ups.equations.reaction_diffusion import ReactionDiffusion as ReactionDiffusion
from ups.equations.shallow_water import ShallowWater as ShallowWater
from ups.equations.vorticity import Vorticity as Vorticity
from ups.equations.wave import Wave as Wave
