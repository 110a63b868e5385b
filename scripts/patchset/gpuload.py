"""What is in use on the GPUs that a measurement takes, while it does not run itself.

A load is a dict as it stands in raw files: `gpu` (which one), `memory_mib` (in use), `utilisation` (percent, or
None). None instead of a load: it can't be told, which is never taken for a free GPU.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# An idle driver, a process that only has a context, or a plain desktop takes about half of it; what takes
# time from a measurement holds weights or inputs too.
LIMIT_MIB = 1024
# Of the last second or less. A desktop that is drawn takes less, a job that computes is near 100.
LIMIT_PERCENT = 30
# The server of the step before is gone, and its memory may come back a moment later.
_LOOKS, _PAUSE_S = 3, 1.0
_SECONDS = 30
_FIELDS = "index,uuid,memory.used,utilization.gpu,mig.mode.current,name"


@dataclass(frozen=True)
class _Gpu:
    index: str
    uuid: str
    memory_mib: int
    utilisation: int | None
    name: str

    def load(self) -> dict:
        return {
            "gpu": f"GPU {self.index}",
            "memory_mib": self.memory_mib,
            "utilisation": self.utilisation,
        }


class _Unknown(Exception):
    """nvidia-smi can't tell what is in use on the GPUs of a process here."""


def of_visible(count: int | None = None) -> dict | None:
    """The load of the fullest of the first `count` GPUs that a process started here sees, or of all.

    None without nvidia-smi, under MIG (it does not tell the slices apart), or where it can't be told
    which GPUs are meant.
    """
    try:
        return fullest(gpu.load() for gpu in _visible(_listed(), count))
    except _Unknown:
        return None


def is_busy(load: dict | None) -> bool:
    """Whether something else works there, as far as is known."""
    if load is None:
        return False
    return load["memory_mib"] > LIMIT_MIB or (load["utilisation"] or 0) > LIMIT_PERCENT


def settled(look: Callable[[], dict | None]) -> dict | None:
    """What `look` sees, once what has just ended can't be meant any more."""
    found = look()
    for _ in range(_LOOKS - 1):
        if not is_busy(found):
            break
        time.sleep(_PAUSE_S)
        found = look() or found
    return found


def around(before: dict | None, after: dict | None) -> dict | None:
    """The load of a measurement that was looked at before and after: a free GPU only if both say so."""
    busy = [load for load in (before, after) if is_busy(load)]
    if busy:
        return fullest(busy)
    return None if before is None or after is None else fullest([before, after])


def fullest(loads: Iterable[dict]) -> dict:
    """One that is busy before those that are not, then the one with the most memory in use."""
    return max(loads, key=lambda load: (is_busy(load), load["memory_mib"]))


def said(load: dict) -> str:
    """A load in words."""
    words = f"{load['memory_mib'] / 1024:.1f} GiB of {load['gpu']} in use"
    if load["utilisation"] is None:
        return words
    return f"{words}, {load['utilisation']}% busy"


def _listed() -> list[_Gpu]:
    command = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise _Unknown from None
    if asked.returncode:
        raise _Unknown
    return [_gpu(line) for line in asked.stdout.splitlines() if line.strip()]


def _gpu(line: str) -> _Gpu:
    cells = [cell.strip() for cell in line.split(",", _FIELDS.count(","))]
    if len(cells) != _FIELDS.count(",") + 1 or not _is_number(cells[2]):
        raise _Unknown
    index, uuid, memory, utilisation, mig, name = cells
    if mig == "Enabled":
        raise _Unknown
    percent = int(utilisation) if _is_number(utilisation) else None
    return _Gpu(index, uuid, int(memory), percent, name)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _visible(gpus: Sequence[_Gpu], count: int | None) -> Sequence[_Gpu]:
    """Those that CUDA shows a process, in its order."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        gpus = [_named(gpus, word.strip()) for word in chosen.split(",")]
    elif count is not None:
        _require_order(gpus)
    if not gpus:
        raise _Unknown
    return gpus[:count]


def _named(gpus: Sequence[_Gpu], word: str) -> _Gpu:
    """The GPU that a word of CUDA_VISIBLE_DEVICES means: a position, or how a UUID begins."""
    if _is_number(word):
        _require_order(gpus)
        found = gpus[int(word) : int(word) + 1]
    else:
        found = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
    if len(found) != 1:
        raise _Unknown
    return found[0]


def _require_order(gpus: Sequence[_Gpu]) -> None:
    """CUDA counts the fastest first, nvidia-smi by the bus: of different models that is another order."""
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not by_bus and len({gpu.name for gpu in gpus}) > 1:
        raise _Unknown
