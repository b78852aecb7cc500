"""Fetching against a real server on the loopback address: whole, resumed, refused; a file under its name is right."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

import pytest

from ups.data import fetch as fetch_module
from ups.data.fetch import fetch
from ups.data.published import PublishedFile, find_published
from ups.errors import UserError

BODY = bytes(range(256)) * 12_000  # 3 MB: more than two blocks


class Server(ThreadingHTTPServer):
    """Serves BODY as /data.hdf5. What it does wrong is set by the test."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.version = BODY, '"1"'
        self.ranges = True
        self.cut: list[int] = []  # how many bytes to send before hanging up, a request each
        self.failures: list[int] = []  # codes to answer first
        self.claimed: int | None = None
        self.asked: list[str | None] = []  # the Range of each request
        self.pages: dict[str, tuple[str, str]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data.hdf5"

    def file(self, **changes: object) -> PublishedFile:
        checksum = f"md5:{hashlib.md5(BODY).hexdigest()}"
        return replace(PublishedFile("data.hdf5", self.url, PurePosixPath("data.hdf5"), checksum), **changes)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        if self.path in server.pages:
            text, link = server.pages[self.path]
            self._answer(200, text.encode(), {"Link": link})
            return
        server.asked.append(wanted)
        if server.failures:
            self._answer(server.failures.pop(0), b"")
            return
        if self.path != "/data.hdf5":
            self._answer(404, b"")
            return
        start = 0
        if wanted and server.ranges and self.headers.get("If-Range", server.version) == server.version:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(server.body):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(server.body)}"})
            return
        headers = {"ETag": server.version} if server.version else {}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(server.body) - 1}/{len(server.body)}"
        self._answer(206 if start else 200, server.body[start:], headers)

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(self.server.claimed or len(body)))
        self.end_headers()
        if code in (200, 206) and self.server.cut:
            body = body[: self.server.cut.pop(0)]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(fetch_module, "_PAUSES", (0.01, 0.01))
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_file_arrives_whole_and_its_bytes_are_counted(server, tmp_path):
    seen: list[tuple[int, int]] = []
    path = fetch(server.file(), tmp_path / "new", lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "new" / "data.hdf5" and path.read_bytes() == BODY
    assert names(tmp_path) == ["data.hdf5"]
    assert seen[0] == (0, len(BODY)) and seen[-1] == (len(BODY), len(BODY)) and seen == sorted(seen)


def test_a_broken_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.cut = [1_000_000, 1_200_000]
    assert fetch(server.file(), tmp_path).read_bytes() == BODY
    assert server.asked == [None, "bytes=1000000-", "bytes=2200000-"]


def test_a_second_call_goes_on_where_the_first_was_stopped(server, tmp_path):
    def stop(done: int, total: int) -> None:
        if done > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server.file(), tmp_path, stop)
    assert "data.hdf5" not in names(tmp_path)
    assert fetch(server.file(), tmp_path).read_bytes() == BODY
    assert server.asked == [None, "bytes=2097152-"]
    assert names(tmp_path) == ["data.hdf5"]


def test_a_server_that_cannot_resume_sends_it_from_the_start(server, tmp_path):
    server.cut, server.ranges = [1_000_000], False
    assert fetch(server.file(), tmp_path).read_bytes() == BODY
    assert len(server.asked) == 2


@pytest.mark.parametrize("checksum", [None, f"md5:{hashlib.md5(BODY).hexdigest()}"])
def test_a_server_without_versions_is_resumed_only_where_a_checksum_judges(server, tmp_path, checksum):
    server.cut, server.version = [1_000_000], ""
    assert fetch(server.file(checksum=checksum), tmp_path).read_bytes() == BODY
    assert server.asked == [None, "bytes=1000000-" if checksum else None]


def test_two_versions_are_never_mixed(server, tmp_path):
    server.cut = [1_000_000] + [0] * 9
    with pytest.raises(UserError, match="what has arrived is kept"):
        fetch(server.file(checksum=None), tmp_path)
    server.cut, server.body, server.version = [], BODY[::-1], '"2"'
    assert fetch(server.file(checksum=None), tmp_path).read_bytes() == BODY[::-1]


