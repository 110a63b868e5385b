"""`work:indexer` on the real series: a bisect of it lands on 0030, and sees losses, wrong and broken trees.

A minute and a half: each commit that a bisect measures is a process of 4 to 6 seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stock
from patchset.probe import outcome, work_indexer

ROOT = stock.ROOT
HOOK = "python/sglang/srt/layers/sm120/indexer_hook.py"
EXACT = 31.686671
WHO = ("-c", "user.name=test", "-c", "user.email=test@test.invalid")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the patched tree, with commits of ours on top; each has a name as a patch has."""
    tree = tmp_path_factory.mktemp("series") / "tree"
    shutil.copytree(stock.tree(), tree, symlinks=True)
    git(tree, "checkout", "--quiet", "-B", "work", "HEAD")
    text = (tree / HOOK).read_text()
    call = "max_seq_len, skip_below=topk"
    assert text.count(call) == 1
    slow = text.replace(call, f"{call}, fill_tail=True")
    commit(tree, "9010-harmless", text + "\n# nothing\n")
    commit(tree, "9020-broken", text + "\nbroken = = 1\n")
    commit(tree, "9030-slow", slow)
    commit(tree, "9040-above", slow + "\n# nothing\n")
    return tree


def git(tree: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", tree, *WHO, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(tree: Path, name: str, text: str) -> None:
    (tree / HOOK).write_text(text)
    git(tree, "commit", "--quiet", "--no-verify", "-am", f"{name}\n\nPatch: {name}")


def bisect(tree: Path, out: Path, *more: str) -> tuple[int, dict, str]:
    line = [sys.executable, "-P", "-m", "patchset", "bisect", "--json"]
    line += ["--probe", "work:indexer", "--tree", str(tree), "--out", str(out), *more]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    told = json.loads(done.stdout) if done.stdout else {}
    return done.returncode, told, done.stderr


def steps(found: dict) -> dict[str, dict]:
    return {step["name"]: step for step in found["steps"]}


def test_a_bisect_of_the_series_lands_on_the_indexer(tmp_path):
    code, found, said = bisect(stock.tree(), tmp_path, "--find", "gain")
    assert code == 0, said
    assert found["name"] == "0030-indexer-early-exit"
    measured = steps(found)
    assert measured["0000-stock"]["values"] == [EXACT]
    assert measured["0030-indexer-early-exit"]["values"] == [1.0]
    assert len(measured) <= 7
    for step in measured.values():
        assert step["wrong"] is None and step["skip"] is None
        (value,) = step["values"]
        assert value == (EXACT if step["name"] < "0030" else 1.0)


def test_a_slow_commit_is_named_past_one_that_does_not_build(tree, tmp_path):
    # Nothing of the series itself is slow: the bisect above measures it, and here its last commit is the old end.
    last = git(tree, "rev-parse", "work~4")
    code, found, said = bisect(tree, tmp_path, "--find", "loss", "--old", last)
    measured = steps(found)
    if code == 0:
        assert found["name"] == "9030-slow", said
    else:
        # The broken commit lies right below the slow one, so one of the two it is.
        names = [step["name"] for step in found["steps"]]
        assert "9020-broken" in names
        assert len(found["candidates"]) == 2
    assert "SyntaxError" in measured["9020-broken"]["skip"]
    assert HOOK in found["skipped"][0] and found["skipped"][0].startswith("9020-broken")
    assert 2 < measured["9040-above"]["values"][0] < EXACT
    assert measured["9040-above"]["wrong"] is None
    git(tree, "checkout", "--quiet", "work")
    assert git(tree, "worktree", "list").count("\n") == 0


WRONG = {
    "sign": (
        "q, kv_cache, weights, seq_lens, page_table, max",
        "q, kv_cache, -weights, seq_lens, page_table, max",
    ),
    "nothing": (
        "return paged_mqa_logits(",
        "return torch.empty(q.shape[0], max_seq_len)\n        return paged_mqa_logits(",
    ),
    "a page off": ("page_table, max_seq_len", "page_table.roll(1, 1), max_seq_len"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_tree_that_is_cheap_and_wrong_is_told(tmp_path, monkeypatch, how):
    old, new = WRONG[how]
    copied = tmp_path / "tree"
    shutil.copytree(stock.tree() / "python", copied / "python", symlinks=True)
    text = (copied / HOOK).read_text()
    assert old in text
    (copied / HOOK).write_text(text.replace(old, new))
    # One of them as the bisect starts it; a process that starts needs longer than it measures.
    found = measured(tmp_path, copied, None if how == "sign" else monkeypatch)
    assert found["value"] < 1.5
    assert not found["correct"] and "scores off by" in found["why"]


def test_a_tree_that_scores_some_rows_only_is_not_measured(tmp_path, monkeypatch):
    copied = tmp_path / "tree"
    shutil.copytree(stock.tree() / "python", copied / "python", symlinks=True)
    text = (copied / HOOK).read_text()
    (copied / HOOK).write_text(
        text.replace("return paged_mqa_logits(", "return paged_mqa_logits(", 1).replace(
            "skip_below=topk\n        )", "skip_below=topk\n        )[:1]"
        )
    )
    # In this process: the broken commit above is skipped by the command itself.
    found = measured(tmp_path, copied, monkeypatch)
    assert found == {"skip": "1 of 4 rows were selected from"}


def measured(
    tmp_path: Path, tree: Path, here: pytest.MonkeyPatch | None = None
) -> dict:
    """What the program writes of a tree; it runs in this process if `here` is given."""
    release = tmp_path / "release"
    release.mkdir()
    name = f"refs/patchset/base:{stock.INDEXER}"
    (release / "indexer.py").write_text(git(stock.tree(), "show", name) + "\n")
    out = tmp_path / "figures.json"
    words = ["--stock", str(release), "--out", str(out)]
    if here:
        here.setenv("PATCHSET_TREE", str(tree))
        here.setattr(sys, "argv", ["work_indexer", *words])
        outcome.main(lambda arguments: work_indexer.measure(arguments.stock))
        return json.loads(out.read_text())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "patchset.probe.work_indexer", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "scripts"),
            "PATCHSET_TREE": str(tree),
            "TRITON_INTERPRET": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())
