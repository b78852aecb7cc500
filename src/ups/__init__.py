"""UPS, the Universal Physics Stack: learn to simulate many physical systems with one model.

    sim = ups.load("runs/quickstart")
    fields = sim.rollout(u0, steps=40, conditions={"beta": 0.4})

Names are imported when first used, so that `import ups` and `ups --help` do not wait for torch.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ups.distributed.runtime.spinning import spin_briefly

if TYPE_CHECKING:
    from ups.data.generate.make import generate as generate
    from ups.data.open import open_dataset as open_dataset
    from ups.data.tasks import register as register
    from ups.data.tasks import register_equation as register_equation
    from ups.fields import TaskSpec as TaskSpec
    from ups.metrics.registry import register_metric as register_metric
    from ups.models.architectures import register_architecture as register_architecture
    from ups.models.predictor import register_predictor as register_predictor
    from ups.pipeline.finetune import finetune as finetune
    from ups.pipeline.fit import fit as fit
    from ups.simulator import Simulator as Simulator
    from ups.simulator import load as load
    from ups.training.kinds import register_stage as register_stage
    from ups.web.client import connect as connect

    __version__: str

if sys.platform == "win32":
    raise ImportError(
        "UPS does not run on Windows itself: it locks, replaces and signals as POSIX systems do; use it in WSL 2"
    )

spin_briefly(os.environ)  # before anything imports torch, unless it is there already

PUBLIC = {
    "Simulator": "ups.simulator",
    "TaskSpec": "ups.fields",
    "connect": "ups.web.client",
    "finetune": "ups.pipeline.finetune",
    "fit": "ups.pipeline.fit",
    "generate": "ups.data.generate.make",
    "load": "ups.simulator",
    "open_dataset": "ups.data.open",
    "register": "ups.data.tasks",
    "register_architecture": "ups.models.architectures",
    "register_equation": "ups.data.tasks",
    "register_metric": "ups.metrics.registry",
    "register_predictor": "ups.models.predictor",
    "register_stage": "ups.training.kinds",
}

__all__ = [
    "Simulator",
    "TaskSpec",
    "__version__",
    "connect",
    "finetune",
    "fit",
    "generate",
    "load",
    "open_dataset",
    "register",
    "register_architecture",
    "register_equation",
    "register_metric",
    "register_predictor",
    "register_stage",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in PUBLIC:
        raise AttributeError(f"module 'ups' has no attribute {name!r}; it has {', '.join(PUBLIC)}")
    return getattr(import_module(PUBLIC[name]), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("universal-physics-stack")
    except PackageNotFoundError:  # run from the sources, without an installation
        return "0+uninstalled"


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
