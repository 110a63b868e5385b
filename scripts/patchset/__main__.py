"""`python -m patchset`."""

import sys

from . import signals

signals.die_silently()

from .cli import main  # noqa: E402  (importing takes long enough to be interrupted)

code = main(sys.argv[1:])
signals.die_silently()
sys.exit(code)
