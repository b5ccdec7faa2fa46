"""Names as screens show them: printable, and of a kernel its function, without namespaces, templates, arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import overload

from traceviz_dag.printable import printable

NO_NAME = "(no name)"

LONGEST_TEXT = 400
"""Characters of a name that is kept; what is longer ends in an ellipsis."""

_OPENING, _CLOSING = "<([{", ">)]}"
_SPECIAL = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous class\)")
_SIGNATURE = re.compile(r"\w[<(]")
_WHITE = re.compile(r"\s+")


class ShownNames(Sequence[str]):
    """Names made for the screen when they are asked for, each once.

    Args:
        words: names as the source gives them; None is "(no name)", and so is every place beyond them.
        make: what makes one ready to be shown.
    """

    def __init__(self, words: Sequence[str | None], make: Callable[[str], str]) -> None:
        self._words, self._make = words, make
        self._made: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._words) + 1

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if place not in self._made:
            word = self._words[place] if 0 <= place < len(self._words) else None
            self._made[place] = NO_NAME if word is None else self._make(word)
        return self._made[place]


def shortened(text: str) -> str:
    """A name of at most ``LONGEST_TEXT`` characters."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def shown(name: str) -> str:
    """A name that is no function's: on one line, safe to print, and not longer than the report keeps."""
    return shortened(printable(_WHITE.sub(" ", name).strip())) or NO_NAME


def function_name(name: str) -> str:
    """The function of a kernel's name.

    ``void at::native::vectorized_elementwise_kernel<4, F>(int, F)`` is ``vectorized_elementwise_kernel``. A name that
    is no C++ signature stays as it is.
    """
    plain = _SPECIAL.sub("", name).replace("->", "  ")
    if "::" not in plain and not _SIGNATURE.search(plain):
        return shown(name)
    kept, depth = [], 0
    for letter in plain:
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING and depth:
            depth -= 1
        elif not depth:
            kept.append(letter)
    last = "".join(kept).split("::")[-1].split()
    # Return type before, qualifiers behind: the function is the last word of its own namespace.
    words = [word for word in last if word not in ("const", "volatile", "void")]
    return shown(words[-1]) if words else shown(name)
