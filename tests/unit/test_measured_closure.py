"""What docs/measured.md says of a bundle with every dependency against the raw file."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs/measured.md").read_text().split())
MADE = json.loads((ROOT / "ci/checkpoints/raw/bundle-closure/closure.json").read_text())


def test_the_size_and_what_is_in_it():
    bundle, facts = MADE["bundle"], MADE["facts"]
    size = sum(part["bytes"] for part in bundle["parts"]) / 2**20
    assert f"packs {len(bundle['packages'])} packages" in PAGE
    assert f"into {size:,.1f} MiB, just one part" in PAGE and len(bundle["parts"]) == 1
    assert all(part["bytes"] <= 512 << 20 for part in bundle["parts"])
    assert (
        f"{facts['installed_mib']:,} MiB from them in {facts['install_seconds']} s"
        in PAGE
    )
    assert bundle["checkpoint"].startswith("0100-")
    assert f"at commit {bundle['commit'][:12]}, packs" in PAGE
    assert f"It took {facts['bundle_seconds'] // 60} min on 2 cores" in PAGE
    names = " ".join((ROOT / "README.md").read_text().split())
    assert f"({len(bundle['packages'])} packages, {size:,.0f} MiB)" in names


def test_each_dependency_is_there():
    installed = MADE["installed"]
    assert installed["packages"] == len(MADE["bundle"]["packages"])
    assert installed["lacking"] == [] == installed["other_files_not_there"]
    assert f"All {installed['packages']} packages are there" in PAGE
    assert f"of their {installed['dependencies_looked_up']} dependencies none" in PAGE
    stated = "and each has a version that is asked for" in PAGE
    assert stated == (installed["other_versions"] == [])


def test_what_was_left_out_on_purpose():
    left = MADE["installed"]["files_of_records_left_out"]
    total, kernels = sum(left.values()), left["FlashInfer's kernels of other GPUs"]
    media = left["sglang/multimodal_gen"]
    recorded = MADE["installed"]["files_of_records"]
    assert f"Of the {recorded:,} files that they record {total:,} are left out" in PAGE
    assert f"on purpose: {kernels:,} of FlashInfer's kernels for other GPUs" in PAGE
    assert f"{media:,} of SGLang's image and video generation" in PAGE
    assert f"generation, {total - kernels - media} others." in PAGE


def test_the_installer_said_no_where_it_must():
    facts = MADE["facts"]
    assert facts["bundle_exit"] == facts["install_exit"] == 0
    for why in ("without_torch", "again", "damaged", "missing"):
        assert facts[f"{why}_exit"] == 4, why
    assert facts["damaged_left"] == 0


def test_modules_were_imported_from_it():
    said = MADE["installed"]["imports"].values()
    good = [each for each in said if each == "imported from the bundle"]
    assert f"{len(good)} modules that need no torch were imported" in PAGE
