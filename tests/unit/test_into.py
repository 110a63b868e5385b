"""`apply --into`: one new branch in the user's own checkout and nothing else; refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from made_series import (
    BASE,
    EXECUTABLE,
    STEPS,
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
from patchset.into import apply_into
from patchset.series import load_series

BRANCH = "sm120/0.5.13"
ENVIRON = "python/sglang/srt/environ.py"
INDEXER = "python/sglang/srt/layers/indexer.py"
NEW = "python/sglang/srt/layers/sm120/config.py"


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return make_series(tmp_path_factory.mktemp("series"))


@pytest.fixture
def repo(tmp_path):
    """A checkout in git layout, at the pin's tag, with a stash and a config of its own."""
    repo = tmp_path / "my checkout ü"
    make_repository(repo, {**BASE, "README.md": b"upstream\n"})
    git(repo, "tag", "v0.5.13")
    git(repo, "config", "user.name", "A User")
    git(repo, "config", "user.email", "user@example.invalid")
    (repo / "README.md").write_bytes(b"stashed\n")
    git(repo, "stash", "push", "--quiet")
    (repo / "notes.txt").write_text("untracked\n")
    return repo


def git_dir(repo) -> Path:
    return Path(git(repo, "rev-parse", "--absolute-git-dir"))


def everything(repo) -> dict:
    """The work tree and all of the git directory but objects, which may be added."""
    return {
        path: content
        for path, content in snapshot(repo).items()
        if not path.startswith(
            (".git/objects/", ".git/refs/heads/sm120", ".git/logs/refs/heads/sm120")
        )
    }


def content_of(repo, revision, prefix="") -> dict:
    found = {}
    for entry in gitenv.run(repo, "ls-tree", "-r", "-z", revision).split(b"\0")[:-1]:
        mode, _, blob = entry.split(b"\t")[0].decode().split()
        path = prefix + entry.split(b"\t")[1].decode()
        found[path] = gitenv.run(repo, "cat-file", "blob", blob)
        assert mode == ("100755" if path == EXECUTABLE else "100644")
    return found


def refused(repo, series, **options) -> Failure:
    before = snapshot(repo)
    with pytest.raises(Failure) as caught:
        apply_into(series, repo, **options)
    changed = {path for path in snapshot(repo).items() if path not in before.items()}
    assert all(path.startswith(".git/objects/") for path, _ in changed), changed
    assert set(before) <= set(snapshot(repo))
    failure = caught.value
    assert failure.what and failure.where and failure.state and failure.next
    return failure


def test_a_branch_with_the_series_and_nothing_else_touched(repo, series):
    before = everything(repo)
    head = git(repo, "rev-parse", "HEAD")
    result = apply_into(series, repo)
    assert everything(repo) == before
    assert (result.state, result.branch, result.base) == ("made", BRANCH, head)
    assert git(repo, "rev-parse", BRANCH) == result.tip
    assert git(repo, "rev-parse", f"{BRANCH}~3") == head
    assert content_of(repo, BRANCH) == {**after(), "README.md": b"upstream\n"}
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"


def test_commits_carry_the_series_authors_and_dates(repo, series):
    apply_into(series, repo)
    form = "--format=%an <%ae> %aI|%cn <%ce> %cI|%s"
    for line, patch in zip(
        git(repo, "log", "-3", "--reverse", form, BRANCH).splitlines(), series.patches
    ):
        author, committer, subject = line.split("|")
        assert author == committer
        assert (
            author == "sm120 patches <patches@sm120.invalid> 2026-06-01T00:00:00+00:00"
        )
        assert subject == patch.subject


def test_the_branch_can_be_switched_to_and_runs_through(repo, series):
    apply_into(series, repo)
    git(repo, "switch", "--quiet", BRANCH)
    assert (repo / NEW).read_bytes() == b"WIDTH = 4\n"
    assert (repo / "notes.txt").exists()
    assert git(repo, "status", "--porcelain") == "?? notes.txt"


def test_the_same_head_gives_the_same_ids_in_every_clone(repo, series, tmp_path):
    subprocess.run(["git", "clone", "-q", str(repo), str(tmp_path / "b")], check=True)
    assert apply_into(series, repo).tip == apply_into(series, tmp_path / "b").tip


