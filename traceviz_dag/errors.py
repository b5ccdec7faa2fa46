"""Errors that a user can act on: one line that names the file, the fault and the remedy."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.printable import printable

_LONGEST_FAULT = 2000


class TracevizError(Exception):
    """Base of every error that the command line prints as one line.

    Attributes:
        exit_code: what the process exits with (2: bad input or usage, 1: a gate failed).
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class BadInputError(TracevizError):
    """An input cannot be used.

    Args:
        path: the file or folder at fault.
        fault: what is wrong with it, in words a user understands.
        remedy: what to do about it.
    """

    def __init__(self, path: Path | str, fault: str, remedy: str) -> None:
        self.path = Path(path)
        self.fault = fault
        self.remedy = remedy
        super().__init__(f"{path}: {_shortened(fault)}; {remedy}")

    def __reduce__(self) -> tuple[type[BadInputError], tuple[str, str, str]]:
        # Raised in worker processes: it must survive the trip back with its parts.
        return (type(self), (str(self.path), self.fault, self.remedy))


class UsageError(TracevizError):
    """The words of a call are off."""


def _shortened(fault: str) -> str:
    """A fault as a line bears it: some quote what a file holds."""
    return fault if len(fault) <= _LONGEST_FAULT else f"{fault[:_LONGEST_FAULT]}…"
