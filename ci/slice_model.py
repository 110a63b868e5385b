#!/usr/bin/env python3
"""Models of random weights with DeepSeek-V4-Flash's shapes: for speed and agreement, never for answers.

    flash N DIR     N layers of Flash (hidden 4,096, 64 heads, 256 experts of 2,048); all of its 43 fit one
                    GPU with narrower experts: 30 GB with --expert-width 64
    tiny DIR        4 layers with Flash's attention and a small rest, 2.1 GB

Without --weights only config and tokenizer are written: serve such a folder with
`--load-format dummy` (SGLang's own seeded weights, all within 1e-3: speed is right, but attention hardly
moves a token). With --weights the files are written in bfloat16, seeded, scaled by their fan-in.
Needs the package tokenizers; --weights needs torch and safetensors.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from deepseek_v4 import geometry
from deepseek_v4.folder import REST, config_text, save_rest
from deepseek_v4.geometry import Geometry
from deepseek_v4.tensors import Tensor, tensors
from failures import Exit, Failure, exit_code
from newfolder import new_folder, require_free

SHARD_BYTES = 2 << 30
# Written last.
_INDEX = "model.safetensors.index.json"


def main(argv: list[str]) -> int:
    """Write one model; the exit code: those of README.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(metavar="KIND", dest="kind", required=True)
    flash = kinds.add_parser("flash", help="layers of Flash")
    flash.add_argument("layers", type=int, metavar="N")
    flash.add_argument(
        "--expert-width",
        type=int,
        metavar="W",
        help="narrower experts (512 in bfloat16 are about the bytes of 2,048 in MXFP4, 64 about those that "
        "one of eight ranks has of them); never fewer: SGLang's fused gate reads garbage below 225",
    )
    for kind in (flash, kinds.add_parser("tiny", help="2.1 GB")):
        kind.add_argument("directory", type=Path, metavar="DIR")
        kind.add_argument("--weights", action="store_true", help="write weights too")
        kind.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    return exit_code(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    shape = _geometry(arguments)
    write(shape, arguments.directory, arguments.seed, arguments.weights)
    size = sum(each.bytes for each in tensors(shape))
    print(
        f"{arguments.directory}: {shape.what()}; {size / 1e9:.1f} GB of random weights"
    )
    return 0


def _require_packages(weights: bool) -> None:
    needed = ("tokenizers", *(("torch", "safetensors") if weights else ()))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(
            Exit.ENVIRONMENT,
            f"this Python lacks {', '.join(missing)}",
            where=sys.executable,
            state="nothing was written",
            next="install what it lacks with pip, or run this with the Python that serves",
        )


def write(shape: Geometry, directory: Path, seed: int, weights: bool) -> None:
    """The folder of a model, whole or not at all.

    Raises Failure(ENVIRONMENT) where there is no room for its weights, or a package lacks, and
    Failure(USAGE) for a folder with something else in it; the same model is left as it is.
    """
    note = f"random, seed {seed}" if weights else "random, of the loader"
    shape = replace(shape, note=note)
    if _is_there(shape, directory, weights):
        return
    require_free(directory, "written")
    _require_packages(weights)
    every = list(tensors(shape))
    size = sum(each.bytes for each in every)
    if weights:
        _require_room(size, directory)
    with new_folder(directory):
        save_rest(shape, directory)
        if weights:
            _write_weights(every, size, directory, seed)


def _is_there(shape: Geometry, directory: Path, weights: bool) -> bool:
    """Whether this very model was written here: what it is stands in its config.json."""
    names = (*REST, *((_INDEX,) if weights else ()))
    if not all((directory / name).is_file() for name in names):
        return False
    return (directory / "config.json").read_bytes() == config_text(shape).encode()


def _require_room(size: int, directory: Path) -> None:
    place = directory.absolute()
    place = next(each for each in (place, *place.parents) if each.exists())
    free = shutil.disk_usage(place).free
    if size > free:
        raise Failure(
            Exit.ENVIRONMENT,
            f"the weights take {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free",
            where=str(place),
            state="nothing was written",
            next="name a folder of another disk, or leave out --weights and serve with "
            "--load-format dummy",
        )


def shards(every: Iterable[Tensor], limit: int = SHARD_BYTES) -> Iterator[list[Tensor]]:
    """The tensors in groups of at most `limit` bytes (one tensor may be larger)."""
    group, size = [], 0
    for each in every:
        if group and size + each.bytes > limit:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.bytes
    if group:
        yield group


def random_tensor(each: Tensor, seed: int):
    """The same for a name and seed, whatever else is made: norms and scales 1, biases 0."""
    import torch

    kind = torch.float32 if each.float32 else torch.bfloat16
    last = each.name.rsplit(".", 1)[-1]
    if "norm" in each.name or last.endswith("scale"):
        return torch.ones(each.shape, dtype=kind)
    if last.endswith("base") or last in ("bias", "attn_sink"):
        return torch.zeros(each.shape, dtype=kind)
    # torch's CPU generator takes 32 bits of a seed.
    own = torch.Generator().manual_seed(zlib.crc32(f"{seed} {each.name}".encode()))
    scale = 1.0 if each.name == "embed.weight" else each.shape[-1] ** -0.5
    return (torch.randn(each.shape, generator=own) * scale).to(kind)


def _write_weights(every: list[Tensor], size: int, directory: Path, seed: int) -> None:
    from safetensors.torch import save_file

    groups = list(shards(every))
    files = {}
    for number, group in enumerate(groups, start=1):
        name = f"model-{number:05}-of-{len(groups):05}.safetensors"
        made = {each.name: random_tensor(each, seed) for each in group}
        save_file(made, str(directory / name), metadata={"format": "pt"})
        files |= dict.fromkeys(made, name)
        print(f"{name} ({number} of {len(groups)})", file=sys.stderr, flush=True)
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (directory / _INDEX).write_text(json.dumps(index))


def _geometry(arguments: argparse.Namespace) -> Geometry:
    if arguments.kind == "tiny":
        return geometry.TINY
    try:
        return geometry.flash_slice(arguments.layers, arguments.expert_width)
    except ValueError as error:
        raise Failure(
            Exit.USAGE,
            str(error),
            state="nothing was written",
            next="python3 ci/slice_model.py flash 4 NEW_DIR --expert-width 64",
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
