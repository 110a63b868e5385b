"""Import one large module of the patched tree: what it imports and the test doesn't need is made up.

``sglang_tree`` replaces a known few names. A model or a backend imports hundreds, of packages that need a
GPU; here each of them is a stand-in that serves as a base class, a decorator or a predicate that is false while
the module is imported, and that refuses to be called afterwards.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from abc import ABCMeta
from contextlib import contextmanager

import torch

import sglang_tree
import stock

REAL = ("sglang.srt.environ", "sglang.srt.layers.sm120")


class _StandIn(ABCMeta):
    """The class of made-up names. Classes of the tree that inherit from one are ordinary."""

    importing = True

    def __call__(cls, *args, **kwargs):
        if "_stands_for" not in vars(cls):
            return super().__call__(*args, **kwargs)
        if not _StandIn.importing:
            raise AssertionError(
                f"{cls._stands_for} was called, and is not part of this test"
            )
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return _Nothing()


class _Nothing:
    """What a stand-in gives while a module is imported: false, and a decorator that changes nothing."""

    def __bool__(self):
        return False

    def __call__(self, decorated):
        return decorated

    def __getattr__(self, name):
        return _Nothing()


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__loader__.is_real(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        made = _StandIn(name, (), {"_stands_for": f"{self.__name__}.{name}"})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, real: tuple[str, ...], invented: tuple[str, ...], given: dict):
        self._real, self._invented, self._given = real, invented, given

    def find_spec(self, name, path=None, target=None):
        root = name.split(".")[0]
        if root not in ("sglang", *self._invented):
            return None
        if self.is_real(name):
            return importlib.machinery.PathFinder.find_spec(name, path)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def is_real(self, name: str) -> bool:
        return any(name == one or name.startswith(one + ".") for one in self._real)

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__path__ = [str(stock.tree() / "python" / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module):
        for name, value in self._given.items():
            place, _, symbol = name.rpartition(".")
            if f"sglang.srt.{place}" == module.__name__:
                setattr(module, symbol, value)


@contextmanager
def imported(
    name: str,
    *,
    real: tuple[str, ...] = (),
    invented: tuple[str, ...] = (),
    given: dict = {},
):
    """Module ``name`` of the tree; names are written without ``sglang.srt.``. It is gone afterwards.

    ``real`` names modules that are imported from the tree too, ``invented`` packages outside sglang that
    are made up, ``given`` what a stand-in module holds, as {"module.symbol": value}.
    """
    name = f"sglang.srt.{name}"
    real = (*REAL, name, *(f"sglang.srt.{one}" for one in real))
    finder = _Finder(real, invented, given)
    kept = sglang_tree.take_modules("sglang", *invented)
    sys.meta_path.insert(0, finder)
    _StandIn.importing = True
    try:
        for one in (*real[len(REAL) :], name):
            module = importlib.import_module(one)
        _StandIn.importing = False
        yield module
    finally:
        _StandIn.importing = True
        sys.meta_path.remove(finder)
        sglang_tree.take_modules("sglang", *invented)
        sys.modules.update(kept)


def attention_layer(module, **own):
    """``MQALayer`` of the imported model without its constructor: what a step reads of it, ``own`` beside what
    such layers have in common."""
    layer = module.MQALayer.__new__(module.MQALayer)
    torch.nn.Module.__init__(layer)
    common = dict(
        eps=1e-6,
        layer_id=0,
        freqs_cis=None,
        alt_streams=None,
        dsa_enable_prefill_cp=False,
        fuse_wqa_wkv=False,
        use_fused_qk_norm_rope=False,
        indexer=None,
        compressor=None,
        q_norm=lambda q: q,
        _compute_kv_to_cache=lambda *_args, **_kwargs: None,
    )
    for name, value in (common | own).items():
        object.__setattr__(layer, name, value)
    return layer
