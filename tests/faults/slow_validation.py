"""A plugin: the next validation of rank 0 computes as many seconds longer as the file $SLOW_VALIDATION says.

That file is removed when the validation begins.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ups.training import trainer

_validate = trainer.validate


def _slow(*arguments: Any) -> Any:
    file = Path(os.environ["SLOW_VALIDATION"])
    if os.environ["RANK"] == "0" and file.exists():
        end = time.monotonic() + float(file.read_text())
        file.unlink()
        while time.monotonic() < end:
            sum(range(10_000))
    return _validate(*arguments)


trainer.validate = _slow
