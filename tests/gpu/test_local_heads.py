"""Patch 0080 on two GPUs: attention on a rank's own heads gives what attention on all of them gives."""

from __future__ import annotations

import pytest
import torch

from local_heads_ranks import HEADS, RANKS, run_ranks


@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two GPUs")
def test_two_ranks_with_their_own_heads(tmp_path, seed):
    for rank, rows in enumerate(run_ranks(tmp_path, seed)):
        for row in rows:
            where = (rank, row)
            assert row["heads_seen"] == [HEADS, HEADS // RANKS], where
            assert row["finite"] and row["graph_equals_eager"] == [True, True], where
            if row["kernel"] == "ours":
                # The number of head groups decides where a row's keys are cut.
                bound = 2**-7 * row["largest_value"]
                assert row["attention_largest_difference"] <= bound, where
                assert row["gathered_largest_difference"] <= bound, where
                continue
            assert row["attention_equal"] and row["layer_equal"], where
            assert row["summed_layer_equal"] and row["gathered_equals_one_gpu"], where
