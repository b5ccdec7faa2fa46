"""Training iterations of one process of a profile: from NVTX ranges, else by a heuristic that says what it is.

In order: PyTorch's ``ProfilerStep#N``; ranges that bear a number (``Iteration 12``, ``step_12``, ``sample_0``); ranges
that repeat without one (``train_step``); Megatron's ``forward_backward_*.warmup``, ``.steady`` and ``.cooldown`` (an
iteration runs from one warm-up to the next, so that the optimizer belongs to the iteration before it); bursts of
optimizer kernels; the whole capture.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64

_WHOLE = "the whole capture"
WHOLE, OPTIMIZER = f"{_WHOLE}, since no mark shows any", "heuristic: bursts of optimizer kernels"
_PROFILER_STEPS, _NUMBERS = "NVTX ranges ProfilerStep#N", "numbered NVTX ranges"
_PROFILER = re.compile(r"ProfilerStep#(\d{1,18})$")
_NUMBERED = re.compile(
    r"(?:train(?:ing)?[ _-]?)?(?:iteration|iter|step|sample|batch)\s*[_#:=\[ -]*\s*(\d{1,18})\]?$", re.IGNORECASE
)
_REPEATED = re.compile(r"(?:.*[.:] ?)?(?:train(?:ing)?[ _-]?step|iteration|train[ _-]?iteration)$", re.IGNORECASE)
_SCHEDULE = re.compile(r"(?:.*\.)?forward_backward\w*\.(warmup|steady|cooldown)$")
_LEAST_BETWEEN_BURSTS = 8
_LEAST_REPEATS, _LEAST_SHARE, _MOST_PERIODS_TRIED = 3, 0.9, 64


@dataclass(frozen=True, slots=True)
class Iterations:
    """Iterations of one process, by start.

    Attributes:
        source: what they were read from, in words.
        number: as the ranges number them, else from 0.
        start_ns, end_ns: ns of the capture's clock.
    """

    source: str
    number: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.number)

    @property
    def counted_by(self) -> str:
        """What counts them from 0, in words; empty where ranges bear the numbers of training steps."""
        if self.source in (_PROFILER_STEPS, _NUMBERS):
            return ""
        return _WHOLE if self.source.startswith(WHOLE) else self.source


@dataclass(frozen=True, slots=True)
class NamedRanges:
    """NVTX ranges of one process: index into ``names``, start and end of each."""

    names: Sequence[str]
    name: npt.NDArray[np.int32]
    start_ns: Int64
    end_ns: Int64


def find_iterations(
    ranges: NamedRanges,
    first_ns: int,
    last_ns: int,
    kernels_ns: Int64,
    optimizer: npt.NDArray[np.bool_],
    kernel_names: npt.NDArray[np.int32],
) -> Iterations:
    """Find the iterations of one process.

    Args:
        ranges: its NVTX ranges.
        first_ns, last_ns: first start and last end of anything it did.
        kernels_ns: launch of each of its kernels, or its start where that is not known, ascending.
        optimizer: which of these update parameters.
        kernel_names: a number for the name of each.
    """
    for pattern, words in ((_PROFILER, _PROFILER_STEPS), (_NUMBERED, _NUMBERS)):
        found = _numbered(ranges, pattern, words)
        if found is not None:
            return found
    return (
        _repeated(ranges)
        or _of_schedule(ranges, last_ns)
        or _by_optimizer(kernels_ns, optimizer, first_ns, last_ns)
        or Iterations(WHOLE + _repetition(kernel_names), np.array([0]), np.array([first_ns]), np.array([last_ns]))
    )


def _numbered(ranges: NamedRanges, pattern: re.Pattern[str], words: str) -> Iterations | None:
    """The longest range of each number."""
    matches = [pattern.match(name) for name in ranges.names]
    number_of = np.array([-1 if match is None else int(match[1]) for match in matches], dtype=np.int64)
    rows = np.flatnonzero(number_of[ranges.name] >= 0) if len(number_of) else np.array([], np.int64)
    if not len(rows):
        return None
    number, start, end = number_of[ranges.name[rows]], ranges.start_ns[rows], ranges.end_ns[rows]
    order = np.lexsort((start - end, number))
    first = np.append(True, np.diff(number[order]) != 0)
    return _sorted(words, number[order][first], start[order][first], end[order][first])


def _repeated(ranges: NamedRanges) -> Iterations | None:
    """Outermost ranges of the one name that says that a step repeats."""
    is_step = np.array([_REPEATED.match(name) is not None for name in ranges.names], dtype=bool)
    rows = np.flatnonzero(is_step[ranges.name]) if len(is_step) else np.array([], np.int64)
    if not len(rows):
        return None
    rows = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
    start, end = ranges.start_ns[rows], ranges.end_ns[rows]
    reached = np.maximum.accumulate(end)
    outer = np.append(True, start[1:] >= reached[:-1])
    words = "NVTX ranges " + ranges.names[int(ranges.name[rows[0]])]
    return _sorted(words, np.arange(int(outer.sum())), start[outer], end[outer])


def _of_schedule(ranges: NamedRanges, last_ns: int) -> Iterations | None:
    """From each warm-up of Megatron's schedules to the next; the last one runs to the end."""
    matches = [_SCHEDULE.match(name) for name in ranges.names]
    is_warmup = np.array([match is not None and match[1] == "warmup" for match in matches], dtype=bool)
    rows = np.flatnonzero(is_warmup[ranges.name]) if len(is_warmup) else np.array([], np.int64)
    if not len(rows):
        return None
    start = np.sort(ranges.start_ns[rows])
    end = np.append(start[1:], max(last_ns, int(start[-1])))
    words = "Megatron's NVTX ranges warmup, steady and cooldown"
    return Iterations(words, np.arange(len(start)), start, end)


