"""The model's own attention layer on two ranks, with each rank's heads and with all of them.

``MQALayer.forward`` and ``DeepseekV4AttnBackend.forward`` of the patched tree run in one process for each
GPU, NCCL between them; the projections' kernels and the rope are plain torch. Alone it prints a table and
writes what it found: ``python tests/gpu/local_heads_ranks.py OUT.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

import sglang_stand_ins
import stock
from decode_cases import DecodeCase, make_decode, page_bytes

RANKS, HEADS, DIM, ROPE = 2, 64, 512, 64
HIDDEN, LORA, GROUPS, O_RANK = 256, 128, 8, 32
MODEL = "models.deepseek_v4"
ATTENTION = "layers.attention."
REAL = tuple(
    ATTENTION + name
    for name in (
        "deepseek_v4_backend",
        "flash_mla_sm120",
        "flash_mla_sm120_triton",
    )
)
SRT = "python/sglang/srt"
FILES = (
    "models/deepseek_v4.py",
    "layers/attention/deepseek_v4_backend.py",
    "layers/attention/flash_mla_sm120.py",
    "layers/attention/flash_mla_sm120_triton.py",
    "layers/sm120/decode.py",
    "layers/sm120/decode.cu",
    "layers/sm120/decode_cursor.cuh",
    "layers/sm120/decode_gather.cuh",
    "layers/sm120/decode_layout.cuh",
    "layers/sm120/decode_merge.cuh",
    "layers/sm120/decode_products.cuh",
    "layers/sm120/decode_shared.cuh",
    "layers/sm120/decode_work.cuh",
    "layers/sm120/ptx.cuh",
)
# Who attends: the flags beside the one of the heads, and whether the card counts as an sm_120 one.
KERNELS = {
    "upstream's Triton": ({"DECODE": "off"}, True),
    "ours, one split": ({"DECODE": "on", "SPLIT_K": "off", "PREFILL": "on"}, False),
    "ours": ({"DECODE": "on", "SPLIT_K": "on", "PREFILL": "on"}, False),
}
CASES = {
    # compress ratio: rows of one decode step, short and long texts.
    4: DecodeCase(
        "c4", near=(128,) * 62 + (1, 77), far=(512,) * 60 + (0, 1, 100, 512), heads=1
    ),
    128: DecodeCase(
        "c128",
        near=(128,) * 7 + (5,),
        far=(8_192, 2, 1_000, 1, 64, 65, 4_000, 1),
        heads=1,
        width=8_256,
        far_page=2,
    ),
}


@contextmanager
def model(kernel: str):
    """The model's module with its attention backend's."""
    flags, as_sm120 = KERNELS[kernel]
    for name in [n for n in os.environ if n.startswith("SGLANG_")]:
        del os.environ[name]
    os.environ["SGLANG_OPT_FP8_WO_A_GEMM"] = "0"
    os.environ |= {f"SGLANG_SM120_{name}": value for name, value in flags.items()}
    given = {
        "utils.common.is_sm120_supported": lambda: as_sm120,
        f"{ATTENTION}dsv4.metadata._LARGE_INDEXER_QUERY_THRESHOLD": 11_673,
        "models.deepseek_v2._is_cuda": True,
        "models.deepseek_v2._is_hip": False,
        "models.deepseek_v2._is_npu": False,
    }
    with sglang_stand_ins.imported(MODEL, real=REAL, given=given) as module:
        module.get_attn_tp_context = lambda: SimpleNamespace(input_scattered=True)
        module.get_is_capture_mode = lambda: False
        module.is_in_breakable_cuda_graph = lambda: False
        module.fused_q_norm_rope = norm_and_turn
        module.fused_rope_inplace = turn
        hold_first_configuration()
        yield module


def hold_first_configuration() -> None:
    """Keep upstream's kernel from tuning itself: the ranks would not all choose alike, and its bits go by the choice."""
    triton_path = sys.modules[f"sglang.srt.{ATTENTION}flash_mla_sm120_triton"]
    tuner = triton_path._tiled_sparse_decode_kernel
    tuner.configs = tuner.configs[:1]


