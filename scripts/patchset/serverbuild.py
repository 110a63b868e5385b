"""Which build a running server is: the patch that its files stand at, told by the server itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import Exit, Failure
from .listing import listed
from .series import Series
from .state import State, blob_id, read_state

STOCK = "stock"
TELLS_FROM = "0025-server-info"

_KEY = "sm120_patches"
_PREFIX = "python/sglang/"


@dataclass(frozen=True)
class Taken:
    """The path that a flag took, as the log has it; ours is None where there was nothing to choose."""

    path: str
    ours: bool | None


@dataclass(frozen=True)
class Build:
    """What a server says about itself.

    Attributes:
        release: the SGLang release it states. state: how much of the series its files are, or None
            when it says nothing of patches. commit: of that checkpoint, or None where it is not one.
        paths: flag -> the path that it took, or None before the first step that asks for it.
    """

    release: str
    state: State | None
    checkpoint: str
    commit: str | None
    paths: dict[str, Taken | None]

    @property
    def ours(self) -> list[str]:
        """The flags that took the path of this series."""
        return [flag for flag, taken in self.paths.items() if taken and taken.ours]

    def path_lines(self) -> list[str]:
        """One line for each flag."""
        return [
            taken.path if taken else f"{flag}: no step has asked for it yet"
            for flag, taken in self.paths.items()
        ]

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {
            "release": self.release,
            "checkpoint": self.checkpoint,
            "commit": self.commit,
            "state": self.state.kind if self.state else STOCK,
            "paths": {
                flag: taken and asdict(taken) for flag, taken in self.paths.items()
            },
        }

    def line(self) -> str:
        """One line for a person."""
        if self.state is None:
            return f"SGLang {self.release}, unpatched or without {TELLS_FROM}"
        done = f"{self.state.applied} of {self.state.total} patches"
        return f"SGLang {self.release} with {done}: {self.checkpoint} {(self.commit or '')[:12]}"


def build_of(info: dict, series: Series, checkpoints: Path) -> Build:
    """Read the answer of /server_info.

    checkpoints is CHECKPOINTS.md, which names the commit of each checkpoint. With data parallelism
    each part tells; all must run the same files. Raises Failure(SERVER) when they do not.
    """
    parts = info.get("internal_states") or [{}]
    told = [part.get(_KEY) for part in parts]
    if any(each is None or each["files"] != told[0]["files"] for each in told):
        if any(told):
            raise _unlike()
    release = str(info.get("version", "of an unknown release"))
    if told[0] is None:
        return Build(release, None, STOCK, None, {})
    files = told[0]["files"]
    state = read_state(lambda path: files.get(path.removeprefix(_PREFIX)), series)
    paths = {
        flag: Taken(**taken) if taken else None
        for flag, taken in told[0].get("paths", {}).items()
    }
    return Build(release, state, *_checkpoint(state, series, checkpoints), paths)


def build_in(tree: Path, release: str, series: Series, checkpoints: Path) -> Build:
    """Read the tree that a server was started from, where it tells nothing itself: before TELLS_FROM.

    Raises Failure(SERVER) when a server of this tree would tell.
    """
    state = read_state(lambda path: blob_id(_read(tree / path)), series)
    if state.kind == "pristine":
        return Build(release, None, STOCK, None, {})
    name, commit = _checkpoint(state, series, checkpoints)
    if tells(name):
        raise _failure(
            f"the tree stands at {name}, and a server of it would say so: this one says nothing",
            where=str(tree),
            next="name the tree that the server was started from",
        )
    return Build(release, state, name, commit, {})


def _checkpoint(
    state: State, series: Series, checkpoints: Path
) -> tuple[str, str | None]:
    name = series.patches[state.applied - 1].name if state.applied else STOCK
    whole = state.kind in ("applied", "partly", "pristine")
    return name, _commits(checkpoints).get(name) if whole else None


def tells(name: str) -> bool:
    """Whether a server at the patch of this name says which patches it runs."""
    return name >= TELLS_FROM


def require(
    build: Build, wanted: str, series: Series, asked_by: str = "--build "
) -> None:
    """Raise Failure(SERVER) unless the build is the wanted one: "stock", or a patch of the series.

    A patch before 0025 can't be told apart from stock: the server says nothing. asked_by is what stands
    before the build's name on the command line.
    """
    if wanted == STOCK:
        if build.state is not None:
            raise _failure(
                f"the server is patched ({build.checkpoint}), and a stock one is wanted",
                next=f"serve the unpatched release, or ask for this one: {asked_by}{build.checkpoint}",
            )
        return
    name = series.find(wanted).name
    if build.state is None:
        raise _failure(
            "this server is not a patched build: its /server_info names no patches",
            next=(
                "serve the patched tree with scripts/serve.sh; for a stock server say "
                f"{asked_by}{STOCK}"
                if tells(name)
                else f"a server before {TELLS_FROM} can't tell: scripts/bench.sh steps reads its tree, "
                "--tree NAME=DIR"
            ),
        )
    if build.state.foreign:
        raise _failure(
            "the server runs files that are neither the release's nor of this series",
            where=listed(list(build.state.foreign)),
            next="apply this series again and restart the server, or ask it with the checkout "
            "that it was built from",
        )
    if build.state.partial:
        raise _failure(
            "the server's files stand at different patches",
            where=listed([f"{path}: {last}" for path, last in build.state.partial]),
            next="apply the series again and restart the server",
        )
    if build.checkpoint != name:
        raise _failure(
            f"the server stands at {build.checkpoint}, and {name} is wanted",
            next=f"serve that one, or ask for this one: {asked_by}{build.checkpoint}",
        )


def require_ours_active(build: Build, flags: Sequence[str] = ()) -> None:
    """Raise Failure(SERVER) unless these flags took the path of this series.

    Without names: every flag that a step asked for, and one at least. Raises Failure(USAGE) for a
    flag that the server does not have.
    """
    for flag in flags:
        if flag not in build.paths:
            raise Failure(
                Exit.USAGE,
                f"the server has no flag {flag}",
                state="the server was only asked; nothing was changed",
                next=f"choose of: {', '.join(build.paths) or 'none'}",
            )
    asked = [flag for flag, taken in build.paths.items() if taken]
    other = []
    for flag in flags or asked:
        taken = build.paths[flag]
        if taken is None:
            other.append(f"{flag}: no step has asked for it")
        elif not taken.ours and (flags or taken.ours is False):
            other.append(f"{flag}: {taken.path}")
    if other or not build.ours:
        raise _failure(
            "not every flag took the path of this series",
            where=listed(other) or "no step has asked for any flag",
            next="set the flags named there, or leave out --active",
        )


def _read(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _commits(checkpoints: Path) -> dict[str, str]:
    if not checkpoints.is_file():
        return {}
    rows = re.findall(
        r"^\| (\S+) \| .* \| `([0-9a-f]{40})` \| `[0-9a-f]{40}` \|",
        checkpoints.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return dict(rows)


def _unlike() -> Failure:
    return _failure(
        "the parts of this server run different files",
        next="restart it, and each node of it, from one tree",
    )


def _failure(what: str, *, next: str, where: str | None = None) -> Failure:
    state = "the server was only asked; nothing was changed"
    return Failure(Exit.SERVER, what, where=where, state=state, next=next)
