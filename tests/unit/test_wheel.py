"""The pinned wheel: cached, given by hand, downloaded; every failure leaves the cache as it was."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from made_series import snapshot
from made_wheel import command, environment, make_wheel, patchset, started
from patchset import wheel
from patchset.errors import Exit, Failure

# Stands for `python -m pip`: what it does is in $FAKE_PIP, what it was asked in $FAKE_PIP_LOG.
FAKE_PIP = """
import os, shutil, signal, sys, time
target = sys.argv[sys.argv.index("--dest") + 1]
with open(os.environ["FAKE_PIP_LOG"], "a") as log:
    print(" ".join(sys.argv[1:]), file=log)
kind, _, rest = os.environ["FAKE_PIP"].partition(" ")
if kind == "give":
    shutil.copy(rest, target)
elif kind == "say":
    sys.exit(rest)
elif kind == "stall":
    open(os.path.join(target, "half"), "w").write("half a wheel")
    print("stalled", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def world(own, tmp_path):
    """A cache, a fake pip and an `apply` that uses both."""
    cache, fake = tmp_path / "cache dir", tmp_path / "fake"
    (fake / "pip").mkdir(parents=True)
    (fake / "pip" / "__init__.py").touch()
    (fake / "pip" / "__main__.py").write_text(FAKE_PIP)
    env = {"PATCHSET_CACHE": str(cache), "FAKE_PIP_LOG": str(tmp_path / "log")}
    path = environment()["PYTHONPATH"]
    env["PYTHONPATH"] = os.pathsep.join([str(fake), path])

    class World:
        release, log, target = own, tmp_path / "log", tmp_path / "tree"

        def apply(self, pip: str, *more):
            line = ["apply", "--patches", own.patches, "--to", self.target, *more]
            return started(*line, env={**env, "FAKE_PIP": pip})

        def start(self, pip: str):
            line = command("apply", "--patches", own.patches, "--to", tmp_path / "a")
            full = environment({**env, "FAKE_PIP": pip})
            return subprocess.Popen(
                line,
                env=full,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    World.cache = cache
    return World()


def kept(world) -> list[str]:
    return sorted(path.name for path in world.cache.iterdir())


def test_download_once_then_the_cache(world):
    first = world.apply(f"give {world.release.wheel}", "--dry-run")
    assert first.returncode == 0, first.stderr
    assert kept(world) == [world.release.wheel.name]
    asked = world.log.read_text()
    assert "--only-binary=:all:" in asked and "--no-deps" in asked
    assert "--python-version 3.12 --platform manylinux_2_34_x86_64" in asked
    assert asked.strip().endswith("sglang==0.5.13")
    again = world.apply("say pip must not run", "--dry-run")
    assert again.returncode == 0 and again.stdout == first.stdout
    assert world.log.read_text() == asked


@pytest.mark.parametrize(
    "said, code, message",
    [
        (
            "WARNING: Retrying (Retry(total=1)) after connection broken by "
            "'NewConnectionError(...): Temporary failure in name resolution'\n"
            "ERROR: No matching distribution found for sglang==0.5.13",
            Exit.ENVIRONMENT,
            "no network: pip could not reach its package index",
        ),
        (
            "ERROR: No matching distribution found for sglang==0.5.13",
            Exit.ENVIRONMENT,
            "the package index has no wheel sglang-0.5.13-cp312",
        ),
        (
            "ERROR: Could not install: [Errno 28] No space left on device",
            Exit.ENVIRONMENT,
            "the disk is full: the wheel could not be stored",
        ),
        (
            "Something else",
            Exit.ENVIRONMENT,
            "pip could not download the wheel: Something else",
        ),
    ],
)
def test_what_pip_says_becomes_one_message(world, said, code, message):
    done = world.apply(f"say {said}")
    assert done.returncode == code
    assert f"error: {message}" in done.stderr
    assert "state: nothing was changed; the cache is as it was" in done.stderr
    assert "--wheel FILE" in done.stderr and "Traceback" not in done.stderr
    assert kept(world) == [] and not world.target.exists()


def test_no_network_for_real(own, tmp_path):
    env = {"PATCHSET_CACHE": str(tmp_path / "cache"), "PIP_CONFIG_FILE": os.devnull}
    env |= {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    env |= {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    env |= {"NO_PROXY": "", "no_proxy": "", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    done = started("apply", "--patches", own.patches, "--to", tmp_path / "t", env=env)
    assert done.returncode == Exit.ENVIRONMENT
    assert "error: no network" in done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_file_than_the_pinned_one(world):
    other = make_wheel(world.release.wheel.with_name("sglang-0.5.13-cp311-x.whl"))
    done = world.apply(f"give {other}")
    assert done.returncode == Exit.PATCH
    assert f"another file than the pinned {world.release.wheel.name}" in done.stderr
    assert kept(world) == []


def different(path: Path) -> Path:
    """The same wheel with one more byte of comment: sound, of the right version, another hash."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"x"
    return path


def test_a_downloaded_wheel_with_another_hash(world):
    pinned = hashlib.sha256(world.release.wheel.read_bytes()).hexdigest()
    different(world.release.wheel)
    found = hashlib.sha256(world.release.wheel.read_bytes()).hexdigest()
    done = world.apply(f"give {world.release.wheel}")
    assert done.returncode == Exit.PATCH
    assert "the wheel's sha256 is not the pinned one" in done.stderr
    assert found in done.stderr and pinned in done.stderr
    assert kept(world) == [] and not world.target.exists()


def test_a_cached_wheel_is_checked_again_and_left_alone(world):
    assert world.apply(f"give {world.release.wheel}", "--dry-run").returncode == 0
    cached = world.cache / world.release.wheel.name
    different(cached)
    before = snapshot(world.cache)
    done = world.apply("say pip must not run", "--dry-run")
    assert done.returncode == Exit.PATCH and str(cached) in done.stderr
    assert "the wheel's sha256 is not the pinned one" in done.stderr
    cached.write_bytes(cached.read_bytes()[:-300])
    done = world.apply("say pip must not run", "--dry-run")
    assert done.returncode == Exit.PATCH
    assert "the wheel is a corrupt zip" in done.stderr and "delete" in done.stderr
    assert before.keys() == snapshot(world.cache).keys()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.14"])
def test_a_wheel_of_another_version(own, tmp_path, version):
    other = make_wheel(tmp_path / own.wheel.name, version=version)
    done = started(
        *("apply", "--patches", own.patches, "--wheel", other, "--to", tmp_path / "t")
    )
    assert done.returncode == Exit.PATCH
    assert f"this is SGLang {version}; the patches are for 0.5.13" in done.stderr
    assert not (tmp_path / "t").exists()


def compressed_byte(path: Path) -> int:
    """The offset of a byte inside the compressed content of an entry."""
    with zipfile.ZipFile(path) as archive:
        entry = max(archive.infolist(), key=lambda entry: entry.compress_size)
        return entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "absent", "directory"])
def test_a_damaged_wheel_given_by_hand(own, tmp_path, damage):
    given = tmp_path / own.wheel.name
    data = bytearray(own.wheel.read_bytes())
    if damage == "cut":
        given.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[compressed_byte(own.wheel)] ^= 0xFF
        given.write_bytes(data)
    elif damage == "text":
        given.write_text("<html>a proxy's error page</html>")
    elif damage == "directory":
        given.mkdir()
    done = started(
        *("apply", "--patches", own.patches, "--wheel", given, "--to", tmp_path / "t")
    )
    unread = damage in ("absent", "directory")
    assert done.returncode == (Exit.ENVIRONMENT if unread else Exit.PATCH)
    said = "cannot be read" if unread else "a corrupt zip"
    assert f"error: the wheel {'is ' if 'zip' in said else ''}{said}" in done.stderr
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_given_wheel_is_checked_although_the_tree_is_there(
    own, own_tree, tmp_path, more
):
    line = ("apply", "--patches", own.patches, "--to", own_tree, *more)
    assert patchset(*line, "--wheel", own.wheel).returncode == Exit.DONE
    before = snapshot(own_tree)
    text = tmp_path / "README.md"
    text.write_text("# no wheel\n")
    done = patchset(*line, "--wheel", text)
    assert done.returncode == Exit.PATCH and f"{text}\n" in done.stderr
    done = patchset(*line, "--wheel", tmp_path / "none.whl")
    assert done.returncode == Exit.ENVIRONMENT
    assert "error: the wheel cannot be read" in done.stderr
    assert snapshot(own_tree) == before


def test_the_cache_cannot_be_made(own, tmp_path):
    (tmp_path / "file").write_text("")
    env = {"PATCHSET_CACHE": str(tmp_path / "file" / "cache")}
    done = started("apply", "--patches", own.patches, "--to", tmp_path / "t", env=env)
    assert done.returncode == Exit.ENVIRONMENT
    assert "error: the cache directory cannot be written" in done.stderr
    assert "PATCHSET_CACHE=DIR" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_download_leaves_no_wheel(world, number):
    process = world.start("stall")
    wait_for(lambda: any(world.cache.glob(".download-*/half")))
    os.kill(process.pid, number)
    process.wait(timeout=20)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)  # the pip that nobody is left to end
    said = process.stderr.read()
    assert not (world.cache / world.release.wheel.name).exists()
    if number == signal.SIGKILL:
        assert process.returncode == -9
        assert len(list(world.cache.glob(".download-*"))) == 1
    else:
        assert process.returncode == 128 + number
        assert b"error: interrupted" in said
        assert kept(world) == []
    done = world.apply(f"give {world.release.wheel}")
    assert done.returncode == 0, done.stderr
    assert kept(world) == [world.release.wheel.name]


def test_a_second_download_waits_for_the_first(world):
    first = world.start("stall")
    wait_for(lambda: any(world.cache.glob(".download-*/half")))
    second = subprocess.Popen(
        command("apply", "--patches", world.release.patches, "--to", world.target),
        env=environment({"PATCHSET_CACHE": str(world.cache), "FAKE_PIP": ""}),
        stderr=subprocess.PIPE,
    )
    assert b"waiting for another download" in second.stderr.readline()
    os.link(world.release.wheel, world.cache / world.release.wheel.name)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    _, said = second.communicate(timeout=20)
    assert second.returncode == 0, said


def test_the_default_cache_is_the_users(monkeypatch):
    monkeypatch.delenv(wheel.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert wheel.cache_directory() == Path("/somewhere/sm120-patches")


def test_a_sound_wheel_is_returned_as_it_is(own):
    pin = own.series.pin
    assert wheel.obtain(pin, own.wheel) == own.wheel
    own.wheel.write_bytes(b"")
    with pytest.raises(Failure):
        wheel.obtain(pin, own.wheel)


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
