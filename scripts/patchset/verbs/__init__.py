"""The verbs of `python -m patchset`, one module each."""

from . import apply, check, checkpoint, export, generate

ALL = (
    apply.register,
    check.register,
    export.register,
    generate.register,
    checkpoint.register,
)
