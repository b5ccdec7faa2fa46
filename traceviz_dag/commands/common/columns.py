"""Which columns of a table fit side by side on a screen: what does not fit goes below, never out of sight."""

from __future__ import annotations

from collections.abc import Sequence

BETWEEN, EDGES = 3, 2
"""Spaces between two columns, and around a table."""

MOST_WORD = 32
"""Letters of the longest word that is never broken: names of kernels may have hundreds."""

_MOST_KEYS = 4


def stacked(
    names: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int
) -> list[list[int]]:
    """Split the columns of a table into blocks that are printed one below the other.

    Each block begins with the columns that distinguish the rows; there are as few blocks as possible, about equally
    wide. A number is never broken, nor is a word that fits; a column of texts may be as narrow as its longest word.

    Args:
        names: headings, which may break between words.
        rows: cells, a text a column.
        numeric: for each column, whether it holds numbers alone.
        width: letters of a line.

    Returns:
        For each block the places of its columns; one block where all fit.
    """
    least = [least_width(names[place], [row[place] for row in rows], numeric[place]) for place in range(len(names))]
    if _total(least) <= width:
        return [list(range(len(names)))]
    keys = keys_of(rows, len(names))
    room = width - _total(least[:keys]) if keys else width - EDGES + BETWEEN
    blocks = _filled(least, keys, room)
    for less in range(room - 1, 0, -1):
        narrower = _filled(least, keys, less)
        if len(narrower) > len(blocks):
            break
        blocks = narrower
    return [[*range(keys), *block] for block in blocks] or [list(range(len(names)))]


def _filled(least: Sequence[int], keys: int, room: int) -> list[list[int]]:
    """The columns behind the keys in blocks of at most this width; a column that is wider has one to itself."""
    blocks: list[list[int]] = []
    used = 0
    for place in range(keys, len(least)):
        needed = BETWEEN + least[place]
        if not blocks or used + needed > room:
            blocks.append([])
            used = 0
        blocks[-1].append(place)
        used += needed
    return blocks


def least_width(name: str, cells: Sequence[str], numeric: bool) -> int:
    """The letters that a column needs so that no number is broken, and no word but a very long one."""
    words = [word for text in ([name] if numeric else [name, *cells]) for word in text.split()]
    return max([*(min(len(word), MOST_WORD) for word in words), *(len(cell) for cell in cells if numeric)], default=0)


def keys_of(rows: Sequence[Sequence[str]], columns: int) -> int:
    """How many columns from the left distinguish the rows; one where few do not; there is always one beside them."""
    for count in range(1, min(_MOST_KEYS, columns - 1) + 1):
        if len({tuple(row[:count]) for row in rows}) == len(rows):
            return count
    return min(1, columns - 1)


def widths(wanted: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """How wide the columns of a block are: as wanted where that fits, else the widest give way, never below the least.

    Where not even that fits, texts break within their words, the widest first.
    """
    found = list(wanted)
    bounds: Sequence[int] = least
    for bounds in (least, [1] * len(least)):
        while _total(found) > width:
            yielding = [place for place, each in enumerate(found) if each > bounds[place]]
            if not yielding:
                break
            found[max(yielding, key=lambda place: found[place])] -= 1
    return found


def _total(found: Sequence[int]) -> int:
    return sum(found) + BETWEEN * max(len(found) - 1, 0) + EDGES
