"""Packing with several threads: streams that read as one file, in order, the same each time."""

from __future__ import annotations

import io
import lzma
import os
import threading

import pytest

from patchset.bundle.streams import Streams


def packed(*data: bytes, length: int = 1_000) -> bytes:
    output = io.BytesIO()
    with Streams(output, 0, length) as streams:
        for each in data:
            assert streams.write(each) == len(each)
    return output.getvalue()


def streams_of(archive: bytes) -> list[bytes]:
    found = []
    while archive:
        one = lzma.LZMADecompressor()
        found.append(one.decompress(archive))
        archive = one.unused_data
    return found


def test_many_streams_read_as_one_file():
    data = os.urandom(45_600)
    archive = packed(data[:10], data[10:7_300], data[7_300:])
    assert [len(each) for each in streams_of(archive)] == [1_000] * 45 + [600]
    with lzma.open(io.BytesIO(archive)) as plain:
        assert plain.read() == data


@pytest.mark.parametrize("size", [0, 1, 1_000, 2_000])
def test_a_length_that_is_whole_and_none(size):
    archive = packed(b"x" * size)
    assert lzma.decompress(archive) == b"x" * size
    assert len(streams_of(archive)) == max(1, -(-size // 1_000))


def test_the_writes_and_the_cores_do_not_show(monkeypatch):
    data = os.urandom(9_999)
    whole = packed(data)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert packed(*(data[at : at + 7] for at in range(0, len(data), 7))) == whole


@pytest.mark.parametrize("lengths", [100, 2])
@pytest.mark.parametrize(
    "stop", [OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_what_stops_the_writing_is_told_and_ends_the_threads(
    lengths, stop, monkeypatch
):
    class Stops(io.BytesIO):
        def write(self, _):
            raise stop

    # Two lengths are fewer than the threads: nothing is written before the end.
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    before = set(threading.enumerate())
    with pytest.raises(type(stop), match="No space left|^$"):
        with Streams(Stops(), 0, 1_000) as streams:
            streams.write(bytes(1_000 * lengths))
    assert set(threading.enumerate()) <= before
