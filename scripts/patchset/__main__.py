"""`python -m patchset`."""

import sys

from . import invocation, signals
from .errors import Exit, Failure

# Importing what follows takes long enough to be interrupted.
signals.die_silently()

try:
    from .cli import main
except ModuleNotFoundError as error:
    failure = Failure(
        Exit.ENVIRONMENT,
        f"this Python lacks the package {error.name}",
        where=sys.executable,
        state="nothing was changed",
        next="call the scripts, which set up a Python of their own: "
        f"{invocation.script('apply.sh')}",
    )
    print("\n".join(failure.lines()), file=sys.stderr)
    sys.exit(failure.code)

code = main(sys.argv[1:])
signals.die_silently()
sys.exit(code)
