"""The verbs of the command line, one module each."""

from . import apply, check, checkpoint, export

ALL = (
    apply.register,
    check.register,
    export.register,
    checkpoint.register,
)
