"""The same commit ids whatever the user's machine says, and the same by hand with `git am`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from made_wheel import ROOT, command, environment, started
from patchset import base, gitenv
from patchset.commits import commit_series
from patchset.series import load_series

HOSTILE = """
[user]
	name = Someone Else
	email = someone@example.invalid
[commit]
	gpgSign = true
	template = /nowhere/template
	cleanup = verbatim
[gpg]
	program = false
[tag]
	gpgSign = true
	forceSignAnnotated = true
[core]
	autocrlf = true
	safecrlf = true
	eol = crlf
	fileMode = false
	ignoreCase = true
	symlinks = false
	excludesFile = {home}/ignore
	attributesFile = {home}/attributes
	hooksPath = {home}/hooks
	fsmonitor = false
	whitespace = tab-in-indent,trailing-space
	bigFileThreshold = 1
	quotePath = false
	precomposeUnicode = true
[apply]
	whitespace = fix
	ignoreWhitespace = change
[am]
	keepcr = true
	threeWay = true
	messageId = true
[mailinfo]
	scissors = true
[init]
	defaultBranch = other
	templateDir = {home}/template
	defaultObjectFormat = sha256
[i18n]
	commitEncoding = latin1
	logOutputEncoding = utf-16
[format]
	signOff = true
	attach = true
[diff]
	noprefix = true
	renames = copies
[feature]
	manyFiles = true
[index]
	version = 4
	sparse = true
[safe]
	directory = /nowhere
[transfer]
	fsckObjects = true
[trailer]
	ifexists = addIfDifferent
[fastimport]
	unpackLimit = 1000000
[log]
	date = relative
[extensions]
	objectFormat = sha256
