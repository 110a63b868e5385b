"""`apply` stopped at any moment, out of disk, in a place it may not write: the target is as it was or complete."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from made_series import commit_all, BASE, snapshot
from made_wheel import command, environment, make_wheel, message, started
from made_wheel import without_rights
from patchset import gitenv
from patchset.errors import Exit

STAGES = ["init", "fast-import", "apply", "update-ref", "reset"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]

# Sends a signal to the tool when it calls git for a given step.
STOPPING_GIT = """#!/bin/sh
case " $* " in *" $STOP_AT "*) kill -"$STOP_WITH" "$PPID"; sleep 0.1 ;; esac
exec {git} "$@"
"""

# Kills the tool itself right after its n-th rename of a directory.
STOP_AFTER_RENAME = """
import os, signal, sys
left = int(sys.argv.pop(1))
rename = os.rename
def counted(*arguments, **options):
    global left
    rename(*arguments, **options)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), getattr(signal, os.environ["STOP_WITH"]))
os.rename = counted
from patchset.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def stopping_git(tmp_path) -> str:
    """A PATH on which git sends $STOP_WITH to its caller at $STOP_AT."""
    script = tmp_path / "shim" / "git"
    script.parent.mkdir()
    script.write_text(STOPPING_GIT.format(git=shutil.which("git")))
    script.chmod(0o755)
    return os.pathsep.join([str(script.parent), os.environ["PATH"]])


def apply_line(release, target: Path, *more: str) -> tuple:
    line = ("apply", "--patches", release.patches, "--wheel", release.wheel)
    return (*line, "--to", target, *more)


def tip_of(target: Path) -> str:
    return gitenv.text(target, "rev-parse", "HEAD")


def assert_complete(target: Path, tip: str) -> None:
    assert tip_of(target) == tip
    assert gitenv.text(target, "status", "--porcelain") == ""
    gitenv.run(target, "fsck", "--strict")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("stage", STAGES)
def test_stopped_at_a_step(small, small_tree, stopping_git, tmp_path, stage, number):
    place = tmp_path / "place"
    target = place / "t"
    place.mkdir()
    stop = {"PATH": stopping_git, "STOP_AT": stage, "STOP_WITH": number.name[3:]}
    done = started(*apply_line(small, target), env=stop)
    if number == signal.SIGKILL:
        assert done.returncode == -number
        left = [p.name for p in place.iterdir()]
        assert all(name == ".t.lock" or name.startswith(".t.new-") for name in left)
    else:
        assert done.returncode == 128 + number
        assert "error: interrupted" in done.stderr
        assert "state: nothing is half-written" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(place.iterdir()) == []
    again = started(*apply_line(small, target))
    assert again.returncode == 0 and "(made)" in again.stdout
    assert list(place.iterdir()) == [target]
    assert_complete(target, tip_of(small_tree))


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_stopped_while_it_replaces_a_target(small, own_tree, stopping_git, number):
    before = snapshot(own_tree)
    stop = {"PATH": stopping_git, "STOP_AT": "reset", "STOP_WITH": number.name[3:]}
    done = started(*apply_line(small, own_tree, "--force"), env=stop)
    assert done.returncode in (-number, 128 + number)
    assert snapshot(own_tree) == before


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("renames", [1, 2])
def test_stopped_between_the_renames(small, own_tree, tmp_path, renames, number):
    (own_tree / "mine").write_text("not committed")
    before = snapshot(own_tree)
    tip = tip_of(own_tree)
    line = [sys.executable, "-P", "-c", STOP_AFTER_RENAME, str(renames)]
    line += map(str, apply_line(small, own_tree, "--force"))
    env = environment({"STOP_WITH": number.name})
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    assert done.returncode in (-number, 128 + number), done.stderr
    if number != signal.SIGKILL and renames == 1:
        assert snapshot(own_tree) == before
    again = started(*apply_line(small, own_tree))
    beside = [path.name for path in own_tree.parent.iterdir()]
    assert not [name for name in beside if name.startswith(f".{own_tree.name}")]
    if renames == 1:
        assert snapshot(own_tree) == before
        assert again.returncode == Exit.PATCH and "?? mine" in again.stderr
    else:
        assert again.returncode == 0
        assert_complete(own_tree, tip)


