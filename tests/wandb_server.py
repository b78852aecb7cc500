"""A stub of the server of Weights & Biases on the loopback address: what runs it was told of, and how they ended."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROJECT = {"id": "UHJvamVjdA==", "name": "ups", "entity": {"id": "RW50aXR5", "name": "team"}}


@dataclass
class Run:
    """`state` as the server's page shows it."""

    config: dict[str, Any] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    summary: str = "{}"
    files: set[str] = field(default_factory=set)
    state: str = "running"
    _preempting: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.history]

    def take(self, told: dict[str, Any]) -> None:
        """What a file stream sends: lines of a file from one of them on, and at last how the run ended."""
        self._preempting = told.get("preempting", self._preempting)
        if history := told.get("files", {}).get("wandb-history.jsonl"):
            self.history[history["offset"] :] = history["content"]
        if summary := told.get("files", {}).get("wandb-summary.json"):
            self.summary = summary["content"][-1]
        self.files |= set(told.get("uploaded", []))
        if told.get("complete"):
            ended = "preempted" if self._preempting else "crashed"
            self.state = "finished" if told["exitcode"] == 0 else ended
        else:
            self.state = "running"


@dataclass
class Server:
    address: str
    runs: dict[str, Run] = field(default_factory=dict)
    requests: int = 0

    def variables(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.address, "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false"}

    def answer(self, path: str, content: bytes) -> dict[str, Any]:
        self.requests += 1
        if path.endswith("/file_stream"):
            self.runs[path.split("/")[4]].take(json.loads(content))
            return {}
        return {"data": self._query(json.loads(content))} if path == "/graphql" else {}

    def _query(self, query: dict[str, Any]) -> dict[str, Any]:
        told = query["variables"]
        name, kind = told.get("name"), query.get("operationName")
        run = self.runs.get(name)
        if kind == "UpsertBucket":
            kept = self.runs.setdefault(name, Run())
            kept.config |= json.loads(told.get("config") or "{}")
            return {"upsertBucket": {"bucket": self._bucket(name, kept), "inserted": run is None}}
        if kind == "RunResumeStatus":
            return {"model": PROJECT | {"bucket": None if run is None else self._bucket(name, run)}}
        if kind == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.address}/storage/{file}"} for file in told["files"]]
            return {"createRunFiles": {"runID": "UnVu", "uploadHeaders": [], "files": files}}
        viewer = {"id": "VXNlcg==", "entity": "team", "flags": "{}", "teams": {"edges": []}, "username": "user"}
        return {"viewer": viewer, "serverInfo": {"cliVersionInfo": {}, "latestLocalVersionInfo": None}}

    def _bucket(self, name: str, run: Run) -> dict[str, Any]:
        return {
            "id": "UnVu",
            "name": name,
            "displayName": name,
            "description": None,
            "project": PROJECT,
            "sweepName": None,
            "config": json.dumps(run.config),
            "summaryMetrics": run.summary,
            "historyLineCount": len(run.history),
            "historyTail": json.dumps(run.history[-1:]),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "tags": [],
            "notes": None,
            "wandbConfig": '{"t": 1}',
        }


@contextmanager
def serving(port: int = 0) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                content = gzip.decompress(content)
            answer = json.dumps(server.answer(self.path, content)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as listening:
        server = Server(f"http://127.0.0.1:{listening.server_port}")
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield server
        listening.shutdown()
