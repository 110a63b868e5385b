"""`kernel:CASE`: microseconds of a tree's own entry point on this machine's GPU.

What is called is the function that upstream's model calls, in the tree's own file, so a commit that puts
another kernel behind it shows as that commit's. The flags of the series are `on`. The result is compared
with the release's own torch function before it is timed.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, NamedTuple

import torch

from .. import gpuload, gputime
from . import indexer_step, outcome

# indexer_step puts tests/ on the path.
from cases import decode_case, make_indexer
import stock

SAMPLES = 25
# A call with its own inputs each, so that one does not find the last one's in the L2 cache.
COPIES = 8
# Those that choose a path; other choices (of weights, of a fallback's products) stay as they are.
_FLAG = re.compile(
    r"""^ {4}(SGLANG_SM120_\w+) = EnvChoice\(\s*"auto",\s*\("auto", "on", "off"\),?\s*\)""",
    re.M,
)
ATTENTION = "layers.attention.flash_mla_sm120"
_NOPE, _DATA, _SCALES = 448, 576, 8
# What CUDA and torch take for this process besides its tensors, on the cards of today.
_CONTEXT_MIB = 512


class Case(NamedTuple):
    """Calls that do the same on different inputs, and the error of the first one's result."""

    calls: list[Callable[[], object]]
    error: float
    tolerance: float


def measure(case: str, release: Path) -> dict:
    """Measure the tree at $PATCHSET_TREE; release is a directory with files of the release itself.

    Raises RuntimeError without a GPU, and whatever the tree raises.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no CUDA GPU")
    before = gpuload.settled(_beside)
    with modules_of(case) as modules:
        made = CASES[case](modules, release, "cuda")
        right = made.error <= made.tolerance
        found = {
            "correct": right,
            "why": None if right else f"the result is off by {made.error:.3g}",
            "error": made.error,
        }
        timing = gputime.time_arms({"tree": made.calls}, SAMPLES)["tree"]
        return {
            "value": timing.median,
            **found,
            "timing": asdict(timing),
            "beside": gpuload.around(before, _beside()),
            "machine": {**outcome.machine(), **_gpu()},
        }


def _gpu() -> dict:
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


def _beside() -> dict | None:
    """What is in use on the GPU besides this process, about; None where it shares the machine's memory."""
    if torch.cuda.get_device_properties(0).is_integrated:
        return None
    free, total = torch.cuda.mem_get_info()
    others = (total - free - torch.cuda.memory_reserved()) // 2**20 - _CONTEXT_MIB
    return {
        "gpu": "CUDA device 0",
        "memory_mib": max(0, others),
        "utilisation": None,
    }


def modules_of(case: str):
    """The tree's modules that a case calls, with the flags of the series on."""
    names = indexer_step.NAMES if case == "indexer" else (ATTENTION,)
    environ = stock.tree() / "python" / "sglang" / "srt" / "environ.py"
    flags = flags_on(environ.read_text())
    return indexer_step.tree_modules({**flags, **indexer_step.SETTINGS}, *names)


def flags_on(environ: str) -> dict[str, str]:
    """`on` for each flag of the series that an environ.py registers and that chooses a path."""
    return {name: "on" for name in _FLAG.findall(environ)}


def _indexer(modules, release: Path, device: str, rows: int = 64) -> Case:
    inputs = [
        make_indexer(decode_case(rows, 8_192, 131_072, pool=4096), device, seed)
        for seed in range(COPIES)
    ]
    scores = indexer_step.Scores()
    (reference,) = stock.functions_of(
        release / "indexer.py", "fp8_paged_mqa_logits_torch_sm120"
    )
    indexer_step.prepare(modules, inputs[0], 512, scores.take)()
    length = int(inputs[0].seq_lens[0])
    got = scores.joined(rows)[:, :length]
    want = stock.call_stock(reference, inputs[0])[:, :length]
    error = ((got - want).abs().max() / want.abs().max()).item()
    calls = [indexer_step.prepare(modules, one, 512, lambda *_: None) for one in inputs]
    return Case(calls, error, 2e-3)


