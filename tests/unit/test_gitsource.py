"""`apply --source git`: the base from a repository at the pin's tag; what is refused."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from made_series import (
    BASE,
    after,
    commit_all,
    git,
    make_repository,
    make_series,
    snapshot,
    write_files,
)
from patchset import gitenv
from patchset.errors import Exit, Failure
from patchset.gitsource import fetch_at_tag
from patchset.target import Source, apply_to

ENVIRON = "python/sglang/srt/environ.py"


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return make_series(tmp_path_factory.mktemp("series"))


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    """A repository as upstream's: the pin's tag with a history below and commits above."""
    repo = tmp_path_factory.mktemp("served") / "sglang ü"
    make_repository(repo, {"README.md": b"first\n"})
    # More files than git unpacks one by one: then it tells of receiving a pack.
    docs = {f"docs/{number}.md": b"%d\n" % number for number in range(120)}
    write_files(repo, {**BASE, **docs, "README.md": b"upstream\n"})
    commit_all(repo, "release")
    git(repo, "tag", "v0.5.13")
    write_files(repo, {ENVIRON: b"later\n"})
    commit_all(repo, "later work")
    git(repo, "tag", "v0.5.14")
    return repo


def patched(series, url, target, **options):
    source = Source("git", lambda directory: fetch_at_tag(series, directory, str(url)))
    return apply_to(target, series, series, source, **options)


def refused(series, url, target) -> Failure:
    before = snapshot(target.parent)
    with pytest.raises(Failure) as caught:
        patched(series, url, target)
    assert snapshot(target.parent) == before
    failure = caught.value
    assert str(url) in failure.where and failure.state and failure.next
    return failure


def holds_the_patched_tree(target, upstream) -> bool:
    assert git(target, "rev-parse", "HEAD~3") == git(upstream, "rev-parse", "v0.5.13")
    assert git(target, "status", "--porcelain") == ""
    assert git(target, "rev-parse", "--is-shallow-repository") == "true"
    assert (target / "README.md").read_bytes() == b"upstream\n"
    return all((target / path).read_bytes() == data for path, data in after().items())


def test_from_a_local_repository(series, upstream, tmp_path):
    result = patched(series, upstream, tmp_path / "tree")
    assert result.state == "made"
    assert holds_the_patched_tree(tmp_path / "tree", upstream)
    assert result.base == git(upstream, "rev-parse", "v0.5.13")


def test_the_tag_and_the_address_are_kept(series, upstream, tmp_path):
    patched(series, upstream, tmp_path / "tree")
    assert git(tmp_path / "tree", "tag", "--list", "v*") == "v0.5.13"
    assert git(tmp_path / "tree", "remote", "get-url", "origin") == str(upstream)


def test_an_annotated_tag(series, upstream, tmp_path):
    clone = tmp_path / "annotated"
    subprocess.run(["git", "clone", "-q", str(upstream), str(clone)], check=True)
    git(clone, "config", "user.name", "A User")
    git(clone, "config", "user.email", "user@example.invalid")
    git(clone, "tag", "-f", "-a", "-m", "release", "v0.5.13", "v0.5.13")
    patched(series, clone, tmp_path / "tree")
    assert holds_the_patched_tree(tmp_path / "tree", upstream)


def test_from_a_file_address_and_a_relative_path(
    series, upstream, tmp_path, monkeypatch
):
    patched(series, upstream.as_uri(), tmp_path / "a")
    assert holds_the_patched_tree(tmp_path / "a", upstream)
    monkeypatch.chdir(upstream.parent)
    patched(series, upstream.name, tmp_path / "b")
    assert holds_the_patched_tree(tmp_path / "b", upstream)


def test_the_same_commits_every_time_and_a_second_run_says_so(
    series, upstream, tmp_path
):
    first = patched(series, upstream, tmp_path / "a")
    assert first.tip == patched(series, upstream.as_uri(), tmp_path / "b").tip
    assert patched(series, upstream, tmp_path / "a").state == "already there"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def daemon(upstream):
    """Upstream's repository behind git's own protocol, on this machine."""
    port = free_port()
    command = ["git", "daemon", "--reuseaddr", "--export-all", "--listen=127.0.0.1"]
    command += [
        f"--port={port}",
        f"--base-path={upstream.parent}",
        str(upstream.parent),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, start_new_session=True
    )
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"git://127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def test_from_a_git_server(series, upstream, tmp_path, daemon):
    patched(series, f"{daemon}/{upstream.name}", tmp_path / "tree")
    assert holds_the_patched_tree(tmp_path / "tree", upstream)
    assert (tmp_path / "tree" / ".git" / "shallow").read_text().count("\n") == 1


def test_a_repository_that_the_server_does_not_have(series, tmp_path, daemon):
    failure = refused(series, f"{daemon}/none", tmp_path / "t" / "tree")
    assert failure.code == Exit.ENVIRONMENT


def test_a_server_that_is_not_there(series, tmp_path):
    (tmp_path / "t").mkdir()
    for scheme in ("git", "http"):
        url = f"{scheme}://127.0.0.1:{free_port()}/sglang"
        failure = refused(series, url, tmp_path / "t" / "tree")
        assert failure.code == Exit.ENVIRONMENT and "can't be reached" in failure.what
        assert "--source wheel" in failure.next and "https_proxy" in failure.next


def test_a_name_that_does_not_resolve(series, tmp_path):
    failure = refused(series, "https://git.invalid/sglang", tmp_path / "tree")
    assert failure.code == Exit.ENVIRONMENT and "can't be reached" in failure.what


def test_a_server_that_asks_for_a_password_does_not_make_it_wait(series, tmp_path):
    class Locked(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Locked)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/sglang"
        failure = refused(series, url, tmp_path / "tree")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (
        failure.code == Exit.ENVIRONMENT and "nothing could be fetched" in failure.what
    )


def test_the_tag_is_missing(series, upstream, tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(upstream), str(clone)], check=True)
    git(clone, "tag", "--delete", "v0.5.13")
    failure = refused(series, clone, tmp_path / "t" / "tree")
    assert failure.code == Exit.ENVIRONMENT and "no tag v0.5.13" in failure.what


def test_files_that_are_not_the_pins_are_listed(series, upstream, tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(upstream), str(clone)], check=True)
    git(clone, "tag", "--force", "v0.5.13", "v0.5.14")
    failure = refused(series, clone, tmp_path / "t" / "tree")
    assert failure.code == Exit.PATCH
    assert "1 file" in failure.what and ENVIRON in failure.where


def test_a_tag_that_holds_the_series_already_is_refused(series, tmp_path):
    repo = tmp_path / "repo"
    make_repository(repo, after())
    git(repo, "tag", "v0.5.13")
    failure = refused(series, repo, tmp_path / "t" / "tree")
    assert failure.code == Exit.PATCH and "3 of 3 patches" in failure.what


@pytest.mark.parametrize(
    "url",
    [
        "/no/such/repository",
        "--upload-pack=touch pwned",
        "ext::sh -c 'touch pwned'",
        "",
    ],
)
def test_addresses_that_are_none(series, tmp_path, url, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    failure = refused(series, url, tmp_path / "t" / "tree")
    assert failure.code == Exit.ENVIRONMENT
    assert not list(tmp_path.rglob("pwned"))


def test_settings_of_the_user_do_not_change_a_byte(series, upstream, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n hooksPath = /none\n[init]\n defaultObjectFormat = sha256\n"
        "[fetch]\n prune = true\n pruneTags = true\n[transfer]\n fsckObjects = true\n"
    )
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from patchset import gitenv; gitenv.scrub()\n"
        "from patchset.gitsource import fetch_at_tag\n"
        "from patchset.series import load_series\n"
        "from patchset.target import Source, apply_to\n"
        "series = load_series(Path(sys.argv[2]))\n"
        "source = Source('git', lambda d: fetch_at_tag(series, d, sys.argv[3]))\n"
        "print(apply_to(Path(sys.argv[4]), series, series, source).tip)\n"
    )
    scripts = str(Path(gitenv.__file__).parents[1])
    command = [
        sys.executable,
        "-c",
        program,
        scripts,
        str(series.directory),
        str(upstream),
    ]
    env = {**os.environ, "HOME": str(home), "GIT_DIR": str(home)}
    for name in [name for name in env if name.startswith("GIT_") and name != "GIT_DIR"]:
        del env[name]
    done = subprocess.run(
        [*command, str(tmp_path / "a")], env=env, capture_output=True, text=True
    )
    assert (
        done.stdout.strip() == patched(series, upstream, tmp_path / "b").tip
    ), done.stderr
    assert holds_the_patched_tree(tmp_path / "a", upstream)


def command_lines() -> list[bytes]:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(process.read_bytes())
    return lines


def test_interrupted_while_git_fetches(series, upstream, tmp_path, monkeypatch):
    """A server that never answers; Ctrl-C ends git too and leaves nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/sglang"
        before = snapshot(tmp_path)
        threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            patched(series, url, tmp_path / "tree")
        assert snapshot(tmp_path) == before
        assert not [line for line in command_lines() if url.encode() in line]


def test_progress_is_shown_on_a_terminal_only(series, upstream, tmp_path, capfd):
    patched(series, upstream.as_uri(), tmp_path / "a")
    assert capfd.readouterr().err == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        patched(series, upstream.as_uri(), tmp_path / "b")
    shown = capfd.readouterr().err
    assert "receiving 100 %" in shown and shown.endswith("\r")


def test_without_git_on_the_path(series, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("git") is None
    with pytest.raises(Failure) as caught:
        gitenv.scrub()
    assert (
        caught.value.code == Exit.ENVIRONMENT
        and "git was not found" in caught.value.what
    )
