"""The one place that knows which trace formats there are, as far as files show: names, first bytes, wholeness.

Kineto and Nsight Systems come with this package; formats of others are found through entry points of the group
``traceviz_dag.trace_formats``, so that worker processes, the sensor and the command line all know them. How a rank of
a format is placed and read is the matter of :mod:`traceviz_dag.pipeline.formats`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from traceviz_dag.errors import BadInputError, TracevizError, UsageError
from traceviz_dag.read.kineto.files import KinetoFiles
from traceviz_dag.read.nsys.files import NsysFiles
from traceviz_dag.read.other_files import is_kineto_like
from traceviz_dag.read.regular_file import seems_file, seems_folder
from traceviz_dag.system.plugins import Brought, ExtensionPoint, plugins

FALLBACK = KinetoFiles.name
"""Format of a file that was named by itself and that no format recognises: its reader says what is wrong with it."""


@runtime_checkable
class FileFormat(Protocol):
    """What the files of a trace format look like.

    Attributes:
        name: one word; registrations record it, so it never changes.
        title: what its traces are called in sentences, a plural.
        suffixes: endings of its files' names, in lower case, each with its dot; case does not matter.
        folder_mark: a folder that holds a file of this name is one trace; None for a format of files alone.
        detectable_while_writing: a file that is still being written is recognised, and shows its rank. Where not, a
            folder with such a file waits as a whole.
        remedy: what to advise whoever gives a file that is none, a clause with a verb: ``give a … as … writes it``.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    folder_mark: str | None
    detectable_while_writing: bool
    remedy: str

    def recognises(self, path: Path) -> bool:
        """Whether a file with one of the suffixes, or a folder with the mark, is of this format by its content.

        A file that cannot be read, but is of this format by its name, is: reading it says what is wrong.
        """

    def stands_aside(self, path: Path) -> bool:
        """Whether a search of the folder passes the file over, since one beside it holds the same."""

    def is_whole(self, path: Path) -> bool:
        """Whether a file with one of the suffixes, or a folder with the mark, was written to its end.

        A file that is certainly of no such format counts as whole: nothing more is to be waited for.

        Raises:
            OSError: it cannot be read.
        """


_OWN: tuple[type[FileFormat], ...] = (NsysFiles, KinetoFiles)
"""The formats of this package, in the order in which they are asked whether a file is theirs."""

OF_OTHERS = ExtensionPoint(
    "traceviz_dag.trace_formats",
    "trace format",
    FileFormat,  # type: ignore[type-abstract]  # a protocol is looked for by its members
    "trace format",
    "docs/formats.md",
    make=lambda made: made(),
)
"""Where other packages bring trace formats."""


@cache
def file_formats() -> tuple[FileFormat, ...]:
    """All formats, in the order in which they are asked whether a file is theirs: those of others first.

    Kineto takes every .json file that has a rank in its name, so that a damaged one is reported; a format with the
    same suffix knows its own files by their content.

    Raises:
        UsageError: a format that is installed cannot be loaded.
    """
    return (*(brought.thing for brought in plugin_formats()), *(own() for own in _OWN))


@cache
def plugin_formats() -> tuple[Brought[FileFormat], ...]:
    """The formats that other packages bring, by name.

    Raises:
        UsageError: one cannot be loaded, is no trace format, or bears the name of another.
    """
    found = sorted(plugins(OF_OTHERS, {own.name for own in _OWN}), key=lambda one: one.thing.name)
    for brought in found:
        _guard(brought.thing, brought.origin)
    return tuple(found)


def format_of(path: Path) -> FileFormat | None:
    """The format that recognises a file or folder; None where none does, and for what is neither."""
    is_folder = seems_folder(path)
    if not is_folder and not seems_file(path):
        return None
    name = path.name.lower()
    for one in file_formats():
        mine = one.folder_mark is not None if is_folder else name.endswith(one.suffixes)
        if mine and one.recognises(path):
            return one
    return None


def format_with_suffix(name: str) -> FileFormat | None:
    """The first format with a suffix that a file's name bears; None where none has one."""
    lower = name.lower()
    return next((one for one in file_formats() if lower.endswith(one.suffixes)), None)


@cache
def all_suffixes() -> tuple[str, ...]:
    """The endings of the names of all trace files, in lower case, each once, the most usual ones first."""
    return tuple(dict.fromkeys(suffix for one in reversed(file_formats()) for suffix in one.suffixes))


@cache
def folder_marks() -> frozenset[str]:
    """Names of files that make a folder one trace."""
    return frozenset(one.folder_mark for one in file_formats() if one.folder_mark is not None)


@cache
def suffix_inside() -> re.Pattern[str]:
    """Finds a suffix of a trace file in a lower-case name, whatever a writer has hung behind it."""
    return re.compile(f"(?:{'|'.join(map(re.escape, all_suffixes()))})(?![a-z0-9])")


def is_whole(path: Path) -> bool:
    """Whether a trace was written to its end, as its format shows; that of its content comes before that of its name.

    Raises:
        OSError: it cannot be read.
    """
    one = format_of(path) or format_with_suffix(path.name)
    return one is None or one.is_whole(path)


def refusal(path: Path) -> BadInputError | None:
    """What to say of a file that was named by itself and that no format recognises; None leaves it to the fallback.

    The fallback reads whatever has another suffix, is empty or begins as JSON does, and says what is wrong with it.
    """
    one = format_with_suffix(path.name)
    if one is None or one.name == FALLBACK or not path.stat().st_size or is_kineto_like(path):
        return None
    return BadInputError(path, f"its content is not that of {one.title}", one.remedy)


def _guard(one: FileFormat, origin: str) -> None:
    """Make what the code of others raises on a file that file's fault, so that it costs no more than its own rank."""

    def guarded(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        @wraps(read)
        def guarded_read(path: Path) -> Any:
            try:
                return read(path)
            except (TracevizError, MemoryError):
                raise
            except OSError as error:
                raise BadInputError(path, f"cannot be read ({error.strerror or error})", "check the file") from error
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                raise BadInputError(path, f"{origin} cannot read it ({told})", one.remedy) from error

        return guarded_read

    def recognises(path: Path) -> bool:
        try:
            return asked(path)
        except OSError:
            return True  # whoever reads it says why it cannot be read
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise UsageError(f"{origin}: cannot tell whether {path} is of it ({told}); fix or uninstall it") from error

    asked = one.recognises
    own: dict[str, Callable[[Path], Any]] = {"recognises": recognises}
    own |= {name: guarded(getattr(one, name)) for name in ("peek", "read") if hasattr(one, name)}
    for name, method in own.items():
        setattr(one, name, method)
