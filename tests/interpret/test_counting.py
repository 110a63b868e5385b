"""The counter of work, on operations whose work is known."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from patchset.probe import counting

N = 96
F32 = 4


def counted(operation) -> tuple[int, int]:
    with counting.Work() as work:
        operation()
    return work.torch_bytes, work.kernel_bytes


INDEX = torch.tensor([1, 2])
X = torch.arange(N, dtype=torch.float32)
OPERATIONS = {
    "a new tensor": (lambda: X + 1, N * F32),
    "another type": (lambda: X.to(torch.float64), N * 8),
    "no change of type": (lambda: X.to(torch.float32), 0),
    "views": (lambda: X.view(8, 12).t().unsqueeze(0)[:, 2:].expand(5, 10, 8), 0),
    "reshape of a view": (lambda: X.view(8, 12).t().reshape(96), N * F32),
    "reshape without a copy": (lambda: X.reshape(8, 12).reshape(96), 0),
    "contiguous already": (lambda: X.contiguous(), 0),
    "in place": (lambda: X.clone().mul_(2), 2 * N * F32),
    "into a part": (lambda: torch.empty(N)[:10].fill_(1), 10 * F32),
    "empty": (lambda: (torch.empty(N), torch.empty_like(X), X.new_empty(N)), 0),
    "full": (lambda: X.new_full((N,), 3.0), N * F32),
    "out": (lambda: torch.add(X, X, out=torch.empty(N)), N * F32),
    "masked fill": (lambda: X.clone().masked_fill_(X > 3, 0), (2 * F32 + 1) * N),
    "two results": (lambda: X.max(0), F32 + 8),
    "matmul": (lambda: X.view(8, 12) @ X.view(12, 8), 64 * F32),
    "a list": (lambda: torch.cat([X, X]), 2 * N * F32),
    "split": (lambda: torch.split(X, 12), 0),
    "index": (lambda: X[INDEX], 2 * F32),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_torch_writes(name):
    operation, size = OPERATIONS[name]
    assert counted(operation) == (size, 0)


@triton.jit
def _strided(source, target, count, BLOCK: tl.constexpr, STEP: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + offsets * STEP, mask=offsets < count)
    tl.store(target + offsets, value.to(tl.float16), mask=offsets < count)


@triton.jit
def _atomics(target, count, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.atomic_add(target + offsets, 1, mask=offsets < count)
    tl.atomic_cas(target, 0, 1)
    tl.store(target, tl.load(target))


def test_what_an_interpreted_kernel_moves():
    target = torch.zeros(64, dtype=torch.float16)
    run = lambda: _strided[(4,)](X, target, 40, BLOCK=16, STEP=2)
    assert counted(run) == (0, 40 * (4 + 2))
    words = torch.zeros(16, dtype=torch.int32)
    assert counted(lambda: _atomics[(1,)](words, 5, BLOCK=16)) == (
        0,
        2 * 5 * 4 + 2 * 4 + 2 * 4,
    )


def test_pauses_and_what_comes_after_are_not_counted():
    with counting.Work() as work:
        with work.paused():
            X + 1
            with work.paused():
                X + 1
            X + 1
        X + 1
    X + 1
    _strided[(1,)](X, torch.zeros(16, dtype=torch.float16), 8, BLOCK=16, STEP=1)
    assert work.total == N * F32


def test_an_error_takes_the_hooks_away_again():
    before = counting._BUILDER.create_masked_load
    with pytest.raises(ZeroDivisionError):
        with counting.Work():
            1 / 0
    assert counting._BUILDER.create_masked_load is before


def test_the_check_of_itself_sees_a_counter_that_does_not_count(monkeypatch):
    counting.self_check()
    with monkeypatch.context() as patch:
        patch.setattr(counting.Work, "moved", lambda self, size: None)
        with pytest.raises(counting.CounterError, match="triton"):
            counting.self_check()
    monkeypatch.setattr(counting, "_written", lambda *_: 1)
    with pytest.raises(counting.CounterError, match="torch"):
        counting.self_check()
