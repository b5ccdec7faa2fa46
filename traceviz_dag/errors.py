"""Errors that a user can act on: one line that names the file, the fault and the remedy."""

from __future__ import annotations

from pathlib import Path


class TracevizError(Exception):
    """Base of every error that the command line prints as one line.

    Attributes:
        exit_code: what the process exits with (2: bad input or usage, 1: a gate failed).
    """

    exit_code = 2


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
        super().__init__(f"{path}: {fault}; {remedy}")

    def __reduce__(self) -> tuple[type[BadInputError], tuple[str, str, str]]:
        # Raised in worker processes: it must survive the trip back with its parts.
        return (type(self), (str(self.path), self.fault, self.remedy))


class UsageError(TracevizError):
    """The words of a call are off."""


class IncompleteError(TracevizError):
    """Some of what was given could not be read; the answer is about the rest, and was given."""
