"""Locks that a killed holder does not leave held, and files that are never half-written."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from patchset import atomic, lock

SPAWN = multiprocessing.get_context("spawn")


def test_one_holder_at_a_time_and_nothing_left(tmp_path):
    path = tmp_path / "lock"
    with lock.hold(path):
        with pytest.raises(lock.Held):
            with lock.hold(path):
                raise AssertionError("two holders")
        assert path.exists()
    assert os.listdir(tmp_path) == []
    with lock.hold(path):
        pass


def test_a_lock_is_asked_after_without_taking_it(tmp_path):
    path = tmp_path / "lock"
    assert not lock.is_held(path) and not path.exists()
    path.touch()
    assert not lock.is_held(path)
    with lock.hold(path):
        assert lock.is_held(path)
    assert not path.exists()


def _count(path: str, ready) -> None:
    ready.wait()
    for _ in range(200):
        with lock.hold(Path(path) / "lock", wait=True):
            counter = Path(path) / "counter"
            value = int(counter.read_text())
            time.sleep(0.0002)
            counter.write_text(str(value + 1))


def test_a_waiter_never_holds_a_file_that_was_unlinked(tmp_path):
    """Each release unlinks the file; a waiter that got that one must take the lock again."""
    (tmp_path / "counter").write_text("0")
    ready = SPAWN.Event()
    workers = [
        SPAWN.Process(target=_count, args=(str(tmp_path), ready)) for _ in "1234"
    ]
    for worker in workers:
        worker.start()
    ready.set()
    for worker in workers:
        worker.join(60)
    assert (tmp_path / "counter").read_text() == "800"


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path):
    path = tmp_path / "file"
    atomic.write(path, b"one")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o640)
    atomic.write(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o640)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError):
        atomic.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
