"""The patched tree's own ``forward_c4_indexer`` on the CPU, with the flag on and off."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import sglang_tree
from cases import PAGE, IndexerCase, make_indexer
from topk_cases import exact_topk

TOPK = 512


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (
        "SGLANG_SM120_INDEXER",
        "SGLANG_SM120_PREFILL",
        "SGLANG_SM120_LOGITS_MB",
        "SGLANG_SM120_TOPK",
        "SGLANG_OPT_USE_TILELANG_INDEXER",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SGLANG_FP8_PAGED_MQA_LOGITS_TORCH", "1")
    monkeypatch.setenv("SGLANG_TOPK_TRANSFORM_512_TORCH", "1")
    monkeypatch.setenv("SGLANG_OPT_USE_TOPK_V2", "0")


@pytest.fixture(autouse=True)
def a_card_of_capability_12():
    """The flag's choice sees an sm_120 card; the tensors stay on the CPU, the kernel is interpreted."""
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)),
    ):
        yield


def selection(
    inputs, change=None, pool=None, coordinator=None, decode=True
) -> tuple[torch.Tensor, str, int]:
    """Run one layer's indexer, its module first handed to ``change``; returns the selected token ids
    [B, 512], sorted, whose logits function ran, and how often. ``pool``, ``coordinator``: hisparse's.
    """
    names = ("layers.attention.dsv4.indexer", "layers.attention.dsv4.metadata")
    with sglang_tree.modules(*names) as (indexer, metadata):
        q, kv, weights, lens, table, _, _ = inputs
        batch = q.shape[0]
        selected = torch.full((batch, TOPK), -7, dtype=torch.int32)
        core = SimpleNamespace(
            positions=torch.zeros(batch),
            page_table=table,
            c4_sparse_page_indices=selected,
            c4_sparse_raw_indices=None,
        )

        class Backend(indexer.C4IndexerBackendMixin):
            token_to_kv_pool = pool
            hisparse_coordinator = coordinator
            debug_use_external_c4_sparse_indices = False
            forward_metadata = SimpleNamespace(
                core_metadata=core,
                indexer_metadata=metadata.PagedIndexerMetadata(
                    256, table, lens.flatten()
                ),
            )

            def _forward_prepare_normal(self, **_):
                return q[:, 0], weights[:, :, None], kv.reshape(len(kv), -1)

        used = []
        traced = indexer.fp8_paged_mqa_logits_torch_sm120

        def stock(*args):
            used.append("stock")
            return traced(*args)

        hook = indexer.sm120_indexer
        ours = hook.paged_mqa_logits

        def kernel(*args, **kwargs):
            used.append("ours")
            return ours(*args, **kwargs)

        if change is not None:
            change(indexer)
        indexer.fp8_paged_mqa_logits_torch_sm120 = stock
        hook.paged_mqa_logits = kernel
        Backend().forward_c4_indexer(
            x=torch.zeros(batch, 1),
            q_lora=torch.zeros(batch, 1),
            c4_indexer=SimpleNamespace(use_fp4_indexer=False, layer_id=0),
            forward_batch=SimpleNamespace(
                forward_mode=SimpleNamespace(
                    is_idle=lambda: False, is_decode=lambda: decode
                ),
                req_pool_indices=torch.arange(batch),
            ),
        )
        (path,) = set(used)
        return selected.sort(1).values, path, len(used)


def test_flag_on_and_off_select_the_same_keys(monkeypatch, seed):
    case = IndexerCase("forward", (0, 1, 511, 512, 513, 700, 1024), 1024, tail="valid")
    inputs = make_indexer(case, seed=seed)
    results = {}
    for flag in ("off", "on", "auto"):
        monkeypatch.setenv("SGLANG_SM120_INDEXER", flag)
        results[flag] = selection(inputs)
    assert {flag: path for flag, (_, path, _) in results.items()} == {
        "off": "stock",
        "on": "ours",
        "auto": "ours",
    }
    assert torch.equal(results["on"][0], results["off"][0])
    assert torch.equal(results["auto"][0], results["off"][0])


def test_ours_survives_poison_past_the_lengths(seed):
    inputs = make_indexer(IndexerCase("poison", (3, 700), 1024), seed=seed)
    inputs.page_table[:, 11:] = 0
    selected, path, _ = selection(inputs)
    assert path == "ours"
    assert (selected[1] >= 0).all() and selected[1].unique().numel() == TOPK
    assert selected[0].tolist() == [-1] * (TOPK - 3) + selected[0, -3:].tolist()


