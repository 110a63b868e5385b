"""Compile a peer's kernels before anything is timed: each variant in a process of its own, all within a limit.

TileLang takes 17 to 25 seconds of a core for each variant of its logits kernel, and keeps it in a cache on disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import IO, Iterable, NamedTuple, Sequence

from . import processes

_POLL = 0.1
_PATIENCE = 2.0


class _Child(NamedTuple):
    process: subprocess.Popen
    said: IO[str]


def tilelang_variants(shapes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of (rows, width in keys), one for each kernel that SGLang's TileLang function compiles.

    A row's pages are split among as many blocks as it chooses; rows and widths are read at run time.
    """
    splits = {
        max(1, min(width // 64, 256 // rows)): (rows, width) for rows, width in shapes
    }
    return [splits[split] for split in sorted(splits)]


def compile_tilelang(shapes: Sequence[tuple[int, int]], seconds: float) -> None:
    """Fill TileLang's cache for these (rows, width). Raises TimeoutError or RuntimeError, which say why not."""
    commands = [
        [sys.executable, "-m", f"{__package__}.compile_tilelang", str(rows), str(width)]
        for rows, width in tilelang_variants(shapes)
    ]
    run_all(commands, seconds, os.cpu_count() or 1)


def run_all(commands: Sequence[list[str]], seconds: float, at_once: int) -> None:
    """Run the commands, so many at once; none outlives this call.

    Raises RuntimeError with the last line of the first that failed, TimeoutError where they took longer.
    """
    end = time.monotonic() + seconds
    waiting, running, done = list(commands), [], 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0)))
            time.sleep(_POLL)
            ended = [child for child in running if child.process.poll() is not None]
            running = [child for child in running if child not in ended]
            done += len(ended)
            for child in ended:
                _require_success(child)
            if (waiting or running) and time.monotonic() > end:
                raise TimeoutError(
                    f"{done} of {len(commands)} variants were compiled within {seconds:g} s"
                )
    finally:
        for child in running:
            processes.end_group(child.process, _PATIENCE)


def _start(command: list[str]) -> _Child:
    # A file and not a pipe, which would stop a compiler that says more than it holds. A group of its own: what it
    # starts ends with it.
    said = tempfile.TemporaryFile("w+", errors="replace")
    process = subprocess.Popen(
        command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, process_group=0
    )
    return _Child(process, said)


def _require_success(child: _Child) -> None:
    if child.process.returncode:
        child.said.seek(0)
        lines = child.said.read().strip().splitlines() or ["it says nothing"]
        raise RuntimeError(f"exit {child.process.returncode}: {lines[-1][:160]}")
