"""The compiler of the CUDA C++ kernels, also beside a stand-in for its library as TileLang loads one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "cuda.pathfinder", reason="needs cuda-bindings and nvidia-cuda-nvrtc"
)

from kernels.nvrtc import compile_cubin  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (
    b'#include "one.cuh"\nextern "C" __global__ void f(int *p) { *p = ONE + MORE; }\n'
)
HEADERS = {b"one.cuh": b"#define ONE 1\n"}
OPTIONS = ["--gpu-architecture=sm_120", "-DMORE=2"]

# Ends the process, as TileLang's does where the real functions are not visible to it.
STAND_IN = "\n".join(
    f'extern "C" int {name}() {{ __builtin_trap(); }}'
    for name in (
        "nvrtcCreateProgram",
        "nvrtcCompileProgram",
        "nvrtcDestroyProgram",
        "nvrtcGetErrorString",
        "nvrtcGetProgramLog",
        "nvrtcGetProgramLogSize",
        "nvrtcVersion",
    )
)


def test_a_source_with_a_header_becomes_machine_code():
    assert compile_cubin(SOURCE, "f.cu", HEADERS, OPTIONS).startswith(b"\x7fELF")


def test_an_error_is_the_compilers_own():
    with pytest.raises(
        RuntimeError, match=r"f\.cu did not compile with .*sm_120"
    ) as error:
        compile_cubin(b"not C++", "f.cu", {}, OPTIONS[:1])
    assert "f.cu(1): error" in str(error.value)
    with pytest.raises(RuntimeError, match="INVALID_OPTION|invalid value"):
        compile_cubin(SOURCE, "f.cu", HEADERS, ["--gpu-architecture=sm_1"])


def test_a_stand_in_that_is_loaded_before_is_not_called(tmp_path):
    (tmp_path / "stand_in.cc").write_text(STAND_IN)
    stand_in = tmp_path / "libnvrtc_stand_in.so"
    build = [
        "g++",
        "-shared",
        "-fPIC",
        str(tmp_path / "stand_in.cc"),
        "-o",
        str(stand_in),
    ]
    subprocess.run(build, check=True)
    program = f"""
import ctypes
stand_in = ctypes.CDLL({str(stand_in)!r}, ctypes.RTLD_GLOBAL)
assert ctypes.CDLL(None).nvrtcVersion
from kernels.nvrtc import compile_cubin
compile_cubin({SOURCE!r}, "f.cu", {HEADERS!r}, {OPTIONS!r})
print("compiled")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "compiled\n", done.stderr[-2000:]
