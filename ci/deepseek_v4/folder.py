"""The folder of a checkpoint without its weights: config and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from . import tokenizer
from .geometry import Geometry

REST = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def config_text(geometry: Geometry) -> str:
    """What config.json holds."""
    return json.dumps(geometry.config(), indent=1)


def save_rest(geometry: Geometry, directory: Path) -> None:
    """Write all of the folder but the weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(config_text(geometry))
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    tokenizer.save(directory, geometry.context)
