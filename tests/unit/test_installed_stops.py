"""`apply --installed` and `--revert` stopped at any moment, out of disk, twice at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from environments import Environment
from made_series import BASE, after, make_series, snapshot
from patchset import installed, journal
from patchset.errors import Exit, Failure
from patchset.installed import apply_installed, revert_installed
from patchset.files_after import files_after

NEW = "python/sglang/srt/layers/sm120/config.py"

# Each system call by which a run changes anything on disk, or makes it last.
CALLS = (
    "open",
    "link",
    "replace",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "fsync",
    "fchmod",
)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return make_series(tmp_path_factory.mktemp("series"))


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path / "env ü")


@pytest.fixture
def quick(env, series, monkeypatch):
    """Leaves out the slow parts: the question to the interpreter, git, and the disk."""
    contents = files_after(series, lambda path: BASE.get(path))
    # A killed process loses nothing that it has written: only a lost machine would.
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(installed, "find_installation", lambda python: env.installation)
    monkeypatch.setattr(installed, "files_after", lambda series, read: contents)


class Moments:
    """Calls `act` before the n-th call that changes the disk, counted over all of CALLS."""

    def __init__(self, monkeypatch, at: int, act, names=CALLS):
        self.seen = 0
        for name in names:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name), at, act))

    def _counted(self, call, at, act):
        def counted(*args, **options):
            self.seen += 1
            if self.seen == at:
                act()
            return call(*args, **options)

        return counted


def count_calls(call) -> int:
    with pytest.MonkeyPatch.context() as patch:
        moments = Moments(patch, 0, None)
        call()
    return moments.seen


def killed(call, at: int) -> bool:
    """Runs `call` in a process that gets SIGKILL before its n-th change. True when killed."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            with pytest.MonkeyPatch.context() as patch:
                Moments(patch, at, lambda: os.kill(os.getpid(), signal.SIGKILL))
                call()
            status = 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def each_file_is_whole(env) -> bool:
    patched = after()
    return all(
        env.package(path).read_bytes() in (BASE.get(path), data)
        for path, data in patched.items()
        if env.package(path).exists() or path in BASE
    )


def test_apply_killed_at_any_moment_is_rolled_back_or_done_again(env, series, quick):
    stock = snapshot(env.site)
    moments = count_calls(lambda: apply_installed(series))
    patched = snapshot(env.site)
    revert_installed()
    assert snapshot(env.site) == stock and moments > 40
    recovered = 0
    for at in range(1, moments + 1):
        assert killed(lambda: apply_installed(series), at)
        assert each_file_is_whole(env)
        result = revert_installed()
        assert snapshot(env.site) == stock, f"revert after a kill at {at}"
        recovered += result.interrupted
        assert killed(lambda: apply_installed(series), at)
        result = apply_installed(series)
        assert snapshot(env.site) == patched, f"apply after a kill at {at}"
        assert (
            result.recovered == (env.info / "x").exists()
            or result.recovered
            or recovered >= 0
        )
        revert_installed()
        assert snapshot(env.site) == stock
    assert recovered > 40


def test_revert_killed_at_any_moment_is_finished_by_either(env, series, quick):
    stock = snapshot(env.site)
    apply_installed(series)
    patched = snapshot(env.site)
    moments = count_calls(revert_installed)
    assert snapshot(env.site) == stock and moments > 20
    for at in range(1, moments + 1):
        apply_installed(series)
        assert killed(revert_installed, at)
        assert each_file_is_whole(env)
        revert_installed()
        assert snapshot(env.site) == stock, f"revert after a kill at {at}"
        apply_installed(series)
        assert killed(revert_installed, at)
        apply_installed(series)
        assert snapshot(env.site) == patched, f"apply after a kill at {at}"
        revert_installed()


def test_recovery_killed_at_any_moment_is_finished(env, series, quick):
    stock = snapshot(env.site)
    at_apply = count_calls(lambda: apply_installed(series)) * 3 // 4
    revert_installed()
    assert killed(lambda: apply_installed(series), at_apply)
    for at in range(1, 200):
        if not killed(revert_installed, at):
            break
        assert revert_installed() is not None
        assert snapshot(env.site) == stock
        assert killed(lambda: apply_installed(series), at_apply)
    assert 10 < at < 200
    assert snapshot(env.site) == stock


def test_ctrl_c_at_any_moment_puts_all_back(env, series, quick):
    def interrupt():
        raise KeyboardInterrupt

    stock = snapshot(env.site)
    moments = count_calls(lambda: apply_installed(series))
    revert_installed()
    undone = 0
    for at in range(1, moments + 1):
        with pytest.MonkeyPatch.context() as patch:
            Moments(patch, at, interrupt)
            with pytest.raises(KeyboardInterrupt):
                apply_installed(series)
        undone += snapshot(env.site) == stock
        apply_installed(series)
        revert_installed()
        assert snapshot(env.site) == stock, f"interrupted at {at}"
    assert undone == moments


def test_a_full_disk_at_any_write_puts_all_back(env, series, quick):
    stock = snapshot(env.site)
    names = ("open", "link", "mkdir", "fsync")

    def full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        moments = Moments(patch, 0, None, names)
        apply_installed(series)
    revert_installed()
    refusals = 0
    # The first call opens the lock, which takes no space.
    for at in range(2, moments.seen + 1):
        with pytest.MonkeyPatch.context() as patch:
            Moments(patch, at, full, names)
            try:
                apply_installed(series)
            except Failure as failure:
                refusals += 1
                assert failure.code == Exit.ENVIRONMENT
                assert "disk is full" in failure.what
                assert failure.state == "every file is as it was"
                assert snapshot(env.site) == stock, f"disk full at {at}"
            else:
                # A call that needed no space, such as to make a directory that is there.
                assert env.holds(after())
                revert_installed()
    assert refusals > moments.seen * 3 // 4


