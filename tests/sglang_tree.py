"""Import modules of the patched tree without sglang's dependencies.

The packages on the way are made empty, so their ``__init__`` never runs; modules that need a GPU or
packages that are not installed are replaced by the few names that the module under test imports.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from contextlib import contextmanager
from types import ModuleType
from unittest import mock

import stock

HEAVY = {
    "sglang.jit_kernel.dsv4": (
        "fused_q_indexer_rope_hadamard_fp4_quant",
        "fused_q_indexer_rope_hadamard_quant",
        "plan_topk_v2",
        "topk_transform_512",
        "topk_transform_512_v2",
    ),
    "sglang.srt.configs.deepseek_v4": ("DeepSeekV4Config",),
    "sglang.srt.layers.attention.dsv4.compressor": ("Compressor",),
    "sglang.srt.layers.linear": ("ReplicatedLinear",),
    "sglang.srt.state_capturer.indexer_topk": ("get_global_indexer_capturer",),
    "sglang.srt.utils": ("add_prefix", "is_hip"),
    "sglang.srt.utils.common": ("is_sm120_supported", "is_sm90_supported"),
}


def _refuse(name):
    def function(*_args, **_kwargs):
        raise AssertionError(f"{name} was called, and is not part of this test")

    return function


def _package(name: str) -> ModuleType:
    module = types.ModuleType(name)
    module.__path__ = [str(stock.tree() / "python" / name.replace(".", "/"))]
    return module


@contextmanager
def modules(*names: str, sm120: bool = True):
    """Import ``names`` from the tree; a name is given without ``sglang.srt.``. Yields the modules.

    ``sm120``: what upstream's is_sm120_supported says; without it the card is an sm_90. The modules are gone afterwards.
    """
    fakes = {}
    for heavy, symbols in HEAVY.items():
        module = types.ModuleType(heavy)
        for symbol in symbols:
            setattr(module, symbol, _refuse(symbol))
        fakes[heavy] = module
    fakes["sglang.srt.utils"].is_hip = lambda: False
    fakes["sglang.srt.utils"].__path__ = []
    fakes["sglang.srt.utils.common"].is_sm120_supported = lambda: sm120
    fakes["sglang.srt.utils.common"].is_sm90_supported = lambda: not sm120
    fakes["sglang.srt.state_capturer.indexer_topk"].get_global_indexer_capturer = (
        lambda: None
    )
    for symbol in ("Compressor", "ReplicatedLinear", "DeepSeekV4Config"):
        for module in fakes.values():
            if hasattr(module, symbol):
                setattr(module, symbol, type(symbol, (), {}))
    packages = {"sglang", "sglang.srt"}
    for name in list(fakes) + [f"sglang.srt.{n}" for n in names]:
        parts = name.split(".")
        packages |= {".".join(parts[:i]) for i in range(1, len(parts))}
    for name in packages - set(fakes):
        fakes[name] = _package(name)
    # Only sglang's entries are taken back: others (triton) can be imported once in a process.
    kept = take_modules("sglang")
    sys.modules.update(fakes)
    # The generated kernel package has a real __init__; let it run.
    sys.modules.pop("sglang.srt.layers.sm120", None)
    try:
        yield [importlib.import_module(f"sglang.srt.{name}") for name in names]
    finally:
        take_modules("sglang")
        sys.modules.update(kept)


@contextmanager
def on_sm120(name: str):
    """Module ``name`` of the tree as a process on an sm_120 card sees it, with no SGLang variable set;
    variables that a test sets go with it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    with (
        mock.patch.dict(os.environ, clean, clear=True),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)),
        modules(name) as (module,),
    ):
        yield module


def take_modules(*packages: str) -> dict[str, ModuleType]:
    """Take the modules of these packages out of ``sys.modules``."""
    names = [name for name in sys.modules if name.split(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}
