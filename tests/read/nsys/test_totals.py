"""The totals that are kept with a profile are those that its operations give, on real, simulated and dirty exports."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nsys_file import Export, small_export
from traceviz_dag.analyze.nsys.activity import Clip, activities
from traceviz_dag.analyze.nsys.overlap import gpu_overlap
from traceviz_dag.analyze.nsys.summary import by_name, by_stream, summaries, with_short_names
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.read.nsys.profile import NO_NAME, NsysProfile
from traceviz_dag.read.nsys.reader import read_nsys
from traceviz_dag.read.nsys.totals import busy_ns, streams_of, totals_by
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format

WINDOW = (100, 900)


def simulated(folder: Path) -> Path:
    small = {"layers": 2, "hidden": 512, "sequence": 256, "microbatches": 2, "iterations": 1}
    job = JobSettings(tp=2, dp=2, node_size=4, format=Format.NSYS, **small)
    return simulate(job, folder / "job", workers=1) / "node0.sqlite"


def only_copies(folder: Path) -> Path:
    export = Export()
    for start in (50, 100, 100, 700):
        export.copy(start, start + 90, stream=start)
    return export.write(folder / "copies.sqlite")


def dirty(folder: Path) -> Path:
    """Kernels without a name, without a length, that end before they start, named as a memory operation is, with two
    short names, on a stream that is not stated; copies before, after and beside them; rows in no order."""
    export = Export()
    for device in (3, 0):
        export.copy(5, 120, device=device, stream=9)
        export.copy(850, 2000, device=device)
        export.kernel(400, 400, "flash", device=device, stream=20)
        export.kernel(300, 250, "backwards", device=device)
        export.kernel(200, 600, "Memcpy HtoD", device=device, stream=20)
        export.kernel(100, 300, "gemm", device=device)
        export.kernel(350, 900, "gemm", device=device, shortName=export.string("another"))
        export.kernel(900, 900, "last", device=device, streamId=None)
        export.kernel(500, 700, "x", device=device, demangledName=None, shortName=None, mangledName=None)
        export.kernel(500, 700, "x", device=device, demangledName=987_654, shortName=987_654)
        export.kernel(210, 260, "wide", device=device, stream=1 << 40)
    return export.write(folder / "dirty.sqlite")


def many_names(folder: Path) -> Path:
    """Random operations that overlap, of several streams."""
    chance, export = random.Random(5), Export()
    for _ in range(800):
        start = chance.randrange(10_000)
        name, stream = f"ns::k{chance.randrange(40)}<{chance.randrange(4)}>", chance.randrange(6)
        if chance.random() < 0.2:
            export.copy(start, start + chance.randrange(300), stream=stream, kind=chance.randrange(1, 12))
        else:
            export.kernel(start, start + chance.randrange(300), name, stream=stream, device=chance.randrange(3))
    return export.write(folder / "random.sqlite")


EXPORTS = {
    "small": lambda folder: small_export().write(folder / "small.sqlite"),
    **{function.__name__: function for function in (simulated, only_copies, dirty, many_names)},
}
PUBLIC = ("h100_2gpu_1s", "mfu_2gpu_before")


@pytest.fixture(scope="module", params=[*EXPORTS, *PUBLIC])
def export(request, tmp_path_factory) -> Path:
    if request.param in EXPORTS:
        return EXPORTS[request.param](tmp_path_factory.mktemp("exports"))
    return request.getfixturevalue("shared_data") / "nsys" / f"{request.param}.sqlite"


@pytest.fixture(scope="module", params=["memory", "kept"])
def profile(request, export, tmp_path_factory) -> NsysProfile:
    if request.param == "memory":
        return read_nsys(export)
    home = tmp_path_factory.mktemp("home")
    open_profile(export, home)
    return open_profile(export, home)


@pytest.mark.parametrize("short", [False, True])
def test_kept_totals_are_those_of_the_operations(profile, short):
    rules = load_rules(None)
    for found, gpu in zip(summaries(profile, rules, short=short), activities(profile, rules), strict=True):
        named = with_short_names(profile, gpu) if short else gpu
        overlap = gpu_overlap(gpu)
        assert found.device == gpu.device
        assert (
            found.window == Clip(overlap.window_start_ns, overlap.window_end_ns, last_included=True) == gpu.window(None)
        )
        assert (found.kernels, found.busy_ns) == (overlap.kernels, overlap.busy_ns)
        assert found.operations == by_name(named)
        assert found.streams == by_stream(gpu)


def test_a_window_of_all_operations_gives_what_is_kept(profile):
    rules = load_rules(None)
    for one in summaries(profile, rules):
        assert summaries(profile, rules, [one.device], one.window) == [one]


def test_totals_are_those_that_each_operation_adds(profile):
    """Each operation of the table is added up in Python's integers."""
    rows = profile.table("operations").to_pylist()
    for found in summaries(profile, load_rules(None)):
        mine = [row for row in rows if row["device"] == found.device]
        low, high = min(map(start_of, mine)), max(map(end_of, mine))
        assert found.window == Clip(low, high, last_included=True)
        names, streams = defaultdict(list), defaultdict(list)
        for row in mine:
            names[row["name"] if row["name"] is not None else NO_NAME].append(row)
            streams[row["stream"]].append(row)
        totals = {name: total for name, rows in names.items() if (total := added(rows, low, high))[:2] != (0, 0)}
        assert {
            one.name: (one.count, one.total_ns, one.mean_ns, one.least_ns, one.most_ns) for one in found.operations
        } == totals
        expected = {stream: (added(rows, low, high)[0], covered(rows, low, high)) for stream, rows in streams.items()}
        assert {one.stream: (one.count, one.busy_ns) for one in found.streams} == expected
        assert found.busy_ns == covered(mine, low, high)


