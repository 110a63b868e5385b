"""Patch 0080 on two GPUs: attention on a rank's own heads gives what attention on all of them gives."""

from __future__ import annotations

import pytest
import torch

from kernels.config import has_large_sms, sm_count
from local_heads_ranks import CASES, HEADS, RANKS, run_ranks


@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two GPUs")
def test_two_ranks_with_their_own_heads(tmp_path, seed):
    device = torch.device("cuda", 0)
    exact = kernels_with_equal_bits(has_large_sms(device))
    rows = max(len(case.near) for case in CASES.values())
    exact_below_17_heads = kernels_with_equal_bits(
        has_large_sms(device) and 2 * rows <= sm_count(device)
    )
    for rank, found in enumerate(run_ranks(tmp_path, seed)):
        for row in found["pair"]:
            where = (rank, row)
            assert row["heads_seen"] == [HEADS, HEADS // RANKS], where
            assert row["finite"] and row["graph_equals_eager"] == [True, True], where
            if row["kernel"] not in exact:
                assert close(row, "attention") and close(row, "gathered"), where
                continue
            assert row["attention_equal"] and row["layer_equal"], where
            assert row["summed_layer_equal"] and row["gathered_equals_one_gpu"], where
        for row in found["more_ranks"]:
            if row["kernel"] in exact_below_17_heads:
                assert row["attention_largest_difference"] == 0, (rank, row)
            else:
                assert close(row, "attention"), (rank, row)


def kernels_with_equal_bits(large_sms: bool) -> set[str]:
    """Those that add up a row's keys alike whatever the number of heads.

    With splits, the number of head groups decides where the keys are cut. Without, the tiles do, which are
    as long for 32 heads as for 16 only where an SM has the shared memory for it and rows are few.
    """
    return {"upstream's Triton"} | ({"ours, one split"} if large_sms else set())


def close(row: dict, what: str) -> bool:
    """Within two units of bfloat16 of the largest value."""
    return row[f"{what}_largest_difference"] <= 2**-7 * row["largest_value"]
