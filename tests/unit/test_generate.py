"""Generated patches: what git itself writes for the modules of kernels/, and only that."""

from __future__ import annotations

import json

import pytest

from made_series import snapshot
from made_wheel import ROOT, patchset
from patchset import generate
from patchset.errors import Exit, Failure

PATCH = "0010-kernels.patch"


def test_what_git_wrote_is_generated_again(small):
    made = generate.regenerate(small.patches, small.wheel.parent / "kernels")
    assert made == {PATCH: (small.patches / PATCH).read_bytes()}


def test_the_real_generated_patches_are_those_of_kernels():
    patches = ROOT / "patches" / "0.5.13"
    made = generate.regenerate(patches, ROOT / "kernels")
    assert "0010-kernels-package.patch" in made
    assert made == {name: (patches / name).read_bytes() for name in made}


def test_an_edited_kernel_changes_the_diff_and_keeps_the_head(own, own_tree):
    root = own.wheel.parent
    before = (own.patches / PATCH).read_bytes()
    kernel = root / "kernels" / "config.py"
    kernel.write_text("WIDTH = 8\nDEPTH = 2\n")
    where = ("--patches", own.patches)
    stale = patchset("export", *where, "--from", own_tree, "--dry-run", "--json")
    assert stale.returncode == Exit.NO
    assert list(json.loads(stale.stdout)["changed"]) == [PATCH]
    assert (own.patches / PATCH).read_bytes() == before
    done = patchset("export", *where, "--from", own_tree)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [
        f"written    {PATCH}",
        "unchanged  0020-environ.patch",
    ]
    after = (own.patches / PATCH).read_bytes()
    assert after.split(b"\n---\n")[0] == before.split(b"\n---\n")[0]
    assert b"+WIDTH = 8\n+DEPTH = 2\n" in after
    again = snapshot(own.patches)
    done = patchset("export", *where, "--from", own_tree)
    assert (done.returncode, "written" in done.stdout) == (0, False)
    assert snapshot(own.patches) == again


def test_a_new_patch_may_still_lack_its_diff(own):
    kernels = own.wheel.parent / "kernels"
    whole = (own.patches / PATCH).read_bytes()
    head = whole.split(b"\n---\n")[0]
    (own.patches / PATCH).write_bytes(head + b"\n---\n")
    assert generate.regenerate(own.patches, kernels) == {PATCH: whole}
    (own.patches / PATCH).write_bytes(head + b"\n")
    assert generate.regenerate(own.patches, kernels) == {PATCH: whole}


def test_a_module_that_is_not_there(own):
    kernels = own.wheel.parent / "kernels"
    path = own.patches / PATCH
    text = path.read_text()
    for named in ("kernels/gone.py", "config.py", "kernels/"):
        path.write_text(text.replace("kernels/config.py", named))
        with pytest.raises(Failure) as caught:
            generate.regenerate(own.patches, kernels)
        assert caught.value.code == Exit.PATCH
        assert f"names {named}, which is not there" in caught.value.what
