"""An nvidia-smi that tells what a test says."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def answers(directory: Path, *told: tuple[int, int]) -> dict[str, str]:
    """The environment in which nvidia-smi tells of two GPUs the MiB in use, other ones at each call; the
    last ones from then on."""
    place = directory / "smi"
    place.mkdir()
    for number, used in enumerate(told, 1):
        rows = [f"{i}, GPU-{i}, {mib}, 0, [N/A], H200" for i, mib in enumerate(used)]
        (place / f"answer-{number}").write_text("\n".join(rows) + "\n")
    tool = place / "nvidia-smi"
    tool.write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(place))}\necho >> calls\nn=$(wc -l < calls)\n"
        f"[ -e answer-$n ] || n={len(told)}\ncat answer-$n\n"
    )
    tool.chmod(0o755)
    return {
        "PATH": f"{place}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


def calls(directory: Path) -> int:
    """How often it was asked."""
    return len((directory / "smi" / "calls").read_text().splitlines())
