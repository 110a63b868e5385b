"""The NVIDIA GPUs of this machine, as nvidia-smi lists them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from .errors import Exit, Failure

_SECONDS = 30


@dataclass(frozen=True)
class Gpu:
    """One GPU: its name, memory in MiB and compute capability such as "12.0"."""

    name: str
    memory: int
    capability: str

    def line(self) -> str:
        """One phrase for a person."""
        return f"{self.name}, {self.memory / 1024:.0f} GiB, sm_{self.capability.replace('.', '')}"


def visible() -> list[Gpu]:
    """The GPUs that a process started here sees: CUDA_VISIBLE_DEVICES counts.

    Raises Failure(ENVIRONMENT) without nvidia-smi, or when it can't list them.
    """
    if not shutil.which("nvidia-smi"):
        raise _failure("no nvidia-smi: is there an NVIDIA GPU and its driver?")
    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,compute_cap",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failure(f"nvidia-smi gave no list: {error}") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise _failure(f"nvidia-smi failed: {said[-1] if said else done.returncode}")
    gpus = [_gpu(line) for line in done.stdout.splitlines() if line.strip()]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        gpus = gpus[: len([one for one in chosen.split(",") if one.strip()])]
    if not gpus:
        raise _failure("no GPU is visible here")
    return gpus


def _gpu(line: str) -> Gpu:
    try:
        name, memory, capability = (cell.strip() for cell in line.rsplit(",", 2))
        return Gpu(name, int(memory), capability)
    except ValueError:
        raise _failure(f"nvidia-smi lists a GPU in another form: {line!r}") from None


def _failure(what: str) -> Failure:
    return Failure(
        Exit.ENVIRONMENT,
        what,
        state="no server was started",
        next="run it on a machine with an NVIDIA GPU; --dry-run with --tp-size N shows the "
        "command anywhere",
    )
