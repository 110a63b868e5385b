"""`python -m patchset.compile_tilelang ROWS WIDTH`: have TileLang compile its logits kernel into its cache."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402

from cases import IndexerCase, make_indexer  # noqa: E402

from . import peers  # noqa: E402


def main(rows: int, width: int) -> None:
    """Call it once, on short rows of few pages."""
    case = IndexerCase("compile", (64,) * rows, width, pool=64, tail="valid")
    dict(peers.logits_peers(rows, width, 0))["TileLang"](make_indexer(case, "cuda"))()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
