"""The verbs of the command line, one module each."""

from . import apply, bench, bundle, check, checkpoint, export, serve, smoke

ALL = (
    apply.register,
    check.register,
    export.register,
    checkpoint.register,
    bench.register,
    bundle.register,
    serve.register,
    smoke.register,
)
