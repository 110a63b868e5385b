"""The machine that a bundle is for, in the words of pip, of its Python and of its GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# pip takes a platform by its exact tag, not by the oldest that would do.
_GLIBC = range(39, 4, -1)
_OLD = ("manylinux2014", "manylinux2010", "manylinux1")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Target:
    """Python such as "3.12", machine such as "x86_64", GPU architecture such as "sm_120"."""

    python: str
    machine: str
    arch: str

    def pip_options(self) -> list[str]:
        """What makes pip choose the wheels of this target wherever it runs."""
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in _GLIBC]
        tags += [f"{old}_{self.machine}" for old in _OLD]
        platforms = [word for tag in tags for word in ("--platform", tag)]
        chosen = ["--python-version", self.python, "--implementation", "cp"]
        return ["--only-binary=:all:", *chosen, *platforms]

    @property
    def kernel_folder(self) -> str:
        """The folder of sglang-kernel's compiled operations that its loader takes on this GPU."""
        return "sm90" if self.arch == "sm_90" else "sm100"

    @property
    def generation(self) -> str:
        """The GPU's compute capability without its last digit, such as "12"."""
        return self.arch.removeprefix("sm_")[:-1]

    @property
    def loads_flash(self) -> bool:
        """Whether FlashAttention 3 and FlashMLA of sglang-kernel run on this GPU."""
        return not self.arch.startswith("sm_12")

    def as_json(self) -> dict:
        """The same facts for the installer."""
        return asdict(self)
