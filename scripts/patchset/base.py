"""The base commit: upstream's sources, imported straight from the wheel's zip entries."""

from __future__ import annotations

import calendar
import re
import zipfile
import zlib
from pathlib import Path
from typing import Iterator

from . import gitenv
from .errors import Exit, Failure
from .layout import RELEASE
from .pin import Pin

REF = "refs/patchset/base"
STOCK_TAG = "checkpoint/0000-stock"
BRANCH = f"sm120-{RELEASE}"
IDENTITY = "sm120 patches <patches@sm120.invalid>"
ATTRIBUTES = "* -text -ident -filter !working-tree-encoding\n"

# The one file that differs between Python versions and machines.
_COMPILED = re.compile(r"sglang/srt/grpc/_core[^/]*\.so")


def init_repository(directory: Path) -> None:
    """Make an empty repository whose checkouts keep every byte, whatever the user's settings."""
    branch = f"--initial-branch={BRANCH}"
    gitenv.run(directory, "init", "--quiet", "--template=", branch)
    gitenv.run(directory, "config", "core.autocrlf", "false")
    info = Path(directory) / ".git" / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(ATTRIBUTES)


def import_base(repo_dir: Path, wheel: Path, pin: Pin) -> str:
    """Import the wheel's sources as one commit under REF and return its id.

    The wheel's sglang/ becomes python/sglang/, as in upstream's repository; the compiled module,
    tools/ and the metadata stay out. Raises Failure(PATCH) when the tree or commit is not the
    pinned one, Failure(ENVIRONMENT) when the zip cannot be read.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            command = ["fast-import", "--quiet", "--done", "--date-format=raw"]
            gitenv.feed(repo_dir, *command, chunks=_stream(archive, pin.version))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"the wheel is a corrupt zip: {error}",
            where=str(wheel),
            state="nothing was changed",
            next="delete that file and run the same command again",
        ) from None
    tree = gitenv.text(repo_dir, "rev-parse", f"{REF}^{{tree}}")
    commit = gitenv.text(repo_dir, "rev-parse", REF)
    for kind, found, wanted in (
        ("tree", tree, pin.tree),
        ("commit", commit, pin.commit),
    ):
        if found != wanted:
            raise Failure(
                Exit.PATCH,
                f"the imported base differs from the pin: {kind} {found}, pinned {wanted}",
                where=str(wheel),
                state="nothing was changed",
                next="check upstream.toml, and that the wheel is the pinned one",
            )
    return commit


def _stream(archive: zipfile.ZipFile, version: str) -> Iterator[bytes]:
    entries = [entry for entry in archive.infolist() if _is_source(entry)]
    seconds = calendar.timegm((*max(e.date_time for e in entries), 0, 0, 0))
    message = f"SGLang {version}, as its wheel on PyPI has it\n".encode()
    who = f"{IDENTITY} {seconds} +0000"
    yield f"commit {REF}\nauthor {who}\ncommitter {who}\n".encode()
    yield b"data %d\n%s" % (len(message), message)
    for entry in entries:
        content = archive.read(entry)
        mode = "100755" if entry.external_attr >> 16 & 0o111 else "100644"
        yield f"M {mode} inline python/{entry.filename}\n".encode()
        yield b"data %d\n" % len(content)
        yield content
        yield b"\n"
    yield b"done\n"


def _is_source(entry: zipfile.ZipInfo) -> bool:
    return (
        entry.filename.startswith("sglang/")
        and not entry.is_dir()
        and not _COMPILED.fullmatch(entry.filename)
    )
