"""What the interpret tier shares: a folder of compiled kernels, and the long tests first."""

from __future__ import annotations

import os
import tempfile

import pytest

# As cuda_on_cpu has it, which imports torch: not in the process that only gathers reports.
SHARED = "PATCHSET_TEST_COMPILED"
# A bisect each; what is begun last would keep one process busy while the others have nothing left.
LONG = "test_work_indexer.py"

FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config):
    # The processes that it starts inherit the variable.
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="patchset-kernels-")
        config.stash[FOLDER] = folder
        os.environ[SHARED] = folder.name


def pytest_unconfigure(config):
    if FOLDER in config.stash:
        os.environ.pop(SHARED, None)
        config.stash[FOLDER].cleanup()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name != LONG)
