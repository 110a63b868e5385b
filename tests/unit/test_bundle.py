"""The offline bundle: what goes in, and that it is whole or not there."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from made_bundle import fill, install, made, site_with_torch
from made_wheel import patchset
from patchset import gitenv
from patchset.bundle import make, wheels
from patchset.bundle.streams import Streams
from patchset.errors import Exit, Failure
from patchset.verbs import bundle as verb
from test_bundle_wheels import CLOSURE, PYTHON, TARGET, make_wheel, wheel


def test_it_installs_what_was_packed(made, tmp_path, site_with_torch):
    assert [size for _, size in made.parts[:-1]] == [3_000] * (len(made.parts) - 1)
    assert len(made.parts) > 3
    place = tmp_path / "it's here"
    done = install(made, place, site_with_torch, "-W", "error")
    assert done.returncode == 0, done.stderr
    assert "0050-x " + "c" * 40 in done.stdout
    following = done.stdout.splitlines()[2].removeprefix("next")
    assert shlex.split(following) == [".", str(place / "env.sh")]
    assert "TVM_FFI" not in (place / "env.sh").read_text()
    script = f'. "{place}/env.sh"; exec "{sys.executable}" -c "import sglang; print(sglang.answer)"'
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert ran.stdout == "42\n", ran.stderr


def test_it_installs_what_was_packed_by_several_threads(
    tmp_path, site_with_torch, monkeypatch
):
    monkeypatch.setattr(make, "Streams", partial(Streams, length=700))
    made = make.write(tmp_path / "b", fill, TARGET, "x", None, 3_000, preset=0)
    done = install(made, tmp_path / "place", site_with_torch, "-W", "error")
    assert done.returncode == 0, done.stderr
    data = tmp_path / "place" / "site" / "sglang" / "data.bin"
    assert data.stat().st_size == 10_000


def test_its_programs_run_after_env_sh(tmp_path, site_with_torch):
    def tool(site: Path) -> list[str]:
        (site / "bin").mkdir()
        (site / "bin" / "tool-of-ours").write_text("#!/bin/sh\necho $0\n")
        (site / "bin" / "tool-of-ours").chmod(0o755)
        return []

    made = make.write(tmp_path / "b", tool, TARGET, "x", None, 1 << 20, preset=0)
    place = tmp_path / "it's here"
    done = install(made, place, site_with_torch)
    assert done.returncode == 0, done.stderr
    script = f'. "{place}/env.sh"; tool-of-ours; command -v ls'
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    first, second = ran.stdout.splitlines()
    assert first == f"{place}/site/bin/tool-of-ours" and second.endswith("/ls")


def test_folders_beside_are_left_alone(tmp_path, site_with_torch):
    for name in ("bundle.part", "place.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    made = make.write(tmp_path / "bundle", fill, TARGET, "x", None, 1 << 20, preset=0)
    done = install(made, tmp_path / "place", site_with_torch)
    assert done.returncode == 0, done.stderr
    for name in ("bundle.part", "place.part"):
        assert (tmp_path / name / "mine").exists()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"bundle", "bundle.part", "place", "place.part", "torch"}
    usual = tmp_path / "usual"
    usual.mkdir()
    for name in ("bundle", "place"):
        assert (tmp_path / name).stat().st_mode == usual.stat().st_mode


def test_the_same_files_make_the_same_bundle(tmp_path):
    def same(site: Path) -> list[str]:
        (site / "b.py").write_text("b")
        (site / "a.py").write_text("a")
        return []

    first, second = (
        make.write(tmp_path / name, same, TARGET, "x", None, 1 << 20, preset=0)
        for name in "12"
    )
    read = [(each.folder / make.MANIFEST).read_bytes() for each in (first, second)]
    assert read[0] == read[1]


def test_a_bundle_that_fails_leaves_nothing(tmp_path):
    def failing(site: Path):
        fill(site)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        make.write(tmp_path / "bundle", failing, TARGET, "x", None, 1_000)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    with pytest.raises(Failure, match="there already") as caught:
        make.write(tmp_path, fill, TARGET, "x", None, 1_000)
    assert caught.value.code == Exit.USAGE


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """What stands for pip: a report of two packages, and their wheels."""
    ran = []

    def fake(arguments, what):
        ran.append(arguments)
        if "install" in arguments:
            names = ("sglang", "torch")
            items = [
                {
                    "metadata": {"name": name, "version": "1.0", "requires_dist": []},
                    "download_info": {"archive_info": {"hashes": {"sha256": "0" * 64}}},
                }
                for name in names
            ]
            report = Path(arguments[arguments.index("--report") + 1])
            report.write_text(json.dumps({"install": items}))
        else:
            folder = Path(arguments[arguments.index("--dest") + 1])
            files = {"sglang/stock.py": "", "sglang/srt/environ.py": "stock"}
            make_wheel(folder, "sglang", files)
            listing = (folder / "requirements.txt").read_text()
            assert listing == "sglang==1.0 --hash=sha256:" + "0" * 64 + "\n"

    monkeypatch.setattr(wheels, "_pip", fake)
    return ran


def test_the_verb_packs_the_tree_over_the_wheels(
    pip, own_tree, tmp_path, site_with_torch
):
    out = tmp_path / "out"
    words = ["bundle", "--out", out, "--tree", own_tree, "--target-python", PYTHON]
    done = patchset(*words, "--machine", os.uname().machine, "--part-size", "1M")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((out / make.MANIFEST).read_text())
    assert manifest["commit"] == gitenv.text(own_tree, "rev-parse", "HEAD")
    assert manifest["packages"] == ["sglang==1.0"]
    place = tmp_path / "place"
    made = make.Bundle(out, "", None, (), ())
    assert install(made, place, site_with_torch).returncode == 0
    names = gitenv.text(own_tree, "ls-files", "python/sglang").splitlines()
    assert names
    for name in names:
        inside = place / "site" / name.removeprefix("python/")
        assert inside.read_bytes() == (own_tree / name).read_bytes()
    assert (place / "site" / "sglang" / "stock.py").exists()


def test_a_package_that_is_none_is_no_name_to_leave_out(pip, own_tree, tmp_path):
    words = ["bundle", "--out", tmp_path / "out", "--tree", own_tree]
    done = patchset(*words, "--without", "Sglnag")
    assert done.returncode == Exit.USAGE
    assert "--without Sglnag: SGLang needs no such package" in done.stderr
    assert "sglang" in done.stderr and not (tmp_path / "out").exists()


def test_what_an_extra_needs_is_packed_though_torch_needs_it_too(
    own_tree, tmp_path, monkeypatch
):
    found = [*CLOSURE, wheel("foo", "sympy ; extra == 'bar'")]
    monkeypatch.setattr(wheels, "closure", lambda *_: found)
    monkeypatch.setattr(wheels, "download", lambda *_: [])
    words = ["bundle", "--out", tmp_path / "out", "--tree", own_tree]
    done = patchset(*words, "--add", "foo[bar]==1.0")
    assert done.returncode == 0, done.stderr
    packed = json.loads((tmp_path / "out" / make.MANIFEST).read_text())["packages"]
    assert {"foo==1.0", "sympy==1.0", "mpmath==1.0"} < set(packed)
    assert "torch==1.0" not in packed


@pytest.mark.parametrize("name", ["sglang", "Foo.x"])
def test_what_is_asked_for_is_not_left_out(pip, own_tree, tmp_path, name):
    words = ["bundle", "--out", tmp_path / "out", "--tree", own_tree]
    done = patchset(*words, "--add", "foo_x[bar]==2", "--without", name)
    assert done.returncode == Exit.USAGE
    assert f"--without {name}: this package is asked for" in done.stderr
    assert not pip and not (tmp_path / "out").exists()


def test_compiled_kernels_travel_and_are_found(
    pip, own_tree, tmp_path, site_with_torch
):
    kernels, out = tmp_path / "tvm-ffi", tmp_path / "out"
    (kernels / "one_key").mkdir(parents=True)
    (kernels / "one_key" / "one.so").write_bytes(b"\x7fELF")
    words = ["bundle", "--out", out, "--tree", own_tree, "--target-python", PYTHON]
    words += ["--machine", os.uname().machine, "--kernels", kernels]
    done = patchset(*words, "--without", "torch", "--without", verb.FLASH)
    assert done.returncode == 0, done.stderr
    place = tmp_path / "it's here"
    made = make.Bundle(out, "", None, (), ())
    assert install(made, place, site_with_torch).returncode == 0
    script = f'. "{place}/env.sh"; cat "$TVM_FFI_CACHE_DIR/one_key/one.so"'
    ran = subprocess.run(["sh", "-c", script], capture_output=True)
    assert ran.stdout == b"\x7fELF", ran.stderr


def test_no_compiled_kernels_are_no_folder_to_carry(own_tree, tmp_path):
    words = ["bundle", "--out", tmp_path / "out", "--tree", own_tree]
    for kernels in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = patchset(*words, "--kernels", kernels)
        assert done.returncode == Exit.USAGE and "--kernels needs" in done.stderr
        assert not (tmp_path / "out").exists()


def test_a_tree_with_changes_and_none(pip, own_tree, tmp_path):
    (own_tree / "python" / "sglang" / "new.py").write_text("")
    done = patchset("bundle", "--out", tmp_path / "out", "--tree", own_tree)
    assert done.returncode == Exit.PATCH and "in no commit" in done.stderr
    done = patchset("bundle", "--out", tmp_path / "out", "--tree", tmp_path / "no")
    assert done.returncode == Exit.USAGE and "no patched tree" in done.stderr
    done = patchset("bundle", "--out", tmp_path / "out", "--tree", tmp_path)
    assert done.returncode == Exit.PATCH and "no patched tree" in done.stderr
    assert not (tmp_path / "out").exists()


def test_pip_that_fails(own_tree, tmp_path):
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    words = ["bundle", "--out", tmp_path / "out", "--tree", own_tree]
    done = patchset(*words, env=env)
    assert done.returncode == Exit.ENVIRONMENT
    assert "the packages for the target can't be resolved" in done.stderr
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "option, value",
    [
        ("--part-size", "0"),
        ("--part-size", "10"),
        ("--part-size", "1023K"),
        ("--part-size", "1T"),
        ("--target-python", "3"),
    ],
)
def test_usage(option, value, tmp_path):
    done = patchset("bundle", "--out", tmp_path / "out", option, value)
    assert done.returncode == Exit.USAGE
