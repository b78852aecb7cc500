"""A durable file is the old one or the new one, and a sealed one says when it was changed."""

import json
import resource

import pytest

from ups.durable import crc32_of, seal, unseal, write


def test_a_refused_write_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path):
    write(tmp_path / "pointer", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError):
            write(tmp_path / "pointer", b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == ["pointer"]
    assert (tmp_path / "pointer").read_bytes() == b"old"


def test_the_checksum_is_the_standard_one(tmp_path):
    write(tmp_path / "file", b"123456789")
    assert crc32_of(tmp_path / "file") == 0xCBF43926  # the check value published for CRC-32


def test_sealed_json_comes_back_and_any_changed_digit_is_found():
    content = {"loss": 0.1, "steps": [1, 2, 3], "name": "Δ", "best": float("inf"), "nothing": None}
    text = seal(content)
    assert unseal(text) == content
    for old, new in ((b"0.1", b"0.2"), (b"3", b"4"), (b"null", b"true")):
        with pytest.raises(ValueError):
            unseal(text.replace(old, new))
    for foreign in (b"", b"{}", b"[1]", text[:-5], json.dumps(content).encode(), b"\xff\xfe", b"[" * 200_000):
        with pytest.raises(ValueError):
            unseal(foreign)
