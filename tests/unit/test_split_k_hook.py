"""Patch 0070's side: how many splits the decode kernel is told to make, and what a server refuses."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

import sglang_tree
from attention_call import forward, inputs, process

FLAG, DECODE, USERS = (
    "SGLANG_SM120_SPLIT_K",
    "SGLANG_SM120_DECODE",
    "SGLANG_SM120_TRITON_FLASHMLA",
)
HOOK = "layers.sm120.split_k_hook"


@pytest.mark.parametrize(
    "capability,decode,flag,splits",
    [
        ((12, 0), "auto", "auto", None),
        ((12, 0), "auto", "on", None),
        ((12, 0), "auto", "off", 1),
        ((12, 0), "on", "auto", None),
        ((9, 0), "on", "auto", 1),
        ((9, 0), "on", "on", None),
        ((9, 0), "on", "off", 1),
    ],
)
def test_the_kernel_chooses_or_makes_one(capability, decode, flag, splits):
    with process(capability, **{FLAG: flag, DECODE: decode}) as backend:
        forward(backend, 128, inputs(128))
    ((name, _, kwargs),) = backend.calls
    assert name == "ours" and kwargs["num_splits"] == splits


@pytest.mark.parametrize("flag", ["auto", "off"])
@pytest.mark.parametrize("setting", [{DECODE: "off"}, {USERS: "0"}])
def test_without_the_decode_kernel_there_is_nothing_to_split(setting, flag, caplog):
    with sglang_tree.on_sm120(HOOK) as hook, caplog.at_level("INFO"):
        os.environ.update(setting | {FLAG: flag})
        hook.check(SimpleNamespace())
    (line,) = caplog.messages
    assert line.startswith("sm_120 split-K: one block for all keys of a row (")
    assert (f"{DECODE}, which is not in use" in line) == (flag == "auto")


@pytest.mark.parametrize("setting", [{DECODE: "off"}, {USERS: "0"}])
def test_on_without_the_decode_kernel_stops_the_server(setting):
    with sglang_tree.on_sm120(HOOK) as hook:
        os.environ.update(setting | {FLAG: "on"})
        with pytest.raises(
            RuntimeError,
            match=f"{FLAG}=on cannot work: it splits the work of {DECODE}, which is not in use",
        ):
            hook.check(SimpleNamespace())


def test_a_bad_word_stops_the_server():
    with sglang_tree.on_sm120(HOOK) as hook:
        os.environ[FLAG] = "2"
        with pytest.raises(RuntimeError, match=f"{FLAG}='2': expected one of"):
            hook.check(SimpleNamespace())
