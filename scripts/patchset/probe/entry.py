"""What `git bisect run` starts for each commit: 0 before the change, 1 after it, 125 skip, 200 give up.

Git takes every other status below 128 for "after the change", and so would name a false culprit: a
usage error, a failed import, Python's own 1 for an exception. So nothing else ever leaves here.
"""

import json
import os
import sys
from pathlib import Path

ABORT = 200
# Names the descriptor of the person who waits; standard error is git's log.
TELLS_TO = "PATCHSET_TELLS_TO"


def main(directory: Path) -> int:
    """Measure what is checked out in the session of this directory."""
    if TELLS_TO in os.environ:
        os.dup2(int(os.environ[TELLS_TO]), sys.stderr.fileno())
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from patchset.bisect import step

    return step.run(directory)


if __name__ == "__main__":
    status = ABORT
    try:
        status = main(Path(sys.argv[1]))
        if status not in (0, 1, 125):
            status = ABORT
    except BaseException as error:
        try:
            text = {"what": f"{type(error).__name__}: {error}"}
            (Path(sys.argv[1]) / "abort.json").write_text(json.dumps(text) + "\n")
        except BaseException:
            pass
    # Not sys.exit: a stream that can't be flushed, or a thread, would change the status.
    os._exit(status)
