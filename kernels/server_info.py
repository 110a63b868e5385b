"""What a running server tells about this series: the files that it runs, and which paths were taken."""

from __future__ import annotations

import hashlib
from pathlib import Path

from . import startup

_PACKAGE = Path(__file__).parent
_SGLANG = _PACKAGE.parents[2]

# Upstream's files that a patch of the series changes.
HOOKED = (
    "srt/environ.py",
    "srt/layers/attention/deepseek_v4_backend.py",
    "srt/layers/attention/dsv4/indexer.py",
    "srt/layers/attention/dsv4/metadata.py",
    "srt/layers/attention/flash_mla_sm120.py",
    "srt/layers/quantization/fp8.py",
    "srt/managers/scheduler.py",
    "srt/models/deepseek_v4.py",
    "srt/server_args.py",
)


def describe() -> dict:
    """``files``: path below ``sglang/`` -> git's blob id; ``paths``: flag -> its Route's ``taken``.

    A path is None before the first step that asks for it.
    """
    return {
        "files": _FILES,
        "paths": {hook.ROUTE.name: hook.ROUTE.taken for hook in startup.hooks()},
    }


def _blob_ids() -> dict[str, str]:
    files = (*_PACKAGE.iterdir(), *(_SGLANG / name for name in HOOKED))
    return {
        file.relative_to(_SGLANG).as_posix(): _blob_id(file.read_bytes())
        for file in sorted(files)
        if file.is_file()
    }


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# Read when the process starts: what it has imported, whatever is written over the files later.
_FILES = _blob_ids()
