"""Workspaces that a kernel's launches use again: one for each stream, large enough for what was asked."""

from __future__ import annotations

from typing import Any, Callable, Hashable

import torch


class StreamWorkspaces:
    """The workspaces of one kernel.

    Launches of one stream never run side by side, so they share one; it is replaced by a larger one when
    needed. ``make(device, *sizes)`` allocates one of at least these sizes, in the state that the kernel
    leaves it in.
    """

    def __init__(self, make: Callable[..., Any]):
        self._make = make
        self._kept: dict[tuple, tuple[tuple[int, ...], Any]] = {}
        # A captured graph keeps the addresses it was captured with: what it uses is never given back.
        self._captured: list[Any] = []

    def get(self, device: torch.device, *sizes: int, kind: Hashable = None) -> Any:
        """A workspace of at least ``sizes`` for a launch on the current stream of ``device``.

        ``kind`` keeps workspaces apart whose states or meanings differ.
        """
        key = (device, torch.cuda.current_stream(device).cuda_stream, kind)
        capturing = torch.cuda.is_current_stream_capturing()
        have, kept = self._kept.get(key, ((0,) * len(sizes), None))
        if kept is not None and all(h >= n for h, n in zip(have, sizes)):
            if capturing and not any(kept is one for one in self._captured):
                self._captured.append(kept)
            return kept
        # Powers of two: prompts of growing length do not each need a new one.
        sizes = tuple(_power_of_two(max(h, n)) for h, n in zip(have, sizes))
        made = self._make(device, *sizes)
        # What is allocated inside a capture lives in that graph's pool: it is that graph's alone.
        if not capturing:
            self._kept[key] = (sizes, made)
        return made


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
