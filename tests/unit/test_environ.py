"""The flags as the patched tree's own ``environ`` registers them."""

from __future__ import annotations

import pytest

import sglang_tree

NAME = "SGLANG_SM120_INDEXER"


@pytest.fixture
def envs(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    with sglang_tree.modules("environ") as (environ,):
        yield environ.envs


def test_the_default_is_auto(envs):
    assert envs.SGLANG_SM120_INDEXER.get() == "auto"
    assert not envs.SGLANG_SM120_INDEXER.is_set()


@pytest.mark.parametrize("word", ["auto", "on", "off"])
def test_a_known_word_is_taken(envs, monkeypatch, word):
    monkeypatch.setenv(NAME, word)
    assert envs.SGLANG_SM120_INDEXER.get() == word


@pytest.mark.parametrize("word", ["", "On", "1", "true", "atuo", "None"])
def test_another_word_is_an_error_and_not_the_default(envs, monkeypatch, word):
    monkeypatch.setenv(NAME, word)
    with pytest.raises(
        RuntimeError, match=f"{NAME}='{word}': expected one of auto, on, off"
    ):
        envs.SGLANG_SM120_INDEXER.get()


def test_override_restores_what_was_there(envs, monkeypatch):
    monkeypatch.setenv(NAME, "off")
    with envs.SGLANG_SM120_INDEXER.override("on"):
        assert envs.SGLANG_SM120_INDEXER.get() == "on"
    assert envs.SGLANG_SM120_INDEXER.get() == "off"