def _by_optimizer(
    kernels_ns: Int64, optimizer: npt.NDArray[np.bool_], first_ns: int, last_ns: int
) -> Iterations | None:
    """An iteration ends with a burst of optimizer kernels: between two bursts run many kernels of other kinds."""
    places = np.flatnonzero(optimizer)
    if not len(places):
        return None
    between = np.diff(places) - 1
    cuts = between > max(_LEAST_BETWEEN_BURSTS, int(between.max(initial=0)) // 2)
    ends = kernels_ns[places[np.append(cuts, True)]] + 1
    if len(ends) < 2:
        return None
    start = np.append(first_ns, ends[:-1])
    # What runs after the last burst belongs to it: nothing shows where a further iteration would end.
    return Iterations(OPTIMIZER, np.arange(len(ends)), start, np.append(ends[:-1], last_ns))


def _repetition(names: npt.NDArray[np.int32]) -> str:
    """What nearly the whole capture repeats, in words; empty where nothing does.

    These are no iterations: a capture of the middle of one step holds equal layers and nothing else.
    """
    if len(names) < _LEAST_REPEATS:
        return ""
    counts = np.bincount(names)
    rarest = np.where(counts >= _LEAST_REPEATS, counts, len(names) + 1).argmin()
    places = np.flatnonzero(names == rarest)
    for period in (places[-1] - places[::-1])[1 : 1 + _MOST_PERIODS_TRIED].tolist():
        differs = np.flatnonzero(names[period:] != names[:-period])
        rest = len(names) - (int(differs[-1]) + 1 if len(differs) else 0)
        if rest >= max(_LEAST_REPEATS * period, _LEAST_SHARE * len(names)):
            return f"; the same {period:,} kernels run {rest // period} times: steps, layers or other parts of a step"
    return ""


def _sorted(source: str, number: Int64, start: Int64, end: Int64) -> Iterations:
    order = np.argsort(start, kind="stable")
    return Iterations(source, number[order], start[order], end[order])
