"""A user's own checkout, read without changing it: what it is, and what its HEAD holds."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from . import gitenv, invocation, operation
from .errors import Exit, Failure
from .listing import counted, listed
from .pin import Pin
from .series import Series
from .state import State, read_state

UNTOUCHED = "the checkout is as it was"

# Where the sources start in upstream's repository, and in a repository made of an unpacked wheel.
_PREFIXES = {"": "python/sglang/", "python/": "sglang/"}

_VERSION_FILES = (
    ("sglang/_version.py", r"^__version__ = .*['\"]([0-9][^'\"]*)['\"]"),
    ("sglang/version.py", r"^__version__ = ['\"]([0-9][^'\"]*)['\"]"),
    ("pyproject.toml", r"^version = ['\"]([0-9][^'\"]*)['\"]"),
)
_RELEASE_TAG = re.compile(r"v(\d+(?:\.\d+)+\S*)")


@dataclass(frozen=True)
class Checkout:
    """One work tree of a repository.

    Attributes:
        top: its top directory.
        git_dir: its own git directory (a linked work tree has one of its own).
        head: the commit that is checked out.
        strip_prefix: what to cut from the paths of the series: "" or "python/".
    """

    top: Path
    git_dir: Path
    head: str
    strip_prefix: str

    def path(self, path: str) -> str:
        """A path of the series as this repository has it."""
        return path.removeprefix(self.strip_prefix)

    def read(self, path: str) -> bytes | None:
        """The bytes that HEAD has at a path of the series, or None."""
        return _show(self.top, f"{self.head}:{self.path(path)}")

    def state(self, series: Series, revision: str) -> State:
        """How much of `series` the files of a revision hold."""
        blobs = _blobs(self.top, revision, [self.path(path) for path in series.paths])
        return read_state(lambda path: blobs.get(self.path(path)), series)

    @property
    def branch(self) -> str | None:
        """The branch that is checked out; None for a detached HEAD."""
        found = _rev_parse(self.top, "--abbrev-ref", "HEAD")
        return None if found in ([], ["HEAD"]) else found[0]

    def require_own(self) -> None:
        """Raises Failure(ENVIRONMENT) when another user owns the repository.

        Objects of ours would be in their way: git could not add to the same directories.
        """
        common = Path(
            *_rev_parse(self.top, "--path-format=absolute", "--git-common-dir")
        )
        owner = common.stat().st_uid
        if owner != os.geteuid():
            raise Failure(
                Exit.ENVIRONMENT,
                f"this repository belongs to another user: {_user(owner)}",
                where=str(common),
                state=UNTOUCHED,
                next=f"run the same command as that user, or patch a clone of yours: "
                f"git clone {self.quoted} DIR && {invocation.again('--into', 'DIR')}",
            )

    def require_idle(self) -> None:
        """Raises Failure(PATCH) when a merge, rebase, `git am` and so on is in progress."""
        found = operation.in_progress(self.git_dir)
        if found:
            raise self.refusal(
                f"{found.name} is in progress in this checkout",
                next=f"finish it, or end it: git -C {self.quoted} {found.way_out}",
            )

    def require_clean(self, series: Series) -> None:
        """Raises Failure(PATCH) listing uncommitted changes, and files where the series adds its own."""
        # The user's own settings decide here, as they did when the files were checked out.
        # Without these two a setting of the repository could start a program, or hide a change.
        settings = {"core.fsmonitor": "false", "status.relativePaths": "false"}
        command = ["status", "--porcelain", "-z", "--no-renames"]
        shown = gitenv.run(
            self.top,
            *command,
            "--untracked-files=no",
            "--ignore-submodules=none",
            env=_command_config(settings),
        )
        changed = [os.fsdecode(entry) for entry in shown.split(b"\0")[:-1]]
        inside = [self.path(path) for path in series.paths]
        tracked = _blobs(self.top, self.head, inside)
        changed += [
            f"?? {path}"
            for path in inside
            if path not in tracked and os.path.lexists(self.top / path)
        ]
        if changed:
            raise self.refusal(
                f"{counted(changed, 'change')} in this checkout not committed",
                listed(changed),
                next=f"commit them, or put them away: git -C {self.quoted} stash -u",
            )

    def require_version(self, pin: Pin) -> None:
        """Raises Failure(PATCH) when tracked files or a tag state another release."""
        stated = self._stated_versions()
        if stated and all(_release(version) != pin.version for version in stated):
            raise self.refusal(
                f"this checkout has SGLang {stated[0]}, the series is for {pin.version}",
                next=f"git -C {self.quoted} switch --detach {pin.tag}, "
                "then run the same command again",
            )

    def require_pristine(self, state: State, pin: Pin) -> None:
        """Raises Failure(PATCH) unless each file that the series touches is the pin's in HEAD."""
        switch = f"git -C {self.quoted} switch --detach {pin.tag}, then run the same command again"
        if state.kind == "foreign":
            nearest = self._nearest_tag()
            raise self.refusal(
                f"{counted(state.foreign, 'file')} that the series changes "
                f"differ from SGLang {pin.version}'s"
                + (f" (this checkout is {nearest})" if nearest else ""),
                listed([self.path(path) for path in state.foreign]),
                next=switch,
            )
        if state.kind == "half-applied":
            raise self.refusal(
                "the series is half applied in HEAD",
                listed(
                    [f"{self.path(path)}: {holds}" for path, holds in state.partial]
                ),
                next=switch,
            )
        if state.kind != "pristine":
            raise self.refusal(
                f"{state.applied} of {state.total} patches are in HEAD already",
                next=f"switch to the commit below them, such as {pin.tag}, "
                "then run the same command again",
            )

    @property
    def quoted(self) -> str:
        """The top directory as a shell word."""
        return shlex.quote(str(self.top))

    def refusal(self, what: str, where: str = "", *, next: str) -> Failure:
        """A failure that leaves this checkout alone."""
        place = f"{self.top}\n{where}" if where else str(self.top)
        return Failure(Exit.PATCH, what, where=place, state=UNTOUCHED, next=next)

    def _stated_versions(self) -> list[str]:
        root = "python/" if self.strip_prefix == "" else ""
        for name, pattern in _VERSION_FILES:
            text = _show(self.top, f"{self.head}:{root}{name}") or b""
            found = re.search(pattern, text.decode(errors="replace"), re.MULTILINE)
            if found:
                return [found.group(1)]
        tags = gitenv.text(self.top, "tag", "--points-at", self.head).split()
        return [
            match.group(1) for tag in tags if (match := _RELEASE_TAG.fullmatch(tag))
        ]

    def _nearest_tag(self) -> str:
        try:
            return gitenv.text(
                self.top, "describe", "--tags", "--match=v[0-9]*", self.head
            )
        except gitenv.GitCommandError:
            return ""