def test_sources_at_the_root_of_the_repository(tmp_path, series):
    repo = tmp_path / "bare layout"
    make_repository(repo, BASE, strip="python/")
    before = everything(repo)
    result = apply_into(series, repo)
    assert result.layout == "sglang/"
    assert everything(repo) == before
    assert content_of(repo, BRANCH, prefix="python/") == after()


def test_settings_and_hooks_of_the_checkout_do_not_matter(repo, series, tmp_path):
    plain = apply_into(series, repo, dry_run=True).tip
    ran = tmp_path / "ran"
    hooks = repo / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "reference-transaction",
        "post-commit",
        "pre-commit",
        "post-checkout",
        "post-index-change",
    ):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >>'{ran}'\nexit 1\n")
        (hooks / name).chmod(0o755)
    monitor = tmp_path / "monitor"  # run by a shell: its path must have no space
    monitor.write_bytes((hooks / "pre-commit").read_bytes())
    monitor.chmod(0o755)
    for key, value in {
        "commit.gpgSign": "true",
        "gpg.program": "false",
        "core.autocrlf": "true",
        "core.safecrlf": "true",
        "apply.whitespace": "fix",
        "apply.ignoreWhitespace": "change",
        "core.fsmonitor": str(monitor),
        "core.hooksPath": str(hooks),
        "i18n.commitEncoding": "latin1",
        "core.logAllRefUpdates": "always",
        "diff.noprefix": "true",
        "core.abbrev": "4",
        "status.showUntrackedFiles": "all",
    }.items():
        git(repo, "config", key, value)
    (repo / ".git" / "info").mkdir(exist_ok=True)
    (repo / ".git" / "info" / "attributes").write_text("* text eol=crlf ident\n")
    assert apply_into(series, repo).tip == plain
    assert not ran.exists()


def test_files_checked_out_with_other_line_ends_are_not_changes(repo, series):
    git(repo, "config", "core.autocrlf", "true")
    user = {**os.environ, "GIT_CONFIG_COUNT": "0"}
    (repo / ENVIRON).unlink()
    subprocess.run(
        ["git", "-C", str(repo), "checkout", "-q", "--", ENVIRON], env=user, check=True
    )
    assert b"\r\n" in (repo / ENVIRON).read_bytes()
    os.utime(repo / ENVIRON, (10**9, 10**9))
    assert apply_into(series, repo).state == "made"


