"""Which of several like cases `make test` runs, and which files of the long set are of a share of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import pytest


def fast(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases for ``parametrize``: those chosen, and, marked as long, the others, which take no path of their own."""
    known = list(cases)
    assert set(chosen) <= set(known), "a case that is chosen is none"
    return [case if case in chosen else _long(case) for case in known]


def _long(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)


DEAR = {
    "tests/analyze/waits/test_waits.py": 40,
    "tests/assets/test_nightly_gate.py": 35,
    "tests/assets/test_nothing_lost.py": 35,
    "tests/capture/test_job.py": 40,
    "tests/capture/test_training.py": 330,
    "tests/classify/test_cut_windows.py": 30,
    "tests/commands/sentences/test_sentences.py": 150,
    "tests/commands/test_pages.py": 120,
    "tests/commands/test_verdict.py": 40,
    "tests/end_to_end/test_automation_on_sqlite.py": 75,
    "tests/end_to_end/test_browser.py": 35,
    "tests/end_to_end/test_daemon.py": 30,
    "tests/end_to_end/test_download_from_ui.py": 55,
    "tests/end_to_end/test_kill_at_each_boundary.py": 30,
    "tests/end_to_end/test_main_job.py": 110,
    "tests/end_to_end/test_packaging.py": 40,
    "tests/end_to_end/test_perfetto_ui.py": 35,
    "tests/end_to_end/test_pictures_by_themselves.py": 75,
    "tests/end_to_end/test_real_traces.py": 40,
    "tests/pipeline/diff/test_comparison.py": 40,
    "tests/pipeline/cluster/test_local_cluster.py": 30,
    "tests/pipeline/cluster/test_scheduler.py": 40,
    "tests/pipeline/test_causes.py": 170,
    "tests/sensors/test_computed_at_once.py": 40,
    "tests/show/report/test_pages.py": 40,
    "tests/simulate/test_edges.py": 30,
    "tests/simulate/test_frameworks.py": 50,
    "tests/simulate/test_model.py": 30,
}
"""File → about the processor seconds of its long tests, of those whose share may not be left to chance."""


def share_of(file: str, shares: int) -> int:
    """Which of so many shares a file is of, from 1: a dear one of that with least of them, another by its name alone.

    So a file that comes or goes moves no other into a share that was run already.
    """
    loads = [0] * shares
    for dear, seconds in sorted(DEAR.items(), key=lambda each: (-each[1], each[0])):
        place = loads.index(min(loads))
        loads[place] += seconds
        if dear == file:
            return place + 1
    return crc32(file.encode()) % shares + 1


def numbers_of(share: str) -> tuple[int, int]:
    """Number and count of a share: (2, 4) of ``2/4``.

    Raises:
        ValueError: the share is none.
    """
    number, count = map(int, share.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"{share} is no share: take K/N, with K from 1 to N")
    return number, count
