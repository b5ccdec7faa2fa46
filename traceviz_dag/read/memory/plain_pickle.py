"""Reads pickles of plain values, and nothing else: a pickle that names a class or a function is refused.

Only the standard library is imported here: a child process runs it, and starts in milliseconds.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO, NoReturn


class NotPlainError(ValueError):
    """The bytes are no pickle of plain values; the message says why."""


class _Plain(pickle.Unpickler):
    """The C unpickler. Every opcode that calls needs a class or function, and these come from here alone."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise NotPlainError("it names a class or a function, which no memory snapshot does")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise NotPlainError("it refers to an object elsewhere, which no memory snapshot does")


def read_plain(file: BinaryIO) -> Any:
    """The value that a pickle of plain values holds.

    Call it in a process with little memory and time: an opcode may ask for much of either (an index that makes room for
    all indices below it; a tuple of tuples as a key, whose hash takes 2 ** 60 steps). Containers may refer to each
    other, however deeply, also in circles: never walk the result without knowing where to.

    Args:
        file: what follows its end mark is not looked at. One that can be peeked into, since of those without frames,
            as PyTorch's C++ code writes them, each opcode else costs a call.

    Raises:
        NotPlainError: it names something, is cut off or broken.
        MemoryError: the process may not have as much as the file asks for.
    """
    try:
        return _Plain(file).load()
    except NotPlainError:
        raise
    except (EOFError, pickle.UnpicklingError, IndexError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise NotPlainError("it is cut off or broken") from error
    except OverflowError:
        raise NotPlainError("it holds a number that is too large") from None