@pytest.mark.parametrize(
    "indexer,lens", [("off", (700, 3, 600, 513)), ("on", (600,) + (3,) * 299)]
)
def test_rows_in_blocks_select_what_all_rows_at_once_select(
    monkeypatch, indexer, lens, seed
):
    inputs = make_indexer(IndexerCase("blocks", lens, 1024, tail="valid"), seed=seed)
    monkeypatch.setenv("SGLANG_SM120_INDEXER", indexer)
    at_once, path, calls = selection(inputs)
    assert calls == 1
    monkeypatch.setenv("SGLANG_SM120_LOGITS_MB", "1")
    in_blocks, same_path, calls = selection(inputs)
    assert same_path == path and calls > 1
    assert torch.equal(in_blocks, at_once)
    monkeypatch.setenv("SGLANG_SM120_PREFILL", "off")
    assert selection(inputs)[2] == 1


@pytest.mark.parametrize("torch_topk", ["0", "1"])
@pytest.mark.parametrize("topk", ["off", "on", "auto"])
@pytest.mark.parametrize("indexer", ["off", "on"])
@pytest.mark.parametrize("budget", ["512", "1"])
def test_every_combination_selects_the_same_keys(
    monkeypatch, indexer, topk, torch_topk, budget, seed
):
    case = IndexerCase("combined", (700, 3, 600, 513, 512, 0), 1024, tail="valid")
    inputs = make_indexer(case, seed=seed)
    want = selection(inputs)[0]
    monkeypatch.setenv("SGLANG_SM120_INDEXER", indexer)
    monkeypatch.setenv("SGLANG_SM120_TOPK", topk)
    monkeypatch.setenv("SGLANG_TOPK_TRANSFORM_512_TORCH", torch_topk)
    monkeypatch.setenv("SGLANG_SM120_LOGITS_MB", budget)
    used = []

    def named(name):
        def select(*args):
            used.append(name)
            exact_topk(*args)

        return select

    def replace(indexer_module):
        indexer_module.topk_transform_512 = named("stock")
        indexer_module.sm120_topk.select = named("ours")

    selected, path, _ = selection(inputs, replace)
    assert torch.equal(selected, want)
    assert path == {"off": "stock", "on": "ours"}[indexer]
    # The torch version of the user comes first; beside "on" the server does not start.
    expected = set() if torch_topk == "1" else {"stock" if topk == "off" else "ours"}
    assert set(used) == expected


class Followers:
    """Hisparse's pool and coordinator, and a capturer, that tell in ``calls`` what each call is handed."""

    layer_mapping = {0: SimpleNamespace(compress_layer_id=5)}

    def __init__(self, rows: int):
        self.calls = []
        self.c4_kv_pool = self
        self.raw_indices_buffer = torch.full((rows + 2, TOPK), -9, dtype=torch.int32)

    def install_capturer(self, indexer):
        indexer.get_global_indexer_capturer = lambda: self

    def translate_loc_to_hisparse_device(self, indices):
        self.calls.append(("translate", indices.clone()))
        return indices + 1

    def swap_in_selected_pages(self, *, top_k_result, layer_id, **_):
        assert layer_id == 5
        self.calls.append(("swap", top_k_result.clone()))
        return top_k_result + 1

    def capture(self, layer_id, indices):
        assert layer_id == 5
        self.calls.append(("capture", indices.clone()))


def tokens_of(positions, inputs):
    """Token ids of positions in the rows' texts; -1 stays."""
    real = positions.clamp_min(0)
    pages = inputs.page_table.gather(1, (real // PAGE).long())
    return torch.where(positions < 0, -1, pages * PAGE + real % PAGE)


@pytest.mark.parametrize(
    "decode,hisparse,captured,expected",
    [
        (True, False, True, ["capture"]),
        (True, True, False, ["swap"]),
        (True, True, True, ["swap", "capture"]),
        (False, True, False, ["translate"]),
        (False, True, True, ["translate", "capture"]),
    ],
)
def test_hisparse_and_capturer_come_once_after_the_last_block(
    monkeypatch, decode, hisparse, captured, expected, seed
):
    lens = (700, 3, 600, 513, 512, 0)
    inputs = make_indexer(IndexerCase("follow", lens, 1024, tail="valid"), seed=seed)
    monkeypatch.setenv("SGLANG_SM120_INDEXER", "off")
    seen = []
    for budget, blocks in (("512", 1), ("1", len(lens))):
        monkeypatch.setenv("SGLANG_SM120_LOGITS_MB", budget)
        follow = Followers(len(lens))
        coordinator = follow if hisparse else None
        change = follow.install_capturer if captured else None
        selected, _, calls = selection(inputs, change, follow, coordinator, decode)
        assert calls == blocks
        assert [name for name, _ in follow.calls] == expected
        for name, handed in follow.calls:
            tokens = handed if name == "translate" else tokens_of(handed, inputs)
            assert torch.equal(tokens.sort(1).values, selected), name
        seen.append(follow.calls)
    for (name, want), (_, got) in zip(*seen):
        assert torch.equal(got, want), name
