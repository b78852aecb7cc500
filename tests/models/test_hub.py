"""Models on Hugging Face: what is published is what is loaded. The server is a small one on the loopback address."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

import ups
from ups.checkpoint import CARD, MANIFEST, WEIGHTS, hub
from ups.equations import Advection
from ups.errors import UserError
from ups.models.export import export_model
from ups.pipeline.export import export

TOKEN = "hf_secretsecretsecret"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of Hugging Face as one repository needs: `files` are its files, `objects` large ones before a commit."""

    def __init__(self, files: dict[str, bytes], objects: dict[str, bytes], seen: list[str], *arguments) -> None:
        self.files, self.objects, self.seen = files, objects, seen
        super().__init__(*arguments)

    def log_message(self, *_) -> None:
        pass

    def answer(self, content: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def say(self, content: object, status: int = 200, **headers: str) -> None:
        self.answer(json.dumps(content).encode(), status, Content_Type="application/json", **headers)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.seen.append(f"{self.command} {path}")
        if not self.files or "someone/waves" not in path:
            self.say({"error": "none"}, 404, X_Error_Code="RepoNotFound")
        elif path.startswith("/api/") and ("/revision/" in path or path == "/api/models/someone/waves"):
            if not path.endswith(("/main", "/waves", COMMIT)):
                self.say({"error": "none"}, 404, X_Error_Code="RevisionNotFound")
                return
            names = [{"rfilename": name} for name in self.files]
            self.say({"id": "someone/waves", "modelId": "someone/waves", "sha": COMMIT, "siblings": names})
        elif "/tree/" in path:
            self.say([{"type": "file", "path": n, "size": len(c), "oid": name_of(c)} for n, c in self.files.items()])
        else:
            content = self.files[path.rpartition("/")[2]]
            self.answer(content, ETag=f'"{name_of(content)}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[hashlib.sha256(content).hexdigest()] = content
        self.answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append(f"POST {self.path}")
        host = f"http://{self.headers['Host']}"
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.say({"error": "who are you"}, 401)
        elif self.path.endswith("/create"):
            self.files[".gitattributes"] = b""
            self.say({"url": f"{host}/someone/waves", "name": "someone/waves", "id": "1"})
        elif "/preupload/" in self.path:
            kinds = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in (MANIFEST, WEIGHTS, CARD)}
            told = [file["path"] for file in json.loads(body)["files"]]
            self.say({"files": [{"path": n, "uploadMode": kinds[n], "shouldIgnore": False} for n in told]})
        elif self.path.endswith("/objects/batch"):
            place = {"upload": {"href": f"{host}/upload"}}
            objects = [{**each, "actions": place} for each in json.loads(body)["objects"]]
            self.say({"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = b64decode(line["value"]["content"])
                if line["key"] == "lfsFile":
                    self.files[line["value"]["path"]] = self.objects[line["value"]["oid"]]
            self.say({"commitUrl": f"{host}/someone/waves/commit/{COMMIT}", "commitOid": COMMIT, "success": True})
        else:
            self.say({})


def name_of(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, bytes], list[str]]]:
    files: dict[str, bytes] = {}
    seen: list[str] = []
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, files, {}, seen))
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}", files, seen
    running.shutdown()
    running.server_close()


