"""Arrow columns from codes: what is missing becomes NULL, and a dictionary holds only what its column uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from traceviz_dag.arrays import Int32, Int64
from traceviz_dag.read.events import MISSING


def integers(values: Int64) -> pa.Array:
    """An integer column; MISSING is NULL."""
    return pa.array(values, mask=values == MISSING)


def coded(codes: Int64 | Int32, strings: Sequence[str], prefix: str = "") -> pa.Array:
    """A dictionary column from string codes; code 0 is NULL.

    Args:
        prefix: taken off every string.
    """
    return _words(pa.array(codes, mask=codes == 0), lambda code: strings[code].removeprefix(prefix))


def labelled(indices: Int64, labels: Sequence[str | None]) -> pa.Array:
    """A dictionary column from positions in ``labels``; a negative index or a None label is NULL."""
    return _words(pa.array(indices, mask=indices < 0), labels.__getitem__)


def _words(numbers: pa.Array, word_of: Callable[[int], str | None]) -> pa.Array:
    """A dictionary column with the word of each number, each once and in the order in which a file has them: that of
    first use."""
    encoded = numbers.dictionary_encode()
    words = [word_of(number) for number in encoded.dictionary.to_pylist()]
    distinct = [*dict.fromkeys(word for word in words if word is not None)]
    indices = encoded.indices
    if len(distinct) < len(words):
        place_of: dict[str | None, int] = {word: place for place, word in enumerate(distinct)}
        indices = pa.array([place_of.get(word) for word in words], pa.int32()).take(indices)
    return pa.DictionaryArray.from_arrays(indices, pa.array(distinct, pa.string()))
