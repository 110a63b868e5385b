"""The patched tree's own attention backend and dispatch on the CPU, each kernel replaced by its name."""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import torch

import sglang_stand_ins

BACKEND = "layers.attention.deepseek_v4_backend"
SM120 = "layers.attention.flash_mla_sm120"
ROWS, HEADS = 2, 16


@contextmanager
def process(capability: tuple[int, int], **environment: str):
    """A process on a card of this capability with these SGLang variables and no others.

    Yields the backend's module; ``module.calls`` collects (kernel, arguments, keyword arguments), and a
    test sets ``module.stream``, the current one and whether it is being captured.
    """
    calls, stream = [], SimpleNamespace(cuda_stream=1, capturing=False)

    def kernel(name):
        def function(*args, **kwargs):
            calls.append((name, args, kwargs))
            return SimpleNamespace(squeeze=lambda _dim: f"output of {name}"), "lse"

        return function

    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    given = {
        "utils.common.is_sm120_supported": lambda: capability[0] == 12,
        "layers.attention.flash_mla_sm120_triton.flash_mla_sparse_decode_triton": kernel(
            "upstream's Triton kernel"
        ),
        "layers.attention.dsv4.metadata._LARGE_INDEXER_QUERY_THRESHOLD": 11_673,
    }
    with (
        mock.patch.dict(os.environ, clean | environment, clear=True),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=capability),
        mock.patch("torch.cuda.current_stream", lambda *_: stream),
        mock.patch("torch.cuda.is_current_stream_capturing", lambda: stream.capturing),
        sglang_stand_ins.imported(
            BACKEND, real=(SM120,), invented=("sgl_kernel",), given=given
        ) as backend,
    ):
        import sgl_kernel.flash_mla as flash_mla
        from sglang.srt.layers.attention import flash_mla_sm120
        from sglang.srt.layers.sm120 import decode_hook

        flash_mla.flash_mla_with_kvcache = kernel("FlashMLA")
        flash_mla.get_mla_metadata = lambda: ("FlashMLA's schedule", None)
        flash_mla_sm120._sm120_sparse_decode_fwd = kernel("upstream's torch version")
        # With the signatures of the real ones.
        decode_hook.sparse_mla_decode = mock.create_autospec(
            decode_hook.sparse_mla_decode, side_effect=kernel("ours")
        )
        decode_hook.decode_workspace = mock.create_autospec(
            decode_hook.decode_workspace,
            side_effect=lambda heads, _device: SimpleNamespace(heads=heads),
        )
        backend.calls, backend.stream = calls, stream
        backend.decode_hook = decode_hook
        yield backend


def inputs(compress_ratio: int) -> SimpleNamespace:
    """What one layer's attention is called with; its extra cache is None for ratio 0."""
    extra = compress_ratio != 0
    return SimpleNamespace(
        q=torch.zeros(ROWS, HEADS, 512),
        sink=torch.zeros(HEADS),
        swa_indices=torch.zeros(ROWS, 128, dtype=torch.int32),
        swa_lens=torch.ones(ROWS, dtype=torch.int32),
        extra_indices=torch.zeros(ROWS, 64, dtype=torch.int32) if extra else None,
        extra_lens=torch.ones(ROWS, dtype=torch.int32) if extra else None,
    )


def forward(backend, compress_ratio: int, given: SimpleNamespace) -> str:
    """``DeepseekV4AttnBackend.forward`` of one layer on these inputs: whose output it returns."""

    class Pool(backend.DeepSeekV4TokenToKVPool):
        swa_window_size, page_size = 256, 256
        swa_kv_pool = SimpleNamespace(kv_cache_total_dim=584)

        def get_swa_key_buffer_radix(self, _layer):
            return torch.zeros(3, 149_760, dtype=torch.uint8)

        def get_extra_key_buffer(self, _layer):
            return torch.zeros(3, 37_440, dtype=torch.uint8)

    metadata = object.__new__(backend.DSV4AttnMetadata)
    metadata.swa_page_indices = given.swa_indices
    metadata.swa_topk_lengths = given.swa_lens
    metadata.c4_sparse_page_indices = metadata.c128_page_indices = given.extra_indices
    metadata.c4_sparse_topk_lengths = given.extra_lens
    metadata.c128_topk_lengths_clamp1 = given.extra_lens
    schedule = backend._create_flashmla_metadata()
    metadata.c1_flashmla_metadata = metadata.c4_flashmla_metadata = schedule
    metadata.c128_flashmla_metadata = schedule
    self = object.__new__(backend.DeepseekV4AttnBackend)
    self.mtp_enabled, self.head_dim_v, self.softmax_scale = False, 512, 512**-0.5
    self.forward_metadata = SimpleNamespace(core_attn_metadata=metadata)
    self.token_to_kv_pool = Pool()
    mode = SimpleNamespace(is_extend_without_speculative=lambda: False)
    return self.forward(
        q=given.q,
        k=given.q,
        v=given.q,
        layer=SimpleNamespace(layer_id=0),
        forward_batch=SimpleNamespace(forward_mode=mode),
        compress_ratio=compress_ratio,
        save_kv_cache=False,
        attn_sink=given.sink,
    )
