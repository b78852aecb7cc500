"""Files elsewhere: the same numbers as here, and only the bytes that are asked for."""

import functools
import http.server
import importlib.util
import os
import re
import sys
import threading

import h5py
import pytest
import torch
from layout_cases import assert_same, batch_of, header_of, write

from ups.data.formats.pairs import PairsWriter
from ups.data.formats.pdegym.writer import GymWriter
from ups.data.formats.well.writer import WellWriter
from ups.data.open import open_dataset
from ups.data.remote import BLOCK, is_remote, url_of
from ups.errors import UserError
from ups.fields import Boundary

fsspec = pytest.importorskip("fsspec")

CASES = {
    "well": (WellWriter, header_of((6, 5), 4, ("u", "velocity_x", "velocity_y"), static=("a",))),
    "pdegym": (GymWriter, header_of((6, 5), 4, ("u",), static=("c",))),
    "pairs": (PairsWriter, header_of((6, 5), 1, static=("a",), boundary=Boundary.all("value", 2))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_remote_file_gives_what_the_local_one_does(tmp_path, case, scheme):
    writer, header = CASES[case]
    batch = batch_of(header, 5)
    path = write(writer, tmp_path / case, header, batch)
    address = f"file://{path}"
    if scheme == "memory":
        address = f"memory://{tmp_path.name}-{case}"
        with fsspec.open(address, "wb") as file:
            file.write(path.read_bytes())
    assert_same(open_dataset(address), header, batch)


def test_addresses_survive_being_paths():
    from pathlib import Path

    for address in ("https://host:80/a/b.hdf5?x=1", "s3://bucket/key", "memory://a", "file:///tmp/a"):
        assert is_remote(address) and url_of(address) == address and url_of(Path(address)) == address
    for path in ("data/a.hdf5", "/data/a.hdf5", "c:/data", "a:b"):
        assert not is_remote(path)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A server that knows ranges and remembers how many bytes it gave."""

    given = 0

    def log_message(self, *words) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.translate_path(self.path)
        if not os.path.isfile(path):
            self.send_error(404)
            return
        size = os.path.getsize(path)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), min(int(asked[2] or size - 1) + 1, size)) if asked else (0, size)
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if body:
            with open(path, "rb") as file:
                file.seek(start)
                self.wfile.write(file.read(stop - start))
            type(self).given += stop - start


@pytest.fixture
def server(tmp_path):
    handler = functools.partial(Ranges, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        Ranges.given = 0
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


@pytest.mark.skipif(
    importlib.util.find_spec("aiohttp") is None, reason="aiohttp is not installed: pip install .[remote]"
)
def test_over_http_a_batch_costs_its_own_bytes(tmp_path, server):
    header = header_of((64, 64), 8, ("velocity_x", "velocity_y", "tracer"))
    batch = batch_of(header, 100)
    path = write(GymWriter, tmp_path / "NS.nc", header, batch)
    size, one = path.stat().st_size, 8 * 3 * 64 * 64 * 4
    assert size > 35 * 2**20
    dataset = open_dataset(f"{server}/NS.nc")
    opened = Ranges.given
    assert opened < 8 * BLOCK
    read = dataset.read([70, 3], slice(None))
    assert torch.equal(read.values, batch.values[[70, 3]])
    assert Ranges.given - opened < 2 * one + 6 * BLOCK
    with pytest.raises(UserError, match=r"none\.nc is not there"):
        open_dataset(f"{server}/none.nc")
    with h5py.File(tmp_path / "cut.nc", "w") as file:
        file["velocity"] = batch.values[:2].movedim(-1, 2).numpy()
    whole = (tmp_path / "cut.nc").read_bytes()
    (tmp_path / "cut.nc").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="truncated"):
        open_dataset(f"{server}/cut.nc")


def test_what_cannot_be_reached_is_said_in_one_sentence():
    with pytest.raises(UserError, match=r"nosuch://a/b.*use an address such as"):
        open_dataset("nosuch://a/b")
    if importlib.util.find_spec("s3fs") is None:
        with pytest.raises(UserError, match=r"s3://bucket/a.*install universal-physics-stack\[remote\]"):
            open_dataset("s3://bucket/a")


def test_without_fsspec_local_files_are_read_and_remote_ones_named(tmp_path, monkeypatch):
    header = header_of((6,))
    path = write(WellWriter, tmp_path / "a.hdf5", header, batch_of(header, 2))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert len(open_dataset(path)) == 2
    with pytest.raises(UserError, match=r"https://host/a.hdf5.*install universal-physics-stack\[remote\]"):
        open_dataset("https://host/a.hdf5")