def test_a_part_that_is_already_whole_is_only_checked(server, tmp_path):
    (tmp_path / ".data.hdf5.part").write_bytes(BODY)
    assert fetch(server.file(), tmp_path).read_bytes() == BODY
    assert server.asked == [f"bytes={len(BODY)}-"]


def test_a_part_longer_than_the_file_is_fetched_anew(server, tmp_path):
    (tmp_path / ".data.hdf5.part").write_bytes(BODY + b"more")
    assert fetch(server.file(), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.body = BODY[:-1] + b"!"
    with pytest.raises(UserError, match="not the published file"):
        fetch(server.file(), tmp_path)
    assert names(tmp_path) == []
    server.body = BODY
    assert fetch(server.file(), tmp_path).read_bytes() == BODY


def test_a_part_that_another_process_holds_is_left_alone(server, tmp_path):
    part = tmp_path / ".data.hdf5.part"
    with part.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="being fetched by another process"):
            fetch(server.file(), tmp_path)
        assert part.exists() and server.asked == []


def test_a_part_is_held_until_it_has_its_name(server, tmp_path, monkeypatch):
    """A second fetch during the checksum would take the part for one to go on with."""
    refused = []

    def checksum(file: PublishedFile, path: Path) -> None:
        with pytest.raises(UserError, match="being fetched by another process"):
            fetch(server.file(), tmp_path)
        refused.append(path.name)

    monkeypatch.setattr(fetch_module, "_other_checksum", checksum)
    assert fetch(server.file(), tmp_path).read_bytes() == BODY
    assert refused == [".data.hdf5.part"] and names(tmp_path) == ["data.hdf5"]


def test_a_file_that_is_there_is_kept_if_it_is_right(server, tmp_path):
    (tmp_path / "data.hdf5").write_bytes(BODY)
    fetch(server.file(), tmp_path)
    assert server.asked == []
    (tmp_path / "data.hdf5").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"data\.hdf5 exists and is not the published file"):
        fetch(server.file(), tmp_path)
    assert (tmp_path / "data.hdf5").read_bytes() == b"mine"


def test_passing_failures_of_the_server_are_waited_out(server, tmp_path):
    server.failures = [503, 429]
    assert fetch(server.file(), tmp_path).read_bytes() == BODY
    server.failures = [503] * 9
    with pytest.raises(UserError, match="answers 503"):
        fetch(server.file(), tmp_path / "again")


def test_a_missing_file_is_said_at_once(server, tmp_path):
    with pytest.raises(UserError, match=r"gone\.hdf5 answers 404 Not Found"):
        fetch(server.file(url=server.url.replace("data", "gone")), tmp_path)
    assert len(server.asked) == 1


def test_a_host_that_cannot_be_reached_is_said_at_once(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"127\.0\.0\.1:\d+ cannot be reached"):
        fetch(server.file(), tmp_path)


def test_a_file_larger_than_the_disk_is_refused_before_it_comes(server, tmp_path):
    server.claimed = 10**16
    with pytest.raises(UserError, match="MiB free; free some space"):
        fetch(server.file(), tmp_path)


