"""A rank without a model: it marks phases, waits for its peers in every step as a collective would, and leaves.

What goes wrong comes from `UPS_FAULT`; what else it should do from its arguments: STEPS, SECONDS a step, the state to
decide at the end, and `gloo` to wait in a real collective.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ups.distributed.launch.supervisor import rank_starts

rank_starts()  # before anything else, as in `ups train`

from ups.distributed.faults.crash import arm, record_failure  # noqa: E402
from ups.distributed.faults.heartbeat import Heartbeat, heartbeat_path, read_heartbeat  # noqa: E402
from ups.distributed.faults.injection import inject_fault  # noqa: E402
from ups.distributed.launch.outcome import Outcome, State, decide  # noqa: E402

RUN, RANK, SIZE = Path(os.environ["UPS_RUN"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STEPS, SECONDS, STATE = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
GLOO = "gloo" in sys.argv[4:] and ATTEMPT == 0  # torch takes seconds to import


def wait_for_peers(step: int) -> None:
    """Until every other rank is in this step's vote too; a peer's death is a lost connection."""
    for rank in range(SIZE):
        while (
            (heartbeat := read_heartbeat(heartbeat_path(RUN, rank))) is None
            or heartbeat.attempt < ATTEMPT
            or heartbeat.order < (step, 7)
        ):
            if heartbeat is not None and heartbeat.attempt == ATTEMPT and gone(heartbeat.pid):
                raise ConnectionResetError("Connection closed by peer")
            time.sleep(0.002)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def train(heartbeat: Heartbeat, asked: list[int]) -> State:
    for step in range(STEPS):
        heartbeat.mark("gradients", step)
        inject_fault("gradients", RANK, step, ATTEMPT)
        time.sleep(SECONDS)
        heartbeat.mark("vote")
        if GLOO:
            import torch.distributed as dist
            from torch import ones

            dist.all_reduce(ones(1))
        else:
            wait_for_peers(step)
        heartbeat.mark("update")
        if inject_fault("update", RANK, step, ATTEMPT) == "skip":  # here: a user's mistake that this rank alone finds
            decide(RUN, Outcome("mistake", "the file is not there", RANK))
            os._exit(0)
        if asked:
            return "stopped"
    return STATE  # pyright: ignore[reportReturnType]


def main() -> None:
    heartbeat = Heartbeat(heartbeat_path(RUN, RANK), RANK, ATTEMPT)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    if GLOO:
        import torch.distributed as dist

        heartbeat.mark("init")
        dist.init_process_group("gloo")
    arm(RUN, RANK, ATTEMPT)
    print(f"rank {RANK} attempt {ATTEMPT} pid {os.getpid()} time {time.monotonic()}", flush=True)
    try:
        state = train(heartbeat, asked)
    except Exception as error:
        record_failure(RUN, RANK, ATTEMPT, error, heartbeat, {"task": "burgers", "shapes": [[8, 128]]})
        os._exit(1)
    if STATE != "silence":
        decide(RUN, Outcome(state, "so it was decided", RANK))


main()
