"""What every tier shares: the import path, the tier's process rules, a fresh seed that is printed."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests")]

TIERS = ("unit", "interpret", "aot", "gpu")


def pytest_addoption(parser):
    parser.addoption(
        "--seed", type=int, help="seed of the random inputs (default: drawn afresh)"
    )


def pytest_configure(config):
    of_all = getattr(config, "workerinput", {}).get("seed")
    if of_all is not None:
        config.option.seed = of_all
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(2**31)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Of pytest-xdist: each process draws from the seed that is printed."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config):
    return f"seed: {config.option.seed} (repeat with --seed {config.option.seed})"


def pytest_collection_modifyitems(config, items):
    tiers = {Path(item.path).relative_to(ROOT / "tests").parts[0] for item in items}
    tiers &= set(TIERS)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if "interpret" in tiers and not interpreted:
        pytest.exit(
            "the interpret tier needs TRITON_INTERPRET=1 before pytest starts", 4
        )
    if tiers & {"aot", "gpu"} and interpreted:
        pytest.exit(
            "TRITON_INTERPRET=1 is set: the aot and gpu tiers compile for real", 4
        )
    for item in items:
        if Path(item.path).relative_to(ROOT / "tests").parts[0] == "gpu":
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def seed(request) -> int:
    return request.config.option.seed


@pytest.fixture(scope="session")
def release(tmp_path_factory) -> Path:
    """A tree of the release itself, without the patches; read it only."""
    import stock

    place = tmp_path_factory.mktemp("release")
    stock.unpack_release(place)
    return place
