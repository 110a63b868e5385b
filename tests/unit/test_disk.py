"""What is told of a place that git could not write."""

from __future__ import annotations

import pytest

from patchset import disk, gitenv
from patchset.errors import Exit, Failure


def told(tmp_path, said: str) -> Failure:
    with pytest.raises(Failure) as raised:
        with disk.errors(str(tmp_path), "as it was", "another"):
            raise gitenv.GitCommandError(["git", "checkout"], 1, said.encode(), b"")
    return raised.value


def test_what_git_says_of_each_of_many_files_is_cut(tmp_path):
    lines = [f"error: unable to write file {number}.py" for number in range(2726)]
    failure = told(tmp_path, "\n".join(lines))
    assert failure.code == Exit.ENVIRONMENT and failure.what == "git checkout failed"
    assert failure.where.splitlines()[1:] == [*lines[:10], "and 2716 more"]


def test_a_full_disk_is_named_whatever_git_says(tmp_path, monkeypatch):
    assert told(tmp_path, "No space left on device").what == "the disk is full"
    monkeypatch.setattr(disk, "_has_no_room", lambda place: True)
    assert told(tmp_path, "error: unable to write file a").what == "the disk is full"
