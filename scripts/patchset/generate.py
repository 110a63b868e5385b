"""The generated patches: new files in the patched tree whose only source is kernels/."""

from __future__ import annotations

from pathlib import Path

from . import export, gitenv, mail, scratchrepo
from .commits import commit_tree
from .errors import Exit, Failure

SOURCE_PREFIX = "kernels/"
TREE_PREFIX = "python/sglang/srt/layers/sm120/"


def tree_path(source: str) -> str:
    """Where a module of kernels/ stands in the patched tree."""
    return TREE_PREFIX + source.removeprefix(SOURCE_PREFIX)


def sources_of(trailers: dict[str, str]) -> list[str]:
    """The modules that a generated patch is made from; none for another patch."""
    return trailers.get("Generated-From", "").split()


def regenerate(directory: Path, kernels: Path) -> dict[str, bytes]:
    """The content that every generated patch file of a directory should have, by file name.

    Head and message are taken from the existing file (which may still lack a diff); the diff adds
    the files that its `Generated-From:` trailer names, as they are in kernels.
    Raises Failure(PATCH) for a bad trailer or a missing module.
    """
    heads = {path: _head(path) for path in sorted(directory.glob("*.patch"))}
    with scratchrepo.empty() as scratch:
        return {
            path.name: _patch(scratch, head, _contents(path, head, kernels))
            for path, head in heads.items()
            if sources_of(head.trailers)
        }


def unclaimed(directory: Path, kernels: Path) -> list[str]:
    """Files of kernels/ that no patch is made from, references (`*_ref.py`) apart."""
    claimed = {
        source
        for path in directory.glob("*.patch")
        for source in sources_of(_head(path).trailers)
    }
    return sorted(
        name
        for file in kernels.iterdir()
        if file.is_file() and not file.name.endswith("_ref.py")
        if (name := SOURCE_PREFIX + file.name) not in claimed
    )


def _head(path: Path) -> mail.Head:
    try:
        return mail.parse_head(path.read_bytes())
    except mail.MalformedPatch as error:
        raise _bad(path, str(error)) from None


def _contents(path: Path, head: mail.Head, kernels: Path) -> dict[str, bytes]:
    contents = {}
    for source in sources_of(head.trailers):
        name = source.removeprefix(SOURCE_PREFIX)
        if name == source or not (kernels / name).is_file():
            raise _bad(path, f"Generated-From names {source}, which is not there")
        contents[tree_path(source)] = (kernels / name).read_bytes()
    return contents


def _patch(scratch: Path, head: mail.Head, contents: dict[str, bytes]) -> bytes:
    """A commit of these files on nothing, as git itself formats it."""
    listing = ""
    for path, data in contents.items():
        command = ["hash-object", "-w", "--stdin", "--no-filters"]
        blob = gitenv.run(scratch, *command, input=data).decode().strip()
        listing += f"100644 {blob}\t{path}\n"
    nothing = gitenv.run(scratch, "mktree", input=b"").decode().strip()
    gitenv.run(scratch, "read-tree", "--empty")
    gitenv.run(scratch, "update-index", "--index-info", input=listing.encode())
    tree = gitenv.text(scratch, "write-tree")
    parent = commit_tree(scratch, nothing, None, head)
    return export.format_commit(scratch, commit_tree(scratch, tree, parent, head))


def _bad(path: Path, what: str) -> Failure:
    return Failure(
        Exit.PATCH,
        f"{path.name}: {what}",
        where=str(path),
        state="nothing was written",
        next="correct the trailer, or add the module, then run the same command again",
    )
