"""Compile a kernel's own launch for a GPU that is not there, and read what came out.

A kernel in CUDA C++ is compiled by NVRTC, as in serving. Triton's JIT runs as in serving (same binder, so the same specialisation); only its driver is replaced
by one that names the wanted target. The machine code is then read with the tools of the triton wheel.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Machine:
    """What one compiled kernel takes and does. Sizes in bytes, instructions counted.

    ``mma``, ``forbidden``, ``byte_loads`` and ``async_copies`` are read from the PTX of a Triton kernel
    and from the SASS of one in CUDA C++; ``bulk_copies`` and ``registers_handed_over``, how often a warp
    changes the number that it has, from the SASS of the latter alone. ``sass`` holds the tensor-core and local-memory instructions
    of the machine code; None for sm_103, sm_110 and sm_121, which the wheel's nvdisasm cannot read. ``before_wait``: the
    accesses to global memory ahead of the wait for the kernel before; None without SASS or a wait.
    """

    arch: int
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared: int
    num_warps: int
    mma: dict[str, int]
    forbidden: tuple[str, ...]
    byte_loads: int
    async_copies: int
    bulk_copies: int
    registers_handed_over: int
    sass: Optional[dict[str, int]]
    before_wait: Optional[tuple[str, ...]]


class _TargetDriver:
    """The part of a Triton driver that the JIT asks while it compiles."""

    def __init__(self, arch: int):
        self._target = GPUTarget("cuda", arch, 32)

    def get_current_target(self):
        return self._target

    def get_current_device(self):
        return self._target.arch

    def get_current_stream(self, _device):
        return 0


@contextmanager
def target(arch: int):
    """Make Triton compile for ``arch`` (120: sm_120) inside the block. No launch is possible there."""
    previous = driver._active
    driver.set_active(_TargetDriver(arch))
    try:
        yield
    finally:
        driver._active = previous


def compile_for(launch, arch: int) -> Machine:
    """Compile ``launch`` for ``arch`` and read registers, spills, shared memory and instructions."""
    with target(arch):
        kernel = launch.compile()
    return read(kernel.asm["ptx"], kernel.asm["cubin"], kernel.metadata, arch)


def sass_for(launch, arch: int) -> str:
    """The machine code of ``launch`` compiled for ``arch``, disassembled; not of sm_103, sm_110 and sm_121 (see Machine)."""
    with target(arch):
        kernel = launch.compile()
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "k.cubin")
        cubin.write_bytes(kernel.asm["cubin"])
        sass = _disassembled(cubin, arch)
    if sass is None:
        raise ValueError(f"the wheel's nvdisasm does not read sm_{arch}")
    return sass


def read(ptx: str, cubin: bytes, metadata, arch: int) -> Machine:
    """Facts of one compiled kernel from its PTX, its cubin and Triton's metadata."""
    with tempfile.TemporaryDirectory() as folder:
        ptx_file, cubin_file = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        ptx_file.write_text(ptx)
        cubin_file.write_bytes(cubin)
        assembler = TOOLS / ("ptxas-blackwell" if arch >= 100 else "ptxas")
        suffix = "a" if arch >= 90 else ""
        report = _run(
            assembler,
            "-v",
            f"--gpu-name=sm_{arch}{suffix}",
            ptx_file,
            "-o",
            "/dev/null",
            stderr=True,
        )
        sass = _disassembled(cubin_file, arch)
    return Machine(
        arch=arch,
        registers=_number(r"Used (\d+) registers", report),
        spill_bytes=_number(r"(\d+) bytes spill stores", report)
        + _number(r"(\d+) bytes spill loads", report),
        stack_bytes=_number(r"(\d+) bytes stack frame", report),
        shared=metadata.shared,
        num_warps=metadata.num_warps,
        mma=_count(
            r"^\s*(mma\.sync\.aligned\.m\d+n\d+k\d+(?:\.\w+)*|wgmma\.mma_async\S*)", ptx
        ),
        forbidden=tuple(sorted(set(re.findall(r"wgmma|tcgen05|multicast", ptx)))),
        byte_loads=len(re.findall(r"\bld\.global\.\S*[bus]8\b", ptx)),
        async_copies=len(re.findall(r"\bcp\.async\.c[ag]\.", ptx)),
        bulk_copies=0,
        registers_handed_over=0,
        sass=_instructions(sass),
        before_wait=_before_wait(sass),
    )


def compile_cuda_for(launch, arch: int) -> Machine:
    """Compile a ``CudaLaunch`` for ``arch`` and read registers, stack, shared memory and instructions.

    Spills are on the stack, so they count there.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin_file = Path(folder, "k.cubin")
        cubin_file.write_bytes(launch.kernel.cubin(arch))
        report = _run(TOOLS / "cuobjdump", "--dump-resource-usage", cubin_file)
        sass = _disassembled(cubin_file, arch)
    stack = _number(r"STACK:(\d+)", report) + _number(r"LOCAL:(\d+)", report)
    return Machine(
        arch=arch,
        registers=_number(r"REG:(\d+)", report),
        spill_bytes=stack,
        stack_bytes=stack,
        shared=launch.kernel.shared_bytes + _number(r"SHARED:(\d+)", report),
        num_warps=launch.block // 32,
        mma=_count(r"\b([A-Z]*MMA\.\S+)", sass or ""),
        forbidden=tuple(
            sorted(set(re.findall(r"HGMMA|UTC\w*MMA|UCGABAR", sass or "")))
        ),
        byte_loads=len(re.findall(r"\bLDG\.E\.[US]8\b", sass or "")),
        async_copies=len(re.findall(r"\bLDGSTS\b", sass or "")),
        bulk_copies=len(re.findall(r"\bUBLKCP\b", sass or "")),
        registers_handed_over=len(re.findall(r"\bUSETMAXREG\b", sass or "")),
        sass=_instructions(sass),
        before_wait=_before_wait(sass),
    )


def _disassembled(cubin: Path, arch: int) -> Optional[str]:
    # The wheel's nvdisasm knows 12.0 but not 12.1, whose code generator is the same, nor 10.3 and 11.0.
    return None if arch in (103, 110, 121) else _run(TOOLS / "nvdisasm", cubin)


def _instructions(sass: Optional[str]) -> Optional[dict[str, int]]:
    if sass is None:
        return None
    return _count(r"\b([A-Z]*MMA\.[\w.]+|STL\b|LDL\b)", sass)


def _before_wait(sass: Optional[str]) -> Optional[tuple[str, ...]]:
    """What comes before the wait that a kernel has from griddepcontrol.wait, ACQBULK.

    An asm's "memory" holds no load below it that the compiler was told is of constant memory, as __ldg's.
    """
    ahead, wait, _ = (sass or "").partition("ACQBULK")
    if not wait:
        return None
    return tuple(re.findall(r"\b(?:LDG|LDGSTS|LD|STG|ST|ATOMG?|REDG?)\b[\w.]*", ahead))


def _run(tool: Path, *args, stderr: bool = False) -> str:
    done = subprocess.run([str(tool), *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{tool.name} failed ({done.returncode}): {done.stderr.strip()[-2000:]}"
        )
    return done.stderr if stderr else done.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the assembler's report has no {pattern!r}: {text[-2000:]}")
    return int(found.group(1))


def _count(pattern: str, text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in re.findall(pattern, text, re.MULTILINE):
        counts[name] = counts.get(name, 0) + 1
    return counts
