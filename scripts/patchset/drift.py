"""The drift guard: every function that a patch hooks into is still there, with its parameters."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from . import gitenv, invocation
from .errors import Exit, Failure
from .series import Series

FILE_NAME = "hooks.toml"


@dataclass(frozen=True)
class Hook:
    """One upstream function that a patch changes or is called from.

    parameters are written as in the signature: "x", "*args", "**kwargs", and "*" or "/" alone.
    """

    patch: str
    file: str
    function: str
    parameters: tuple[str, ...]


def load_hooks(directory: Path) -> tuple[Hook, ...]:
    """Read hooks.toml of a patch directory; none there, no hooks. Raises Failure(PATCH)."""
    path = Path(directory) / FILE_NAME
    if not path.exists():
        return ()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("hook", [])
        return tuple(
            Hook(
                patch=str(table["patch"]),
                file=str(table["file"]),
                function=str(table["function"]),
                parameters=tuple(map(str, table["parameters"])),
            )
            for table in tables
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _bad(path, str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise _bad(path, f"a [[hook]] needs patch, file, function, parameters: {error}")


def require(
    read: Callable[[str], bytes | None], series: Series, wanted: Series | None = None
) -> int:
    """Check the hooks of the wanted patches (none given: all) in a tree; return how many.

    read gives the bytes of a path, or None when it is absent. Nothing is imported.
    Raises Failure(PATCH) naming the patch, the file, and the parameters expected and found.
    """
    hooks = load_hooks(series.directory)
    names = {patch.name for patch in series.patches}
    wanted_names = {patch.name for patch in (wanted or series).patches}
    checked = 0
    for hook in hooks:
        if hook.patch not in names:
            path = series.directory / FILE_NAME
            raise _bad(path, f"it names {hook.patch}, which is no patch of the series")
        if hook.patch in wanted_names:
            _check(hook, read(hook.file))
            checked += 1
    return checked


def require_in(
    repo_dir: Path, revision: str, series: Series, wanted: Series | None = None
) -> int:
    """require() on the files of a revision of a repository."""

    def read(path: str) -> bytes | None:
        try:
            return gitenv.run(repo_dir, "cat-file", "blob", f"{revision}:{path}")
        except gitenv.GitCommandError:
            return None

    return require(read, series, wanted)


def _check(hook: Hook, source: bytes | None) -> None:
    expected = _signature(hook.function, hook.parameters)
    if source is None:
        raise _drift(hook, expected, "no such file")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise _drift(hook, expected, f"not parseable: {error}") from None
    found = [parameters_of(node) for node in functions(tree, hook.function.split("."))]
    if hook.parameters not in found:
        shown = " or ".join(_signature(hook.function, each) for each in found)
        raise _drift(hook, expected, shown or "no such function")


def functions(scope: ast.AST, path: list[str]) -> Iterator[ast.AST]:
    """Every definition with this dotted path, also under `if`, `try` and `with`."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name != path[0]:
                continue
            if len(path) > 1:
                yield from functions(node, path[1:])
            elif not isinstance(node, ast.ClassDef):
                yield node
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from functions(node, path)


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """The parameter names of a definition, as Hook.parameters writes them."""
    arguments = node.args
    names = [argument.arg for argument in arguments.posonlyargs]
    names += ["/"] if names else []
    names += [argument.arg for argument in arguments.args]
    if arguments.vararg:
        names.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        names.append("*")
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append("**" + arguments.kwarg.arg)
    return tuple(names)


def _signature(function: str, parameters: tuple[str, ...]) -> str:
    return f"{function}({', '.join(parameters)})"


def _drift(hook: Hook, expected: str, found: str) -> Failure:
    return Failure(
        Exit.PATCH,
        f"drift: {hook.patch} hooks into a function that is not as it was",
        where=f"{hook.file}\nexpected {expected}\nfound    {found}",
        state="nothing was changed",
        next="use the pinned SGLang, or move the patch to the new code",
    )


def _bad(path: Path, what: str) -> Failure:
    return Failure(
        Exit.PATCH,
        f"{path.name}: {what}",
        where=str(path),
        state="nothing was changed",
        next=f"correct the file, then run: {invocation.again(verb='check')}",
    )