def test_no_operation_is_read_for_a_summary_of_the_whole_capture(tmp_path):
    export, home = small_export().write(tmp_path / "small.sqlite"), tmp_path / "home"
    open_profile(export, home)
    profile = open_profile(export, home)
    read = []
    rows = profile.store.rows
    profile.store.rows = lambda name, columns, runs: read.append(name) or rows(name, columns, runs)
    expected = summaries(profile, load_rules(None))
    assert set(read) == {"totals", "metrics"}
    assert summaries(profile, load_rules(None), window=expected[0].window) == expected
    assert "operations" in read


def test_a_column_is_read_once_however_often_and_beside_whatever_it_is_asked_for(tmp_path):
    export, home = small_export().write(tmp_path / "small.sqlite"), tmp_path / "home"
    open_profile(export, home)
    profile = open_profile(export, home)
    read = []
    rows = profile.store.rows
    profile.store.rows = lambda name, columns, runs: read.extend(columns) or rows(name, columns, runs)
    both = profile.rows("operations", "start_ns", "stream", of=[0])
    more = profile.rows("operations", "bytes", "start_ns", of=[0])
    assert read == ["start_ns", "stream", "bytes"]
    assert list(more.values) == ["bytes", "start_ns"]
    assert more["start_ns"] is both["start_ns"]
    alone = open_profile(export, home).rows("operations", "bytes", of=[0])
    assert more["bytes"].tolist() == alone["bytes"].tolist()
    assert len(profile.rows("operations", "start_ns", of=[])) == 0
    assert profile.rows("operations", "start_ns")["start_ns"].tolist() == both["start_ns"].tolist()


def test_what_the_rules_say_of_a_name_is_not_kept(tmp_path):
    profile = read_nsys(small_export().write(tmp_path / "small.sqlite"))
    file = tmp_path / "rules.toml"
    file.write_text('[[kernel]]\nname = "mine"\npatterns = ["gemm"]\nkind = "communication"\n')
    kinds = [
        {row.name: row.kind for row in summaries(profile, load_rules(rules))[0].operations} for rules in (None, file)
    ]
    assert [one["gemm"] for one in kinds] == ["computation", "communication"]


def test_nothing_adds_up_to_nothing():
    none = np.empty(0, dtype=np.int64)
    empty = none, none, WINDOW, none.astype(bool)
    assert totals_by(none, *empty).number.tolist() == []
    assert [values.tolist() for values in streams_of(none, *empty)] == [[], [], []]
    assert busy_ns(none, none, WINDOW) == 0


def test_operations_outside_a_window_count_for_nothing_in_it(tmp_path):
    profile = read_nsys(small_export().write(tmp_path / "small.sqlite"))
    (found,) = summaries(profile, load_rules(None), window=Clip(460, 590))
    assert (found.kernels, found.busy_ns, found.operations) == (0, 0, [])
    assert {(one.count, one.busy_ns) for one in found.streams} == {(0, 0)}


def start_of(row: dict[str, Any]) -> int:
    return int(row["start_ns"])


def end_of(row: dict[str, Any]) -> int:
    return int(row["start_ns"] + row["duration_ns"])


def added(rows: Iterable[dict[str, Any]], low: int, high: int) -> tuple[int | None, ...]:
    """Count, time inside the window; then mean, least and most of the whole durations of those counted."""
    inside = sum(max(min(end_of(row), high) - max(start_of(row), low), 0) for row in rows)
    counted = [
        row["duration_ns"] for row in rows if low <= start_of(row) < high or start_of(row) == end_of(row) == high
    ]
    if not counted:
        return 0, inside, None, None, None
    return len(counted), inside, sum(counted) // len(counted), min(counted), max(counted)


def covered(rows: Iterable[dict[str, Any]], low: int, high: int) -> int:
    """Time of the window that at least one operation covers."""
    reached, total = low, 0
    for start, end in sorted((start_of(row), end_of(row)) for row in rows):
        total += max(min(end, high) - max(start, reached), 0)
        reached = max(reached, min(end, high))
    return total
