"""Checks of a kernel's arguments: one ValueError that says which argument, what was expected, what came."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Checks:
    """The checks of one call of ``function``, whose tensors all have to be where ``device_of`` is.

    Each method raises ValueError: ``function: name what: expected ..., got ...``.
    """

    function: str
    device_of: str
    device: torch.device

    def expect(self, ok: bool, name: str, expected: str, got: object) -> None:
        """The condition itself."""
        if not ok:
            raise ValueError(f"{self.function}: {name}: expected {expected}, got {got}")

    def tensor(self, name: str, tensor, dtype: torch.dtype, shape) -> None:
        """dtype, exact shape and device."""
        got = tuple(tensor.shape)
        self.expect(tensor.dtype == dtype, f"{name} dtype", str(dtype), tensor.dtype)
        self.expect(got == tuple(shape), f"{name} shape", str(list(shape)), got)
        self.expect(
            tensor.device == self.device,
            f"{name} device",
            f"{self.device} (that of {self.device_of})",
            tensor.device,
        )

    def lengths(self, name: str, tensor, batch: int) -> None:
        """One int32 for each row: [B] or [B, 1]."""
        got = tuple(tensor.shape)
        shapes = ((batch,), (batch, 1))
        self.expect(got in shapes, f"{name} shape", f"[{batch}] or [{batch}, 1]", got)
        self.tensor(name, tensor, torch.int32, got)

    def page_table(self, name: str, tensor, batch: int, pages: int) -> None:
        """int32, a row of at least ``pages`` ids for each row; may be a slice of columns."""
        got = tuple(tensor.shape)
        self.expect(
            len(got) == 2 and got[0] == batch and got[1] >= pages,
            f"{name} shape",
            f"[{batch}, >= {pages}]",
            got,
        )
        self.tensor(name, tensor, torch.int32, got)
        self.unit_columns(name, tensor)

    def contiguous(self, name: str, tensor) -> None:
        """No gaps and no other order."""
        self.expect(
            tensor.is_contiguous(), f"{name} strides", "contiguous", tensor.stride()
        )

    def unit_columns(self, name: str, tensor) -> None:
        """The elements of a row of a matrix are next to each other."""
        self.expect(
            tensor.stride(1) == 1 or tensor.shape[1] <= 1,
            f"{name} strides",
            "unit column stride",
            tensor.stride(),
        )

    def aligned(self, name: str, tensor, multiple: int) -> None:
        """The address is a multiple of so many bytes."""
        past = tensor.data_ptr() % multiple
        self.expect(
            past == 0,
            f"{name} address",
            f"a multiple of {multiple} bytes",
            f"{past} past one",
        )
