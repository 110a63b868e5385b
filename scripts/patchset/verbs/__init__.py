"""The verbs of the command line, one module each."""

from . import apply, bench, bisect, bundle, check, checkpoint, export, serve, smoke

ALL = (
    apply.register,
    check.register,
    export.register,
    checkpoint.register,
    bisect.register,
    serve.register,
    smoke.register,
    bench.register,
    bundle.register,
)
