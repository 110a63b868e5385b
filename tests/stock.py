"""Functions of the patched tree, loaded from its files without importing sglang and its dependencies."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
INDEXER = "python/sglang/srt/layers/attention/dsv4/indexer.py"


def tree() -> Path:
    """The patched tree: $PATCHSET_TREE, or the one that scripts/apply.sh makes."""
    path = Path(os.environ.get("PATCHSET_TREE", ROOT / "build" / "sglang-0.5.13"))
    if not (path / INDEXER).is_file():
        raise FileNotFoundError(
            f"no patched tree at {path}: run scripts/apply.sh first"
        )
    return path


def load_functions(path: str, names: list[str], namespace: dict) -> list:
    """Run the source of top-level functions ``names`` of ``tree()/path`` in ``namespace``."""
    return _load(tree() / path, names, namespace)


def _load(file: Path, names: list[str], namespace: dict) -> list:
    module = ast.parse(file.read_text())
    found = {
        n.name: n
        for n in module.body
        if isinstance(n, ast.FunctionDef) and n.name in names
    }
    missing = sorted(set(names) - set(found))
    if missing:
        raise LookupError(f"{file} has no function {', '.join(missing)}")
    body = ast.Module([found[name] for name in names], type_ignores=[])
    # The annotations name sglang's types; nothing here needs them evaluated.
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(future + body.body, []), str(file), "exec"), namespace)
    return [namespace[name] for name in names]


def indexer_functions(*names: str) -> list:
    """Functions of the tree's indexer.py, with the module globals that they use."""
    return functions_of(tree() / INDEXER, *names)


def functions_of(indexer: Path, *names: str) -> list:
    """Functions of a file that is a version of indexer.py."""
    namespace = {
        "torch": torch,
        "F": F,
        "FP8_DTYPE": torch.float8_e4m3fn,
        "_arange_cache": {},
    }
    return _load(indexer, list(names), namespace)


def stock_logits(inputs) -> torch.Tensor:
    """``fp8_paged_mqa_logits_torch_sm120`` on ``IndexerInputs``; it reads each page id of the table."""
    (function,) = indexer_functions("fp8_paged_mqa_logits_torch_sm120")
    return call_stock(function, inputs)


def call_stock(function, inputs) -> torch.Tensor:
    """Call a stock logits function as the server does."""
    q, kv, weights, lens, table, cap, _ = inputs
    return function(q, kv, weights, lens, table, None, cap, False)
