"""The exceptions the command line knows.

`UserError` carries one sentence: what is wrong, where (field, file, key), and what to do. The command line prints it
without a traceback and exits with code 2. `Stopped` is a wish of the user's: exit code 75, start again to go on.
`GaveUp` is work that cannot go on: exit code 1, one sentence. `GateFailed` is a model that is not good enough: 3.
Everything else that escapes is our bug and exits with 1.
"""


class UserError(Exception):
    """A mistake the user can mend: one sentence naming the field or file and the remedy."""


class Stopped(Exception):
    """The user asked to stop (Ctrl-C, SIGTERM) and what had to be saved is saved: the text says what."""


class GaveUp(Exception):
    """The work cannot go on and repeating it would not help: one sentence that says why, and what would."""


class GateFailed(Exception):
    """All work was done that should be, and what came of it is not as good as the run's `gates` ask: exit code 3."""


GATE_FAILED = 3
"""Exit code of a run that failed one of its gates."""
STOPPED = 75
"""Exit code of work that was stopped and can be resumed."""
