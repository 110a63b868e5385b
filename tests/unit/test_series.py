"""Reading patch files, the pin, and how much of a series a tree holds."""

from __future__ import annotations

import itertools

import pytest

from made_series import STEPS, after
from made_wheel import make_release
from patchset import mail
from patchset.errors import Exit, Failure
from patchset.pin import load_pin
from patchset.series import load_patch, load_series
from patchset.state import read_state

ENVIRON = "python/sglang/srt/environ.py"
INDEXER = "python/sglang/srt/layers/indexer.py"


def refused(function, *arguments) -> Failure:
    with pytest.raises(Failure) as caught:
        function(*arguments)
    return caught.value


def test_a_patch_is_read_as_git_wrote_it(small):
    first, second, third = small.series.patches
    assert [p.number for p in small.series.patches] == ["0010", "0020", "0030"]
    assert first.generated and not second.generated
    assert second.subject == "environ: change what it says"
    assert second.trailers["Patch"] == "0020-environ"
    assert (second.added, second.removed) == (1, 0)
    assert third.evidence == "0030-indexer" and second.evidence is None
    assert [c.path for c in third.changes] == [
        ENVIRON,
        INDEXER,
        "python/sglang/srt/layers/run.sh",
    ]
    assert [c.new_mode for c in third.changes] == ["100644", "100644", "100755"]
    new = first.changes[0]
    assert (new.old_blob, new.old_mode, new.added) == (None, None, 0)


def test_upto_takes_number_name_or_file_name(small):
    for which in ("0020", "20", "0020-environ", "0020-environ.patch"):
        names = [patch.name for patch in small.series.upto(which).patches]
        assert names == ["0010-kernels", "0020-environ"]
    failure = refused(small.series.upto, "0025")
    assert failure.code == Exit.USAGE and "0030-indexer" in failure.next


def test_a_trailer_may_continue_on_the_next_line():
    body = "Why.\n\nPatch: 0010-a\nTests: one\n two\nEvidence: none"
    assert mail.trailers(body)["Tests"] == "one two"
    assert mail.trailers("Why.\n\nNo trailer here") == {}


@pytest.mark.parametrize(
    "old, new, said",
    [
        (b"From 0000", b"Form 0000", "line 1"),
        (b"\n---\n", b"\n--\n", "no '---' line"),
        (b"diff --git ", b"diff --got ", "changes nothing"),
        (b"Subject: ", b"Betreff: ", "no Subject: header"),
        (b"Subject: ", b"Cc: a\nSubject: ", "format-patch would not write: Cc"),
        (b"Why it is", "Wh\u00fd it is".encode(), "not ASCII"),
        (b"@@ -1,6 +1,7 @@", b"@@ -1,6 +1,9 @@", "cut short"),
        (b"@@ -1,6 +1,7 @@", b"@@ -1,5 +1,6 @@", "expected a hunk header"),
        (b"@@ -1,6 +1,7 @@", b"@@ -1,6 +1,6 @@", "longer than it says"),
        (b"diff --git a/python", b"rename from x\ndiff --git a/python", None),
    ],
)
def test_a_malformed_patch_says_what_is_wrong(own, old, new, said):
    path = own.patches / "0020-environ.patch"
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    if said is None:
        load_patch(path)  # between the diffstat and the diff anything may stand
        return
    failure = refused(load_patch, path)
    assert failure.code == Exit.PATCH
    assert said in failure.what and "0020-environ" in failure.what
    assert failure.where == str(path)


def test_short_blob_ids_and_renames_are_refused(own):
    path = own.patches / "0020-environ.patch"
    data = path.read_bytes()
    ids = load_patch(path).changes[0]
    short = data.replace(ids.old_blob.encode(), ids.old_blob[:12].encode())
    path.write_bytes(short)
    assert "shortened blob ids" in refused(load_patch, path).what
    path.write_bytes(data.replace(b" b/python/sglang/srt/environ.py", b" b/python/x"))
    assert "renames" in refused(load_patch, path).what
    index = b"index " + ids.old_blob.encode()
    path.write_bytes(data.replace(index, b"GIT binary patch\n" + index))
    assert "not part of a text diff" in refused(load_patch, path).what


def test_file_names_numbers_and_emptiness(own):
    path = own.patches / "0020-environ.patch"
    other = path.rename(own.patches / "20-environ.patch")
    assert "NNNN-lower-case-slug" in refused(load_series, own.patches).what
    other = other.rename(own.patches / "0010-zzz.patch")
    assert "0010 is used twice" in refused(load_series, own.patches).what
    for each in own.patches.glob("*.patch"):
        each.unlink()
    assert "has no patch" in refused(load_series, own.patches).what


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('version = "0.5.13"', "", "'version'"),
        ('tag = "v0.5.13"', "tag = 13", "'tag'"),
        ('tree = "', 'tree = "x', "40-digit"),
        ('sha256 = "', 'sha256 = "0', "64-digit"),
        ("[[wheel]]", "[[wheels]]", "at least one [[wheel]]"),
        ("[[wheel]]", "[wheel", "cannot be read"),
    ],
)
def test_a_bad_pin_names_the_key(own, old, new, said):
    path = own.patches / "upstream.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    failure = refused(load_pin, own.patches)
    assert failure.code == Exit.PATCH and said in failure.what
    path.unlink()
    assert "is missing" in refused(load_pin, own.patches).what


def blobs_after(series, count):
    """The blob of each touched path after `count` patches, taken from the patches alone."""
    blobs = {}
    for step, patch in enumerate(series.patches):
        for change in patch.changes:
            if step < count:
                blobs[change.path] = change.new_blob
            else:
                blobs.setdefault(change.path, change.old_blob)
    return blobs


def test_every_whole_state_is_recognised(small):
    kinds = ["pristine", "partly", "partly", "applied"]
    for count, kind in enumerate(kinds):
        state = read_state(blobs_after(small.series, count).get, small.series)
        assert (state.applied, state.total, state.kind) == (count, 3, kind)


def test_any_mixture_of_two_states_is_half_applied_or_a_whole_state(small):
    series = small.series
    whole = [blobs_after(series, count) for count in range(4)]
    seen = set()
    for first, second in itertools.combinations(range(4), 2):
        for path in series.paths:
            blobs = {**whole[first], path: whole[second][path]}
            state = read_state(blobs.get, series)
            assert (blobs in whole) == (not state.partial)
            if state.partial:
                assert state.kind == "half-applied"
                assert dict(state.partial).keys() == set(series.paths)
                seen.add(dict(state.partial)[path])
    assert {"0020-environ", "0030-indexer"} <= seen


def test_foreign_files_are_named_and_the_rest_still_counts(small):
    blobs = blobs_after(small.series, 2) | {INDEXER: "f" * 40}
    state = read_state(blobs.get, small.series)
    assert state.kind == "foreign" and state.foreign == (INDEXER,)
    assert state.applied == 2
    gone = read_state(
        (blobs_after(small.series, 3) | {ENVIRON: None}).get, small.series
    )
    assert gone.foreign == (ENVIRON,)


def test_a_patch_that_takes_another_back_leaves_the_later_state(tmp_path):
    back = {path: after(2)[path] for path in STEPS[2][1]}
    series = make_release(tmp_path, steps=[*STEPS, ("0040-back", back)]).series
    found = [read_state(blobs_after(series, k).get, series).applied for k in range(5)]
    assert found == [0, 1, 4, 3, 4]  # the trees after 2 and after 4 are the same
