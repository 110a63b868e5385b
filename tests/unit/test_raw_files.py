"""Raw files of measurements: each folder is of something that is told, and none names a place of the machine
that made it as the tests' root."""

from __future__ import annotations

import re

import pytest

from made_wheel import ROOT

RECORDS = ROOT / "ci" / "checkpoints"
RAW = RECORDS / "raw"
TOLD = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *RECORDS.glob("*.json")]


def test_each_folder_is_referred_to():
    told = "\n".join(page.read_text() for page in TOLD)
    folders = {place.name for place in RAW.iterdir() if place.is_dir()}
    assert folders
    unused = {name for name in folders if not re.search(rf"\b{name}/|/{name}\b", told)}
    assert not unused


@pytest.mark.parametrize(
    "page",
    sorted(RAW.rglob("*.md")),
    ids=lambda page: f"{page.parent.name}-{page.stem}",
)
def test_files_that_a_page_beside_them_links_to_are_there(page):
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_root_of_the_tests_is_no_place_of_a_machine():
    roots = [
        root
        for file in RAW.rglob("*.txt")
        for root in re.findall(r"^rootdir: (.*)$", file.read_text(), re.M)
    ]
    assert roots and set(roots) == {"."}
