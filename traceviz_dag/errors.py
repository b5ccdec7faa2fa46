"""Errors that a user can act on: one line that names the file, the fault and the remedy."""

from __future__ import annotations

import errno
from pathlib import Path

from traceviz_dag.printable import named, printable

_LONGEST_FAULT = 2000


class TracevizError(Exception):
    """Base of every error that the command line prints as one line.

    Attributes:
        exit_code: what the process exits with. 2: bad input, wrong usage, a partial result, or nothing in the traces
            that answers the question. 130: stopped by the user. No error has 1: a command that judges exits with it
            itself, after it printed why (a pair below its threshold, traces that differ).
    """

    exit_code = 2

    def __init__(self, message: str = "") -> None:
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
        super().__init__(f"{named(path)}: {_shortened(fault)}; {remedy}")

    def __reduce__(self) -> tuple[type[BadInputError], tuple[str, str, str]]:
        # Raised in worker processes: it must survive the trip back with its parts.
        return (type(self), (str(self.path), self.fault, self.remedy))


class OutputError(TracevizError, OSError):
    """A file cannot be written; what was there before is still there.

    Args:
        path: the file or folder.
        fault: what is wrong, in words a user understands.
        remedy: what to do about it.
        number: the system's number of the error (``errno``), where there is one.
    """

    def __init__(self, path: Path | str, fault: str, remedy: str, number: int | None = None) -> None:
        super().__init__(f"{path}: {fault}; {remedy}")
        self.path = Path(path)
        self.fault = fault
        self.remedy = remedy
        self.errno = number

    def __reduce__(self) -> tuple[type[OutputError], tuple[str, str, str, int | None]]:
        return (type(self), (str(self.path), self.fault, self.remedy, self.errno))


class StoreError(TracevizError):
    """Objects of a store cannot be used: a matter of the network or of access, and not of a trace.

    Args:
        url: ``s3://BUCKET/KEY``, without anything secret.
        fault: what is wrong, in words a user understands.
        remedy: what to do about it.
    """

    def __init__(self, url: str, fault: str, remedy: str) -> None:
        self.parts = (url, fault, remedy)
        super().__init__(f"{url}: {_shortened(fault)}; {remedy}")

    def __reduce__(self) -> tuple[type[StoreError], tuple[str, str, str]]:
        return (type(self), self.parts)


class ClusterError(TracevizError):
    """A cluster, or a worker of it, cannot be used.

    Args:
        who: the cluster, the job or the worker.
        fault: what is wrong with it, in words a user understands.
        remedy: what to do about it.
    """

    def __init__(self, who: str, fault: str, remedy: str) -> None:
        self.parts = (who, fault, remedy)
        super().__init__(f"{who}: {_shortened(fault)}; {remedy}")

    def __reduce__(self) -> tuple[type[ClusterError], tuple[str, str, str]]:
        return (type(self), self.parts)


class UsageError(TracevizError):
    """The words of a call are off."""


class NoEvidenceError(TracevizError):
    """What was asked for cannot be known from what the traces hold; the reason was printed, or is in the JSON."""


class StoppedError(TracevizError):
    """The user interrupted the command; the line says what is done and how to go on."""

    exit_code = 130


class IncompleteError(TracevizError):
    """Some of what was given could not be read; the answer is about the rest, and was given."""


def file_system_line(error: OSError) -> str:
    """What a fault of the file system means, and what to do about it."""
    reason = error.strerror or str(error)
    remedy = file_system_remedy(error, "check the disk and run it again")
    if error.filename is None:
        return f"{reason}; {remedy}"
    return str(BadInputError(error.filename, reason, remedy))


def file_system_remedy(error: OSError, otherwise: str) -> str:
    """What to do about a fault of the file system.

    Args:
        otherwise: where the kind of fault does not show.
    """
    return _REMEDIES.get(error.errno or 0, otherwise)


_PERMISSIONS = "check its permissions and those of its folder, or choose another place"
_FILE_FOR_FOLDER = "a file is where a folder belongs: move it away and run it again"
_REMEDIES = {
    errno.ENOSPC: "free space there, or choose another place",
    errno.EDQUOT: "free space in your quota, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.ENOTDIR: _FILE_FOR_FOLDER,
    errno.EEXIST: _FILE_FOR_FOLDER,
    errno.EISDIR: "a folder is where a file belongs: move it away and run it again",
    errno.ELOOP: "remove the link that leads to itself",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f) and run it again",
    errno.EMFILE: "raise the limit of open files (ulimit -n) and run it again",
}


def _shortened(fault: str) -> str:
    """A fault as a line bears it: some quote what a file holds."""
    return fault if len(fault) <= _LONGEST_FAULT else f"{fault[:_LONGEST_FAULT]}…"
