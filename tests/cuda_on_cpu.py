"""Run a ``CudaLaunch`` on the CPU: the kernel's own source under ``cuda_on_cpu.h``."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Iterator, Optional, Sequence

import torch

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
COMPILER = "g++"
# The variable that names a folder of compiled kernels: each is compiled once for all processes of a run.
SHARED = "PATCHSET_TEST_COMPILED"


def run(
    launch,
    *,
    order: Optional[Sequence[int]] = None,
    readable: Sequence[torch.Tensor] = (),
    seed: int = 0,
) -> None:
    """Run the blocks of ``launch`` one after another, in ``order`` (ascending when None).

    ``seed``: of the order in which the threads of a block take turns.
    ``readable``: contiguous tensors that the kernel's read-only loads may touch; any when empty.
    Raises AssertionError when a barrier is not reached by all threads, or on a read outside.
    """
    blocks = list(range(launch.grid)) if order is None else list(order)
    assert sorted(blocks) == list(range(launch.grid))
    run_blocks(launch, blocks, readable=readable, seed=seed)


def run_blocks(
    launch,
    blocks: Sequence[int],
    *,
    readable: Sequence[torch.Tensor] = (),
    seed: int = 0,
) -> None:
    """As ``run``, for as many blocks as the launch has, of which some may be left out and others come again."""
    assert len(blocks) == launch.grid
    ranges = [
        address
        for tensor in readable
        for address in (
            tensor.data_ptr(),
            tensor.data_ptr() + tensor.numel() * tensor.element_size(),
        )
    ]
    status = _entry(launch.kernel)(
        launch.grid,
        launch.block,
        (ctypes.c_int * len(blocks))(*blocks),
        (ctypes.c_void_p * 1)(ctypes.addressof(launch.argument)),
        (ctypes.c_size_t * len(ranges))(*ranges),
        len(ranges) // 2,
        seed % 2**32,
    )
    assert status >= 0, "a barrier was not reached by all threads of a block"
    assert status == 0, f"{status} reads outside what the arguments allow"


@lru_cache(maxsize=None)
def _entry(kernel):
    source = (
        f'#include "{HEADER}"\n#include "{kernel.source}"\n'
        'extern "C" int run(int blocks, int threads, const int* order, void** args,'
        " const on_cpu::Range* ranges, int count, unsigned seed) {\n"
        f"  return on_cpu::run({kernel.name}, blocks, threads, order, args, ranges, count, seed);\n"
        "}\n"
    )
    constants = [f"-D{name}={value}" for name, value in kernel.constants]
    # Each library keeps its own fibers and statics: unique symbols are one for the whole process, whatever
    # two kernels mean by a name.
    own = ["-fno-gnu-unique", "-Wl,-Bsymbolic"]
    command = [COMPILER, "-std=c++17", "-O2", "-shared", "-fPIC", *own, *constants]
    # Of all that the source may include: the file's own folder, and what stands in for CUDA.
    read = [*kernel.source.parent.glob("*.cu*"), *HEADER.parent.glob("*.h")]
    key = hashlib.sha256("\n".join([*command, source]).encode())
    for file in sorted(read):
        key.update(b"%s\n" % hashlib.sha256(file.read_bytes()).hexdigest().encode())
    with _shared_folder() as folder:
        library = Path(folder, f"{key.hexdigest()}.so")
        with open(library.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _compile(command, source, library)
        return ctypes.CDLL(str(library)).run


def _compile(command: list[str], source: str, library: Path) -> None:
    file, unfinished = library.with_suffix(".cpp"), library.with_suffix(".unfinished")
    file.write_text(source)
    done = subprocess.run(
        [*command, str(file), "-o", str(unfinished)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{COMPILER} failed:\n{done.stderr[-4000:]}")
    unfinished.rename(library)


@contextmanager
def _shared_folder() -> Iterator[str]:
    """The folder that the processes of a run share, or else one for this kernel."""
    shared = os.environ.get(SHARED)
    if shared:
        yield shared
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
