"""What a run ran on, for `env.json`: enough to explain a difference, nothing about who or where."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SOFTWARE = "universal-physics-stack"
PACKAGES = (SOFTWARE, "numpy", "h5py", "pydantic", "safetensors", "einops", "matplotlib")
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
FAMILIES = ("NCCL_", "TORCH_", "GLOO_", "UPS_")
KEPT_BACK = "set"
"""Instead of a value that may be a path, an address or a secret."""
_PLAIN = re.compile(r"[\w,:=+^-]{,40}", re.ASCII)
_PRIVATE = re.compile(r"HOST|KEY|TOKEN|SECRET|PASS|CREDENTIAL|USER")


def environment() -> dict[str, Any]:
    """Versions, git state, processor, threads, GPUs. No host name, no user name, no paths."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := version_of(name))},
        "git": _git(),
        "cpu": {"model": cpu_model(), "count": os.cpu_count(), "usable": len(os.sched_getaffinity(0))},
        "torch": {
            "version": torch.__version__,  # names the build, which the package's own version need not
            "threads": torch.get_num_threads(),
            "cuda": torch.version.cuda,
            "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        },
        "variables": {name: _shown(name, value) for name, value in sorted(os.environ.items()) if _matters(name)},
    }


def _matters(name: str) -> bool:
    """Whether a variable can change what a run does."""
    return name in VARIABLES or name.startswith(FAMILIES)


def _shown(name: str, value: str) -> str:
    """A plain word, number or list of them; of anything else only that it is set."""
    return value if _PLAIN.fullmatch(value) and not _PRIVATE.search(name) else KEPT_BACK


def software() -> str:
    """The versions that ranks must share, in one line."""
    import torch

    return f"ups {version_of(SOFTWARE)}, torch {torch.__version__}, Python {platform.python_version()}"


def version_of(package: str) -> str | None:
    """What is installed; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit and whether files differ from it; None where the package is not a checkout.

    Asking whether git tracks this very file keeps an environment inside someone's repository from passing for ours.
    """
    if _ask_git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    changes = _ask_git("status", "--porcelain")
    return {"commit": _ask_git("rev-parse", "HEAD"), "changed": None if changes is None else bool(changes)}


def _ask_git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or nothing to say
        return None
    return answer.stdout.strip()


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
