"""A machine that is slower, poorer or frailer than this one, for every Python that has this folder in PYTHONPATH.

MACHINE_FSYNC=4           seconds that each fsync takes longer
MACHINE_LACKS=link,...    functions of `os` that its file system refuses
MACHINE_DIES="1 WHERE"    rank 1 dies in its first attempt, at the third checkpoint or later: `within a file`, which the
                          kernel cuts short, `at the rename` of the whole, or `at the pointer` to it
MACHINE_OOM="1 12"        in its first attempt, rank 1 runs out of memory in the optimiser of step 12: parameters and
                          moments are new, averages are not
"""

import errno
import os
import resource
import signal
import sys
import time
from pathlib import Path

_fsync = os.fsync
_seconds = float(os.environ.get("MACHINE_FSYNC", "0"))
_THIRD, _CUT = 15, 50_000  # steps, bytes


def _slow(file):
    time.sleep(_seconds)
    _fsync(file)


def _refused(name):
    def refuse(*arguments, **more):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), name)

    return refuse


def _dies(where):
    def audit(event, arguments):
        if event not in ("open", "os.rename") or not isinstance(arguments[0], str | os.PathLike):
            return
        path = Path(arguments[0])
        folder = path if event == "os.rename" else path.parent
        third = folder.name.startswith("step_") and folder.name.endswith(".tmp") and int(folder.stem[5:]) >= _THIRD
        if where == "within a file" and event == "open" and third and path.suffix == ".safetensors":
            resource.setrlimit(resource.RLIMIT_FSIZE, (_CUT, resource.RLIM_INFINITY))  # no other file is as long
        if where == "at the rename" and event == "os.rename" and third:
            os.kill(os.getpid(), signal.SIGKILL)
        pointed = where == "at the pointer" and event == "os.rename" and Path(arguments[1]).name == "latest"
        if pointed and any(int(found.name[5:]) >= _THIRD for found in path.parent.glob("step_????????")):
            os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores
    sys.addaudithook(audit)


def _runs_out_of_memory(step):
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    taken = []

    def hook(optimiser, *arguments):
        taken.append(optimiser)
        if len(taken) == step + 1:
            raise torch.OutOfMemoryError("out of memory, by this machine, in the optimiser")

    register_optimizer_step_post_hook(hook)


def _ours(rank):
    return os.environ.get("RANK") == rank and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"


if _seconds:
    os.fsync = _slow
for _name in filter(None, os.environ.get("MACHINE_LACKS", "").split(",")):
    setattr(os, _name, _refused(_name))
_rank, _, _where = os.environ.get("MACHINE_DIES", "").partition(" ")
if _ours(_rank):
    _dies(_where)
_rank, _, _step = os.environ.get("MACHINE_OOM", "").partition(" ")
if _ours(_rank):
    _runs_out_of_memory(int(_step))
