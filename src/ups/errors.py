"""The one exception a user's mistake raises.

`UserError` carries one sentence: what is wrong, where (field, file, key), and what to do. The command line prints it
without a traceback and exits with code 2; everything else that escapes is our bug and exits with 1.
"""


class UserError(Exception):
    """A mistake the user can mend: one sentence naming the field or file and the remedy."""
