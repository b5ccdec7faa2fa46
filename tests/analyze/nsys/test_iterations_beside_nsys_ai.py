"""Iterations in the situations on which the tests of nsys-ai 0.3.0 ask for them, written anew and counted by hand.

Marked iterations have the windows that its tests demand, but for one kind of launch; where nothing marks an iteration,
nsys-ai cuts at pauses of 2 ms, and we say that no mark shows any. docs/nsys.md has the comparison on its own fixtures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nsys_file import Export, global_tid
from traceviz_dag.analyze.nsys.activity import activities
from traceviz_dag.analyze.nsys.iterations import iteration_measures, windows_on_gpu
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.nsys.reader import read_nsys
from traceviz_dag.vocabulary import WindowFrom

US, MS = 1_000, 1_000_000
STEPS = [(0, 4 * MS), (4 * MS, 9 * MS)]
"""Two steps, of which the second begins as the first one ends."""

EARLY = [(US, 2 * US, MS, 4 * MS), (3 * US, 4 * US, 4 * MS, 5 * MS)]
"""(launch, its end, start, end) of kernels of the first step; the last one runs within the second step."""

LATE = [(5 * MS, 5 * MS + US, 6 * MS, 7 * MS)]
"""A kernel of the second step."""


def _export(
    steps: list[tuple[int, int]], launches: list[tuple[int, int, int, int]], *, kind: int = 59, registered: bool = False
) -> Export:
    export = Export()
    for start, end in steps:
        names = (None, "train_step") if registered else ("train_step", None)
        export.range(start, end, *names, kind=kind)
    for number, (launch, launched, start, end) in enumerate(launches, 1):
        export.call(launch, launched, number)
        export.kernel(start, end, correlation=number, stream=7 + number % 2)
    return export


def _windows(export: Export, folder: Path) -> tuple[str, WindowFrom, list[tuple[int, int, int]]]:
    """What shows the iterations of the GPU, what their windows are, and each with its kernels."""
    profile, rules = read_nsys(export.write(folder / "steps.sqlite")), load_rules()
    activity = activities(profile, rules)[0]
    found, source = windows_on_gpu(profile, activity, rules)
    kernels = [one.overlap.kernels for one in iteration_measures(profile, activity, rules)]
    return found.source, source, list(zip(found.start_ns.tolist(), found.end_ns.tolist(), kernels, strict=True))


@pytest.mark.parametrize(
    ("launches", "windows"),
    [
        pytest.param([], [(MS, 5 * MS, 2), (6 * MS, 7 * MS, 1)], id="apart"),
        pytest.param([(4 * MS, 4 * MS + US, 5 * MS, 6 * MS)], [(MS, 5 * MS, 2), (5 * MS, 7 * MS, 2)], id="call at it"),
        pytest.param([(4 * MS, 4 * MS, 5 * MS, 6 * MS)], [(MS, 5 * MS, 2), (5 * MS, 7 * MS, 2)], id="no length"),
        pytest.param(
            [(4 * MS, 4 * MS + US, 5 * MS, 6 * MS), (4 * MS, 4 * MS, 7 * MS, 8 * MS)],
            [(MS, 5 * MS, 2), (5 * MS, 8 * MS, 3)],
            id="both",
        ),
        pytest.param([(4 * MS - 1, 4 * MS + 1, 5 * MS, 6 * MS)], [(MS, 6 * MS, 3), (6 * MS, 7 * MS, 1)], id="across"),
    ],
)
def test_a_kernel_is_of_the_marked_iteration_in_which_its_launch_begins_and_of_no_other(tmp_path, launches, windows):
    found = _windows(_export(STEPS, [*EARLY, *launches, *LATE]), tmp_path)
    assert found == ("NVTX ranges train_step", WindowFrom.LAUNCHES, windows)


@pytest.mark.parametrize("kind", [59, 60, 70, 71])
@pytest.mark.parametrize("registered", [False, True])
def test_ranges_of_every_kind_and_registered_names_mark_iterations(tmp_path, kind, registered):
    found = _windows(_export(STEPS, [*EARLY, *LATE], kind=kind, registered=registered), tmp_path)
    assert found == ("NVTX ranges train_step", WindowFrom.LAUNCHES, [(MS, 5 * MS, 2), (6 * MS, 7 * MS, 1)])


def _unmarked() -> Export:
    """Kernels with pauses of 2 ms and more, on two streams, in another order than they were launched."""
    return _export([], [(300, 310, 1_000, 2_000), (100, 110, 4 * MS, 5 * MS), (200, 210, 8 * MS, 9 * MS)])


def _with_marks_alone() -> Export:
    export = _unmarked()
    for step in range(2):
        export.range(step * 4 * MS, None, "train_step", kind=34)
    return export


def _with_other_ranges() -> Export:
    export = _unmarked()
    export.range(0, MS, "aten::add")
    return export


def _with_an_empty_table() -> Export:
    export = _unmarked()
    export.table("NVTX_EVENTS", ["start", "end", "eventType", "text", "globalTid"])
    return export


@pytest.mark.parametrize("write", [_unmarked, _with_marks_alone, _with_other_ranges, _with_an_empty_table])
def test_pauses_are_no_iterations(tmp_path, write):
    source, _, windows = _windows(write(), tmp_path)
    assert source.startswith("the whole capture, since no mark shows any")
    assert windows == [(100, 9 * MS, 3)], "from the first launch on"


def test_ranges_without_a_type_are_refused(tmp_path):
    export = _unmarked()
    export.add("NVTX_EVENTS", {"start": 0, "end": 9 * MS, "text": "train_step", "globalTid": global_tid()})
    with pytest.raises(BadInputError, match="table NVTX_EVENTS has no column eventType"):
        _windows(export, tmp_path)
