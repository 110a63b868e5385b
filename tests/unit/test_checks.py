"""The checks of kernel arguments: what passes, and what the error says."""

from __future__ import annotations

import pytest
import torch

from kernels.checks import Checks

CHECKS = Checks("some_kernel", "q", torch.device("cpu"))
MATRIX = torch.zeros(4, 6)
INTS = torch.zeros(4, 6, dtype=torch.int32)


def test_good_arguments_pass():
    CHECKS.expect(True, "k", "any", 3)
    CHECKS.tensor("q", MATRIX, torch.float32, [4, 6])
    CHECKS.lengths("lens", INTS[:, 0], 4)
    CHECKS.lengths("lens", INTS[:, :1], 4)
    CHECKS.page_table("table", INTS[:, 1:5], 4, 4)
    CHECKS.contiguous("q", MATRIX)
    CHECKS.unit_columns("q", MATRIX[:, 2:])
    CHECKS.unit_columns("q", MATRIX.T[:, :1])
    CHECKS.aligned("q", MATRIX, 16)


@pytest.mark.parametrize(
    "error,check",
    [
        ("k: expected one of 1, got 2", lambda c: c.expect(False, "k", "one of 1", 2)),
        (
            r"q dtype: expected torch\.float16, got torch\.float32",
            lambda c: c.tensor("q", MATRIX, torch.float16, (4, 6)),
        ),
        (
            r"q shape: expected \[4, 5\], got \(4, 6\)",
            lambda c: c.tensor("q", MATRIX, torch.float32, (4, 5)),
        ),
        (
            r"w device: expected cpu \(that of q\), got meta",
            lambda c: c.tensor("w", MATRIX.to("meta"), torch.float32, (4, 6)),
        ),
        (
            r"lens shape: expected \[4\] or \[4, 1\], got \(3,\)",
            lambda c: c.lengths("lens", INTS[:3, 0], 4),
        ),
        (
            r"lens dtype: expected torch\.int32, got torch\.int64",
            lambda c: c.lengths("lens", INTS[:, 0].long(), 4),
        ),
        (
            r"table shape: expected \[4, >= 7\], got \(4, 6\)",
            lambda c: c.page_table("table", INTS, 4, 7),
        ),
        (
            r"table shape: expected \[3, >= 1\], got \(4, 6\)",
            lambda c: c.page_table("table", INTS, 3, 1),
        ),
        (
            r"table dtype: expected torch\.int32, got torch\.float32",
            lambda c: c.page_table("table", MATRIX, 4, 1),
        ),
        (
            "table strides: expected unit column stride",
            lambda c: c.page_table("table", INTS.T, 6, 1),
        ),
        (
            r"q strides: expected contiguous, got \(1, 6\)",
            lambda c: c.contiguous("q", MATRIX.T),
        ),
        (
            "q address: expected a multiple of 4096 bytes, got .* past one",
            lambda c: c.aligned("q", torch.zeros(4096)[1:], 4096),
        ),
    ],
)
def test_the_error_names_kernel_argument_and_both_sides(error, check):
    with pytest.raises(ValueError, match=f"^some_kernel: {error}"):
        check(CHECKS)
