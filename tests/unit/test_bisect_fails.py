"""`bisect` whose probe fails or hangs: it gives up and names no commit."""

from __future__ import annotations

import json

import pytest

from patchset.errors import Exit


@pytest.mark.parametrize("bad", ["skip", "wrong 5"])
def test_an_end_that_cannot_be_measured(tree, bad):
    made = tree("100", "100", bad)
    done = made.bisect()
    assert done.returncode == Exit.NO
    assert "the new end can't be measured" in done.stderr
    assert "choose another end: --new COMMIT" in done.stderr


ABORTS = [
    ("raise", "exit 1"),
    *((f"exit {code}", f"exit {code}") for code in (1, 2, 3, 6, 70, 125, 126, 127)),
    ("kill", "signal SIGKILL"),
    ("nothing", "exit 0 and no figures"),
    ("garbage", "not JSON"),
    ("shape", "it gave no figure"),
]


@pytest.mark.parametrize("word, said", ABORTS, ids=[word for word, _ in ABORTS])
def test_a_probe_that_fails_gives_up_and_names_no_commit(tree, word, said):
    made = tree("100", word, word, word, "20")
    done = made.bisect("--json")
    assert done.returncode == Exit.ENVIRONMENT
    told = json.loads(done.stdout)
    assert told["error"] == "the probe failed, which says nothing about the commit"
    assert said in told["where"] and "commit " in told["where"]
    assert "no commit is named" in told["state"]
    assert not (made.session / "result.json").exists()
    made.assert_untouched()


@pytest.mark.parametrize("speeds", [("raise", "50", "20"), ("100", "50", "exit 2")])
def test_a_probe_that_fails_at_an_end(tree, speeds):
    made = tree(*speeds)
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "the probe failed" in done.stderr and ".log" in done.stderr
    quoted = "ZeroDivisionError: of the probe" in done.stderr
    assert quoted == ("raise" in speeds)
    made.assert_untouched()


def test_a_probe_that_hangs_is_stopped(tree, probe):
    probe(limit_s=2)
    made = tree("100", "hang", "hang", "20")
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "it took more than 2 s" in done.stderr
