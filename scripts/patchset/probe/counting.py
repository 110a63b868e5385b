"""Count the work of a piece of code on the CPU: bytes, not seconds, so a busy machine changes nothing.

Counted are the bytes that torch operations write and the bytes that interpreted Triton kernels load and
store (masked-off lanes move nothing). A view writes nothing, and neither does `torch.empty`.
"""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

# The operations that hand out memory without writing it.
_EMPTY = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"}
_BUILDER = interpreter.InterpreterBuilder


class CounterError(RuntimeError):
    """This torch or Triton is not counted as it should be."""


class Work(TorchDispatchMode):
    """Counts while it is entered: `torch_bytes` written, `kernel_bytes` loaded and stored."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """In the place of torch's: to keep its compiler out of this class, torch would import it first."""
        return False

    def __init__(self):
        super().__init__()
        self.torch_bytes = 0
        self.kernel_bytes = 0
        self._paused = 0
        self._hooks = contextlib.ExitStack()

    @property
    def total(self) -> int:
        return self.torch_bytes + self.kernel_bytes

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in the block is not counted."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def __enter__(self):
        self._hooks.enter_context(_interpreter_hooks(self))
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self._hooks.close()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            self.torch_bytes += _written(func, args, kwargs or {}, result)
        return result

    def moved(self, size: int) -> None:
        """A kernel loaded or stored this many bytes."""
        self.kernel_bytes += size


def self_check() -> None:
    """Count two operations whose work is known. Raises CounterError where the counts are wrong."""
    source, target = torch.zeros(128), torch.zeros(128)
    with Work() as work:
        (source.view(2, 64) + 1).reshape(128)
        source.add_(1)
        torch.empty(128)
    if work.total != 2 * 128 * 4:
        raise CounterError(
            f"torch {torch.__version__}: counted {work.total} bytes of 1024"
        )
    with Work() as work:
        _copy_some[(1,)](source, target, 100, BLOCK=128)
    if (work.torch_bytes, work.kernel_bytes) != (0, 2 * 100 * 4):
        raise CounterError(
            f"triton {triton.__version__}: counted {work.kernel_bytes} bytes of 800, and"
            f" {work.torch_bytes} of torch's (is TRITON_INTERPRET=1 set?)"
        )


@triton.jit
def _copy_some(source, target, count, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(target + offsets, tl.load(source + offsets, mask=mask), mask=mask)


def _written(func, args: tuple, kwargs: dict, result) -> int:
    if func.overloadpacket.__name__ in _EMPTY:
        return 0
    given = list(_tensors([args, kwargs]))
    old = {tensor.untyped_storage().data_ptr() for tensor in given}
    size = sum(
        tensor.nbytes
        for tensor in _tensors(result)
        if tensor.untyped_storage().data_ptr() not in old
    )
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = (
                args[position]
                if position < len(args)
                else kwargs.get(argument.name, None)
            )
            size += sum(tensor.nbytes for tensor in _tensors(value))
    return size


def _tensors(value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@contextlib.contextmanager
def _interpreter_hooks(work: Work) -> Iterator[None]:
    """Tell `work` of each access of interpreted kernels; what the interpreter itself does in torch
    to launch one is not counted."""

    def access(name: str, mask_at: int, factor: int):
        original = getattr(_BUILDER, name)

        def counted(self, pointers, *rest):
            lanes = (
                int(rest[mask_at].data.sum()) if mask_at >= 0 else pointers.data.size
            )
            element = pointers.get_element_ty().primitive_bitwidth // 8
            work.moved(factor * lanes * element)
            return original(self, pointers, *rest)

        return original, counted

    def launch(self, *args, **kwargs):
        with work.paused():
            return original_launch(self, *args, **kwargs)

    original_launch = interpreter.GridExecutor.__call__
    # Positions of the mask after the pointers.
    hooked = {
        "create_masked_load": access("create_masked_load", 0, 1),
        "create_masked_store": access("create_masked_store", 1, 1),
        "create_atomic_cas": access("create_atomic_cas", -1, 2),
    }
    original_rmw = _BUILDER.create_atomic_rmw

    def rmw(self, operation, pointers, value, mask, *rest):
        element = pointers.get_element_ty().primitive_bitwidth // 8
        work.moved(2 * int(mask.data.sum()) * element)
        return original_rmw(self, operation, pointers, value, mask, *rest)

    try:
        for name, (_, counted) in hooked.items():
            setattr(_BUILDER, name, counted)
        _BUILDER.create_atomic_rmw = rmw
        interpreter.GridExecutor.__call__ = launch
        yield
    finally:
        for name, (original, _) in hooked.items():
            setattr(_BUILDER, name, original)
        _BUILDER.create_atomic_rmw = original_rmw
        interpreter.GridExecutor.__call__ = original_launch
