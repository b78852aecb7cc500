"""A machine that is slower or poorer than this one, for every Python that has this folder in PYTHONPATH.

MACHINE_FSYNC=4           seconds that each fsync takes longer
MACHINE_LACKS=link,...    functions of `os` that its file system refuses
"""

import errno
import os
import time

_fsync = os.fsync
_seconds = float(os.environ.get("MACHINE_FSYNC", "0"))


def _slow(file):
    time.sleep(_seconds)
    _fsync(file)


def _refused(name):
    def refuse(*arguments, **more):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), name)

    return refuse


if _seconds:
    os.fsync = _slow
for _name in filter(None, os.environ.get("MACHINE_LACKS", "").split(",")):
    setattr(os, _name, _refused(_name))
