"""Small series made for a test: a few files, edits, and the patch files that git writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from patchset import gitenv
from patchset.series import Series, load_series

AUTHOR = "sm120 patches <patches@sm120.invalid>"
DATE = "Mon, 1 Jun 2026 00:00:00 +0000"

Files = Mapping[str, bytes | None]

LINES = b"".join(b"line %d\n" % n for n in range(1, 41))
BASE: dict[str, bytes] = {
    "python/sglang/__init__.py": b"",
    "python/sglang/srt/__init__.py": b"",
    "python/sglang/srt/environ.py": LINES,
    "python/sglang/srt/layers/indexer.py": LINES.replace(b"line", b"row"),
    "python/sglang/srt/layers/run.sh": b"#!/bin/sh\n",
}


def edited(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


ENVIRON_1 = edited(LINES, b"line 3\n", b"line 3\nflag = 1\n")
ENVIRON_2 = edited(ENVIRON_1, b"line 30\n", b"flag 30\n")
INDEXER_1 = edited(
    BASE["python/sglang/srt/layers/indexer.py"], b"row 7\n", b"row seven\n"
)

STEPS: list[tuple[str, Files]] = [
    (
        "0010-kernels",
        {
            "python/sglang/srt/layers/sm120/__init__.py": b"",
            "python/sglang/srt/layers/sm120/config.py": b"WIDTH = 4\n",
        },
    ),
    ("0020-environ", {"python/sglang/srt/environ.py": ENVIRON_1}),
    (
        "0030-indexer",
        {
            "python/sglang/srt/environ.py": ENVIRON_2,
            "python/sglang/srt/layers/indexer.py": INDEXER_1,
            "python/sglang/srt/layers/run.sh": b"#!/bin/sh\nexec true\n",
        },
    ),
]
EXECUTABLE = "python/sglang/srt/layers/run.sh"


def after(count: int | None = None) -> dict[str, bytes]:
    """BASE after the first `count` of STEPS (None: all)."""
    files = dict(BASE)
    for _, changes in STEPS[:count]:
        files.update(changes)
    return files


def git(directory: Path, *args: str, input: bytes | None = None) -> str:
    return gitenv.run(directory, *args, input=input).decode().strip()


def write_files(root: Path, files: Files, strip: str = "") -> None:
    for path, data in files.items():
        target = root / path.removeprefix(strip)
        if data is None:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o755 if path == EXECUTABLE else 0o644
        target.write_bytes(data)
        target.chmod(mode)


def commit_all(repo: Path, message: str) -> str:
    gitenv.run(repo, "add", "--all", "--force")
    name, email = re.fullmatch(r"(.*) <(.*)>", AUTHOR).groups()
    who = {}
    for role in ("AUTHOR", "COMMITTER"):
        who |= {
            f"GIT_{role}_NAME": name,
            f"GIT_{role}_EMAIL": email,
            f"GIT_{role}_DATE": DATE,
        }
    gitenv.run(
        repo,
        "commit",
        "--quiet",
        "--allow-empty",
        "--no-verify",
        "-m",
        message,
        env=who,
    )
    return git(repo, "rev-parse", "HEAD")


def make_repository(
    repo: Path, files: Files, strip: str = "", branch: str = "main"
) -> str:
    """A git repository with one commit of `files`; its id."""
    repo.mkdir(parents=True, exist_ok=True)
    gitenv.run(repo, "init", "--quiet", "--template=", f"--initial-branch={branch}")
    write_files(repo, files, strip)
    return commit_all(repo, "base")


def make_series(
    directory: Path,
    base: Files = BASE,
    steps: list[tuple[str, Files]] = STEPS,
    version: str = "0.5.13",
    git_url: str = "https://git.invalid/sglang",
) -> Series:
    """Writes a patch directory below `directory` and loads it."""
    repo, patches = directory / "made", directory / "patches"
    commit = make_repository(repo, base)
    tree = git(repo, "rev-parse", "HEAD^{tree}")
    patches.mkdir()
    for name, files in steps:
        write_files(repo, files)
        trailers = (
            f"Patch: {name}\nUpstream-Status: Inappropriate [test]\nEvidence: none"
        )
        commit_all(repo, f"{name[5:]}: change what {name} says\n\nWhy.\n\n{trailers}")
        form = [
            "--full-index",
            "--zero-commit",
            "--no-signature",
            "--no-renames",
            "-1",
            "--stdout",
        ]
        (patches / f"{name}.patch").write_bytes(gitenv.run(repo, "format-patch", *form))
    (patches / "upstream.toml").write_text(
        f'version = "{version}"\ntag = "v{version}"\ntree = "{tree}"\ncommit = "{commit}"\n'
        f'git_url = "{git_url}"\n\n[[wheel]]\nname = "sglang-{version}-py3-none-any.whl"\n'
        f'sha256 = "{"0" * 64}"\nplatform = "any"\npython = "3"\n'
    )
    return load_series(patches)


def snapshot(root: Path) -> dict[str, tuple]:
    """Every path below `root` with its mode and bytes (or link target), to compare."""
    seen = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content = path.readlink()
        elif path.is_dir():
            content = None
        else:
            content = path.read_bytes()
        seen[path.relative_to(root).as_posix()] = (status.st_mode, content)
    return seen