def norm_and_turn(q, out, eps, _freqs, positions):
    norm = (q.float().square().mean(-1, keepdim=True) + eps).rsqrt()
    out.copy_(q.float() * norm)
    turn(out[..., -ROPE:], None, None, positions, inverse=False)


def turn(x, _k, _freqs, positions, inverse):
    angle = torch.cos(positions.float() + (0.3 if inverse else 0.1))
    x.mul_(angle[:, None, None])


class Layer:
    """Weights, caches and indices of one layer, the same on each rank."""

    def __init__(self, ratio: int, seed: int, device):
        gen = torch.Generator(device=device).manual_seed(seed)

        def draw(*shape):
            values = torch.randn(shape, generator=gen, device=device)
            return (values / shape[-1] ** 0.5).bfloat16()

        self.ratio, self.inputs = ratio, make_decode(CASES[ratio], device, seed)
        self.tokens = len(CASES[ratio].near)
        self.x = draw(self.tokens, HIDDEN) * HIDDEN**0.5
        self.sink = torch.randn(HEADS, generator=gen, device=device)
        self.wq_a, self.wq_b = draw(LORA, HIDDEN), draw(HEADS, DIM, LORA)
        self.wo_a = draw(GROUPS, O_RANK, HEADS * DIM // GROUPS)
        self.wo_b = draw(HIDDEN, GROUPS * O_RANK)
        self.positions = torch.arange(self.tokens, device=device)


def mqa_layer(module, layer: Layer, rank: int, ranks: int):
    """``MQALayer`` of one rank."""
    heads, groups = HEADS // ranks, GROUPS // ranks
    wq_b = layer.wq_b[rank * heads : (rank + 1) * heads]
    wo_a = layer.wo_a[rank * groups : (rank + 1) * groups]
    columns = groups * O_RANK
    wo_b = layer.wo_b[:, rank * columns : (rank + 1) * columns]

    def project(q_lora):
        # A few heads at a time: the same bits whatever the number of ranks.
        parts = [q_lora @ w.reshape(-1, LORA).T for w in wq_b.split(8)]
        return torch.cat(parts, 1), None

    return sglang_stand_ins.attention_layer(
        module,
        tp_rank=rank,
        tp_size=ranks,
        n_heads=HEADS,
        n_local_heads=heads,
        n_local_groups=groups,
        head_dim=DIM,
        qk_rope_head_dim=ROPE,
        q_lora_rank=LORA,
        o_lora_rank=O_RANK,
        compress_ratio=layer.ratio,
        attn_sink=layer.sink,
        attn_mqa=SimpleNamespace(layer_id=0, v_head_dim=DIM),
        wq_a=lambda x: (x @ layer.wq_a.T, None),
        wq_b=project,
        wo_a=SimpleNamespace(weight=wo_a),
        wo_b=lambda o: (o @ wo_b.T, None),
    )


def attention_backend(layer: Layer):
    """``DeepseekV4AttnBackend`` with the layer's caches, ready for one step; it keeps the last output."""
    backend = sys.modules[f"sglang.srt.{ATTENTION}deepseek_v4_backend"]
    given = layer.inputs
    near, far = page_bytes(given.k_cache), page_bytes(given.extra_k_cache)

    class Pool(backend.DeepSeekV4TokenToKVPool):
        swa_window_size, page_size = 256, 256
        swa_kv_pool = SimpleNamespace(kv_cache_total_dim=584)

        def get_swa_key_buffer_radix(self, _layer):
            return near

        def get_extra_key_buffer(self, _layer):
            return far

    metadata = object.__new__(backend.DSV4AttnMetadata)
    metadata.swa_page_indices = given.indices
    metadata.swa_topk_lengths = given.topk_length
    metadata.c4_sparse_page_indices = metadata.c128_page_indices = given.extra_indices
    metadata.c4_sparse_topk_lengths = given.extra_topk_length
    metadata.c128_topk_lengths_clamp1 = given.extra_topk_length
    metadata.c4_flashmla_metadata = metadata.c128_flashmla_metadata = None
    self = object.__new__(backend.DeepseekV4AttnBackend)
    self.mtp_enabled, self.head_dim_v, self.softmax_scale = False, DIM, DIM**-0.5
    self.forward_metadata = SimpleNamespace(core_attn_metadata=metadata)
    self.token_to_kv_pool = Pool()
    return self


def step(module, layer: Layer, rank: int, ranks: int, heads: str):
    """A function that runs the layer once: (attention's output for the rank's heads, the layer's)."""
    os.environ["SGLANG_SM120_LOCAL_HEADS"] = heads
    backend = attention_backend(layer)
    mode = SimpleNamespace(
        is_extend=lambda: False, is_extend_without_speculative=lambda: False
    )
    seen = {}

    def attend(**kwargs):
        seen["heads"] = kwargs["q"].shape[1]
        seen["out"] = type(backend).forward(backend, **kwargs)
        return seen["out"]

    module.get_attn_backend = lambda: SimpleNamespace(forward=attend)
    mqa = mqa_layer(module, layer, rank, ranks)
    batch = SimpleNamespace(forward_mode=mode)

    def run():
        # Only this rank's part of the padded output is turned in place, and read.
        output = mqa.forward(layer.x, layer.positions, batch)
        own = HEADS // ranks
        first = rank * own if seen["heads"] == HEADS else 0
        return seen["out"][:, first : first + own], output, seen["heads"]

    return run


def captured(run):
    """The function as a graph, warmed up; and its outputs, which each replay writes again."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        outputs = run()
    return graph, outputs


def microseconds(graph, replays: int = 50) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / replays * 1e3


def compare(rank: int, kernel: str, ratio: int, seed: int, device) -> dict:
    """One layer with one kernel, both ways, eager and captured, against the same on one GPU."""
    layer = Layer(ratio, seed, device)
    with model(kernel) as module:
        arms, times, seen = {}, {}, {}
        for heads in ("off", "on"):
            run = step(module, layer, rank, RANKS, heads)
            eager = [t.clone() for t in run()[:2]]
            graph, (*outputs, seen[heads]) = captured(run)
            graph.replay()
            graph.replay()
            torch.cuda.synchronize()
            same = all(torch.equal(a, b) for a, b in zip(eager, outputs))
            times[heads] = microseconds(graph)
            arms[heads] = (*eager, same)
        alone, whole, _ = step(module, layer, 0, 1, "off")()
    padded, local = arms["off"], arms["on"]
    parts = [torch.empty_like(local[0].contiguous()) for _ in range(RANKS)]
    dist.all_gather(parts, local[0].contiguous())
    gathered = torch.cat(parts, 1)
    sums = [output.float().clone() for output in (padded[1], local[1])]
    for total in sums:
        dist.all_reduce(total)
    return dict(
        kernel=kernel,
        compress_ratio=ratio,
        rows=layer.tokens,
        heads_seen=[seen["off"], seen["on"]],
        attention_equal=torch.equal(padded[0], local[0]),
        attention_largest_difference=difference(padded[0], local[0]),
        layer_equal=torch.equal(padded[1], local[1]),
        summed_layer_equal=torch.equal(*sums),
        gathered_equals_one_gpu=torch.equal(gathered, alone),
        gathered_largest_difference=difference(gathered, alone),
        graph_equals_eager=[padded[2], local[2]],
        finite=bool(gathered.isfinite().all() and whole.isfinite().all()),
        largest_value=gathered.float().abs().max().item(),
        layer_us=[round(times["off"], 1), round(times["on"], 1)],
    )


def more_ranks(kernel: str, ratio: int, seed: int, device) -> list[dict]:
    """Local against padded heads of each rank of larger groups, one after the other on this GPU."""
    layer = Layer(ratio, seed, device)
    found = []
    with model(kernel) as module:
        for ranks in (4, 8):
            differences = []
            for rank in range(ranks):
                padded, *_ = step(module, layer, rank, ranks, "off")()
                local, _, heads = step(module, layer, rank, ranks, "on")()
                assert heads == HEADS // ranks
                differences.append(difference(padded, local))
            found.append(
                dict(
                    kernel=kernel,
                    compress_ratio=ratio,
                    ranks=ranks,
                    attention_largest_difference=max(differences),
                    largest_value=padded.float().abs().max().item(),
                )
            )
    return found


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.float() - b.float()).abs().max().item()


def worker(rank: int, port: int, seed: int, path: str) -> None:
    """One process: all comparisons, written to ``path`` with the rank's number."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
        device_id=device,
    )
    rows = [
        compare(rank, kernel, ratio, seed, device)
        for kernel in KERNELS
        for ratio in CASES
    ]
    more = [
        row
        for kernel in KERNELS
        for ratio in CASES
        for row in more_ranks(kernel, ratio, seed, device)
    ]
    Path(f"{path}.{rank}").write_text(json.dumps(dict(pair=rows, more_ranks=more)))
    dist.destroy_process_group()


