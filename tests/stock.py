"""Functions of the patched tree, loaded from its files without importing sglang and its dependencies."""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
ATTENTION = "python/sglang/srt/layers/attention"
INDEXER = f"{ATTENTION}/dsv4/indexer.py"
# The release itself, in the repository of a patched tree.
RELEASE = "checkpoint/0000-stock"


def tree() -> Path:
    """The patched tree: $PATCHSET_TREE, or the one that scripts/apply.sh makes."""
    path = Path(os.environ.get("PATCHSET_TREE", ROOT / "build" / "sglang-0.5.13"))
    if not (path / INDEXER).is_file():
        raise FileNotFoundError(
            f"no patched tree at {path}: run scripts/apply.sh first"
        )
    return path


def unpack_release(place: Path) -> None:
    """Write the server's files of the release, as they were before the first patch, under ``place``."""
    command = ["git", "-C", str(tree()), "archive", RELEASE, "python/sglang/srt"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    tarfile.open(fileobj=io.BytesIO(archive)).extractall(place, filter="data")


def attention_module(file: str):
    """A module of the tree's attention that imports torch and triton only, such as its Triton kernel's."""
    path = tree() / ATTENTION / file
    spec = importlib.util.spec_from_file_location(f"stock_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_functions(path: str, names: list[str], namespace: dict) -> list:
    """Run the source of top-level functions or classes ``names`` of ``tree()/path`` in ``namespace``."""
    return _load(tree() / path, [(name,) for name in names], namespace)


def load_method(
    path: str, *qualified: str, namespace: dict, place: Optional[Path] = None
):
    """Run the source of one function inside a class, or inside a function, of ``place/path``, of ``tree()``
    when None."""
    (function,) = _load((place or tree()) / path, [qualified], namespace)
    return function


def _load(file: Path, functions: list[tuple[str, ...]], namespace: dict) -> list:
    module = ast.parse(file.read_text())
    found = [_find(module, names) for names in functions]
    missing = [".".join(n) for n, node in zip(functions, found) if node is None]
    if missing:
        raise LookupError(f"{file} has no function {', '.join(missing)}")
    body = ast.Module(found, type_ignores=[])
    # The annotations name sglang's types; nothing here needs them evaluated.
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(future + body.body, []), str(file), "exec"), namespace)
    return [namespace[names[-1]] for names in functions]


def _find(node, names: tuple[str, ...]):
    for name in names:
        node = next(
            (
                child
                for child in getattr(node, "body", ())
                if isinstance(child, (ast.FunctionDef, ast.ClassDef))
                and child.name == name
            ),
            None,
        )
    return node


def indexer_functions(*names: str, torch_indexer_bf16: str = "off") -> list:
    """Functions of the tree's indexer.py, with the module globals that they use."""
    return functions_of(tree() / INDEXER, *names, torch_indexer_bf16=torch_indexer_bf16)


def functions_of(indexer: Path, *names: str, torch_indexer_bf16: str = "off") -> list:
    """Functions of a file that is a version of indexer.py."""
    flag = SimpleNamespace(get=lambda: torch_indexer_bf16)
    namespace = {
        "envs": SimpleNamespace(SGLANG_SM120_TORCH_INDEXER_BF16=flag),
        "torch": torch,
        "F": F,
        "FP8_DTYPE": torch.float8_e4m3fn,
        "_arange_cache": {},
    }
    return _load(indexer, [(name,) for name in names], namespace)


def stock_logits(inputs) -> torch.Tensor:
    """``fp8_paged_mqa_logits_torch_sm120`` on ``IndexerInputs``; it reads each page id of the table."""
    (function,) = indexer_functions("fp8_paged_mqa_logits_torch_sm120")
    return call_stock(function, inputs)


def call_stock(function, inputs) -> torch.Tensor:
    """Call a stock logits function as the server does."""
    q, kv, weights, lens, table, cap, _ = inputs
    return function(q, kv, weights, lens, table, None, cap, False)