def test_stopped_at_random_moments(small, small_tree, tmp_path, seed):
    chance = random.Random(seed)
    tip, target = tip_of(small_tree), tmp_path / "t"
    begin = time.monotonic()
    assert started(*apply_line(small, target)).returncode == 0
    whole = time.monotonic() - begin
    for _ in range(16):
        force = chance.random() < 0.5
        if not force:
            shutil.rmtree(target, ignore_errors=True)
        options = ["--force"] if force and target.exists() else []
        process = subprocess.Popen(
            command(*apply_line(small, target, *options)),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(chance.uniform(0.1, whole))
        number = chance.choice(SIGNALS)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert "Traceback" not in said or process.returncode < 0, said
        assert process.returncode in (0, 128 + number, -number), said
        if target.exists():
            assert_complete(target, tip)
        else:
            assert process.returncode != 0
    assert started(*apply_line(small, target)).returncode == 0
    assert_complete(target, tip)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_the_real_tree_killed_and_made(real_wheel, tmp_path, seed):
    chance = random.Random(seed)
    target = tmp_path / "t"
    line = command("apply", "--wheel", real_wheel, "--to", target)
    # One of them each run: the small tree above meets all three.
    number = chance.choice(SIGNALS)
    process = subprocess.Popen(line, env=environment(), stderr=subprocess.PIPE)
    time.sleep(chance.uniform(0.5, 2.0))
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (0, 128 + number, -number)
    if process.returncode == 0:
        shutil.rmtree(target)
    assert not target.exists()
    begin = time.monotonic()
    done = subprocess.run(line, env=environment(), capture_output=True)
    assert done.returncode == 0
    assert time.monotonic() - begin < 30
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


# A small file system of our own, in a mount namespace of our own; works for root and, where user
# namespaces are allowed, for everybody.
IN_NAMESPACE = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
ON_TMPFS = """
set -e
mount -t tmpfs -o size="$1" tmpfs "$2"
place=$2 prepare=$3
shift 3
eval "$prepare"
code=0
"$@" || code=$?
echo "--- left:"
ls -A "$place"
eval "${CHECK:-}"
exit "$code"
"""


def on_tmpfs(
    size: str, place: Path, line: list[str], prepare: str = "", check: str = ""
):
    place.mkdir(exist_ok=True)
    namespace = ["unshare", "--mount", *IN_NAMESPACE, "sh", "-c", ON_TMPFS, "sh"]
    return subprocess.run(
        [*namespace, size, str(place), prepare, *line],
        env=environment({"CHECK": check}),
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def tmpfs(tmp_path_factory):
    place = tmp_path_factory.mktemp("tmpfs")
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed: no small file system to fill")
    tried = on_tmpfs("64k", place, ["true"])
    if tried.returncode:
        pytest.skip(f"no mount namespace here: {tried.stderr.strip()}")
    return on_tmpfs


@pytest.mark.parametrize("size", ["12k", "40k", "80k", "120k", "150k"])
def test_a_full_disk_while_the_tree_is_made(small, tmpfs, tmp_path, size):
    place = tmp_path / "disk"
    done = tmpfs(size, place, command(*apply_line(small, place / "t")))
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    assert "error: the disk is full" in done.stderr
    assert "state: the target is as it was" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "--- left:\n"


@pytest.mark.parametrize("room", [0, 24, 60, 100])
def test_a_full_disk_while_a_target_is_replaced(
    small, small_tree, tmpfs, tmp_path, room
):
    place = tmp_path / "disk"
    fill = (
        f"cp -a '{small_tree}' \"$place/t\"; "
        'free=$(df -k --output=avail "$place" | tail -n 1); '
        f'head -c "$(( (free - {room}) * 1024 ))" /dev/zero > "$place/filler"'
    )
    same = f"diff -r --no-dereference '{small_tree}' \"$place/t\""
    line = command(*apply_line(small, place / "t", "--force"))
    done = tmpfs("2m", place, line, fill, same)
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    assert "error: the disk is full" in done.stderr
    assert done.stdout == "--- left:\nfiller\nt\n"


def test_the_sizes_above_are_too_small_for_that_reason_only(small, tmpfs, tmp_path):
    place = tmp_path / "disk"
    done = tmpfs("2m", place, command(*apply_line(small, place / "t")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("--- left:\nt\n")


def test_a_full_disk_for_the_cache(own, tmpfs, tmp_path):
    """pip itself runs out of disk: the wheel comes from a directory, without a network."""
    place, wheels = tmp_path / "disk", tmp_path / "wheels"
    wheels.mkdir()
    big = {**BASE, "python/sglang/big.bin": os.urandom(200_000)}
    make_wheel(wheels / own.wheel.name, big)
    find = "export PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 PIP_CONFIG_FILE=/dev/null"
    find += f" PATCHSET_CACHE=\"$place/cache\" PIP_FIND_LINKS='{wheels}'"
    line = command("apply", "--patches", own.patches, "--to", tmp_path / "t")
    done = tmpfs("64k", place, line, find, 'ls -A "$place/cache"')
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    assert "error: the disk is full: the wheel could not be stored" in done.stderr
    assert done.stdout == "--- left:\ncache\n"
    assert not (tmp_path / "t").exists()


def test_a_read_only_file_system(small, tmpfs, tmp_path):
    place = tmp_path / "disk"
    line = command(*apply_line(small, place / "new" / "t"))
    done = tmpfs("2m", place, line, 'mount -o remount,bind,ro "$place"')
    assert done.returncode == Exit.ENVIRONMENT
    assert "error: this place can't be written" in done.stderr
    assert "Read-only file system" in done.stderr and "--to DIR" in done.stderr
    assert done.stdout == "--- left:\n"


def test_a_place_without_the_right_to_write(small, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o555)
    for target in (place / "t", place / "new" / "t"):
        line = without_rights(command(*apply_line(small, target)))
        done = subprocess.run(line, env=environment(), capture_output=True, text=True)
        assert done.returncode == Exit.ENVIRONMENT, done.stderr
        assert "error: this place can't be written" in done.stderr
        assert "Permission denied" in done.stderr
        assert "next:  choose another place" in done.stderr
    assert list(place.iterdir()) == []
    dry = subprocess.run([*line, "--dry-run"], env=environment(), capture_output=True)
    assert dry.returncode == 0


def test_a_finished_tree_in_a_read_only_place_is_just_found(small, own_tree):
    directories = [own_tree.parent, own_tree, *own_tree.rglob("*/")]
    for directory in directories:
        directory.chmod(0o555)
    line = without_rights(command(*apply_line(small, own_tree)))
    done = subprocess.run(line, env=environment(), capture_output=True, text=True)
    for directory in directories:
        directory.chmod(0o755)
    assert done.returncode == 0 and "(already there)" in done.stdout


def test_patch_files_that_cannot_be_written(own, own_tree):
    path = own.patches / "0040-more.patch"
    (own_tree / "python/sglang/__init__.py").write_text("more = 1\n")
    commit_all(own_tree, message("0040-more"))
    own.patches.chmod(0o555)
    line = command("export", "--from", own_tree, "--patches", own.patches)
    done = subprocess.run(
        without_rights(line), env=environment(), capture_output=True, text=True
    )
    own.patches.chmod(0o755)
    assert done.returncode == Exit.ENVIRONMENT
    assert "error: a patch file cannot be written: Permission denied" in done.stderr
    assert not path.exists()