def run_ranks(directory: Path, seed: int) -> list[dict]:
    """Each rank's comparisons: with its ``pair``, and of ``more_ranks`` alone. Needs two GPUs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = str(directory / "rank")
    torch.multiprocessing.spawn(worker, (port, seed, path), nprocs=RANKS)
    return [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(RANKS)]


def blob_id(file: Path) -> str:
    """Git's id of a file's contents."""
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def main(out: Path) -> None:
    seed = 20_261_129
    ranks = run_ranks(out.parent, seed)
    for rank in range(RANKS):
        (out.parent / f"rank.{rank}").unlink()
    record = dict(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        nccl=".".join(map(str, torch.cuda.nccl.version())),
        files={name: blob_id(stock.tree() / SRT / name) for name in FILES},
        seed=seed,
        ranks=ranks,
    )
    out.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(ranks)))


def table(ranks: list[dict]) -> list[str]:
    """A line for each rank, kernel and case, then what larger groups of ranks would differ by."""
    lines = [
        f"{rank} {row['kernel']:18} c{row['compress_ratio']:<4}"
        f" heads {row['heads_seen']}"
        f" attention equal {row['attention_equal']!s:5}"
        f" layer {row['layer_equal']!s:5} sum {row['summed_layer_equal']!s:5}"
        f" one GPU {row['gathered_equals_one_gpu']!s:5}"
        f" graph {row['graph_equals_eager']} us {row['layer_us']}"
        f" diff {row['attention_largest_difference']:.3g}"
        f" {row['gathered_largest_difference']:.3g} of {row['largest_value']:.3g}"
        for rank, found in enumerate(ranks)
        for row in found["pair"]
    ]
    return lines + [" ".join(map(str, row.values())) for row in ranks[0]["more_ranks"]]


def needed(words: list[str]) -> str | None:
    """What is missing to begin: a word for the result, GPUs, the patched tree."""
    if len(words) != 1 or words[0].startswith("-"):
        return "usage: python tests/gpu/local_heads_ranks.py OUT.json"
    if not Path(words[0]).resolve().parent.is_dir():
        return f"error: no folder {Path(words[0]).resolve().parent} for the result"
    found = torch.cuda.device_count()
    if found < RANKS:
        return f"error: {RANKS} GPUs are needed, {found} seen; nothing was run"
    try:
        stock.tree()
    except FileNotFoundError as error:
        return f"error: {error}"
    return None


if __name__ == "__main__":
    if said := needed(sys.argv[1:]):
        sys.exit(said)
    main(Path(sys.argv[1]).resolve())
