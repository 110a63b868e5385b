"""What is told of the use of the GPUs, and what is not known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from patchset import gpuload

FREE = {"gpu": "GPU 0", "memory_mib": 3, "utilisation": 0}
FULL = {"gpu": "GPU 1", "memory_mib": 41_984, "utilisation": 97}
TWO = (
    "0, GPU-aa11, 3, 0, [N/A], NVIDIA H200",
    "1, GPU-bb22, 41984, 97, [N/A], NVIDIA H200",
)
MIXED = (
    "0, GPU-aa11, 3, 0, [N/A], NVIDIA RTX PRO 6000",
    "1, GPU-bb22, 41984, 97, [N/A], NVIDIA GeForce RTX 5090",
)


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Plants an nvidia-smi: what it runs, or the lines that it prints."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def plant(*lines: str, script: str = "cat <<'END'\n{}\nEND") -> Path:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + script.replace("{}", "\n".join(lines)) + "\n")
        tool.chmod(0o755)
        return tool

    return plant


def test_the_fullest_of_those_that_are_meant(smi, monkeypatch):
    smi(*TWO)
    assert gpuload.of_visible() == FULL
    assert gpuload.of_visible(1) == FREE
    for words, seen in (("0", FREE), ("1", FULL), ("GPU-b", FULL), ("1,0", FULL)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
        assert gpuload.of_visible() == seen
    # In the order of the variable.
    assert gpuload.of_visible(1) == FULL


@pytest.mark.parametrize("words", ["", "-1", "2", "0,7", "MIG-aa11", "GPU-", "x", "0,"])
def test_gpus_that_nvidia_smi_does_not_list_are_not_known(smi, monkeypatch, words):
    smi(*TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
    assert gpuload.of_visible() is None


def test_gpus_of_different_models_are_known_by_the_bus_alone(smi, monkeypatch):
    smi(*MIXED)
    assert gpuload.of_visible() == FULL
    assert gpuload.of_visible(1) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpuload.of_visible() is None
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert gpuload.of_visible() == FREE
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb22")
    assert gpuload.of_visible() == FULL


def test_a_gpu_that_tells_no_utilisation(smi):
    smi("0, GPU-aa11, 2000, [N/A], [N/A], NVIDIA H200")
    seen = gpuload.of_visible()
    assert seen["utilisation"] is None and gpuload.is_busy(seen)
    assert gpuload.said(seen) == "2.0 GiB of GPU 0 in use"


def test_mig_is_not_known(smi):
    smi("0, GPU-aa11, 50000, [N/A], Enabled, NVIDIA H200")
    assert gpuload.of_visible() is None


GARBAGE = [
    ("",),
    ("No devices were found",),
    ("0, GPU-aa11, [N/A], 0, Disabled, NVIDIA GB10",),
    ("0, GPU-aa11, [Insufficient Permissions], 0, Disabled, NVIDIA H200",),
    ("0, GPU-aa11, -5, 0, Disabled, NVIDIA H200",),
    ("0, GPU-aa11, 3",),
    (TWO[0], "<<<>>>"),
]


@pytest.mark.parametrize("lines", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_not_known(smi, lines):
    smi(*lines)
    assert gpuload.of_visible() is None


def test_a_tool_that_fails_hangs_or_is_not_there(smi, tmp_path, monkeypatch):
    smi(*TWO, script="cat <<'END'\n{}\nEND\nexit 9")
    assert gpuload.of_visible() is None
    smi(script="printf '\\377\\376\\n'")
    assert gpuload.of_visible() is None
    smi(*TWO, script="sleep 600")
    monkeypatch.setattr(gpuload, "_SECONDS", 0.2)
    assert gpuload.of_visible() is None
    smi().unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpuload.of_visible() is None


def load(memory_mib: int, utilisation: int | None = 0) -> dict:
    return {"gpu": "GPU 0", "memory_mib": memory_mib, "utilisation": utilisation}


def test_what_counts_as_other_work():
    assert not gpuload.is_busy(load(gpuload.LIMIT_MIB, gpuload.LIMIT_PERCENT))
    assert gpuload.is_busy(load(gpuload.LIMIT_MIB + 1, None))
    assert gpuload.is_busy(load(300, gpuload.LIMIT_PERCENT + 1))
    assert not gpuload.is_busy(load(300, None)) and not gpuload.is_busy(None)
    assert gpuload.said(FULL) == "41.0 GiB of GPU 1 in use, 97% busy"
    # The one that computes, though it holds less.
    assert gpuload.fullest([load(900), load(300, 99)]) == load(300, 99)


def test_free_is_only_what_is_free_before_and_after():
    assert gpuload.around(load(3), load(5)) == load(5)
    assert gpuload.around(load(9000), load(5)) == load(9000)
    assert gpuload.around(None, load(9000)) == load(9000)
    assert gpuload.around(None, load(5)) is None
    assert gpuload.around(load(5), None) is None
    assert gpuload.around(None, None) is None


@pytest.mark.parametrize(
    "seen, told",
    [
        # What the step before held comes back a moment later.
        ([load(9000), load(9000), load(5)], load(5)),
        ([load(9000), load(8000), load(7000), load(5)], load(7000)),
        ([load(9000), None, None], load(9000)),
        ([load(5), load(9000)], load(5)),
        ([None, load(9000)], None),
    ],
)
def test_a_look_waits_for_what_has_just_ended(monkeypatch, seen, told):
    monkeypatch.setattr(gpuload.time, "sleep", lambda seconds: None)
    assert gpuload.settled(iter(seen).__next__) == told
