"""Kernels in CUDA C++: compiled for the card at hand when first used, launched through the driver.

NVRTC and the driver's Python bindings come with torch and SGLang; no compiler has to be installed.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .nvrtc import compile_cubin


@dataclass(frozen=True)
class CudaKernel:
    """One ``extern "C"`` kernel of a source file, with the constants it is compiled for and the
    dynamic shared memory of a block.

    ``arch_specific``: with the instructions that only this very compute capability has (sm_90a), as
    the handing over of registers.
    """

    source: Path
    name: str
    constants: tuple[tuple[str, int], ...]
    shared_bytes: int
    arch_specific: bool = False

    @lru_cache(maxsize=None)
    def cubin(self, arch: int) -> bytes:
        """Machine code for a compute capability (120: sm_120). Needs no GPU.

        Raises RuntimeError with the compiler's messages.
        """
        text = self.source.read_bytes()
        suffix = "a" if self.arch_specific else ""
        options = [f"--gpu-architecture=sm_{arch}{suffix}", "--std=c++17"]
        options += [f"-D{name}={value}" for name, value in self.constants]
        headers = _included(text, self.source.parent)
        return compile_cubin(text, self.source.name, headers, options)

    @lru_cache(maxsize=None)
    def function(self, device: int) -> Any:
        """The loaded kernel on a CUDA device."""
        from cuda.bindings import driver

        major, minor = torch.cuda.get_device_capability(device)
        code = self.cubin(10 * major + minor)
        with torch.cuda.device(device):
            _make_context_current(device)
            library = _checked(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))
            kernel = _checked(driver.cuLibraryGetKernel(library, self.name.encode()))
            function = _checked(driver.cuKernelGetFunction(kernel))
            # More than 48 KB of shared memory has to be asked for.
            limit = (
                driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            )
            _checked(driver.cuFuncSetAttribute(function, limit, self.shared_bytes))
            return function


@dataclass(frozen=True)
class CudaLaunch:
    """One launch of a ``CudaKernel``: grid and block sizes, and its one argument.

    ``tensors``: what the argument points into; held for as long as the launch is.
    ``overlap``: start while the kernel before still runs; the kernel itself waits for it.
    """

    kernel: CudaKernel
    grid: int
    block: int
    argument: ctypes.Structure
    tensors: tuple
    overlap: bool = False

    def run(self, device: torch.device) -> None:
        """Launch on the current stream of ``device``."""
        from cuda.bindings import driver

        index = torch.cuda.current_device() if device.index is None else device.index
        function = self.kernel.function(index)
        _make_context_current(index)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.block, 1, 1
        config.sharedMemBytes = self.kernel.shared_bytes
        config.hStream = torch.cuda.current_stream(index).cuda_stream
        if self.overlap and torch.cuda.get_device_capability(index)[0] >= 9:
            attribute = driver.CUlaunchAttribute()
            attribute.id = (
                driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        addresses = (ctypes.c_void_p * 1)(ctypes.addressof(self.argument))
        _checked(
            driver.cuLaunchKernelEx(config, function, ctypes.addressof(addresses), 0)
        )


def _included(text: bytes, folder: Path) -> dict[bytes, bytes]:
    """Name and content of the headers of ``folder`` that a source includes: the compiler reads no file."""
    headers = {}
    for name in re.findall(rb'^#include "(.+)"$', text, re.MULTILINE):
        headers[name] = (folder / name.decode()).read_bytes()
        headers |= _included(headers[name], folder)
    return headers


def _make_context_current(device: int) -> None:
    """A thread that has not used CUDA yet has no current context; torch's is the device's primary one."""
    from cuda.bindings import driver

    if int(_checked(driver.cuCtxGetCurrent())) == 0:
        context = _checked(driver.cuDevicePrimaryCtxRetain(driver.CUdevice(device)))
        _checked(driver.cuCtxSetCurrent(context))


def _checked(result):
    """The value of a binding's (status, value...) tuple. Raises RuntimeError on a bad status."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{type(status).__name__} {int(status)}: {status.name}")
    return values[0] if len(values) == 1 else None
