"""What a verb of smoke_model.py is given, checked before the work that it would be lost to."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

from failures import Exit, Failure
from unpacking import WEIGHTS


def require_place(file: Path) -> None:
    """Raise Failure unless a file of this name can be written, in a folder that is there."""
    folder = file.absolute().parent
    try:
        if file.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"{file} can't be written: {error.strerror}",
            where=str(folder),
            state="nothing was begun",
            next="the same command with a file in a folder that is there and that you may write to",
        ) from None


def require_new(file: Path) -> None:
    """require_place, and Failure(USAGE) where something is there already."""
    if file.exists():
        raise Failure(
            Exit.USAGE,
            f"{file} is there already",
            where=str(file.absolute()),
            state="nothing was begun; it is as it was",
            next="the same command with a new file",
        )
    require_place(file)


def require_checkpoint(directory: Path) -> None:
    """Raise Failure(USAGE) for what is no folder, or one without config or weights."""
    what = None
    if not directory.is_dir():
        what = f"there is no folder {directory}"
    elif lacks := [
        name for name in ("config.json", WEIGHTS) if not (directory / name).is_file()
    ]:
        what = f"{directory} is no checkpoint: it has no {' and no '.join(lacks)}"
    if what:
        raise Failure(
            Exit.USAGE,
            what,
            where=str(directory.absolute()),
            state="nothing was begun",
            next="name a checkpoint, or make that of this repository: "
            "python3 ci/smoke_model.py unpack NEW_DIR",
        )


def require_device(name: str) -> None:
    """Raise Failure(ENVIRONMENT) for a device that this torch can't use, Failure(USAGE) for none."""
    import torch

    try:
        torch.empty(1, device=name)
    # A torch for CPUs alone asserts that it is none.
    except (RuntimeError, AssertionError) as error:
        known = name.partition(":")[0] in ("cpu", "cuda")
        raise Failure(
            Exit.ENVIRONMENT if known else Exit.USAGE,
            f"torch can't use the device {name!r}: {str(error).splitlines()[0]}",
            state="nothing was begun",
            next="run it where torch sees a GPU, or with --device cpu, which is slow",
        ) from None


def state(file: Path) -> dict:
    """The state that `table` saved. Raises Failure(USAGE) for another file."""
    import torch

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        why = error.strerror or str(error)
    except (pickle.UnpicklingError, EOFError, RuntimeError, ValueError, KeyError):
        why = "torch can't read it"
    else:
        if isinstance(found, dict) and all(
            isinstance(each, torch.Tensor) for each in found.values()
        ):
            return found
        why = "it holds something else than tensors"
    raise _no_state(file, why)


def official(found: dict, file: Path) -> dict:
    """The tensors of a state under their official names. Raises Failure(USAGE) for another model's."""
    from deepseek_v4 import convert, geometry

    try:
        return convert.official(found, geometry.SMOKE)
    except ValueError as error:
        raise _no_state(file, str(error)) from None


def fill(model, found: dict, file: Path) -> None:
    """Give a model the weights of a state. Raises Failure(USAGE) for another model's."""
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        raise _no_state(file, str(error).splitlines()[0]) from None


def model(directory: Path, *dtype):
    """The model of a checkpoint. Raises Failure(ENVIRONMENT) where its files are damaged."""
    from deepseek_v4 import reference

    try:
        return reference.load(directory, *dtype)
    # transformers' and safetensors' own errors have no class in common.
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"the checkpoint can't be loaded: {' '.join(str(error).split())[:300]}",
            where=str(directory.absolute()),
            state="nothing was begun",
            next="make it again: python3 ci/smoke_model.py unpack NEW_DIR",
        ) from None


def _no_state(file: Path, why: str) -> Failure:
    return Failure(
        Exit.USAGE,
        f"{file} is no state of the smoke model: {why}",
        where=str(file.absolute()),
        state="nothing was written",
        next="make one: python3 ci/smoke_model.py table NEW_FILE",
    )
