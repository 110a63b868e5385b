"""Launch plans, and the hardware limits they are checked against.

A kernel module turns its arguments into one ``Launch``. Serving runs it; the compile gate asks the
same object for the same kernel on a card that is not there. So both see one specialisation (which
integers and pointers are known to be multiples of 16, which constants, how many warps), which is
what decides registers, shared memory and whether loads are vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Mapping

import torch


@dataclass(frozen=True)
class Hardware:
    """Per-SM limits of a compute capability that bound a block. Sizes in bytes."""

    name: str
    shared_per_block: int
    shared_per_sm: int
    shared_reserved: int
    registers_per_sm: int
    registers_per_thread: int
    warps_per_sm: int
    blocks_per_sm: int

    def blocks_resident(self, registers: int, shared: int, num_warps: int) -> int:
        """Blocks of one kernel that fit an SM at once; 0 if one does not fit.

        ``registers`` per thread, ``shared`` bytes per block. Registers are given to warps in
        units of 256, and the hardware keeps ``shared_reserved`` bytes for each block.
        """
        if shared > self.shared_per_block or registers > self.registers_per_thread:
            return 0
        per_warp = -(-registers * 32 // 256) * 256
        return min(
            self.registers_per_sm // (per_warp * num_warps),
            self.shared_per_sm // (shared + self.shared_reserved),
            self.warps_per_sm // num_warps,
            self.blocks_per_sm,
        )


# Source: CUDA's architecture traits for compute capability 12.0 and 12.1 (equal in these numbers).
SM120 = Hardware(
    name="sm_120",
    shared_per_block=101_376,
    shared_per_sm=102_400,
    shared_reserved=1_024,
    registers_per_sm=65_536,
    registers_per_thread=255,
    warps_per_sm=48,
    blocks_per_sm=24,
)


@dataclass(frozen=True)
class Launch:
    """One kernel launch: the jitted function, its grid, arguments and compile options."""

    kernel: Any
    grid: tuple[int, ...]
    args: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Launch on the current stream."""
        self.kernel[self.grid](**self.args, **self.options)

    def compile(self) -> Any:
        """Compile for the active driver's target without launching; returns the compiled kernel."""
        return self.kernel.warmup(grid=self.grid, **self.args, **self.options)


def sm_count(device: torch.device) -> int:
    """Multiprocessors of ``device``; 4 on the CPU, where the Triton interpreter runs."""
    return _properties(device).multi_processor_count if device.type == "cuda" else 4


def has_large_sms(device: torch.device) -> bool:
    """Whether an SM of ``device`` has over 200 KB of shared memory (sm_90, sm_100; not sm_120)."""
    return device.type == "cuda" and _properties(device).major in (9, 10)


def has_copy_engine(device: torch.device) -> bool:
    """Whether an SM of ``device`` copies runs of bytes to shared memory by itself, and its warps hand over
    registers (sm_90 and later). So does the CPU's stand-in, which runs what sm_120 does.
    """
    return device.type != "cuda" or _properties(device).major >= 9


def can_overlap_launches(device: torch.device) -> bool:
    """Whether a kernel may start on ``device`` while the one before still runs (programmatic launch)."""
    return device.type == "cuda" and _properties(device).major >= 9


def _properties(device: torch.device):
    index = torch.cuda.current_device() if device.index is None else device.index
    return _cuda_properties(index)


@lru_cache(maxsize=None)
def _cuda_properties(index: int):
    return torch.cuda.get_device_properties(index)
