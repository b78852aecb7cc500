"""What a server bears: many clients at once, and requests that make no sense.

    python benchmarks/serving.py runs/quickstart                               # 10,000 requests of 200 clients
    python benchmarks/serving.py runs/quickstart --schemathesis PATH/schemathesis    # 2,000 malformed ones

`ups serve` runs as a process of its own. Clients keep their connections, ask for a rollout of the first task, and ask
again when it is there; memory is the server's own, read from /metrics once a second. Schemathesis is installed in an
environment of its own (`python -m venv E && E/bin/pip install schemathesis`): it makes requests from /openapi.json, and
the server must neither answer 500 nor write a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

MALFORMED = 2000


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    said: str = ""

    def gauge(self, name: str) -> float:
        text = urllib.request.urlopen(f"{self.url}/metrics").read().decode()
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        return sum(map(float, found))

    def statuses(self) -> Counter[int]:
        """Answers by status."""
        text, found = urllib.request.urlopen(f"{self.url}/metrics").read().decode(), Counter[int]()
        for status, count in re.findall(r'^ups_requests_total{.*status="(\d+)"} (\S+)$', text, re.M):
            found[int(status)] += int(count)
        return found


@contextmanager
def serving(run: Path) -> Iterator[Server]:
    """`said` is all that it wrote, once it has ended."""
    command = [sys.executable, "-m", "ups", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    if address is None:
        raise SystemExit(f"the server did not start: {process.stdout.read()}")
    server = Server(address[0], process)
    try:
        yield server
    finally:
        process.terminate()
        server.said = process.stdout.read()
        process.wait(10)


@dataclass
class Load:
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    wall: float = 0.0

    def text(self) -> str:
        p50, p99 = np.quantile(self.seconds, [0.5, 0.99])
        first, last = self.memory[len(self.memory) // 10], self.memory[-1]
        statuses = ", ".join(f"{count} of status {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{statuses} in {self.wall:.0f} s, {len(self.seconds) / self.wall:.0f}/s; "
            f"p50 {p50:.2f} s, p99 {p99:.2f} s, longest {max(self.seconds):.2f} s; memory after a tenth of the time "
            f"{first / 2**20:.0f} MiB, most {max(self.memory) / 2**20:.0f}, at the end {last / 2**20:.0f}"
        )


def request(server: Server, steps: int) -> bytes:
    """A rollout of the first task with a start, as .npz."""
    known = json.loads(urllib.request.urlopen(f"{server.url}/v1/tasks").read())["tasks"]
    name, task = next((name, task) for name, task in known.items() if not task["steady"])
    start = np.random.default_rng(0).standard_normal((*task["shape"], len(task["channels"]))) * 0.1
    asked = {f"conditions.{key}": np.mean(span) for key, span in task["parameters"].items()}
    asked |= {"u0": start.astype(np.float32), "steps": np.array(steps), "task": np.array(name)}
    content = io.BytesIO()
    np.savez(content, **asked)
    head = f"POST /v1/rollout HTTP/1.1\r\nhost: {urlsplit(server.url).netloc}\r\ncontent-type: application/x-npz\r\n"
    return f"{head}content-length: {len(content.getvalue())}\r\n\r\n".encode() + content.getvalue()


async def load(server: Server, clients: int, requests: int, steps: int) -> Load:
    found, asked, left = Load(), request(server, steps), iter(range(requests))
    address = urlsplit(server.url)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in left:
            began = time.monotonic()
            writer.write(asked)
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", head, re.I)
            await reader.readexactly(int(length[1]) if length else 0)
            found.seconds.append(time.monotonic() - began)
            found.statuses[int(head.split()[1])] += 1
        writer.close()

    async def watch() -> None:
        while True:
            found.memory.append(await asyncio.to_thread(server.gauge, "process_resident_memory_bytes"))
            await asyncio.sleep(1)

    began, watching = time.monotonic(), asyncio.ensure_future(watch())
    await asyncio.gather(*(client() for _ in range(clients)))
    found.wall = time.monotonic() - began
    watching.cancel()
    return found


def malform(server: Server, schemathesis: str, seed: int) -> tuple[int, str]:
    """How many requests there were, and what the tool said where the server failed. Rounds of another seed each, until
    there are enough.
    """
    checks, program = "not_a_server_error", str(Path(schemathesis).resolve())
    while (count := int(server.gauge("ups_requests_total"))) < MALFORMED:
        command = [program, "run", f"{server.url}/openapi.json", "--mode", "negative", "--checks", checks]
        command += ["--phases", "coverage,fuzzing", "--max-examples", "400", "--no-shrink", "--seed", str(seed)]
        command += ["--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off", "--no-color"]
        command += ["--generation-database", "none"]
        with tempfile.TemporaryDirectory() as folder:  # it keeps a cache where it runs
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return count, done.stdout + done.stderr
        seed += 1
    return count, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--schemathesis", help="its program; sends malformed requests instead")
    parser.add_argument("--seed", type=int, default=0, help="of the malformed ones")
    told = parser.parse_args()
    with serving(told.run) as server:
        if told.schemathesis:
            count, complaint = malform(server, told.schemathesis, told.seed)
            by_status = ", ".join(f"{each} of status {status}" for status, each in sorted(server.statuses().items()))
            print(f"{count} requests: {by_status}\n{complaint}".rstrip())
        else:
            print(asyncio.run(load(server, told.clients, told.requests, told.steps)).text())
        failed = server.statuses()[500]
    if "Traceback" in server.said:
        print(f"the server said:\n{server.said}")
    sys.exit(bool(failed or "Traceback" in server.said))


if __name__ == "__main__":
    main()
