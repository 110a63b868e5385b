"""Packing with every core: xz streams of a fixed length, one after the other, which xz reads as one file."""

from __future__ import annotations

import lzma
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

# Of plain bytes. Fixed, so that the same files make the same archive on every machine.
LENGTH = 32 << 20
# Each takes about 100 MiB for its dictionary, and two lengths.
_MOST_THREADS = 8


class Streams:
    """A file to write; its packed bytes go to another one in order, the last of them at close()."""

    def __init__(self, output: BinaryIO, preset: int, length: int = LENGTH):
        self._output = output
        self._preset = preset
        self._length = length
        self._plain = bytearray()
        self._threads = min(os.cpu_count() or 1, _MOST_THREADS)
        self._pool = ThreadPoolExecutor(self._threads)
        self._packed: deque[Future[bytes]] = deque()

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self._pack_all()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def write(self, data: bytes) -> int:
        """Take data; raises what writing the packed bytes raises."""
        self._plain += data
        while len(self._plain) >= self._length:
            self._pack()
        return len(data)

    def _pack_all(self) -> None:
        # A file without a stream would be none that xz reads.
        if self._plain or not self._packed:
            self._pack()
        while self._packed:
            self._output.write(self._packed.popleft().result())

    def _pack(self) -> None:
        stream = bytes(self._plain[: self._length])
        del self._plain[: self._length]
        self._packed.append(
            self._pool.submit(lzma.compress, stream, preset=self._preset)
        )
        if len(self._packed) > self._threads:
            self._output.write(self._packed.popleft().result())
