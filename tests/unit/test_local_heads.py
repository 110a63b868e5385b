"""Patch 0080's result: the model's own attention layer, with one rank's heads and with all of them.

The real ``MQALayer.forward`` and its prepare functions run on the CPU in float64 for each rank of a
tensor-parallel group; the kernels are replaced by plain sums per head.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import sglang_stand_ins
from kernels.decode import COPIED, FEW_HEADS, LARGE, LARGE_MANY

ROOT = Path(__file__).resolve().parents[2]
GPU_TESTS = ROOT / "tests/gpu"
MODEL = "models.deepseek_v4"
TOKENS, KEYS, HEADS, DIM, ROPE = 3, 5, 64, 16, 4
HIDDEN, RANK, GROUPS, O_RANK = 12, 6, 8, 7


CUDA = {
    "utils.common.is_sm120_supported": lambda: True,
    "models.deepseek_v2._is_cuda": True,
    "models.deepseek_v2._is_hip": False,
    "models.deepseek_v2._is_npu": False,
}


@contextmanager
def model(flag: str, breakable_graph: bool = False):
    """The model's module on an sm_120 card."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    clean |= {"SGLANG_SM120_LOCAL_HEADS": flag, "SGLANG_OPT_FP8_WO_A_GEMM": "0"}
    with (
        mock.patch.dict(os.environ, clean, clear=True),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)),
        sglang_stand_ins.imported(MODEL, given=CUDA) as module,
    ):
        module.get_attn_tp_context = lambda: SimpleNamespace(input_scattered=True)
        module.get_is_capture_mode = lambda: False
        module.is_in_breakable_cuda_graph = lambda: breakable_graph
        module.dsa_use_prefill_cp = lambda _batch: False
        module.fused_q_norm_rope = norm_and_turn
        module.fused_rope_inplace = turn
        yield module


def norm_and_turn(q, out, eps, _freqs, positions):
    out.copy_(q / (q.square().mean(-1, keepdim=True) + eps).sqrt())
    turn(out[..., -ROPE:], None, None, positions, inverse=False)


def turn(x, _k, _freqs, positions, inverse):
    angle = torch.cos(positions.double() + (0.3 if inverse else 0.1))
    x.mul_(angle[:, None, None])


class Weights:
    """Of one layer, the same for each number of ranks."""

    def __init__(self, seed: int):
        gen = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64)
        self.x = draw(TOKENS, HIDDEN)
        self.keys = draw(TOKENS, KEYS, DIM)
        self.sink = draw(HEADS)
        self.wq_a = draw(RANK, HIDDEN)
        self.wq_b = draw(HEADS, DIM, RANK)
        self.wo_a = draw(GROUPS, O_RANK, HEADS * DIM // GROUPS)
        self.wo_b = draw(HIDDEN, GROUPS, O_RANK)

    def attend(self, q, sink):
        """One head at a time: the same sums whatever heads stand beside it."""
        assert sink.shape == q.shape[1:2]
        out = torch.empty_like(q)
        for head in range(q.shape[1]):
            scores = torch.einsum("td,tkd->tk", q[:, head], self.keys)
            top = scores.amax(-1, keepdim=True)
            weights = torch.exp(scores - top)
            total = weights.sum(-1, keepdim=True) + torch.exp(sink[head] - top)
            out[:, head] = torch.einsum("tk,tkd->td", weights / total, self.keys)
        return out


def layer_of(module, weights: Weights, rank: int, ranks: int):
    """``MQALayer`` of one rank, with its part of the weights."""
    heads, groups = HEADS // ranks, GROUPS // ranks
    first, first_group = rank * heads, rank * groups
    wq_b = weights.wq_b[first : first + heads].reshape(-1, RANK)
    wo_a = weights.wo_a[first_group : first_group + groups]
    wo_b = weights.wo_b[:, first_group : first_group + groups].reshape(HIDDEN, -1)
    return sglang_stand_ins.attention_layer(
        module,
        tp_rank=rank,
        tp_size=ranks,
        n_heads=HEADS,
        n_local_heads=heads,
        n_groups=GROUPS,
        n_local_groups=groups,
        head_dim=DIM,
        qk_rope_head_dim=ROPE,
        q_lora_rank=RANK,
        o_lora_rank=O_RANK,
        compress_ratio=4,
        attn_sink=weights.sink,
        attn_mqa=SimpleNamespace(layer_id=0, v_head_dim=DIM),
        wq_a=lambda x: (x @ weights.wq_a.T, None),
        wq_b=lambda q: (q @ wq_b.T, None),
        wo_a=SimpleNamespace(weight=wo_a.reshape(-1, wo_a.shape[-1])),
        wo_b=lambda o: (o @ wo_b.T, None),
    )


def partial_output(module, weights, rank, ranks, seen, change=None):
    """What one rank adds to the layer's output; ``seen`` collects the heads that attention got."""

    def attend(q, k, v, attn_sink, **_):
        assert k is v
        seen.append(q.shape[1])
        return weights.attend(q, attn_sink)

    backend = SimpleNamespace(forward=attend)
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: True),
        num_token_non_padded_cpu=TOKENS,
        out_cache_loc=torch.arange(TOKENS),
    )
    layer = layer_of(module, weights, rank, ranks)
    if change is not None:
        change(layer)
    module.get_attn_backend = lambda: backend
    module.get_forward_context = lambda: SimpleNamespace(
        forward_batch=batch, attention_layers=[layer.attn_mqa]
    )
    return layer.forward(weights.x, torch.arange(TOKENS), batch)


