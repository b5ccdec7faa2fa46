"""Events of a piece of a file, on their way from whatever decoded them to columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Float64, Int32, Int64, Integers
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.kineto import packing
from traceviz_dag.read.kineto.communication_facts import Facts, FactValues
from traceviz_dag.read.kineto.stated_inputs import (
    InputsOnce,
    annotated_communication,
    input_keys,
    may_state_communication,
    raw_list,
    stated_communication,
)
from traceviz_dag.read.kineto.threads import Identifiers

Codes = npt.NDArray[np.uint8]


class Rows(Protocol):
    """Events of some categories that belong in tables, in file order; ``attribute`` is one of ``schema.Arguments``."""

    def __len__(self) -> int: ...

    def take(self, places: Int64) -> Self:
        """The events at ascending, distinct ``places``."""

    def names(self, strings: defaultdict[str, int]) -> Int32:
        """Codes of their names; ``strings`` maps text to code and grows as needed."""

    def identifiers(self, key: str, given: Identifiers) -> Int64:
        """Their ``pid`` or ``tid`` as integers."""

    def integers(self, attribute: str) -> Int64:
        """An argument, MISSING for what is no integer; not to be written to."""

    def triples(self, attribute: str) -> Int64:
        """Three dimensions each, shape (len, 3); MISSING for what is no list of three."""

    def inputs(self, known: InputsOnce) -> Integers:
        """Numbers of what operators state of their inputs."""

    def named(self, values: FactValues) -> Facts:
        """Facts of those that name a collective or a group."""

    def stated(self, values: FactValues) -> Facts:
        """Facts of those that name neither, from the inputs of ``record_param_comms``, which they all are."""

    def annotated(self, values: FactValues) -> Facts:
        """Facts from annotations, which they all are."""


class StructRows:
    """Events that msgspec decoded."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, places: Int64) -> StructRows:
        return self if len(places) == len(self._rows) else StructRows([self._rows[place] for place in places.tolist()])

    def names(self, strings: defaultdict[str, int]) -> Int32:
        return packing.codes(map(strings.__getitem__, [row.name for row in self._rows]), len(self._rows))

    def identifiers(self, key: str, given: Identifiers) -> Int64:
        return given.of(_reader_of(key)(self._rows))

    def integers(self, attribute: str) -> Int64:
        return packing.integers(_reader_of(f"args.{attribute}")(self._rows))

    def triples(self, attribute: str) -> Int64:
        return packing.triples(_reader_of(f"args.{attribute}")(self._rows))

    def inputs(self, known: InputsOnce) -> Int32:
        return packing.codes(known.numbers(input_keys(self._rows)), len(self._rows))

    def named(self, values: FactValues) -> Facts:
        return values.facts({place: row.args for place, row in enumerate(self._rows) if _names_one(row.args)})

    def stated(self, values: FactValues) -> Facts:
        return values.facts(
            {
                place: stated
                for place, row in enumerate(self._rows)
                if not _names_one(row.args) and (stated := stated_communication(row.args))
            }
        )

    def annotated(self, values: FactValues) -> Facts:
        places = [place for place, row in enumerate(self._rows) if may_state_communication(row.name)]
        telling = [self._rows[place] for place in places]
        number_of: dict[tuple[str, bytes, bytes], int] = {}
        which = [
            number_of.setdefault(
                (row.name, raw_list(row.args.input_sizes), raw_list(row.args.input_types)), len(number_of)
            )
            for row in telling
        ]
        stated = [annotated_communication(*key) for key in number_of]
        return values.repeated(np.array(places, np.int64), np.array(which, np.int64), stated)


def _names_one(arguments: Any) -> bool:
    return arguments.collective is not MISSING or arguments.group_name is not MISSING


@cache
def _reader_of(attribute: str) -> Callable[[list[Any]], list[Any]]:
    """Rows → their attribute, by a comprehension of its own: that takes half the time of ``attrgetter``."""
    reader: Callable[[list[Any]], list[Any]] = eval(f"lambda rows: [row.{attribute} for row in rows]")
    return reader


class Piece(NamedTuple):
    """Events of a part of a file.

    Attributes:
        decoded: how many events there are, of all categories.
        rows: those that belong in a table, in file order.
        codes: their category codes.
        start_ns: their starts, MISSING where an event has none.
        duration_us: their durations in microseconds, NaN where an event has none.
        thread_names: process id, thread id and name, as metadata events say.
        dropped: reason → number of elements that are no events.
    """

    decoded: int
    rows: Rows
    codes: Codes
    start_ns: Int64
    duration_us: Float64
    thread_names: list[tuple[int | str, int | str, str]]
    dropped: Counter[str]
