"""NVRTC, the compiler of CUDA C++, called in its own library.

Not through cuda.bindings: from 13.5 on they take a function of that name from whatever the process has
loaded, and TileLang, which SGLang imports, loads a stand-in for the library there. It ends the process.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Mapping, Sequence


def compile_cubin(
    source: bytes, name: str, headers: Mapping[bytes, bytes], options: Sequence[str]
) -> bytes:
    """Machine code of a source. ``headers``: name -> content of what it includes. Needs no GPU.

    Raises RuntimeError with the compiler's messages.
    """
    program = ctypes.c_void_p()
    _call(
        "nvrtcCreateProgram",
        ctypes.byref(program),
        source,
        name.encode(),
        len(headers),
        _strings(list(headers.values())),
        _strings(list(headers)),
    )
    try:
        words = _strings([option.encode() for option in options])
        failed = _library().nvrtcCompileProgram(program, len(options), words)
        if failed:
            log = _bytes("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)
            raise RuntimeError(
                f"{name} did not compile with {' '.join(options)} ({_reason(failed)}):\n"
                + log.rstrip(b"\0 ").decode()
            )
        return _bytes("nvrtcGetCUBINSize", "nvrtcGetCUBIN", program)
    finally:
        _call("nvrtcDestroyProgram", ctypes.byref(program))


def _bytes(size_of: str, content_of: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _call(size_of, program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    _call(content_of, program, content)
    return content.raw


def _strings(values: Sequence[bytes]) -> ctypes.Array:
    return (ctypes.c_char_p * len(values))(*values)


def _call(function: str, *arguments) -> None:
    status = getattr(_library(), function)(*arguments)
    if status:
        raise RuntimeError(f"{function} failed: {_reason(status)}")


def _reason(status: int) -> str:
    return _library().nvrtcGetErrorString(status).decode()


@lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    """libnvrtc itself, which torch or cuda-python bring."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    library = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library