"""


@pytest.fixture(scope="module")
def hostile_home(tmp_path_factory) -> Path:
    """A home directory whose git settings change whatever they can."""
    home = tmp_path_factory.mktemp("home")
    for name in (".gitconfig", ".config/git/config"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(HOSTILE.format(home=home))
    for name in ("ignore", ".config/git/ignore"):
        (home / name).write_text("*\n*.py\n*.json\nsglang\n")
    for name in ("attributes", ".config/git/attributes"):
        (home / name).write_text(
            "* text=auto eol=crlf ident working-tree-encoding=UTF-16\n"
        )
    for place in ("hooks", "template/hooks"):
        (home / place).mkdir(parents=True)
        for hook in (
            "pre-commit",
            "commit-msg",
            "post-checkout",
            "reference-transaction",
        ):
            (home / place / hook).write_text("#!/bin/sh\nexit 1\n")
            (home / place / hook).chmod(0o755)
    (home / "template" / "info").mkdir()
    (home / "template" / "info" / "attributes").write_text("* text eol=crlf\n")
    (home / "template" / "config").write_text("[core]\n\tautocrlf = true\n")
    return home


def settings(home: Path) -> dict[str, str]:
    """Every variable by which a shell could get at git."""
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_SYSTEM": str(home / ".gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "0",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "core.autocrlf",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_CONFIG_KEY_1": "commit.gpgSign",
        "GIT_CONFIG_VALUE_1": "true",
        "GIT_CONFIG_PARAMETERS": "'apply.whitespace=fix'",
        "GIT_DIR": "/nowhere/.git",
        "GIT_WORK_TREE": "/nowhere",
        "GIT_INDEX_FILE": "/nowhere/index",
        "GIT_OBJECT_DIRECTORY": "/nowhere/objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": "/nowhere/more",
        "GIT_NAMESPACE": "theirs",
        "GIT_PREFIX": "x/",
        "GIT_TEMPLATE_DIR": str(home / "template"),
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_DEFAULT_BRANCH": "other",
        "GIT_AUTHOR_NAME": "Someone Else",
        "GIT_AUTHOR_EMAIL": "someone@example.invalid",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00+0300",
        "GIT_COMMITTER_NAME": "Someone Else",
        "GIT_COMMITTER_EMAIL": "someone@example.invalid",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00+0300",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ICASE_PATHSPECS": "1",
        "GIT_ATTR_SOURCE": "HEAD",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_DIFF_OPTS": "-u9",
        "GIT_CEILING_DIRECTORIES": "/",
        "GIT_EXEC_PATH": "/nowhere",
        "GIT_TRACE": "1",
        "GIT_REPLACE_REF_BASE": "refs/theirs/",
        "LC_ALL": "tr_TR.UTF-8",
        "LANG": "de_DE.ISO-8859-1",
        "TZ": "Asia/Kathmandu",
        "EDITOR": "false",
        "PAGER": "false",
    }


# The others could hide what one of these does.
ALONE = [
    "HOME",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_INDEX_FILE",
]
ALONE += ["GIT_OBJECT_DIRECTORY", "GIT_DEFAULT_HASH", "GIT_AUTHOR_DATE", "LC_ALL", "TZ"]


def small_line(small, target: Path, *more: str) -> tuple:
    line = ("apply", "--patches", small.patches, "--wheel", small.wheel)
    return (*line, "--to", target, "--json", *more)


def ids(done) -> tuple[str, list[str]]:
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return result["tip"], [patch["tree"] for patch in result["patches"]]


@pytest.fixture(scope="module")
def small_ids(small, tmp_path_factory) -> tuple[str, list[str]]:
    target = tmp_path_factory.mktemp("plain") / "t"
    return ids(started(*small_line(small, target)))


def contents(tree: Path) -> dict[str, bytes]:
    files = (path for path in (tree / "python").rglob("*") if path.is_file())
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in files}


def test_with_a_hostile_home_and_shell(
    small, small_tree, small_ids, hostile_home, tmp_path
):
    where = tmp_path / "else where \u00e9"
    where.mkdir()
    done = started(
        *small_line(small, where / "t"),
        env=settings(hostile_home),
        cwd=where,
        umask=0o077,
    )
    assert ids(done) == small_ids
    assert contents(where / "t") == contents(small_tree)
    # The user's own git, with the user's own settings, still checks out the same bytes.
    before = contents(where / "t")
    shutil.rmtree(where / "t" / "python")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    line = [
        "git",
        "-c",
        "extensions.objectFormat=sha1",
        "-c",
        "core.hooksPath=/dev/null",
    ]
    subprocess.run(
        [*line, "checkout", "--quiet", "HEAD", "--", "python"],
        cwd=where / "t",
        env={**env, "HOME": str(hostile_home)},
        check=True,
    )
    assert contents(where / "t") == before


@pytest.mark.parametrize("name", ALONE)
def test_no_single_variable_matters(small, small_ids, hostile_home, tmp_path, name):
    value = settings(hostile_home)[name]
    env = {name: value}
    if name == "GIT_CONFIG_COUNT":
        env = {k: v for k, v in settings(hostile_home).items() if name[:10] in k}
    done = started(*small_line(small, tmp_path / "t", "--dry-run"), env=env)
    assert ids(done) == small_ids


def test_inside_another_repository(small, small_ids, tmp_path):
    gitenv.run(tmp_path, "init", "--quiet", "--template=")
    (tmp_path / ".gitattributes").write_text("* text eol=crlf\n")
    (tmp_path / ".gitignore").write_text("*\n")
    target = tmp_path / "build" / "t"
    assert ids(started(*small_line(small, target), cwd=tmp_path)) == small_ids
    assert gitenv.text(target, "status", "--porcelain") == ""


def pythons() -> dict[str, str]:
    """The supported interpreters that are here."""
    found = {}
    for version in ("3.11", "3.12", "3.13"):
        for name in (
            f"python{version}",
            *Path.home().glob(f".pyenv/versions/{version}*/bin/python"),
        ):
            probe = [str(name), "-c", "import sys; print(sys.version_info[:2])"]
            try:
                said = subprocess.run(probe, capture_output=True, text=True).stdout
            except OSError:
                continue
            if said.strip() == str(tuple(map(int, version.split(".")))):
                found[version] = str(name)
                break
    return found


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_supported_python(small, small_ids, hostile_home, tmp_path, version):
    python = pythons().get(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    # The packages are pure Python: those of the interpreter that runs the tests do.
    packages = Path(gitenv.git.__file__).parents[1]
    env = environment(settings(hostile_home))
    env["PYTHONPATH"] += os.pathsep + str(packages)
    line = command(*small_line(small, tmp_path / "t"))
    done = subprocess.run([python, *line[1:]], env=env, capture_output=True, text=True)
    assert ids(done) == small_ids


@pytest.fixture(scope="module")
def real(real_base):
    """The real series, as commits in a repository of its own."""
    series = load_series(ROOT / "patches" / "0.5.13")
    return series, commit_series(real_base, series.pin.commit, series)


def test_the_real_tree_with_a_hostile_home(real, real_wheel, hostile_home, tmp_path):
    series, applied = real
    line = ("apply", "--wheel", real_wheel, "--to", tmp_path / "t", "--json")
    done = started(*line, env=settings(hostile_home), cwd=tmp_path, umask=0o077)
    assert ids(done) == (applied[-1].commit, [each.tree for each in applied])
    assert json.loads(done.stdout)["base"] == series.pin.commit
    assert gitenv.text(tmp_path / "t", "status", "--porcelain") == ""


def test_the_real_series_by_hand(real, real_base, tmp_path):
    """The README's way without any tool of ours."""
    series, applied = real
    tree = tmp_path / "by hand"
    shutil.copytree(real_base, tree)
    gitenv.run(tree, "checkout", "--quiet", "-B", "by-hand", base.REF)
    files = [str(patch.path) for patch in series.patches]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def am(*options: str, **who: str) -> str:
        gitenv.run(tree, "reset", "--hard", "--quiet", base.REF)
        line = ["git", "am", "--quiet", *options, *files]
        subprocess.run(line, cwd=tree, env=env | who, check=True)
        return gitenv.text(tree, "rev-parse", "HEAD")

    bare = am(GIT_COMMITTER_NAME="x", GIT_COMMITTER_EMAIL="x@example.invalid")
    assert gitenv.text(tree, "rev-parse", f"{bare}^{{tree}}") == applied[-1].tree
    exact = am(
        "--committer-date-is-author-date",
        GIT_COMMITTER_NAME="sm120 patches",
        GIT_COMMITTER_EMAIL="patches@sm120.invalid",
    )
    assert exact == applied[-1].commit


def test_the_base_is_the_wheel_without_what_is_not_upstreams(real_base, real_wheel):
    listing = gitenv.text(real_base, "ls-tree", "-r", base.REF).splitlines()
    assert len(listing) == 3130
    assert sum(line.startswith("100755 ") for line in listing) == 18
    names = [line.split("\t")[1].strip('"') for line in listing]
    assert all(name.startswith("python/sglang/") for name in names)
    assert not [name for name in names if name.endswith(".so")]
