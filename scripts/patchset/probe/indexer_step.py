"""One step of a tree's own indexer: its real `forward_c4_indexer`, on inputs made here.

The indexer's module is imported from the tree with sglang's other modules replaced
(tests/sglang_tree.py), and sees a card of compute capability 12.x. The selection is replaced: both
upstream's top-k and ours are CUDA programs without a CPU path, and neither reads beyond the text.
So what is left to run, and to count, is how the tree makes the scores.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Callable, Iterator
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import sglang_tree  # noqa: E402
from cases import IndexerInputs  # noqa: E402

from .outcome import Unmeasurable  # noqa: E402

NAMES = ("layers.attention.dsv4.indexer", "layers.attention.dsv4.metadata")

# As upstream's defaults on sm_120 are, with our top-k off: see above.
SETTINGS = {
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
    "SGLANG_OPT_USE_TOPK_V2": "0",
    "SGLANG_SM120_TOPK": "off",
}


@dataclass
class Scores:
    """The scores of one step, as the selection got them, a block of rows at a time."""

    blocks: list[torch.Tensor] = field(default_factory=list)

    def take(self, scores, seq_lens, page_table, out, page_size, raw=None) -> None:
        """In the place of `topk_transform_512`."""
        self.blocks.append(scores.clone())
        out.fill_(0)

    def joined(self, rows: int) -> torch.Tensor:
        """All rows. Raises Unmeasurable when some were not scored, or some twice."""
        found = sum(len(block) for block in self.blocks)
        if found != rows:
            raise Unmeasurable(f"{found} of {rows} rows were selected from")
        return torch.cat(self.blocks)


@contextlib.contextmanager
def on_sm120(settings: dict[str, str]) -> Iterator[tuple[ModuleType, ModuleType]]:
    """(indexer, metadata) of the tree at $PATCHSET_TREE, as a process on an sm_120 card has them.

    settings: SGLang's variables; all others of the user are left out.
    """
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)),
        tree_modules(settings, *NAMES) as modules,
    ):
        yield modules


@contextlib.contextmanager
def tree_modules(settings: dict[str, str], *names: str) -> Iterator[list[ModuleType]]:
    """Modules of the tree on this machine's own device, with these of SGLang's variables alone."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    with (
        mock.patch.dict(os.environ, {**clean, **settings}, clear=True),
        sglang_tree.modules(*names) as modules,
    ):
        yield modules


def prepare(
    modules: tuple[ModuleType, ModuleType],
    inputs: IndexerInputs,
    selection: int,
    select: Callable[..., None],
) -> Callable[[], None]:
    """The step as a call without arguments.

    selection is the width of the index table that the scores are selected into, and so the K that the
    tree sees; select stands in the place of `topk_transform_512`.
    """
    indexer, metadata = modules
    q, kv, weights, lens, table, _, _ = inputs
    batch, device = q.shape[0], q.device
    indexer.topk_transform_512 = select
    core = SimpleNamespace(
        positions=torch.zeros(batch, device=device),
        page_table=table,
        c4_sparse_page_indices=torch.full(
            (batch, selection), -1, dtype=torch.int32, device=device
        ),
        c4_sparse_raw_indices=None,
    )
    paged = metadata.PagedIndexerMetadata(256, table, lens.flatten())

    class Backend(indexer.C4IndexerBackendMixin):
        token_to_kv_pool = None
        hisparse_coordinator = None
        debug_use_external_c4_sparse_indices = False
        forward_metadata = SimpleNamespace(core_metadata=core, indexer_metadata=paged)

        def _forward_prepare_normal(self, **_):
            return q[:, 0], weights[:, :, None], kv.reshape(len(kv), -1)

    backend = Backend()
    arguments = dict(
        x=torch.zeros(batch, 1),
        q_lora=torch.zeros(batch, 1),
        c4_indexer=SimpleNamespace(use_fp4_indexer=False, layer_id=0),
        forward_batch=SimpleNamespace(
            forward_mode=SimpleNamespace(is_idle=lambda: False, is_decode=lambda: True)
        ),
    )
    return lambda: backend.forward_c4_indexer(**arguments)
