"""The cases of `kernel:CASE` through the tree's entry points, without their times: those need a GPU."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import stock
from patchset import gpuload, gputime
from patchset.bisect import probes
from patchset.probe import kernel_time

ATTENTION = "python/sglang/srt/layers/attention/flash_mla_sm120.py"


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Path:
    """The release's own files; the tree's patches change nothing that is compared."""
    place = tmp_path_factory.mktemp("release")
    for name in (stock.INDEXER, ATTENTION):
        (place / Path(name).name).write_text((stock.tree() / name).read_text())
    return place


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A case once, on a card of capability 12."""
    monkeypatch.setattr(kernel_time, "COPIES", 1)
    monkeypatch.setenv("SGLANG_SM120_INDEXER", "off")
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)),
    ):
        yield


def test_every_case_is_offered():
    assert kernel_time.CASES.keys() == probes.KERNEL_CASES.keys()


def test_the_flags_of_the_series_are_on_and_the_users_are_not():
    with kernel_time.modules_of("indexer"):
        assert os.environ["SGLANG_SM120_INDEXER"] == "on"
        # The selection is not what is measured here.
        assert os.environ["SGLANG_SM120_TOPK"] == "off"
    assert os.environ["SGLANG_SM120_INDEXER"] == "off"


def test_only_flags_that_choose_a_path_are_on():
    environ = stock.tree() / "python" / "sglang" / "srt" / "environ.py"
    flags = kernel_time.flags_on(environ.read_text())
    assert {"SGLANG_SM120_INDEXER", "SGLANG_SM120_MXFP4_DRAFT"} <= flags.keys()
    # That one takes split or bf16; this one is no path of the series.
    assert "SGLANG_SM120_HC_PRE_WEIGHTS" not in flags
    assert "SGLANG_SM120_TORCH_INDEXER_BF16" not in flags
    assert set(flags.values()) == {"on"}
    wrapped = """
    SGLANG_SM120_ONE = EnvChoice(
        "auto", ("auto", "on", "off")
    )
    SGLANG_SM120_TWO = EnvChoice("auto", ("auto", "on", "off", "fast"))
"""
    assert kernel_time.flags_on(wrapped) == {"SGLANG_SM120_ONE": "on"}


def test_the_indexer_case(release):
    with kernel_time.modules_of("indexer") as modules:
        case = kernel_time._indexer(modules, release, "cpu", rows=2)
        assert case.error <= case.tolerance
        assert len(case.calls) == 1 and case.calls[0]() is None
        ours = modules[0].sm120_indexer.paged_mqa_logits

        def broken(*args, **kwargs):
            return ours(*args, **kwargs) * 1.01

        modules[0].sm120_indexer.paged_mqa_logits = broken
        wrong = kernel_time._indexer(modules, release, "cpu", rows=2)
        assert wrong.error > wrong.tolerance


def test_the_attention_cases(release):
    used = []
    with kernel_time.modules_of("decode") as (module,):

        def attend(*args, num_splits):
            used.append(num_splits)
            return module._sm120_sparse_decode_fwd(*args)

        # Ours is a CUDA program: in its place the torch function, which has the same arguments.
        module.sm120_decode.attend = attend
        case = kernel_time.CASES["decode-one"]([module], release, "cpu")
        assert case.error == 0
        (call,) = case.calls
        assert call()[0].shape == (1, 1, 16, 512)
        # The flags are on, so the tree's entry point went to ours each time.
        assert len(used) == 2

        def broken(*args, num_splits):
            out, lse = attend(*args, num_splits=num_splits)
            return out * 1.05, lse

        module.sm120_decode.attend = broken
        wrong = kernel_time.CASES["decode-one"]([module], release, "cpu")
        assert wrong.error > wrong.tolerance


def test_inputs_are_drawn_from_the_seed_and_in_range():
    one, same, other = (
        kernel_time.decode_inputs(2, 4, 64, "cpu", s) for s in (0, 0, 1)
    )
    assert torch.equal(one.q, same.q) and not torch.equal(one.q, other.q)
    pages, page = one.extra_k_cache.shape[:2]
    assert one.extra_indices_in_kvcache.shape == (2, 1, 64)
    assert int(one.extra_indices_in_kvcache.max()) < pages * page
    for row in one.indices[:, 0]:
        assert row.unique().numel() == 128
    with mock.patch("torch.cuda.is_available", return_value=False):
        with pytest.raises(RuntimeError, match="sees no CUDA GPU"):
            kernel_time.measure("decode", Path("x"))


def uses(monkeypatch, *others: int, integrated: int = 0) -> None:
    """A GPU of 100 GiB with so many MiB of others in use at each look, the last from then on; 700 MiB are
    this process's tensors, and 512 its context."""
    left = list(others)

    def info() -> tuple[int, int]:
        used = (left.pop(0) if len(left) > 1 else left[0]) + 700 + 512
        return (102_400 - used) * 2**20, 102_400 * 2**20

    device = SimpleNamespace(is_integrated=integrated)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 700 * 2**20)
    monkeypatch.setattr(kernel_time, "_gpu", dict)


@pytest.fixture
def measured(monkeypatch):
    """What the probe finds of a case that does nothing, in 5 us."""
    timing = gputime.Timing(5.0, 5.0, 5.0, 25, True)
    case = kernel_time.Case([], 0.0, 1.0)
    monkeypatch.setitem(kernel_time.CASES, "none", lambda *_: case)
    monkeypatch.setattr(kernel_time, "modules_of", contextlib.nullcontext)
    monkeypatch.setattr(gputime, "time_arms", lambda *_: {"tree": timing})
    monkeypatch.setattr(gpuload, "_PAUSE_S", 0)
    return lambda: kernel_time.measure("none", Path())


def test_what_others_hold_on_the_gpu_is_kept(monkeypatch, measured):
    uses(monkeypatch, 0, 30)
    found = measured()
    assert found["value"] == 5 and found["beside"]["memory_mib"] == 30
    for looks in ((9_000, 9_000, 9_000, 30), (30, 9_000)):
        uses(monkeypatch, *looks)
        assert measured()["beside"]["memory_mib"] == 9_000
    # What the step before held is no other work.
    uses(monkeypatch, 9_000, 30)
    assert not gpuload.is_busy(measured()["beside"])


def test_a_gpu_that_shares_the_machines_memory_is_not_known(monkeypatch, measured):
    uses(monkeypatch, 9_000, integrated=1)
    assert measured()["beside"] is None
