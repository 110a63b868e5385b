"""Exit codes, and the one exception that stands for an expected failure."""

from __future__ import annotations

from enum import IntEnum

EXIT_CODES = (
    "exit codes: 0 done; 1 the answer is no; 2 usage; 3 patch or drift: patches, tree, wheel or "
    "checkout are not what they must be; 4 environment; 5 build; 6 server or smoke; "
    "70 a bug of this tool; 130 interrupted (143 by SIGTERM, 129 by SIGHUP)"
)


class Exit(IntEnum):
    """What the process tells its caller; scripts and CI depend on these numbers."""

    DONE = 0
    NO = 1
    USAGE = 2
    PATCH = 3
    ENVIRONMENT = 4
    BUILD = 5
    SERVER = 6
    BUG = 70
    INTERRUPTED = 130


class Failure(Exception):
    """An expected failure: what happened, where, the state left behind, and the next command.

    Arguments: code is the exit code; what is one sentence; where, state and next are optional
    and are printed on a labelled line each. No traceback is ever shown for it.
    """

    def __init__(
        self,
        code: Exit,
        what: str,
        *,
        where: str | None = None,
        state: str | None = None,
        next: str | None = None,
    ):
        super().__init__(what)
        self.code = Exit(code)
        self.what = what
        self.where = where
        self.state = state
        self.next = next

    def lines(self) -> list[str]:
        """The labelled lines for stderr, without empty labels."""
        labelled = [
            ("error", self.what),
            ("where", self.where),
            ("state", self.state),
            ("next", self.next),
        ]
        return [f"{label + ':':<7}{_indent(text)}" for label, text in labelled if text]

    def as_json(self) -> dict:
        """The same for a script."""
        return {
            "error": self.what,
            "where": self.where,
            "state": self.state,
            "next": self.next,
            "exit": int(self.code),
        }


class Interrupted(KeyboardInterrupt):
    """An interruption, where the command knows the state left behind and the next command.

    Arguments: interrupt is the one that came, whose signal is kept.
    """

    def __init__(self, interrupt: KeyboardInterrupt, state: str, next: str):
        super().__init__(*interrupt.args)
        self.state = state
        self.next = next


def _indent(text: str) -> str:
    # What git says may have empty lines, which would look like the end of the message.
    return ("\n" + " " * 7).join(line for line in text.splitlines() if line.strip())
