"""The SGLang settings for DeepSeek-V4 on a machine; whatever the user gives comes first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .errors import Exit, Failure

# The model's heads and output groups split over these.
TP_SIZES = (8, 4, 2, 1)
CONTEXT = 131_072

_SAME = {
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--model": "--model-path",
}
_DEFAULTS = {
    "--host": "127.0.0.1",
    "--port": "30000",
    "--context-length": None,
    "--chunked-prefill-size": "8192",
    "--cuda-graph-max-bs": "64",
    "--reasoning-parser": "deepseek-v4",
    "--tool-call-parser": "deepseekv4",
}
# Each with the shortest beginning that sglang.launch_server may take for it.
_SECRET = {
    "--api-key": "--ap",
    "--admin-api-key": "--ad",
    "--ssl-keyfile-password": "--ssl-keyfile-",
}
_HIDDEN = "***"
_EXAMPLE = "scripts/serve.sh --model-path DIR_OR_NAME"
# How a word begins that is no name of a model on a hub.
_FOLDERS = ("/", "./", "../", "~")


def complete(given: Sequence[str], gpus: int | None) -> list[str]:
    """The arguments for sglang.launch_server: what the user gave, then what they left out.

    gpus is the number of GPUs, or None when the user chose a tensor parallel size. Raises
    Failure(USAGE) without a model, or when its config.json can't be read.
    """
    named = options(given)
    if "--model-path" not in named:
        raise Failure(
            Exit.USAGE,
            "no model is named",
            state="no server was started",
            next=_EXAMPLE,
        )
    settings = dict(_DEFAULTS)
    settings["--context-length"] = str(_context(Path(named["--model-path"])))
    if gpus is not None:
        settings["--tp-size"] = str(tp_size(gpus))
    added = [(name, value) for name, value in settings.items() if name not in named]
    return [*given, *(word for pair in added for word in pair)]


def require_model(given: Sequence[str]) -> None:
    """Raise Failure(USAGE) for a model whose word can only be a folder, and there is none."""
    model = options(given).get("--model-path", "")
    if _only_a_folder(model) and not Path(model).exists():
        raise Failure(
            Exit.USAGE,
            "there is no such folder of a model",
            where=model,
            state="no server was started",
            next="name one that is there, or a name that SGLang downloads, ORGANISATION/NAME, where "
            "no folder has the name of the organisation",
        )


def require_values(given: Sequence[str]) -> None:
    """Raise Failure(USAGE) for an option of ours without a value, such as with another option after it.

    port() says so of --port.
    """
    for word, after in zip(given, [*given[1:], ""]):
        name, has_value, value = word.partition("=")
        if _SAME.get(name, name) not in {"--model-path", "--tp-size", *_DEFAULTS}:
            continue
        found = value if has_value else "" if after.startswith("--") else after
        if not found and name != "--port":
            raise Failure(
                Exit.USAGE,
                f"{name} needs a value",
                where=f"after it stands {after}" if after and not has_value else None,
                state="no server was started",
                next=f"give it one, or leave it out: {_EXAMPLE}",
            )


def require_no_file(given: Sequence[str]) -> None:
    """Raise Failure(USAGE) for a model that is a file, other than the one kind that SGLang takes."""
    model = Path(options(given).get("--model-path", ""))
    if model.is_file() and model.suffix != ".gguf":
        raise Failure(
            Exit.USAGE,
            "the model is a file, not a folder",
            where=str(model),
            state="no server was started",
            next=f"name the folder that has the model's config.json: {_EXAMPLE}",
        )


def options(given: Sequence[str]) -> dict[str, str]:
    """The options of a command line with the word after each, by their long names."""
    found = {}
    for word, after in zip(given, [*given[1:], ""]):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[_SAME.get(name, name)] = value or after
    return found


def port(given: Sequence[str]) -> int:
    """The port of a complete command line. Raises Failure(USAGE) when it is none."""
    text = options(given)["--port"]
    if text.isascii() and text.isdigit() and 0 < int(text) < 65_536:
        return int(text)
    raise Failure(
        Exit.USAGE,
        f"--port needs a number from 1 to 65535, not {text!r}",
        state="no server was started",
        next="name a free one: --port 30000",
    )


def has_secret(given: Sequence[str]) -> bool:
    """Whether a command line has a key of the server in it."""
    return any(_is_secret(word.partition("=")[0]) for word in given)


def has_key(given: Sequence[str]) -> bool:
    """Whether a command line has the key that each request needs."""
    names = [word.partition("=")[0] for word in given]
    return any(
        "--api-key".startswith(name) and name.startswith(_SECRET["--api-key"])
        for name in names
    )


def without_secrets(given: Sequence[str]) -> list[str]:
    """A command line to show or keep: each key of the server is hidden."""
    shown, hide = [], False
    for word in given:
        name, has_value, _ = word.partition("=")
        secret = not hide and _is_secret(name)
        if hide:
            shown.append(_HIDDEN)
        else:
            shown.append(f"{name}={_HIDDEN}" if secret and has_value else word)
        hide = secret and not has_value
    return shown


def tp_size(gpus: int) -> int:
    """The most GPUs that the model's heads can be split over."""
    return next(size for size in TP_SIZES if size <= gpus)


def _only_a_folder(model: str) -> bool:
    """Whether a word can't be a name on a hub, ORGANISATION/NAME, or an address such as s3://…"""
    if "://" in model:
        return False
    first, _, name = model.partition("/")
    beside = bool(name) and Path(first).is_dir()
    return model.startswith(_FOLDERS) or beside or "/" in name or model.endswith("/")


def _is_secret(name: str) -> bool:
    return any(
        whole.startswith(name) and name.startswith(shortest)
        for whole, shortest in _SECRET.items()
    )


def _context(model: Path) -> int:
    """The default context, or the model's own where that is shorter and its config is here."""
    config = model / "config.json"
    if not config.is_file():
        return CONTEXT
    try:
        longest = json.loads(config.read_text(encoding="utf-8")).get(
            "max_position_embeddings", CONTEXT
        )
        return min(CONTEXT, int(longest))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Failure(
            Exit.USAGE,
            f"the model's config.json can't be read: {error}",
            where=str(config),
            state="no server was started",
            next="name another model with --model-path",
        ) from None
