"""Output to a pipe whose reader may go before the end, as in ``traceviz sql … | head``."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


def outlive_readers() -> None:
    """Let stdout and stderr drop what nobody reads any more.

    The command goes on to its end and exits with its own code: a reader that has seen enough makes no success a
    failure, and no failure a success.
    """
    sys.stdout = _outliving(sys.stdout)
    sys.stderr = _outliving(sys.stderr)


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
        """Write what the reader still takes."""
        self.used = True
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return memoryview(data).nbytes


def _outliving(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    binary = io.BufferedWriter(_Outliving(stream.fileno(), "wb", closefd=False))
    # Where nobody chose an encoding Python falls back on ASCII, which has no dash and no block.
    encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
    return io.TextIOWrapper(
        binary, encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
    )
