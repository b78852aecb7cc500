"""Python files of the user's own that a configuration names: what they register can be used by name.

A configuration with `plugins:` runs their code, so it is trusted as a program is.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from ups.errors import UserError

_PREFIX = "ups_plugin_"


def loaded_plugins() -> list[str]:
    """The files that this process has imported: a worker process has to import them too, for what it is sent."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(_PREFIX)]


def load_plugins(names: Sequence[str]) -> None:
    """Import each file once in a process."""
    for name in names:
        path = Path(name).expanduser().resolve()
        module = f"{_PREFIX}{path.stem}"
        if getattr(sys.modules.get(module), "__file__", None) == str(path):
            continue
        spec = importlib.util.spec_from_file_location(module, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UserError(f"there is no plugin {name}; plugins are Python files, named by their path")
        sys.modules[module] = loaded = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(loaded)
        except UserError:
            raise
        except Exception as error:
            del sys.modules[module]
            raise UserError(f"plugin {name} could not be imported: {type(error).__name__}: {error}") from error
