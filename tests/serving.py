"""A server that really listens, in a thread of the test's process."""

from __future__ import annotations

import threading
import time

import uvicorn

from ups.simulator import Simulator
from ups.web.app import application
from ups.web.run import configured, listening
from ups.web.settings import ServerSettings


class Served:
    """`url` is where it listens."""

    def __init__(self, sim: Simulator, settings: ServerSettings) -> None:
        self.app = application(sim, settings)
        self.socket = listening(settings)
        self.host, self.port = self.socket.getsockname()[:2]
        self.url = f"http://{self.host}:{self.port}"
        self.server = uvicorn.Server(configured(self.app, settings))
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.socket.close()
        assert not self.thread.is_alive()
