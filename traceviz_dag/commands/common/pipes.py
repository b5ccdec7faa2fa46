"""Output to a pipe whose reader may go before the end, as in ``traceviz sql … | head``."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


_ANSWER, _MESSAGES = 1, 2


def outlive_readers() -> None:
    """Let stdout and stderr drop what nobody reads any more.

    The command goes on to its end and exits with its own code: a reader that has seen enough makes no success a
    failure, and no failure a success. A stream that was closed before the command began is the null device: else the
    next file that is opened would take its number, and what a library prints.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = _outliving(sys.stdout or _closed_before(_ANSWER))
    sys.stderr = _outliving(sys.stderr or _closed_before(_MESSAGES))


def nothing_printed() -> bool:
    """Whether stdout has not been written to yet."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Outliving) and not raw.used


class _Outliving(io.FileIO):
    """A file descriptor that is turned to the null device once its reader is gone.

    Attributes:
        used: whether anything was written.
    """

    used = False

    def write(self, data: Buffer, /) -> int:
        """Write what the reader still takes.

        Raises:
            OSError: the answer cannot be written, since the disk is full, say. What comes later is dropped: at the end
                nobody could be notified. Messages that cannot be written are dropped, too.
        """
        self.used = True
        try:
            return super().write(data)
        except BrokenPipeError:
            self._drop_all()
            return memoryview(data).nbytes
        except BlockingIOError:
            raise
        except OSError as error:
            self._drop_all()
            if self.fileno() == _MESSAGES:
                return memoryview(data).nbytes
            raise OSError(error.errno, error.strerror, "standard output") from None

    def _drop_all(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


def _closed_before(descriptor: int) -> TextIO:
    """A stream for what Python has none for, since it was closed when the program began."""
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False)), "utf-8")


def _outliving(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    binary = io.BufferedWriter(_Outliving(stream.fileno(), "wb", closefd=False))
    # Where nobody chose an encoding Python falls back on ASCII, which has no dash and no block.
    encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
    # Others, such as Latin-1, lack some letters.
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(
        binary, encoding, errors, line_buffering=stream.line_buffering, write_through=stream.write_through
    )