def call(home: Path, endpoint: str, *command: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the library reads its settings when it is imported."""
    told = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    told |= {} if token is None else {"HF_TOKEN": token}
    return subprocess.run([sys.executable, *command], env=outside | told, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_is_published_is_what_is_loaded(trained, simulator, server, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    endpoint, files, seen = server
    export_model(*trained, tmp_path / "plain")
    export(tmp_path / "plain", tmp_path / "model")
    (tmp_path / "model" / CARD).write_text("---\nlicense: cc0-1.0\n---\n\nMine.\n")
    done = call(tmp_path / "a", endpoint, "-m", "ups", "push", str(tmp_path / "model"), "someone/waves")
    assert (done.returncode, done.stdout) == (0, "hf://someone/waves\n"), done.stderr
    assert {name: files[name] for name in (MANIFEST, WEIGHTS, CARD)} == {
        name: (tmp_path / "model" / name).read_bytes() for name in (MANIFEST, WEIGHTS, CARD)
    }
    assert TOKEN not in done.stderr and sum("/commit/" in request for request in seen) == 1
    files["other.safetensors"] = b"somebody put it there"
    u0 = torch.rand(32)
    torch.save(u0, tmp_path / "u0.pt")
    expected = simulator.rollout(u0, steps=3, conditions={"beta": 0.4}).values
    code = f"""
import torch, ups
for address in ("hf://someone/waves", "hf://someone/waves@{COMMIT}"):
    made = ups.load(address).rollout(torch.load({str(tmp_path / "u0.pt")!r}), steps=3, conditions={{"beta": 0.4}})
torch.save(made.values, {str(tmp_path / "made.pt")!r})
"""
    done = call(tmp_path / "b", endpoint, "-c", code, token=None)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "made.pt"), expected)
    simulate = ("-m", "ups", "export", "hf://someone/waves", str(tmp_path / "copy"))
    done = call(tmp_path / "b", "http://127.0.0.1:1", *simulate, token=None)  # nobody listens: what was fetched serves
    assert done.returncode == 0 and (tmp_path / "copy" / CARD).read_text().endswith("Mine.\n"), done.stderr
    ups.generate(Advection(points=32, frames=9, duration=0.8, beta=0.3), 20, 0, tmp_path / "advection.hdf5", workers=1)
    tune = ("-m", "ups", "finetune", "hf://someone/waves", "--data", str(tmp_path / "advection.hdf5"), "--steps", "4")
    tune += ("--runs", str(tmp_path), "runtime.threads=1", "data.workers=1", "evaluation.resamples=100")
    done = call(tmp_path / "b", endpoint, *tune, token=None)
    assert done.returncode == 0 and "waves-advection/report.html" in done.stdout, done.stderr
    assert f"start: hf://someone/waves@{COMMIT}" in (tmp_path / "waves-advection" / "config.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "token", "says"),
    [
        (("push", "model", "someone/waves"), None, "needs a token of Hugging Face; log in with `hf auth login`"),
        (("push", "model", "someone/waves"), "hf_wrong", "does not let you into someone/waves with this token"),
        (("push", "model", "someone/waves"), TOKEN, "someone/waves: Hugging Face cannot be asked"),
        (("export", "hf://someone/else", "out"), None, "has no hf://someone/else that you may use"),
        (("export", "hf://someone/waves@v9", "out"), None, "has no such revision"),
        (("export", "hf://someone/waves", "out"), None, "holds no model of ups (manifest.json is not there)"),
    ],
)
def test_what_goes_wrong_is_one_sentence(trained, server, tmp_path: Path, command, token, says) -> None:
    pytest.importorskip("huggingface_hub")
    endpoint, files, _ = server
    endpoint = "http://127.0.0.1:1" if says.endswith("cannot be asked") else endpoint
    files[CARD] = b"A model of something else."
    export_model(*trained, tmp_path / "model", "Mine.")
    command = [str(tmp_path / word) if word in ("model", "out") else word for word in command]
    done = call(tmp_path / "home", endpoint, "-m", "ups", *command, token=token)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    *progress, sentence = done.stderr.splitlines()
    assert sentence.startswith("error: ") and "Traceback" not in "".join(progress) and str(token) not in done.stderr


def test_a_server_that_is_not_there_or_a_library_that_is_not_installed_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for act in (ups.load, lambda address: ups.load(Path(address))):
        with pytest.raises(UserError, match=r"need huggingface_hub; pip install 'universal-physics-stack\[hub\]'"):
            act("hf://someone/waves")
    for address in ("hf://someone", "hf://a/b/c", "hf://a/b@"):
        with pytest.raises(UserError, match="write hf://owner/name"):
            hub.fetch(address)
    for name in ("waves", "one/two/three", "one/t w o"):
        with pytest.raises(UserError, match="write owner/name"):
            hub.publish(tmp_path, name)
