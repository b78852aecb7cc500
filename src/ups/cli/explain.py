"""`ups explain`."""

from __future__ import annotations

from ups.cli.arguments import Json, Run


def explain(run: Run, json: Json = False) -> None:
    """Say why a run ended. Prints the report of its last crash, or how it ended if it never crashed.

    \b
    Example:
      ups explain runs/quickstart
      ups explain runs/quickstart --json
    """
    import sys
    from json import dumps

    from ups.distributed.faults.explain import explanation

    text, content = explanation(run)
    sys.stdout.write(dumps(content, indent=1) + "\n" if json else text)