def test_a_disk_that_fills_up_is_one_sentence(server, tmp_path):
    """/dev/full refuses every byte with ENOSPC, as a full disk does."""
    (tmp_path / ".data.hdf5.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match="the disk is full") as caught:
        fetch(server.file(), tmp_path)
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC
    assert not (tmp_path / "data.hdf5").exists()


def test_another_size_than_the_published_one_is_refused(server, tmp_path):
    with pytest.raises(UserError, match="it is another file"):
        fetch(server.file(size=5), tmp_path)


def test_pdebench_s_list_gives_addresses_and_checksums_by_name(server, tmp_path, monkeypatch):
    site = server.url.removesuffix("/data.hdf5")
    md5 = hashlib.md5(BODY).hexdigest()
    rows = [f"Burgers,1D_Burgers_Sols_Nu{nu}.hdf5,{server.url},1D/Burgers/Train/,{md5}" for nu in ("0.001", "0.002")]
    server.pages["/list.csv"] = ("\n".join(["PDE,Filename,URL,Path,MD5", *rows]), "")
    monkeypatch.setenv("UPS_PDEBENCH_LIST", f"{site}/list.csv")
    (burgers,) = find_published("1D_Burgers_Sols_Nu0.001.hdf5")
    assert burgers.checksum == f"md5:{md5}" and fetch(burgers, tmp_path) == tmp_path / "1D_Burgers_Sols_Nu0.001.hdf5"
    assert len(find_published("1D_Burgers_Sols_*")) == 2
    with pytest.raises(UserError, match=r"did you mean 1D_Burgers_Sols_Nu0\.001\.hdf5"):
        find_published("1D_Burgers_Nu0.001.hdf5")
    (tmp_path / "list.csv").write_text(server.pages["/list.csv"][0])
    monkeypatch.setenv("UPS_PDEBENCH_LIST", str(tmp_path / "list.csv"))
    assert find_published("1D_Burgers_Sols_Nu0.001.hdf5") == [burgers]


@pytest.mark.parametrize("page", ["", "a,b\n1,2", "<html>moved</html>"])
def test_what_is_not_pdebench_s_list_is_refused(server, monkeypatch, page):
    site = server.url.removesuffix("/data.hdf5")
    server.pages["/list.csv"] = (page, "")
    monkeypatch.setenv("UPS_PDEBENCH_LIST", f"{site}/list.csv")
    with pytest.raises(UserError, match="not the list of PDEBench's files; set UPS_PDEBENCH_LIST"):
        find_published("1D_Burgers_Sols_Nu0.001.hdf5")


def test_files_on_hugging_face_come_with_the_checksums_it_lists(server, tmp_path, monkeypatch):
    site = server.url.removesuffix("/data.hdf5")
    monkeypatch.setenv("HF_ENDPOINT", site)
    sha = hashlib.sha256(BODY).hexdigest()
    first = [
        {"type": "directory", "path": "data"},
        {"type": "file", "path": "data/test/a.hdf5", "size": len(BODY), "lfs": {"oid": sha, "size": len(BODY)}},
    ]
    second = [{"type": "file", "path": "stats.yaml", "size": 3}]
    listing = "/api/datasets/polymathic-ai/active_matter/tree/main?recursive=true"
    server.pages[listing] = (json.dumps(first), f'<{site}/second>; rel="next"')
    server.pages["/second"] = (json.dumps(second), "")
    found = find_published("well/active_matter/*")
    assert [file.name for file in found] == ["well/active_matter/data/test/a.hdf5", "well/active_matter/stats.yaml"]
    assert found[0].url == f"{site}/datasets/polymathic-ai/active_matter/resolve/main/data/test/a.hdf5"
    path = fetch(replace(found[0], url=server.url), tmp_path)
    assert path == tmp_path / "active_matter" / "data" / "test" / "a.hdf5"
    with pytest.raises(UserError, match=r"did you mean well/active_matter/data/test/a\.hdf5"):
        find_published("well/active_matter/data/test/b.hdf5")
    with pytest.raises(UserError, match="no data set well/activ_matter"):
        find_published("well/activ_matter/*")
    with pytest.raises(UserError, match="'well/active_matter/\\*' for all"):
        find_published("well/active_matter")


@pytest.mark.parametrize("place", ["/etc/data.hdf5", "data/../../../data.hdf5"])
def test_a_listing_that_leads_out_of_the_folder_is_refused(server, monkeypatch, place):
    monkeypatch.setenv("HF_ENDPOINT", server.url.removesuffix("/data.hdf5"))
    listing = "/api/datasets/polymathic-ai/active_matter/tree/main?recursive=true"
    server.pages[listing] = (json.dumps([{"type": "file", "path": place, "size": 3}]), "")
    with pytest.raises(UserError, match="which lies outside it"):
        find_published("well/active_matter/*")
