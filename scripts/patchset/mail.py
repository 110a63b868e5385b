"""The form that `git format-patch` gives a commit: mail headers, message, unified diff."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRAILER = re.compile(r"([A-Z][A-Za-z]*(?:-[A-Z][A-Za-z]*)*): (.*)")
_INDEX = re.compile(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: ([0-7]{6}))?")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_BLOB = "0" * 40


class MalformedPatch(ValueError):
    """The bytes are not a patch file; the text says what and on which line."""


@dataclass(frozen=True)
class FileChange:
    """One file of one patch: its blob ids and modes before and after (None: the file is absent)."""

    path: str
    old_blob: str | None
    new_blob: str | None
    old_mode: str | None
    new_mode: str | None
    added: int
    removed: int
    hunks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """Everything above the `---` line of a patch file."""

    author: str
    date: str
    subject: str
    body: str
    trailers: dict[str, str]

    @property
    def message(self) -> str:
        """The whole commit message, as `git am` would record it."""
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"


def parse(data: bytes) -> tuple[Head, tuple[FileChange, ...], bytes]:
    """Parse one patch file into its head, its changes and its diff. Raises MalformedPatch."""
    head, diff, diff_line = _split(data)
    return parse_head(head), tuple(_changes(diff, diff_line)), diff


def parse_head(head: bytes) -> Head:
    """Parse what stands above the `---` line. Raises MalformedPatch."""
    head = head.split(b"\n---\n")[0]
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        line = head[: error.start].count(b"\n") + 1
        raise MalformedPatch(f"line {line}: not ASCII") from None
    headers, rest = _headers(lines)
    body = "\n".join(rest).strip("\n")
    return Head(
        author=headers["From"],
        date=headers["Date"],
        subject=re.sub(r"^\[PATCH[^\]]*\] *", "", headers["Subject"]),
        body=body,
        trailers=trailers(body),
    )


def trailers(body: str) -> dict[str, str]:
    """The `Key: value` lines of the last paragraph; a line that starts with a space continues."""
    found: dict[str, str] = {}
    key = None
    for line in body.strip("\n").split("\n\n")[-1].split("\n"):
        match = _TRAILER.fullmatch(line)
        if match:
            key = match.group(1)
            found[key] = match.group(2).strip()
        elif key and line.startswith(" "):
            found[key] += " " + line.strip()
        else:
            return {}
    return found


def _split(data: bytes) -> tuple[bytes, bytes, int]:
    """Cut a patch file into (headers and message, diff, line number of the diff)."""
    end = data.find(b"\n---\n")
    if end < 0:
        raise MalformedPatch("no '---' line between the message and the diff")
    start = data.find(b"\ndiff --git ", end)
    if start < 0:
        raise MalformedPatch("no 'diff --git' line: the patch changes nothing")
    return data[:end], data[start + 1 :], data[: start + 1].count(b"\n") + 1


def _headers(lines: list[str]) -> tuple[dict[str, str], list[str]]:
    if not re.fullmatch(r"From [0-9a-f]{40} Mon Sep 17 00:00:00 2001", lines[0]):
        raise MalformedPatch("line 1: not the first line of a git format-patch file")
    headers: dict[str, str] = {}
    key = None
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            break
        if line.startswith(" ") and key:
            headers[key] += line
            continue
        key, colon, value = line.partition(": ")
        if not colon or key in headers:
            raise MalformedPatch(f"line {number}: not a mail header: {line!r}")
        headers[key] = value
    else:
        number = len(lines) + 1
    for key in ("From", "Date", "Subject"):
        if not headers.get(key):
            raise MalformedPatch(f"no {key}: header")
    if set(headers) - {"From", "Date", "Subject"}:
        extra = ", ".join(sorted(set(headers) - {"From", "Date", "Subject"}))
        raise MalformedPatch(f"a header that format-patch would not write: {extra}")
    return headers, lines[number:]


def _changes(diff: bytes, first_line: int):
    # Content may be in any encoding; latin-1 keeps one character per byte.
    lines = diff.decode("latin-1").split("\n")
    if lines[-1] == "":
        lines.pop()
    at = 0
    while at < len(lines):
        change, at = _change(lines, at, first_line)
        yield change


def _change(lines: list[str], at: int, first_line: int) -> tuple[FileChange, int]:
    header = re.fullmatch(r"diff --git a/(.+) b/(.+)", lines[at])
    if not header or header.group(1) != header.group(2):
        raise MalformedPatch(
            f"line {first_line + at}: not 'diff --git a/PATH b/PATH' "
            f"(renames and quoted paths are not used here): {lines[at]!r}"
        )
    path = header.group(1)
    start, at = at, at + 1
    old_mode = new_mode = mode = None
    old_blob = new_blob = None
    while at < len(lines) and not lines[at].startswith(("diff --git ", "@@ ")):
        line = lines[at]
        if match := _INDEX.fullmatch(line):
            old_blob, new_blob, mode = match.groups()
        elif line.startswith("new file mode "):
            new_mode = line[14:]
        elif line.startswith("deleted file mode "):
            old_mode = line[18:]
        elif line.startswith("old mode "):
            old_mode = line[9:]
        elif line.startswith("new mode "):
            new_mode = line[9:]
        elif line.startswith("index "):
            raise MalformedPatch(
                f"line {first_line + at}: shortened blob ids (export writes --full-index)"
            )
        elif not line.startswith(("--- ", "+++ ")):
            raise MalformedPatch(
                f"line {first_line + at}: {line!r} is not part of a text diff"
            )
        at += 1
    if old_blob is None:
        raise MalformedPatch(
            f"line {first_line + start}: {path} has no index line (a change of mode alone is "
            "not used here: blob ids do not tell whether it was made)"
        )
    hunks, added, removed, at = _hunks(lines, at, first_line)
    return (
        FileChange(
            path=path,
            old_blob=None if old_blob == _NO_BLOB else old_blob,
            new_blob=None if new_blob == _NO_BLOB else new_blob,
            old_mode=old_mode or mode,
            new_mode=new_mode or mode,
            added=added,
            removed=removed,
            hunks=tuple(hunks),
        ),
        at,
    )


def _hunks(lines: list[str], at: int, first_line: int):
    hunks: list[str] = []
    added = removed = 0
    while at < len(lines) and not lines[at].startswith("diff --git "):
        header = _HUNK.match(lines[at])
        if not header:
            raise MalformedPatch(f"line {first_line + at}: expected a hunk header")
        hunks.append(lines[at])
        old = int(header.group(2) or 1)
        new = int(header.group(4) or 1)
        at += 1
        while old > 0 or new > 0:
            kind = lines[at][:1] if at < len(lines) else ""
            if kind not in (" ", "+", "-", "\\"):
                raise MalformedPatch(
                    f"line {first_line + at}: the hunk {hunks[-1]!r} is cut short"
                )
            old -= kind in " -"
            new -= kind in " +"
            added += kind == "+"
            removed += kind == "-"
            at += 1
        if old or new:
            raise MalformedPatch(
                f"line {first_line + at}: the hunk {hunks[-1]!r} is longer than it says"
            )
        if at < len(lines) and lines[at].startswith("\\ "):
            at += 1
    return hunks, added, removed, at
