"""`work:indexer`: how the work of a tree's indexer grows with the configured context, for one text.

Counted, not timed (counting.py), on the CPU and without a GPU; the same number on any machine. The value
is the work at a context of 256K over the work at 8K, for texts of 512 tokens: 1.0 where the text alone
decides. The scores of both steps, and of one with longer texts, are compared with those of the release's
own function, so that a tree that is cheap and wrong shows as wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import torch

from . import counting, indexer_step, outcome

# indexer_step puts tests/ on the path.
from cases import IndexerCase, IndexerInputs, decode_case, make_indexer
from stock import call_stock, functions_of

ROWS = 4
TEXT = 512
CAPS = (8_192, 262_144)
# A text of 512 tokens has 128 entries, and a top-512 takes all of them without a score. With a narrower
# selection they are scored, by the same code as those of longer texts.
SELECTION = 64
# Entries per row, under the smaller context: several pages, a page more or less, a last page not full.
LONGER = IndexerCase("longer", (2_000, 705, 129, 65), CAPS[0] // 4, tail="valid")
TOLERANCE = 1e-3
STOCK = "fp8_paged_mqa_logits_torch_sm120"


def measure(stock: Path) -> dict:
    """Measure the tree at $PATCHSET_TREE. stock is a directory with the release's own indexer.py.

    Returns value, correct, why (where it is not), and the bytes behind the value. Raises whatever the
    tree raises, and CounterError where this Python can't count.
    """
    counting.self_check()
    (reference,) = functions_of(stock / "indexer.py", STOCK)
    moved, wrong = {}, []
    cases = {f"context {cap}": decode_case(ROWS, TEXT, cap) for cap in CAPS}
    with indexer_step.on_sm120(indexer_step.SETTINGS) as modules:
        for name, case in {**cases, "longer texts": LONGER}.items():
            inputs = make_indexer(case)
            work, scores = _step(modules, inputs)
            moved[name] = {"torch": work.torch_bytes, "kernel": work.kernel_bytes}
            wrong += _differences(name, scores, inputs, reference)
    small, large = (sum(moved[name].values()) for name in cases)
    if small == 0 and not wrong:
        raise counting.CounterError("right scores came from no work that is counted")
    growth = round(large / small, 6) if small else 1.0
    return {
        "value": growth,
        "correct": not wrong,
        "why": "; ".join(wrong) or None,
        "bytes": moved,
        "text": TEXT,
        "rows": ROWS,
    }


def _step(modules, inputs: IndexerInputs) -> tuple[counting.Work, torch.Tensor]:
    scores = indexer_step.Scores()
    work = counting.Work()

    def select(*arguments):
        with work.paused():
            scores.take(*arguments)

    step = indexer_step.prepare(modules, inputs, SELECTION, select)
    with work:
        step()
    return work, scores.joined(len(inputs.q))


def _differences(
    name: str,
    scores: torch.Tensor,
    inputs: IndexerInputs,
    reference: Callable[..., torch.Tensor],
) -> list[str]:
    """Where the scores within the lengths are not those of the release's function."""
    wanted = call_stock(reference, inputs)
    found = []
    for row, length in enumerate(inputs.seq_lens.flatten().tolist()):
        got, want = scores[row, :length], wanted[row, :length]
        error = ((got - want).abs().max() / want.abs().max()).item()
        if not error <= TOLERANCE:
            found.append(f"{name}, row {row}: scores off by {error:.3g} of the largest")
    return found


if __name__ == "__main__":
    outcome.main(lambda arguments: measure(arguments.stock))
