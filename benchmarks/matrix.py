"""What benchmarks over a matrix of simulated jobs share: run each job in a folder of its own, and print its row."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol, TypeVar


class Named(Protocol):
    """A job of the matrix."""

    @property
    def name(self) -> str:
        """What ``--only`` is matched with."""


C = TypeVar("C", bound=Named)
R = TypeVar("R")


def run_matrix(
    about: str,
    cases: Iterable[C],
    outcome: Callable[[C, Path], R],
    row: Callable[[R], str],
    page: Callable[[Sequence[R], float], str],
    write: Callable[[str], None],
) -> list[R]:
    """Run the jobs that ``--only`` names, or all of them; then write their page.

    Args:
        about: the program's purpose, for its help. outcome: runs one job in an empty folder. row: its row of the table.
        page: text of the page, from all outcomes and the seconds that they took. write: writes it; with ``--only``
            neither is called.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", help="run the jobs whose names match this pattern, and write nothing")
    wanted = parser.parse_args().only
    started = time.perf_counter()
    found = []
    for case in cases:
        if wanted and not fnmatch(case.name, wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            one = outcome(case, Path(folder))
        found.append(one)
        print(row(one), flush=True)
    if not wanted:
        write(page(found, time.perf_counter() - started))
    return found