def open_checkout(directory: Path) -> Checkout:
    """Reads which checkout `directory` is the top of.

    Raises:
        Failure(USAGE): it is no directory, or lies inside a checkout.
        Failure(PATCH): it is no git work tree with SGLang's sources in a HEAD.
    """
    if not directory.is_dir():
        raise _no_checkout(Exit.USAGE, "no such directory", directory)
    facts = _rev_parse(
        directory,
        "--is-bare-repository",
        "--is-inside-work-tree",
        "--absolute-git-dir",
        "--show-object-format",
    )
    if not facts:
        raise _no_checkout(Exit.PATCH, "not a git repository", directory)
    bare, inside, git_dir, object_format = facts
    if bare == "true":
        raise _no_checkout(
            Exit.PATCH, "a bare repository has no files to run", directory
        )
    if inside != "true":
        raise _no_checkout(Exit.PATCH, "a git directory, not the checkout", directory)
    if object_format != "sha1":
        raise _no_checkout(Exit.PATCH, f"its object ids are {object_format}", directory)
    top = Path(*_rev_parse(directory, "--show-toplevel"))
    if not os.path.samefile(top, directory):
        raise Failure(
            Exit.USAGE,
            "this directory lies inside a checkout",
            where=str(directory),
            state=UNTOUCHED,
            next=invocation.again("--into", str(top)),
        )
    head = _rev_parse(directory, "--verify", "--quiet", "HEAD^{commit}")
    if not head:
        raise _no_checkout(Exit.PATCH, "this repository has no commit yet", directory)
    for strip_prefix, sources in _PREFIXES.items():
        if _blobs(top, head[0], [f"{sources}__init__.py"]):
            return Checkout(top, Path(git_dir), head[0], strip_prefix)
    raise _no_checkout(
        Exit.PATCH,
        "no SGLang sources in HEAD: neither python/sglang/ nor sglang/",
        directory,
    )


def _no_checkout(code: Exit, what: str, directory: Path) -> Failure:
    return Failure(
        code,
        what,
        where=str(directory),
        state=UNTOUCHED,
        next="name the top directory of a checkout of SGLang: "
        f"{invocation.again('--into', 'DIR')}; "
        "without --into a patched tree is made from the wheel",
    )


def _rev_parse(directory: Path, *args: str) -> list[str]:
    try:
        found = gitenv.run(directory, "rev-parse", *args)
    except gitenv.GitCommandError:
        return []
    return os.fsdecode(found).removesuffix("\n").split("\n")


def _blobs(repo_dir: Path, revision: str, paths: list[str]) -> dict[str, str]:
    """The blob ids of those `paths` that a revision has."""
    command = ["--literal-pathspecs", "ls-tree", "-z", "--full-tree", revision, "--"]
    blobs = {}
    for entry in gitenv.run(repo_dir, *command, *paths).split(b"\0")[:-1]:
        meta, path = entry.split(b"\t", 1)
        blobs[os.fsdecode(path)] = meta.split()[2].decode()
    return blobs


def _show(repo_dir: Path, name: str) -> bytes | None:
    try:
        return gitenv.run(repo_dir, "cat-file", "blob", name)
    except gitenv.GitCommandError:
        return None


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _release(version: str) -> str:
    return version.partition("+")[0]


def _command_config(settings: dict[str, str]) -> dict[str, str]:
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env