def _attention(rows: int):
    def made(modules, release: Path, device: str) -> Case:
        (module,) = modules
        inputs = [decode_inputs(rows, 16, 512, device, seed) for seed in range(COPIES)]
        reference = _release(release / "flash_mla_sm120.py")
        first = inputs[0]
        want = reference._sm120_sparse_decode_fwd(
            first.q,
            first.k_cache,
            first.indices,
            first.topk_length,
            first.attn_sink,
            512,
            first.softmax_scale,
            first.extra_k_cache,
            first.extra_indices_in_kvcache,
            first.extra_topk_length,
        )[0]
        calls = [
            lambda one=one: module.flash_mla_with_kvcache_sm120(
                head_dim_v=512, **vars(one)
            )
            for one in inputs
        ]
        got = calls[0]()[0]
        error = ((got.float() - want.float()).abs().max() / want.abs().max()).item()
        return Case(calls, error, 2e-2)

    return made


CASES: dict[str, Callable[..., Case]] = {
    "indexer": _indexer,
    "decode": _attention(64),
    "decode-one": _attention(1),
}


def decode_inputs(
    rows: int, heads: int, extra: int, device: str, seed: int
) -> SimpleNamespace:
    """Arguments of one attention call: 128 keys of the window, and `extra` selected ones."""
    random = torch.Generator(device=device).manual_seed(seed)

    def ids(pages: int, page: int, width: int) -> torch.Tensor:
        drawn = [
            torch.randperm(pages * page, generator=random, device=device)[:width]
            for _ in range(rows)
        ]
        return torch.stack(drawn).to(torch.int32)[:, None]

    def full(width: int) -> torch.Tensor:
        return torch.full((rows,), width, dtype=torch.int32, device=device)

    window_pages, extra_pages = max(2, rows), max(16, 2 * rows)
    return SimpleNamespace(
        q=torch.randn(
            *(rows, 1, heads, 512),
            generator=random,
            device=device,
            dtype=torch.bfloat16,
        ),
        k_cache=_pages(window_pages, 256, random, device),
        indices=ids(window_pages, 256, 128),
        topk_length=full(128),
        attn_sink=torch.randn(heads, generator=random, device=device),
        softmax_scale=512**-0.5,
        extra_k_cache=_pages(extra_pages, 64, random, device),
        extra_indices_in_kvcache=ids(extra_pages, 64, extra),
        extra_topk_length=full(extra),
    )


def _pages(count: int, page: int, random, device: str) -> torch.Tensor:
    """A cache as upstream lays it out: the tokens' data, then their scales, then padding."""
    size = -(-page * (_DATA + _SCALES) // _DATA) * _DATA
    raw = torch.zeros(count, size, dtype=torch.uint8, device=device)
    data = raw[:, : page * _DATA].view(count, page, _DATA)
    values = torch.randn(count, page, 512, generator=random, device=device)
    nope = values[..., :_NOPE].to(torch.float8_e4m3fn)
    data[..., :_NOPE] = nope.view(torch.uint8)
    rope = values[..., _NOPE:].to(torch.bfloat16).contiguous()
    data[..., _NOPE:] = rope.view(torch.uint8)
    scales = raw[:, page * _DATA : page * (_DATA + _SCALES)]
    # Powers of two around one: their exponents, biased by 127.
    drawn = torch.randint(
        *(125, 129, scales.shape), generator=random, device=device, dtype=torch.uint8
    )
    scales.copy_(drawn)
    shape = (count, page, 1, _DATA + _SCALES)
    stride = (size, _DATA + _SCALES, _DATA + _SCALES, 1)
    return raw.view(torch.float8_e4m3fn).as_strided(shape, stride)


def _release(file: Path):
    """The release's own module; it imports torch alone."""
    spec = importlib.util.spec_from_file_location("release_attention", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    outcome.main(lambda arguments: measure(arguments.case, arguments.stock))