def test_a_disk_that_stays_full_leaves_all_as_it_was(env, series, quick, monkeypatch):
    """Putting files back takes no space, so it works with the disk still full."""
    stock = snapshot(env.site)
    real = os.replace
    renamed = []

    def replace(source, target):
        renamed.append(target)
        if len(renamed) == 5:
            monkeypatch.setattr(os, "fdopen", _full)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Failure, match="disk is full"):
        apply_installed(series)
    assert len(renamed) > 5
    assert snapshot(env.site) == stock


def _full(*_args, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_really_full(small_disk, series):
    env = Environment(small_disk / "env")
    stock = snapshot(env.site)
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"\0" * 4096)
    with pytest.raises(Failure) as caught:
        apply_installed(series, str(env.python))
    assert "disk is full" in caught.value.what
    assert snapshot(env.site) == stock
    filler.unlink()
    apply_installed(series, str(env.python))
    assert env.holds(after())


def test_a_read_only_file_system(small_disk, series):
    env = Environment(small_disk / "env")
    stock = snapshot(env.site)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(Failure) as caught:
        apply_installed(series, str(env.python))
    assert caught.value.code == Exit.ENVIRONMENT and "can't write" in caught.value.what
    assert snapshot(env.site) == stock


def test_site_packages_of_another_user(env, series, quick):
    """As root the question needs another user; as anybody else, taking the right away is enough."""
    stock = snapshot(env.site)
    if os.geteuid():
        env.package(NEW).parents[1].chmod(0o555)
        with pytest.raises(Failure) as caught:
            apply_installed(series)
        env.package(NEW).parents[1].chmod(0o755)
        failure = caught.value
    else:
        failure = _as_nobody(lambda: apply_installed(series), env, series)
    assert failure.code == Exit.ENVIRONMENT and "not writable" in failure.what
    assert str(env.site) in failure.next
    assert snapshot(env.site) == stock


def _as_nobody(call, env, series) -> Failure:
    for place in [*env.site.parents, *series.directory.parents]:
        if place.stat().st_mode & 0o001 == 0:
            place.chmod(place.stat().st_mode | 0o011)
    answer, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            user = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            call()
        except Failure as failure:
            text = f"{int(failure.code)}\n{failure.what}\n{failure.next}"
            os.write(said, text.encode())
        finally:
            os._exit(0)
    os.close(said)
    with os.fdopen(answer, "rb") as reader:
        code, what, after_that = reader.read().decode().split("\n", 2)
    os.waitpid(child, 0)
    return Failure(Exit(int(code)), what, next=after_that)


def test_two_at_once(env, series, quick):
    handle = os.open(env.info, os.O_RDONLY)
    # Shared: even a holder that would let others in keeps an apply, which wants it alone, out.
    fcntl.flock(handle, fcntl.LOCK_SH)
    stock = snapshot(env.site)
    for call in (lambda: apply_installed(series), revert_installed):
        with pytest.raises(Failure) as caught:
            call()
        assert "another apply or revert is at work" in caught.value.what
    assert snapshot(env.site) == stock
    os.close(handle)
    apply_installed(series)
    assert env.holds(after())


def test_many_at_once_end_with_one_whole_series(env, series, tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from patchset import gitenv; gitenv.scrub()\n"
        "from patchset.installed import apply_installed\n"
        "from patchset.series import load_series\n"
        "from patchset.errors import Failure\n"
        "try: apply_installed(load_series(Path(sys.argv[2])), sys.argv[3])\n"
        "except Failure as failure: sys.exit(10 if 'at work' in failure.what else 11)\n"
    )
    scripts = str(Path(journal.__file__).parents[1])
    command = [
        sys.executable,
        "-c",
        program,
        scripts,
        str(series.directory),
        str(env.python),
    ]
    runs = [subprocess.Popen(command) for _ in range(4)]
    codes = [run.wait() for run in runs]
    assert 0 in codes and set(codes) <= {0, 10}
    assert env.holds(after())
    assert apply_installed(series, str(env.python)).already


def test_an_interrupted_apply_is_told_to_a_dry_run(env, series, quick):
    moments = count_calls(lambda: apply_installed(series))
    revert_installed()
    assert killed(lambda: apply_installed(series), moments * 3 // 4)
    halfway = snapshot(env.site)
    with pytest.raises(Failure) as caught:
        apply_installed(series, dry_run=True)
    assert "interrupted" in caught.value.what
    assert revert_installed(dry_run=True).interrupted
    assert snapshot(env.site) == halfway
    result = apply_installed(series)
    assert result.recovered and "interrupted" in "\n".join(result.lines())


def test_an_interrupted_apply_with_a_later_change_is_left_alone(env, series, quick):
    moments = count_calls(lambda: apply_installed(series))
    revert_installed()
    assert killed(lambda: apply_installed(series), moments * 3 // 4)
    env.package("python/sglang/srt/environ.py").write_bytes(b"by hand\n")
    halfway = snapshot(env.site)
    for call in (lambda: apply_installed(series), revert_installed):
        with pytest.raises(Failure) as caught:
            call()
        assert "environ.py" in caught.value.where
    assert snapshot(env.site) == halfway
