"""The wheels of a bundle: which are left out, and which of their files."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from made_wheel import command, environment
from patchset import processes, signals
from patchset.bundle import scratch, wheels
from patchset.bundle.target import Target
from patchset.bundle.wheels import Wheel, asked_for, without
from patchset.errors import Exit, Failure
from patchset.verbs.bundle import TORCH

PYTHON = "%d.%d" % sys.version_info[:2]
TARGET = Target(PYTHON, "x86_64", "sm_120")


def wheel(name: str, *requires: str) -> Wheel:
    return Wheel(name, "1.0", "0" * 64, requires)


CLOSURE = [
    wheel("sglang", "torch==2.11", "numpy", "Uvicorn>=1 ; python_version > '3'"),
    wheel("torch", "triton", "nvidia-cublas", "numpy", "sympy"),
    wheel("triton"),
    wheel("nvidia_cublas"),
    wheel("numpy"),
    wheel("sympy", "mpmath"),
    wheel("mpmath"),
    wheel("uvicorn"),
]


def test_what_torch_alone_brings_is_left_out():
    kept = [each.name for each in without(CLOSURE, TORCH)]
    assert kept == ["numpy", "sglang", "uvicorn"]


def test_an_extra_that_nobody_asked_for_needs_nothing():
    one = [
        wheel("sglang", "mpmath ; extra == 'all'"),
        wheel("torch", "mpmath"),
        wheel("mpmath"),
    ]
    assert [each.name for each in without(one, ["torch"])] == ["sglang"]


def test_an_extra_that_was_asked_for_belongs_to_who_asked():
    closure = [
        wheel("sglang", "torch", "orjson", "httpx[socks,http2] ; python_version > '3'"),
        wheel("torch", "cuda-toolkit[cudart, CuFFT]==13.0"),
        wheel(
            "cuda_toolkit",
            "nvidia-cuda-runtime==13.0.* ; extra == 'cudart'",
            "nvidia-cufft ; (sys_platform == 'linux') and extra == \"cufft\"",
            "nvidia-npp ; extra == 'npp'",
        ),
        wheel("nvidia-cuda-runtime"),
        wheel("nvidia-cufft"),
        wheel("httpx", "h2 ; extra == 'http2'"),
        wheel("h2"),
        wheel("orjson"),
        wheel("added", "needed-by-it"),
        wheel("needed-by-it"),
    ]
    closure[0] = wheel("sglang", *closure[0].requires, "drawing[cu13]")
    closure += [wheel("drawing", "cu13-libs ; extra == 'cu13'"), wheel("cu13-libs")]
    kept = [each.name for each in without(closure, [*TORCH, "drawing"])]
    assert kept == ["added", "h2", "httpx", "needed-by-it", "orjson", "sglang"]


def test_a_package_and_what_it_alone_needs_are_left_out_by_name():
    closure = [
        wheel("sglang", "torch", "datasets", "numpy"),
        wheel("torch"),
        wheel("datasets", "numpy", "pyarrow"),
        wheel("pyarrow"),
        wheel("numpy"),
    ]
    roots = [*TORCH, "Datasets"]
    kept = [each.name for each in without(closure, roots)]
    assert kept == ["numpy", "sglang"]
    # What was asked for by its name stays.
    wanted = asked_for(["sglang==0.5.13", "PyArrow >=2"])
    kept = [each.name for each in without(closure, roots, wanted)]
    assert kept == ["numpy", "pyarrow", "sglang"]


def test_what_is_asked_for_and_its_extras():
    assert asked_for(["sglang==0.5.13", "Foo_x[Bar,baz] >= 2"]) == [
        ("sglang", None),
        ("foo-x", None),
        ("foo-x", "bar"),
        ("foo-x", "baz"),
    ]
    with pytest.raises(Failure, match="is no name of a package") as caught:
        asked_for(["==2"])
    assert caught.value.code == Exit.USAGE


def test_an_extra_that_was_asked_for_by_its_name_stays():
    closure = [*CLOSURE, wheel("foo", "sympy ; extra == 'bar'")]
    for asked, kept in (
        ("foo", ["foo", "numpy", "sglang", "uvicorn"]),
        ("foo[bar]", ["foo", "mpmath", "numpy", "sglang", "sympy", "uvicorn"]),
    ):
        wanted = asked_for(["sglang", asked])
        assert [each.name for each in without(closure, TORCH, wanted)] == kept


def make_wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def unpacked(tmp_path, arch: str, files: dict[str, str]) -> set[str]:
    site = tmp_path / arch
    target = Target(PYTHON, "x86_64", arch)
    wheels.unpack(make_wheel(tmp_path / "w", "x", files), site, target)
    return {p.relative_to(site).as_posix() for p in site.rglob("*") if p.is_file()}


def test_kernels_of_other_gpus_are_left_out(tmp_path):
    files = {
        "sgl_kernel/__init__.py": "",
        "sgl_kernel/sm90/common_ops.abi3.so": "90",
        "sgl_kernel/sm100/common_ops.abi3.so": "100",
        "sgl_kernel/flash_ops.abi3.so": "fa3",
        "sglang/multimodal_gen/x.py": "",
        "sglang/__init__.py": "",
        "x-1.0.data/purelib/inside.py": "",
        "x-1.0.data/headers/x.h": "",
        "x-1.0.dist-info/METADATA": "",
    }
    common = {"sgl_kernel/__init__.py", "sglang/__init__.py", "inside.py"}
    common.add("x-1.0.dist-info/METADATA")
    sm120 = unpacked(tmp_path, "sm_120", files)
    assert sm120 == common | {"sgl_kernel/sm100/common_ops.abi3.so"}
    sm90 = unpacked(tmp_path, "sm_90", files)
    both = {"sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/flash_ops.abi3.so"}
    assert sm90 == common | both


def test_flashinfers_kernels_of_another_generation_are_left_out(tmp_path):
    folder = "flashinfer_cubin/cubins/1f/"
    blackwell = {
        f"{folder}fmha/fmhaSm100fKernel_H512PagedKv.cubin": "",
        f"{folder}fmha/fmhaSm103aKernel_H512PagedKv.cubin": "",
        f"{folder}gemm/Bmm_E4m3_dynB_sm100f.cubin": "",
    }
    others = {
        f"{folder}fmha/checksums.txt": "",
        f"{folder}fmha/fmhaSm120fKernel_H512PagedKv.cubin": "",
        f"{folder}deep-gemm/kernel.fp8_m_grouped_gemm.02acb2ba71fd.cubin": "",
        "other/fmhaSm100fKernel.cubin": "",
    }
    own = f"{folder}fmha/fmhaSm120fKernel_H512PagedKv.cubin"
    files = blackwell | others
    assert unpacked(tmp_path, "sm_120", files) == set(others)
    assert unpacked(tmp_path, "sm_121", files) == set(others)
    assert unpacked(tmp_path, "sm_90", files) == others.keys() - {own}
    assert unpacked(tmp_path, "sm_100", files) == set(files) - {own}


def test_programs_and_permissions_of_a_wheel(tmp_path):
    files = {
        "x-1.0.data/scripts/tool": "#!python\nprint(3)\n",
        "x-1.0.data/scripts/ninja": "\x7fELF",
        "x/data.py": "",
    }
    wheel = make_wheel(tmp_path, "x", files)
    with zipfile.ZipFile(wheel, "a") as archive:
        entry = zipfile.ZipInfo("x/run.sh")
        entry.external_attr = 0o100775 << 16
        archive.writestr(entry, "#!/bin/sh\n")
    site = tmp_path / "site"
    wheels.unpack(wheel, site, TARGET)
    modes = {
        path.relative_to(site).as_posix(): path.stat().st_mode & 0o100
        for path in site.rglob("*")
        if path.is_file()
    }
    assert modes == {"bin/tool": 64, "bin/ninja": 64, "x/run.sh": 64, "x/data.py": 0}
    tool = (site / "bin" / "tool").read_text()
    assert tool == "#!/usr/bin/env python3\nprint(3)\n"
    assert (site / "bin" / "ninja").read_text() == "\x7fELF"


def test_flash_kernels_are_left_out_by_name(tmp_path):
    files = {
        "sgl_kernel/sm90/common_ops.abi3.so": "90",
        "sgl_kernel/flash_ops.abi3.so": "fa3",
        "sgl_kernel/flash_attn.py": "",
    }
    wheel, site = make_wheel(tmp_path / "w", "x", files), tmp_path / "site"
    wheels.unpack(wheel, site, Target(PYTHON, "x86_64", "sm_90"), flash=False)
    assert not (site / "sgl_kernel/flash_ops.abi3.so").exists()
    assert (site / "sgl_kernel/flash_attn.py").exists()
    assert (site / "sgl_kernel/sm90/common_ops.abi3.so").exists()


def test_a_wheel_that_writes_outside_is_refused(tmp_path):
    with pytest.raises(Failure, match="outside of its folder"):
        unpacked(tmp_path, "sm_120", {"../evil.py": ""})
    assert not (tmp_path / "evil.py").exists()


PIP = """
import os, signal, subprocess, sys, tempfile
folder = tempfile.mkdtemp(prefix="pip-unpack-")
open(os.path.join(folder, "half.whl"), "wb").write(bytes(1 << 20))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, file=open(os.environ["PIDS"] + ".new", "w"), flush=True)
os.rename(os.environ["PIDS"] + ".new", os.environ["PIDS"])
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_pip_that_is_interrupted_leaves_nothing(own_tree, tmp_path, number):
    (tmp_path / "lib" / "pip").mkdir(parents=True)
    (tmp_path / "lib" / "pip" / "__init__.py").touch()
    (tmp_path / "lib" / "pip" / "__main__.py").write_text(PIP)
    (tmp_path / "t").mkdir()
    pids = tmp_path / "pids"
    env = environment({"TMPDIR": str(tmp_path / "t"), "PIDS": str(pids)})
    env["PYTHONPATH"] = f"{tmp_path / 'lib'}:{env['PYTHONPATH']}"
    bundle = subprocess.Popen(
        command("bundle", "--out", tmp_path / "out", "--tree", own_tree),
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not pids.exists() and bundle.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert list((tmp_path / "t").iterdir()), "pip works there"
    bundle.send_signal(number)
    _, said = bundle.communicate(timeout=60)
    assert bundle.returncode == 128 + number, said
    assert said.count("removing what is half-made") == 1
    assert "nothing is half-written" in said
    assert not list((tmp_path / "t").iterdir()) and not list(tmp_path.glob("*out*"))
    started = {int(word) for word in pids.read_text().split()}
    assert not started & {process.id for process in processes.live()}


def test_a_second_signal_leaves_no_scratch_folder(tmp_path, monkeypatch):
    real = shutil.rmtree

    def interrupted(*words, **options):
        signal.raise_signal(signal.SIGTERM)
        real(*words, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    before = signal.signal(signal.SIGTERM, signals._raise)
    try:
        with pytest.raises(KeyboardInterrupt):
            with scratch.folder("x-", tmp_path) as place:
                (place / "one").touch()
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.iterdir())
