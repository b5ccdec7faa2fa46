"""Step times that Megatron-LM logs: they show how long a step takes without the profiler."""

from __future__ import annotations

import io
import re
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.regular_file import open_regular

_LINE = re.compile(
    rb"\biteration\s+(\d{1,18})\s*/\s*\d+\s*\|(?:(?!\biteration\s+\d)[^\r])*?"
    rb"elapsed time per iteration \(ms\): (\d{1,12}(?:\.\d{1,9})?)(?![\d.])"
)
"""No word of the next iteration between the two: a killed job's last line, cut short, may be followed by another's."""

_LONGEST_LINE = 1 << 16
_NS_IN_MS = 10**6


class LoggedSteps(NamedTuple):
    """Iterations that one line speaks of, the first and the last one, and their mean time, ns."""

    first: int
    last: int
    mean_ns: int


def read_training_log(path: Path) -> list[LoggedSteps]:
    """The step times of a log of Megatron-LM, by iteration.

    Where the job started again, from an earlier iteration, what was logged from that iteration on is left out: it is of
    a run that was given up.

    Raises:
        BadInputError: the file cannot be read, or has no such line.
    """
    found: list[tuple[int, int]] = []
    try:
        with open_regular(path) as file, io.BufferedReader(file) as lines:
            while line := lines.readline(_LONGEST_LINE):
                for told in _LINE.finditer(line):
                    number = int(told[1])
                    while found and found[-1][0] >= number:
                        found.pop()
                    found.append((number, int(Decimal(told[2].decode()) * _NS_IN_MS)))
    except OSError as error:
        raise BadInputError(path, f"cannot be read ({error.strerror})", "give the path of the training's log") from None
    if not found:
        fault = "no line says 'iteration N/M | … | elapsed time per iteration (ms): …'"
        raise BadInputError(path, fault, "give the log of the rank that prints them, which is the last")
    interval = min((later - one for (one, _), (later, _) in pairwise(found)), default=1)
    return [LoggedSteps(last - interval + 1, last, mean_ns) for last, mean_ns in found]
