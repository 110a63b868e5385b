"""The drift guard finds a hooked function by its path and compares its parameters."""

from __future__ import annotations

import pytest

from made_wheel import ROOT, patchset
from patchset import drift
from patchset.errors import Exit, Failure
from patchset.series import load_series

FILE = "python/sglang/srt/environ.py"

SOURCE = b"""
if True:
    class Outer:
        class Inner:
            async def call(self, a, /, b, *rest, c=1, **more): ...
        def plain(self): ...
else:
    try:
        def f(x): ...
    except ImportError:
        def f(x, *, y): ...
match 1:
    case 1:
        def matched(): ...
def hidden():
    def inner(): ...
"""


def hooks(own, *entries: tuple[str, list[str]], patch: str = "0020-environ") -> None:
    text = "".join(
        f'[[hook]]\npatch = "{patch}"\nfile = "{FILE}"\nfunction = "{name}"\n'
        f"parameters = {parameters!r}\n\n"
        for name, parameters in entries
    )
    (own.patches / drift.FILE_NAME).write_text(text)


def refused(own, source: bytes | None = SOURCE) -> Failure:
    with pytest.raises(Failure) as caught:
        drift.require(lambda path: source, own.series)
    assert caught.value.code == Exit.PATCH
    return caught.value


def test_functions_are_found_wherever_they_are_defined(own):
    hooks(
        own,
        ("Outer.Inner.call", ["self", "a", "/", "b", "*rest", "c", "**more"]),
        ("Outer.plain", ["self"]),
        ("f", ["x"]),
        ("f", ["x", "*", "y"]),
        ("matched", []),
    )
    assert drift.require(lambda path: SOURCE, own.series) == 5


@pytest.mark.parametrize(
    "name, parameters, found",
    [
        ("Outer.plain", ["self", "x"], "Outer.plain(self)"),
        ("f", ["y"], "f(x) or f(x, *, y)"),
        ("inner", [], "no such function"),
        ("Outer", [], "no such function"),
        ("Outer.call", ["self"], "no such function"),
    ],
)
def test_drift_names_the_patch_the_file_and_both_signatures(
    own, name, parameters, found
):
    hooks(own, (name, parameters))
    failure = refused(own)
    assert "0020-environ hooks into" in failure.what
    assert failure.where == (
        f"{FILE}\nexpected {name}({', '.join(parameters)})\nfound    {found}"
    )


def test_a_missing_or_unparseable_file_is_drift(own):
    hooks(own, ("f", ["x"]))
    assert "no such file" in refused(own, None).where
    assert "not parseable" in refused(own, b"def f(:").where


def test_only_the_wanted_patches_are_guarded(own):
    hooks(own, ("gone", []), patch="0030-indexer")
    wanted = own.series.upto("0020")
    assert drift.require(lambda path: SOURCE, own.series, wanted) == 0
    assert "0030-indexer hooks into" in refused(own).what


def test_a_bad_hooks_file_says_so(own):
    hooks(own, ("f", ["x"]), patch="0999-none")
    assert "names 0999-none, which is no patch" in refused(own).what
    (own.patches / drift.FILE_NAME).write_text("[[hook]]\npatch = '0020-environ'\n")
    assert "needs patch, file, function" in refused(own).what
    (own.patches / drift.FILE_NAME).write_text("[[hook\n")
    assert "hooks.toml: " in refused(own).what


def test_apply_stops_before_anything_is_made(own, tmp_path):
    hooks(own, ("f", ["x"]))
    target = tmp_path / "new" / "tree"
    command = ["apply", "--patches", own.patches, "--wheel", own.wheel, "--to", target]
    done = patchset(*command)
    assert done.returncode == Exit.PATCH
    assert "error: drift: 0020-environ hooks into" in done.stderr
    assert "expected f(x)" in done.stderr
    assert not target.parent.exists()


def test_the_real_hooks_stand_in_the_real_base(real_base):
    series = load_series(ROOT / "patches" / "0.5.13")
    assert drift.require_in(real_base, series.pin.commit, series) > 0
