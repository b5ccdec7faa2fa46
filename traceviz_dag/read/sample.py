"""Whether the events of a trace can be used, known from the first of them alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.read.kineto.boundaries import NotATraceError
from traceviz_dag.read.kineto.chunks import CUT_OFF, EventArray
from traceviz_dag.read.kineto.columns import ColumnBuilder
from traceviz_dag.read.kineto.event_decoder import EventDecoder
from traceviz_dag.read.kineto.rows import Piece
from traceviz_dag.read.other_files import not_a_trace
from traceviz_dag.read.sources import ByteSource

_CHUNK_BYTES = 1 << 20
_PIECES = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """The first events of a trace.

    Attributes:
        events: how many were looked at, of all categories.
        dropped: reason → how many of them cannot be used.
    """

    events: int
    dropped: dict[str, int]


class _EnoughError(Exception):
    """The sample is taken."""


def sample_events(path: Path) -> Sample:
    """Decode the first MiBs of events.

    A begin without its end is a loss only where the sample is the whole file: else its end may come later.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    builder, decoder = ColumnBuilder(), EventDecoder()
    left = _PIECES

    def take(piece: Piece) -> None:
        nonlocal left
        builder.add(piece)
        left -= 1
        if not left:
            raise _EnoughError

    with ByteSource(path) as source:
        array: EventArray[Piece] = EventArray(source, decoder.decode, _CHUNK_BYTES)
        try:
            array.feed(take)
        except NotATraceError as error:
            raise not_a_trace(path, str(error)) from None
        except _EnoughError:
            pass
    # Where a file breaks off is known from its end, not from its events.
    dropped = builder.dropped + array.dropped + (decoder.unpaired if array.complete else decoder.lost_ends)
    return Sample(builder.rows_read, dict(dropped - Counter({CUT_OFF: dropped[CUT_OFF]})))