def test_exported_git_variables_do_not_matter(repo, series, tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from patchset import gitenv; gitenv.scrub()\n"
        "from patchset.into import apply_into\n"
        "from patchset.series import load_series\n"
        "print(apply_into(load_series(Path(sys.argv[2])), Path(sys.argv[3])).tip)\n"
    )
    plain = apply_into(series, repo, dry_run=True).tip
    scripts = str(Path(gitenv.__file__).parents[1])
    hostile = {
        "GIT_DIR": str(tmp_path),
        "GIT_WORK_TREE": str(tmp_path),
        "GIT_INDEX_FILE": str(repo / ".git" / "index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "objects"),
        "GIT_COMMITTER_NAME": "someone",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "TZ": "Asia/Tokyo",
    }
    command = [sys.executable, "-c", program, scripts, str(series.directory), str(repo)]
    before = everything(repo)
    done = subprocess.run(
        command, env={**os.environ, **hostile}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.returncode) == (plain, 0), done.stderr
    assert everything(repo) == before


def test_a_detached_head(repo, series):
    git(repo, "checkout", "--quiet", "--detach")
    apply_into(series, repo)
    assert content_of(repo, BRANCH)[NEW] == b"WIDTH = 4\n"
    assert (repo / ".git" / "HEAD").read_text().strip() == git(
        repo, "rev-parse", "v0.5.13"
    )


def test_a_shallow_clone(repo, series, tmp_path):
    commit_all(repo, "one more")
    clone = [
        "git",
        "clone",
        "-q",
        "--depth=1",
        repo.as_uri(),
        str(tmp_path / "shallow"),
    ]
    subprocess.run(clone, check=True)
    assert git(tmp_path / "shallow", "rev-parse", "--is-shallow-repository") == "true"
    assert (
        apply_into(series, tmp_path / "shallow", dry_run=True).state == "would be made"
    )
    apply_into(series, tmp_path / "shallow")
    assert content_of(tmp_path / "shallow", BRANCH)[ENVIRON] == after()[ENVIRON]


def test_a_linked_work_tree(repo, series, tmp_path):
    linked = tmp_path / "linked tree"
    git(repo, "worktree", "add", "--quiet", "-b", "mine", str(linked))
    (repo / "README.md").write_bytes(b"dirty, but in the other work tree\n")
    before = everything(repo)
    apply_into(series, linked)
    assert everything(repo) == before
    assert git(linked, "rev-parse", f"{BRANCH}~3") == git(linked, "rev-parse", "mine")


def test_an_operation_counts_only_in_its_own_work_tree(repo, series, tmp_path):
    linked = tmp_path / "linked"
    git(repo, "worktree", "add", "--quiet", "-b", "mine", str(linked))
    (repo / ".git" / "MERGE_HEAD").write_text(git(repo, "rev-parse", "HEAD") + "\n")
    assert apply_into(series, linked).state == "made"


def test_a_submodule(repo, series, tmp_path):
    outer = tmp_path / "outer"
    make_repository(outer, {"README": b"outer\n"})
    allow = ["-c", "protocol.file.allow=always"]
    git(outer, *allow, "submodule", "add", "--quiet", str(repo), "vendor/sglang")
    before = everything(outer)
    apply_into(series, outer / "vendor" / "sglang")
    changed = {p for p, c in everything(outer).items() if before.get(p) != c}
    module = ".git/modules/vendor/sglang/"
    assert all(
        p.startswith(
            (
                f"{module}objects/",
                f"{module}refs/heads/sm120",
                f"{module}logs/refs/heads/sm120",
            )
        )
        for p in changed
    )
    assert content_of(outer / "vendor" / "sglang", BRANCH)[NEW]


def test_a_second_apply_says_so(repo, series):
    apply_into(series, repo)
    before = everything(repo), git(repo, "rev-parse", BRANCH)
    result = apply_into(series, repo)
    assert result.state == "already there"
    assert (everything(repo), git(repo, "rev-parse", BRANCH)) == before


def test_apply_on_the_branch_itself_says_so(repo, series):
    apply_into(series, repo)
    git(repo, "switch", "--quiet", BRANCH)
    result = apply_into(series, repo)
    assert (result.state, result.branch) == ("already there", BRANCH)
    assert "next" not in "\n".join(result.lines())


def test_a_dry_run_writes_not_even_objects(repo, series):
    before = snapshot(repo)
    planned = apply_into(series, repo, dry_run=True)
    assert planned.state == "would be made"
    assert snapshot(repo) == before
    assert planned.tip == apply_into(series, repo).tip


def test_upto_cuts_the_series(repo, series):
    result = apply_into(series, repo, upto="0020")
    assert len(result.applied) == 2
    assert content_of(repo, BRANCH)[ENVIRON] == after(2)[ENVIRON]
    git(repo, "switch", "--quiet", BRANCH)
    assert apply_into(series, repo, upto="0020").state == "already there"
    failure = refused(repo, series)
    assert "2 of 3 patches are in HEAD already" in failure.what


def test_a_branch_with_another_content_is_named_and_moved_only_by_force(repo, series):
    apply_into(series, repo, upto="0020")
    old = git(repo, "rev-parse", BRANCH)
    failure = refused(repo, series)
    assert failure.code == Exit.PATCH
    assert "exists already" in failure.what and "2 of 3 patches" in failure.where
    assert "--force" in failure.next
    assert apply_into(series, repo, force=True, dry_run=True).state == "would be moved"
    assert git(repo, "rev-parse", BRANCH) == old
    result = apply_into(series, repo, force=True)
    assert (result.state, result.previous) == ("moved", old)
    assert any(old in line for line in result.lines())
    assert git(repo, "rev-parse", BRANCH) == result.tip


def test_a_branch_of_somebody_elses_is_told(repo, series):
    git(repo, "branch", BRANCH)
    git(repo, "switch", "--quiet", BRANCH)
    (repo / ENVIRON).write_bytes(b"mine\n")
    commit_all(repo, "my own work")
    git(repo, "switch", "--quiet", "main")
    failure = refused(repo, series)
    assert "no step of the series" in failure.where and "my own work" in failure.where


@pytest.mark.parametrize("linked", [False, True])
def test_force_does_not_move_a_branch_that_is_checked_out(
    repo, series, tmp_path, linked
):
    apply_into(series, repo, upto="0010")
    if linked:
        git(repo, "worktree", "add", "--quiet", str(tmp_path / "linked"), BRANCH)
        failure = refused(repo, series, force=True)
        assert (
            "is checked out" in failure.what
            and str(tmp_path / "linked") in failure.where
        )
    else:
        git(repo, "switch", "--quiet", BRANCH)
        assert "1 of 3 patches are in HEAD" in refused(repo, series, force=True).what


@pytest.mark.parametrize("name", ["sm120", f"{BRANCH}/mine"])
def test_a_branch_name_in_the_way(repo, series, name):
    git(repo, "branch", name)
    failure = refused(repo, series)
    assert f"{name!r} is in the way" in failure.what and "branch -m" in failure.next


def test_other_branches_of_the_family_are_not_in_the_way(repo, series):
    git(repo, "branch", "sm120/0.5.12")
    git(repo, "branch", "sm120/0.5.130")
    assert apply_into(series, repo).state == "made"


def test_changes_that_are_not_committed_are_listed(repo, series):
    for number in range(12):
        (repo / f"file{number:02}.txt").write_text("new\n")
    git(repo, "add", "--all")
    (repo / ENVIRON).write_bytes(b"edited\n")
    failure = refused(repo, series)
    assert failure.code == Exit.PATCH and "not committed" in failure.what
    lines = failure.where.splitlines()
    assert len(lines) == 12 and lines[-1] == "and 4 more"
    assert "stash" in failure.next


def test_a_deleted_file_is_a_change(repo, series):
    (repo / "README.md").unlink()
    assert "README.md" in refused(repo, series).where


def test_an_untracked_file_where_the_series_puts_its_own(repo, series):
    write_files(repo, {NEW: b"mine\n"})
    failure = refused(repo, series)
    assert f"?? {NEW}" in failure.where


@pytest.mark.parametrize(
    "mark, name, way_out",
    [
        ("rebase-apply/applying", "git am", "am --abort"),
        ("rebase-apply/rebasing", "git rebase", "rebase --abort"),
        ("rebase-merge/onto", "git rebase", "rebase --abort"),
        ("MERGE_HEAD", "git merge", "merge --abort"),
        ("CHERRY_PICK_HEAD", "git cherry-pick", "cherry-pick --abort"),
        ("REVERT_HEAD", "git revert", "revert --abort"),
    ],
)
def test_operations_in_progress_by_their_marks(repo, series, mark, name, way_out):
    path = repo / ".git" / mark
    path.parent.mkdir(exist_ok=True)
    path.write_text(git(repo, "rev-parse", "HEAD") + "\n")
    failure = refused(repo, series)
    assert failure.what.startswith(f"{name} is in progress") and way_out in failure.next


def test_a_real_git_am_that_stopped(repo, series):
    (repo / ENVIRON).write_bytes(b"other\n")
    commit_all(repo, "other")
    command = ["git", "-C", str(repo), "am", "--quiet", str(series.patches[1].path)]
    assert subprocess.run(command, capture_output=True).returncode
    failure = refused(repo, series)
    assert "git am is in progress" in failure.what


def test_files_that_are_not_the_pins_are_listed_with_the_nearest_release(repo, series):
    git(repo, "tag", "--delete", "v0.5.13")
    git(repo, "tag", "v0.5.12")
    (repo / INDEXER).write_bytes(b"changed\n")
    commit_all(repo, "later work")
    failure = refused(repo, series)
    assert failure.code == Exit.PATCH and "1 file" in failure.what
    assert "v0.5.12-1-g" in failure.what and INDEXER in failure.where
    assert "v0.5.13" in failure.next


def test_half_applied_is_told_apart(repo, series):
    write_files(repo, {INDEXER: after()[INDEXER]})
    commit_all(repo, "by hand")
    failure = refused(repo, series)
    assert (
        "half applied" in failure.what and f"{INDEXER}: 0030-indexer" in failure.where
    )


def test_patches_in_head_are_counted(repo, series):
    write_files(repo, STEPS[0][1])
    commit_all(repo, "by hand")
    assert "1 of 3 patches are in HEAD" in refused(repo, series).what


@pytest.mark.parametrize("version", ["0.5.12", "0.5.14"])
@pytest.mark.parametrize(
    "told_by", ["tag", "_version.py", "version.py", "pyproject.toml"]
)
def test_another_version_is_named(tmp_path, series, version, told_by):
    repo = tmp_path / "repo"
    files = {
        "_version.py": (
            "python/sglang/_version.py",
            f"__version__ = version = '{version}'\n",
        ),
        "version.py": ("python/sglang/version.py", f'__version__ = "{version}"\n'),
        "pyproject.toml": (
            "python/pyproject.toml",
            f'[project]\nversion = "{version}"\n',
        ),
    }
    path, text = files.get(told_by, ("README", ""))
    make_repository(repo, {**BASE, path: text.encode()})
    if told_by == "tag":
        git(repo, "tag", f"v{version}")
    failure = refused(repo, series)
    assert failure.code == Exit.PATCH
    assert f"SGLang {version}, the series is for 0.5.13" in failure.what


def test_tags_that_name_no_release_do_not_matter(repo, series):
    git(repo, "tag", "gateway-v0.3.1")
    git(repo, "tag", "vendor-drop")
    assert apply_into(series, repo).state == "made"


def test_not_a_checkout(tmp_path, series, repo):
    cases = {
        tmp_path / "none": (Exit.USAGE, "no such directory"),
        tmp_path / "plain": (Exit.PATCH, "not a git repository"),
        tmp_path / "bare.git": (Exit.PATCH, "bare repository"),
        tmp_path / "unborn": (Exit.PATCH, "no commit yet"),
        tmp_path / "other": (Exit.PATCH, "no SGLang sources"),
        repo / "python": (Exit.USAGE, "inside a checkout"),
        repo / ".git": (Exit.PATCH, "a git directory"),
    }
    (tmp_path / "plain").mkdir()
    git(tmp_path, "init", "--quiet", "--bare", "bare.git")
    git(tmp_path, "init", "--quiet", "unborn")
    make_repository(tmp_path / "other", {"README": b"other\n"})
    for directory, (code, words) in cases.items():
        before = snapshot(tmp_path)
        with pytest.raises(Failure) as caught:
            apply_into(series, directory)
        assert (caught.value.code, words in caught.value.what) == (
            code,
            True,
        ), caught.value.what
        assert (
            caught.value.where.startswith(str(directory))
            and "--into" in caught.value.next
        )
        assert snapshot(tmp_path) == before


def test_a_directory_inside_an_unrelated_repository(tmp_path, series):
    project = tmp_path / "project"
    make_repository(project, {"README": b"project\n"})
    site = project / ".venv" / "lib" / "site-packages"
    site.mkdir(parents=True)
    assert "inside a checkout" in refused(site, series).what


def test_a_relative_directory_and_a_link_to_it(repo, series, tmp_path, monkeypatch):
    monkeypatch.chdir(repo)
    assert apply_into(series, Path(".")).state == "made"
    (tmp_path / "link").symlink_to(repo)
    assert apply_into(series, tmp_path / "link").state == "already there"


def test_one_patch_in_the_middle_conflicts(repo, tmp_path, series):
    """The files are the pin's, but a patch does not fit them: it was edited by hand."""
    broken = make_series(tmp_path / "broken")
    path = broken.patches[1].path
    path.write_bytes(path.read_bytes().replace(b" line 4\n", b" line four\n"))
    failure = refused(repo, load_series(broken.directory))
    assert failure.code == Exit.PATCH and "0020-environ" in failure.what
    assert git(repo, "for-each-ref", "refs/heads/sm120") == ""


@pytest.mark.parametrize("where", ["objects", "refs"])
def test_a_repository_that_cannot_be_written(repo, series, where, monkeypatch):
    """As root a mode stops nobody, so git's own words are given to it there."""
    real = gitenv.run
    asked, said = {
        "objects": (
            "write-tree",
            b"error: insufficient permission for adding an object to repository database",
        ),
        "refs": (
            "update-ref",
            b"fatal: cannot lock ref: Unable to create 'x.lock': Read-only file system",
        ),
    }[where]

    def run(cwd, *args, **options):
        if asked in args:
            raise gitenv.GitCommandError(["git", *args], 128, said)
        return real(cwd, *args, **options)

    monkeypatch.setattr(gitenv, "run", run)
    failure = refused(repo, series)
    assert failure.code == Exit.ENVIRONMENT and "can't be written" in failure.what
    assert git(repo, "for-each-ref", "refs/heads/sm120") == ""


def test_a_disk_that_is_really_full(small_disk, series):
    repo = small_disk / "repo"
    make_repository(repo, BASE)
    before = everything(repo)
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as out:
        try:
            while out.write(b"\0" * 4096):
                pass
        except OSError:
            pass
    with pytest.raises(Failure) as caught:
        apply_into(series, repo)
    assert caught.value.code == Exit.ENVIRONMENT and "disk is full" in caught.value.what
    assert everything(repo) == before and not git(
        repo, "for-each-ref", "refs/heads/sm120"
    )
    filler.unlink()
    assert apply_into(series, repo).state == "made"


def test_a_read_only_file_system(small_disk, series):
    repo = small_disk / "repo"
    make_repository(repo, BASE)
    before = snapshot(repo)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(Failure) as caught:
        apply_into(series, repo)
    assert (
        caught.value.code == Exit.ENVIRONMENT
        and "can't be written" in caught.value.what
    )
    assert snapshot(repo) == before
    assert apply_into(series, repo, dry_run=True).state == "would be made"


class Stopped:
    """Within the block, `act` is called before the n-th git command."""

    def __init__(self, at: int, act):
        self.at, self.act, self.seen = at, act, 0
        self.patch = pytest.MonkeyPatch()

    def __enter__(self):
        self.real = gitenv.run
        self.patch.setattr(gitenv, "run", self.run)

    def run(self, cwd, *args, **options):
        self.seen += 1
        if self.seen == self.at:
            self.act()
        return self.real(cwd, *args, **options)

    def __exit__(self, *_):
        self.patch.undo()


def test_killed_before_any_git_command(repo, series):
    before = everything(repo)
    for at in range(1, 100):
        child = os.fork()
        if child == 0:
            try:
                with Stopped(at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                    apply_into(series, repo)
            finally:
                os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert everything(repo) == before
        if not killed:
            break
        assert git(repo, "for-each-ref", "refs/heads/sm120") == ""
    assert 15 < at < 99
    assert apply_into(series, repo).state == "already there"
    assert content_of(repo, BRANCH)[NEW] == b"WIDTH = 4\n"


def test_interrupted_before_any_git_command(repo, series):
    def interrupt():
        raise KeyboardInterrupt

    before = everything(repo)
    for at in range(1, 100):
        try:
            with Stopped(at, interrupt):
                apply_into(series, repo)
        except KeyboardInterrupt:
            assert git(repo, "for-each-ref", "refs/heads/sm120") == ""
        else:
            break
        finally:
            assert everything(repo) == before
    assert 15 < at < 99
    assert content_of(repo, BRANCH)[NEW] == b"WIDTH = 4\n"


def test_many_at_once_make_one_branch(repo, series):
    before = everything(repo)
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = (
                    0
                    if apply_into(series, repo).state in ("made", "already there")
                    else 2
                )
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
    assert everything(repo) == before
    assert content_of(repo, BRANCH)[ENVIRON] == after()[ENVIRON]


def test_another_branch_that_appears_meanwhile_is_not_overwritten(
    repo, series, monkeypatch
):
    real = gitenv.run

    def run(cwd, *args, **options):
        if "update-ref" in args:
            monkeypatch.setattr(gitenv, "run", real)
            git(repo, "branch", BRANCH)
        return real(cwd, *args, **options)

    monkeypatch.setattr(gitenv, "run", run)
    with pytest.raises(Failure, match="exists already"):
        apply_into(series, repo)
    assert git(repo, "rev-parse", BRANCH) == git(repo, "rev-parse", "HEAD")


def test_the_result_as_lines_and_json(repo, series):
    result = apply_into(series, repo)
    lines = result.lines()
    assert [name in line for line, (name, _) in zip(lines, STEPS)] == [True] * 3
    assert any("switch" in line and f"'{repo}'" in line for line in lines)
    values = result.as_json()
    assert values["source"] == "into" and values["tip"] == result.tip
    assert [patch["commit"] for patch in values["patches"]] == [
        each.commit for each in result.applied
    ]
