"""The RECORD of an installed distribution: the list by which pip and uv uninstall it.

Rows are `path,sha256=<urlsafe base64 without padding>,<size>`, relative to site-packages. Rows
of other files keep their exact bytes: installers differ in quoting and line ends, and a revert
has to give the first RECORD back.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping


def hashed_row(path: str, data: bytes) -> tuple[str, str, str]:
    """The row of a file that holds `data`; `path` is relative to site-packages."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return path, f"sha256={digest.decode()}", str(len(data))


def unhashed_row(path: str) -> tuple[str, str, str]:
    """The row of a file whose bytes change over time, as RECORD's own row is."""
    return path, "", ""


def updated(
    record: bytes,
    rows: Iterable[tuple[str, str, str]],
    removed: Iterable[str] = (),
) -> bytes:
    """`record` with `rows` in place of those of the same path, or appended, without `removed`.

    Raises:
        ValueError: `record` is not UTF-8 text.
    """
    wanted: Mapping[str, tuple[str, str, str]] = {row[0]: row for row in rows}
    gone = set(removed)
    parsed = list(_rows(record))
    end = "\r\n" if parsed and parsed[0][1].endswith("\r\n") else "\n"
    lines: list[str] = []
    seen: set[str] = set()
    for path, line in parsed:
        if path in gone:
            continue
        if path in wanted:
            seen.add(path)
            line = _line(wanted[path], end)
        elif not line.endswith("\n"):
            line += end
        lines.append(line)
    lines += [_line(row, end) for path, row in wanted.items() if path not in seen]
    return "".join(lines).encode()


def _rows(record: bytes) -> Iterable[tuple[str, str]]:
    # splitlines() would also split at U+2028 and its like, which a file name may hold.
    for line in io.StringIO(record.decode("utf-8"), newline=""):
        fields = next(csv.reader([line]), [])
        if fields:
            yield fields[0], line


def _line(row: tuple[str, str, str], end: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerow(row)
    return out.getvalue()
