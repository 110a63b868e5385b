"""Which build a running server is: the patch that its files stand at, told by the server itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .errors import Exit, Failure
from .listing import listed
from .series import Series
from .state import State, read_state

STOCK = "stock"
TELLS_FROM = "0025-server-info"

_KEY = "sm120_patches"
_PREFIX = "python/sglang/"


@dataclass(frozen=True)
class Build:
    """What a server says about itself.

    Attributes:
        release: the SGLang release it states. state: how much of the series its files are, or None
            when it says nothing of patches. commit: of that checkpoint, or None where it is not one.
        paths: flag -> the path it took, or None before the first step that asks for it.
    """

    release: str
    state: State | None
    checkpoint: str
    commit: str | None
    paths: dict[str, str | None]

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {
            "release": self.release,
            "checkpoint": self.checkpoint,
            "commit": self.commit,
            "state": self.state.kind if self.state else STOCK,
            "paths": self.paths,
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
    name = series.patches[state.applied - 1].name if state.applied else STOCK
    whole = state.kind in ("applied", "partly", "pristine")
    commit = _commits(checkpoints).get(name) if whole else None
    return Build(release, state, name, commit, told[0].get("paths", {}))


def require(build: Build, wanted: str, series: Series) -> None:
    """Raise Failure(SERVER) unless the build is the wanted one: "stock", or a patch of the series.

    A patch before 0025 can't be told apart from stock: the server says nothing.
    """
    if wanted == STOCK:
        if build.state is not None:
            raise _failure(
                f"the server is patched ({build.checkpoint}), and a stock one is wanted",
                next="serve the unpatched release, or leave out --build stock",
            )
        return
    name = series.find(wanted).name
    if build.state is None:
        raise _failure(
            "this server is not a patched build: its /server_info names no patches",
            next="serve the patched tree with scripts/serve.sh; for a stock server say --build stock",
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
            next=f"serve that one, or ask for this one: --build {build.checkpoint}",
        )


def require_ours_active(build: Build) -> None:
    """Raise Failure(SERVER) unless each flag has taken the path of this series."""
    other = [
        f"{flag}: {path or 'not asked for by any step yet'}"
        for flag, path in build.paths.items()
        if path is None or "upstream's path" in path
    ]
    if other:
        raise _failure(
            "not every flag took the path of this series",
            where=listed(other),
            next="set the flags named there, or leave out --active",
        )


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
