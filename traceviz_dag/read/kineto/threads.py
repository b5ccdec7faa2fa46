"""Host threads of a trace as dense indices, with their most telling names."""

from __future__ import annotations

import numpy as np

from traceviz_dag.arrays import Int32, Int64
from traceviz_dag.read.events import MISSING, Thread
from traceviz_dag.read.kineto.packing import integers
from traceviz_dag.read.kineto.schema import as_integer

_MOST_MASKS = 16
"""Distinct threads of a piece up to which comparing with each is faster than sorting."""


class Identifiers:
    """Process or thread ids as integers; text that is no number gets one of its own, which no system gives out."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def of(self, values: list[int | str]) -> Int64:
        """An integer for each of ``values``."""
        if not isinstance(values[0], str):
            numbers = integers(values)
            if not (numbers == MISSING).any():
                return numbers
        return np.array([self._one(value) for value in values], np.int64)

    def text(self, number: int) -> int | str:
        """The id as the trace wrote it."""
        return next((text for text, given in self._texts.items() if given == number), number)

    def _one(self, value: int | str) -> int:
        value = _plain(value)
        if isinstance(value, str):
            return self._texts.setdefault(value, MISSING + 1 + len(self._texts))
        return value if abs(value) < -MISSING else MISSING


class ThreadTable:
    """Gives each (process, thread) an index in order of appearance and remembers what they are called."""

    def __init__(self) -> None:
        self.process_ids = Identifiers()
        self.thread_ids = Identifiers()
        self._index: dict[tuple[int, int], int] = {}
        self._names: dict[tuple[int | str, int | str], str] = {}

    def indices(self, processes: Int64, threads: Int64) -> Int32:
        """Dense indices of the threads of rows, from what ``process_ids`` and ``thread_ids`` gave."""
        found = np.full(len(threads), -1, np.int32)
        if not len(found):
            return found
        row = 0
        for _ in range(_MOST_MASKS):
            same = (threads == threads[row]) & (processes == processes[row])
            found[same] = self._index_of(int(processes[row]), int(threads[row]))
            row = int(found.argmin())
            if found[row] >= 0:
                return found
        pairs = np.stack([processes, threads])
        distinct, first_rows, inverse = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        index = np.empty(len(first_rows), np.int32)
        for place in np.argsort(first_rows).tolist():
            index[place] = self._index_of(*distinct[:, place].tolist())
        return index[inverse.reshape(-1)]

    def name(self, process: int | str, thread: int | str, name: str) -> None:
        """Remember a name; of several for one thread the most telling stays."""
        name, place = name.strip(), (_plain(process), _plain(thread))
        if _telling(name) > _telling(self._names.get(place, "")):
            self._names[place] = name

    def process_of_thread(self) -> Int32:
        """Per thread, the index of its process in order of appearance."""
        order = list(dict.fromkeys(process for process, _ in self._index))
        return np.array([order.index(process) for process, _ in self._index], np.int32)

    def threads(self) -> tuple[Thread, ...]:
        """All threads that rows ran on, by index; one whose id is a text is called that where it has no name."""
        return tuple(Thread(process, thread, self._name_of(process, thread)) for process, thread in self._index)

    def _name_of(self, process: int, thread: int) -> str:
        written = (self.process_ids.text(process), self.thread_ids.text(thread))
        return self._names.get(written) or (written[1] if isinstance(written[1], str) else "")

    def _index_of(self, process: int, thread: int) -> int:
        return self._index.setdefault((process, thread), len(self._index))


def _plain(value: int | str) -> int | str:
    """An id as a number where it is one, however the trace wrote it."""
    number = as_integer(value)
    return value if number == MISSING else number


def _telling(name: str) -> int:
    """How much a thread's name says: the name of the process is inherited by each thread until it gets its own."""
    if "pt_autograd" in name:
        return 4
    if "pt_main_thread" in name:
        return 2
    return 3 if "(pt_" in name else int(bool(name))
