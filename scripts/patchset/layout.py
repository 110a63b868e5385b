"""Where things are in the patch repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RELEASE = "0.5.13"


@dataclass(frozen=True)
class Layout:
    """The directories and files of one patch repository, for the release it is pinned to."""

    root: Path
    release: str = RELEASE

    @property
    def patches(self) -> Path:
        return self.root / "patches" / self.release

    @property
    def kernels(self) -> Path:
        return self.root / "kernels"

    @property
    def checkpoints(self) -> Path:
        return self.root / "CHECKPOINTS.md"

    @property
    def records(self) -> Path:
        return self.root / "ci" / "checkpoints"

    @property
    def target(self) -> Path:
        """Where `apply` puts the patched tree when it is not told otherwise."""
        return self.root / "build" / f"sglang-{self.release}"


def here() -> Layout:
    """The layout of the repository that this package is part of."""
    return Layout(Path(__file__).resolve().parents[2])
