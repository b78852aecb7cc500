"""The architectures by name: ours, and those that users register."""

from __future__ import annotations

from ups.config.named import Registry
from ups.models.baselines.fno import FNO_ARCHITECTURE
from ups.models.baselines.unet import UNET_ARCHITECTURE
from ups.models.network import Architecture
from ups.models.operator.model import PDET_STACK, PDET_UNET, SPECTRAL

ARCHITECTURES = Registry[Architecture](
    "architecture", {a.name: a for a in (SPECTRAL, PDET_STACK, PDET_UNET, FNO_ARCHITECTURE, UNET_ARCHITECTURE)}
)


def register_architecture(architecture: Architecture) -> Architecture:
    """Make an architecture known by its name, which no other may have."""
    return ARCHITECTURES.add(architecture.name, architecture)