@pytest.fixture
def poison():
    """What upstream's padding leaves unwritten is NaN."""
    new_empty = torch.Tensor.new_empty

    def poisoned(self, *args, **kwargs):
        return new_empty(self, *args, **kwargs).fill_(float("nan"))

    with mock.patch.object(torch.Tensor, "new_empty", poisoned):
        yield


@pytest.mark.parametrize("breakable_graph", [False, True], ids=["direct", "split op"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_local_heads_are_the_padded_heads_bit_for_bit(
    ranks, breakable_graph, poison, seed
):
    weights = Weights(seed)
    seen = {"off": [], "auto": []}
    outputs = {}
    for flag in seen:
        with model(flag, breakable_graph) as module:
            outputs[flag] = [
                partial_output(module, weights, rank, ranks, seen[flag])
                for rank in range(ranks)
            ]
    for rank in range(ranks):
        assert torch.equal(outputs["auto"][rank], outputs["off"][rank]), rank
    assert seen == {"off": [HEADS] * ranks, "auto": [HEADS // ranks] * ranks}
    with model("off") as module:
        alone = partial_output(module, weights, 0, 1, [])
    torch.testing.assert_close(sum(outputs["auto"]), alone, rtol=1e-12, atol=1e-12)


TESTS = Path(__file__).resolve().parents[1]
RAW = TESTS.parent / "ci" / "checkpoints" / "raw"


@pytest.fixture
def on_two_gpus(monkeypatch, tmp_path):
    """The test of the GPU tier, on a card of either kind, with what two ranks found."""
    monkeypatch.syspath_prepend(TESTS / "gpu")
    place = TESTS / "gpu" / "test_local_heads.py"
    spec = importlib.util.spec_from_file_location("local_heads_on_gpus", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(large_sms: bool, found: list[dict], sms: int = 132) -> None:
        monkeypatch.setattr(module, "has_large_sms", lambda _: large_sms)
        monkeypatch.setattr(module, "sm_count", lambda _: sms)
        monkeypatch.setattr(module, "run_ranks", lambda *_: found)
        module.test_two_ranks_with_their_own_heads(tmp_path, 0)

    return run


def test_one_split_has_equal_bits_where_16_and_32_heads_have_the_same_tiles(
    on_two_gpus,
):
    assert FEW_HEADS.tile == LARGE.tile != COPIED.tile
    # With the kernels of this run the tiles differed on this card too.
    differ = json.loads((RAW / "server-h200-series" / "ranks.json").read_text())
    on_two_gpus(False, differ["ranks"])
    with pytest.raises(AssertionError, match="ours, one split"):
        on_two_gpus(True, differ["ranks"])


def test_rows_that_are_many_for_the_card_may_part_only_below_17_heads(on_two_gpus):
    """The 64 rows of the comparison are so on a card of 114 SMs: 32 heads have tiles of 128 keys then, 16 have not."""
    assert FEW_HEADS.tile != LARGE_MANY.tile
    equal = json.loads((RAW / "server-h200-tp2" / "ranks.json").read_text())["ranks"]
    for row in equal[0]["more_ranks"]:
        if row["kernel"] == "ours, one split":
            row["attention_largest_difference"] = 2**-8 * row["largest_value"]
    on_two_gpus(True, equal, sms=114)
    with pytest.raises(AssertionError, match="ours, one split"):
        on_two_gpus(True, equal, sms=132)
    for row in equal[0]["pair"]:
        row["attention_equal"] = False
    with pytest.raises(AssertionError, match="upstream|ours"):
        on_two_gpus(True, equal, sms=114)


@pytest.mark.parametrize("kernel", ["upstream's Triton", "ours, one split", "ours"])
@pytest.mark.parametrize("part", ["pair", "more_ranks"])
def test_what_is_far_apart_is_wrong_on_every_card(on_two_gpus, kernel, part):
    equal = json.loads((RAW / "server-h200-tp2" / "ranks.json").read_text())["ranks"]
    for large in (False, True):
        on_two_gpus(large, equal)
    row, *_ = (row for row in equal[1][part] if row["kernel"] == kernel)
    row["attention_equal"] = False
    row["attention_largest_difference"] = 2**-6 * row["largest_value"]
    for large in (False, True):
        with pytest.raises(AssertionError, match=kernel):
            on_two_gpus(large, equal)


def test_a_neighbours_sinks_would_be_seen(seed):
    """The comparison above can fail: sinks of another rank change the output."""
    weights = Weights(seed)
    with model("auto") as module:
        first = partial_output(module, weights, 0, 4, [])
        weights.sink = weights.sink.roll(HEADS // 4)
        assert not torch.equal(partial_output(module, weights, 0, 4, []), first)


@pytest.mark.parametrize(
    "flag,wanted", [("auto", None), ("off", (TOKENS, HEADS // 4, DIM))]
)
def test_the_prepare_function_of_captured_graphs_makes_q_too(flag, wanted, seed):
    """Under capture another prepare function gets the place for q, or makes one."""
    weights = Weights(seed)
    places = []

    def change(layer):
        def prepare(x, positions, batch, backend, q_out=None, x_quant=None):
            places.append(None if q_out is None else tuple(q_out.shape))
            return layer._compute_q_b(x @ weights.wq_a.T, positions, q_out)

        for name, value in dict(
            alt_streams=[None] * 3,
            _multi_stream_bs_limit=128,
            _forward_prepare_multi_stream=prepare,
        ).items():
            object.__setattr__(layer, name, value)

    with model(flag) as module:
        expected = partial_output(module, weights, 1, 4, [])
        module.get_is_capture_mode = lambda: True
        captured = partial_output(module, weights, 1, 4, [], change)
    assert places == [wanted]
    assert torch.equal(captured, expected)


def test_a_step_without_tokens_is_upstreams(seed):
    weights = Weights(seed)
    weights.x = weights.x[:0]
    with model("auto") as module:
        module.get_attn_tp_context = lambda: SimpleNamespace(input_scattered=False)

        def change(layer):
            wo_b = SimpleNamespace(reduce_results=False)
            object.__setattr__(layer, "wo_b", wo_b)

        assert partial_output(module, weights, 1, 4, [], change) is weights.x


@pytest.mark.parametrize(
    "words, said",
    [
        ((), "usage: python tests/gpu/local_heads_ranks.py OUT.json"),
        (("none/out.json",), "error: no folder "),
        (("out.json",), "error: 2 GPUs are needed, 0 seen; nothing was run"),
    ],
)
def test_the_ranks_alone_without_what_they_need(tmp_path, words, said):
    script = GPU_TESTS / "local_heads_ranks.py"
    done = subprocess.run(
        [sys.executable, script, *words],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.startswith(said), done.stderr
    assert done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.fixture
def ranks_alone(monkeypatch):
    """The module that runs the layer on two ranks."""
    monkeypatch.syspath_prepend(str(GPU_TESTS))
    monkeypatch.delitem(sys.modules, "local_heads_ranks", raising=False)
    # ``model`` there sets variables for a process of its own.
    with mock.patch.dict(os.environ):
        yield importlib.import_module("local_heads_ranks")
    sys.modules.pop("local_heads_ranks")


def test_upstreams_kernel_does_not_tune_itself_on_two_ranks(ranks_alone):
    path = "sglang.srt.layers.attention.flash_mla_sm120_triton"
    with ranks_alone.model("upstream's Triton"):
        tuner = sys.modules[path]._tiled_sparse_decode_kernel
        (kept,) = tuner.configs
        assert kept.kwargs == {"BLOCK_T": 16} and kept.num_warps == 4


def test_the_two_ranks_table_is_that_of_their_raw_file(ranks_alone):
    folder = ROOT / "ci/checkpoints/raw/server-h200-tp2"
    made = json.loads((folder / "ranks.json").read_text())["ranks"]
    lines = ranks_alone.table(made)
    assert (folder / "ranks.txt").read_text() == "".join(f"{each}\n" for each in lines)
