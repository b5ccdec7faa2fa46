"""The tables of ``traceviz nsys`` beside SQL over the exports' own tables: two real ones, and 8 simulated GPUs."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from traceviz_dag.commands.main import app
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format

EXPORTS = ("h100_2gpu_1s", "mfu_2gpu_before", "simulated")
RANGES = {
    "h100_2gpu_1s": ("aten::to", "FSDP::pre_forward*"),
    "mfu_2gpu_before": ("AllToAll4D", "aten::linear"),
    "simulated": ("c10d::*", "*steady"),
}
"""Export → patterns of names of ranges to look at."""

# Kernels and memory operations with the call that launched them: the first of their process with their correlation id.
OPERATIONS = """
    CREATE TEMP TABLE launches AS SELECT globalTid >> 24 AS process, correlationId AS correlation, min(start) AS start
        FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY 1, 2;
    CREATE TEMP TABLE operations AS
        SELECT operation.*, call.start AS call_start, call."end" AS call_end, call.globalTid AS thread FROM (
            SELECT deviceId AS device, streamId AS stream, start, "end", globalPid >> 24 AS process,
                correlationId AS correlation, value AS name, 1 AS kernel
            FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
            UNION ALL SELECT deviceId, streamId, start, "end", globalPid >> 24, correlationId, 'Memcpy', 0
            FROM CUPTI_ACTIVITY_KIND_MEMCPY
            UNION ALL SELECT deviceId, streamId, start, "end", globalPid >> 24, correlationId, 'Memset', 0
            FROM CUPTI_ACTIVITY_KIND_MEMSET
        ) AS operation
        LEFT JOIN launches USING (process, correlation)
        LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON call.globalTid >> 24 = process
            AND call.correlationId = correlation AND call.start = launches.start;
    CREATE INDEX temp.by_call ON operations (thread, call_start);
    CREATE TEMP TABLE names AS SELECT event.rowid AS row, start, "end", globalTid AS thread,
        CASE WHEN instr(coalesce(text, value), ', seq = ') THEN substr(text, 1, instr(text, ', seq = ') - 1)
             WHEN instr(coalesce(text, value), ', op_id = ') THEN substr(text, 1, instr(text, ', op_id = ') - 1)
             ELSE coalesce(text, value) END AS name
        FROM NVTX_EVENTS AS event LEFT JOIN StringIds ON id = textId WHERE eventType IN (59, 60);
    CREATE INDEX temp.by_thread ON names (thread, start);
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> Path:
    """Eight GPUs on one node."""
    small = {"layers": 2, "hidden": 512, "sequence": 256, "microbatches": 4, "iterations": 3}
    job = JobSettings(tp=2, pp=2, dp=2, node_size=8, format=Format.NSYS, **small)
    return simulate(job, tmp_path_factory.mktemp("job"), workers=1) / "node0.sqlite"


@pytest.fixture(params=EXPORTS)
def export(request) -> tuple[str, Path]:
    if request.param == "simulated":
        return request.param, request.getfixturevalue("simulated")
    return request.param, request.getfixturevalue("shared_data") / "nsys" / f"{request.param}.sqlite"


@pytest.fixture
def answer(home):
    """What a command prints as JSON."""

    def ask(*words: object) -> Any:
        arguments = ["nsys", *map(str, words), "--json", "--home", str(home)]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return ask


def sql(path: Path, query: str, before: str = "") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        connection.executescript(before)
        return connection.execute(query).fetchall()


def covered(spans: Iterable[tuple[int, int]], low: int, high: int) -> int:
    """Time of a window that at least one span covers."""
    reached, total = low, 0
    for start, end in sorted(spans):
        total += max(min(end, high) - max(start, reached), 0)
        reached = max(reached, min(end, high))
    return total


def nearest_rank(values: list[int], percent: int) -> int:
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def test_copies(export, answer):
    name, path = export
    memory = "srcKind, dstKind" if name != "simulated" else "-1, -1"
    expected = sql(
        path,
        f"""SELECT deviceId, copyKind, {memory}, count(*), sum("end" - start), sum(bytes), max(bytes), min(bytes)
        FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1, 2, 3, 4""",
    )
    words = ("pageable", "pinned", "device")
    kinds = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
    found = defaultdict(list)
    for row in answer("copies", path):
        if row["name"] != "Memset":
            found[row["device"], row["name"], row["source"], row["destination"]].append(row)
            assert row["bytes_per_s"] == row["bytes"] * 10**9 // row["total_ns"]
            assert row["mean_bytes"] == row["bytes"] // row["count"]
    assert len(found) == len(expected) > 0
    for device, kind, source, destination, *measures in expected:
        sides = [words[side] if side >= 0 else None for side in (source, destination)]
        rows = found[device, f"Memcpy {kinds[kind]}", *sides]
        sums = [sum(row[key] for row in rows) for key in ("count", "total_ns", "bytes")]
        assert [*sums, max(row["most_bytes"] for row in rows), min(row["least_bytes"] for row in rows)] == measures


def test_calls(export, answer):
    _, path = export
    durations = defaultdict(list)
    for name, duration in sql(
        path, 'SELECT value, "end" - start FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId'
    ):
        durations[name.rsplit("_v", 1)[0] if name[-1].isdigit() else name].append(duration)
    found = answer("calls", path)
    assert {row["name"] for row in found} == set(durations)
    for row in found:
        values = durations[row["name"]]
        assert row["durations"] == {
            "count": len(values),
            "total_ns": sum(values),
            "mean_ns": sum(values) // len(values),
            "least_ns": min(values),
            "median_ns": nearest_rank(values, 50),
            "p90_ns": nearest_rank(values, 90),
            "most_ns": max(values),
        }
        assert row["share"] == pytest.approx(sum(values) / sum(map(sum, durations.values())))


def test_ranges_and_their_pace(export, answer):
    name, path = export
    for pattern in RANGES[name]:
        rows = sql(
            path,
            f"""SELECT names.row, names.name, names.start, names."end", device, count(*), min(operations.start),
                max(operations."end")
            FROM names JOIN operations ON operations.thread = names.thread AND call_start >= names.start
                AND call_start < names."end"
            WHERE names.name GLOB '{pattern}' GROUP BY names.row, device ORDER BY names.start""",
            OPERATIONS,
        )
        assert rows
        devices = {row[4] for row in rows}
        for one in answer("ranges", path, pattern, "--each"):
            launched = [row for row in one["ranges"] if row["operations"]]
            assert all(fnmatchcase(row["name"], pattern) for row in one["ranges"])
            keys = ("name", "start_ns", "end_ns", "operations", "gpu_start_ns", "gpu_end_ns")
            mine = [(row[1], row[2], row[3], *row[5:]) for row in rows if row[4] == one["device"]]
            assert sorted(tuple(row[key] for key in keys) for row in launched) == sorted(mine)
        by_name = defaultdict(list)
        for _, own, _, _, device, _, first, last in rows:
            by_name[device, own].append(last - first)
        totals = {
            (row["device"], row["name"]): row["gpu"] for row in answer("ranges", path, pattern) if row["gpu"]["count"]
        }
        assert {key: (gpu["count"], gpu["total_ns"], gpu["median_ns"]) for key, gpu in totals.items()} == {
            key: (len(values), sum(values), nearest_rank(values, 50)) for key, values in by_name.items()
        }
        # None of these names nests in itself or in another one of them, but for c10d's.
        if pattern != "c10d::*":
            for one in answer("pace", path, pattern):
                starts = sorted(row[6] for row in rows if row[4] == one["device"])
                periods = [later - earlier for earlier, later in pairwise(starts)]
                assert one["device"] not in devices or one["gpu_period"]["total_ns"] == sum(periods)
                if periods:
                    assert one["gpu_period"]["p90_ns"] == nearest_rank(periods, 90)
                assert [row["start_ns"] for row in one["each"]] == sorted(row["start_ns"] for row in one["each"])


def test_pace_of_kernels(export, answer):
    _, path = export
    rows = sql(path, "SELECT device, start FROM operations WHERE kernel AND name LIKE '%elementwise%'", OPERATIONS)
    assert rows
    for one in answer("pace", path, "elementwise", "--kernels"):
        starts = sorted(start for device, start in rows if device == one["device"])
        assert [row["start_ns"] for row in one["each"]] == starts
        assert one["period"]["most_ns"] == max(later - earlier for earlier, later in pairwise(starts))


def test_stalls(export, answer):
    name, path = export
    found = answer("stalls", path)
    if name == "simulated":
        assert found == []
        return
    # Each record's call, and the innermost range around that.
    rows = sql(
        path,
        """SELECT syncType, sync."end" - sync.start, (
            SELECT names.name FROM names WHERE names.thread = call.globalTid AND names.start <= sync.start
            AND names."end" > sync.start ORDER BY names.start DESC, names."end" LIMIT 1)
        FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION AS sync LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call
            ON call.correlationId = sync.correlationId AND call.globalTid >> 24 = sync.globalPid >> 24""",
        OPERATIONS,
    )
    words = {
        1: "event synchronization",
        2: "order to a stream to wait",
        3: "stream synchronization",
        4: "device synchronization",
    }
    expected: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for kind, duration, inner in rows:
        expected[words[kind], inner].append(duration)
    told: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in found:
        if row["kind"] in words.values():
            measures = told[row["kind"], row["ranges"][-1] if row["ranges"] else None]
            measures[0] += row["count"]
            measures[1] += row["total_ns"]
            measures[2] = max(measures[2], row["most_ns"])
    assert told == {key: [len(values), sum(values), max(values)] for key, values in expected.items()}


def test_launches(export, answer):
    _, path = export
    operations = sql(path, 'SELECT device, stream, start, "end", call_end FROM operations', OPERATIONS)
    spans: dict[int, tuple[int, int]] = {}
    for device, _, start, end, _ in operations:
        low, high = spans.get(device, (start, end))
        spans[device] = (min(low, start), max(high, end))
    rows = answer("launches", path)
    streams = {one[:2] for one in operations if spans[one[0]][0] <= one[2] < spans[one[0]][1]}
    assert {(row["device"], row["stream"]) for row in rows} == streams | {(device, None) for device in spans}
    for row in rows:
        low, high = spans[row["device"]]
        mine = [one for one in operations if one[0] == row["device"] and row["stream"] in (None, one[1])]
        counted = [one for one in mine if low <= one[2] < high]
        waits = [max(one[2] - one[4], 0) for one in counted if one[4] is not None]
        assert (row["operations"], row["launched"]) == (len(counted), len(waits))
        if waits:
            queued = row["queued"]
            assert (queued["total_ns"], queued["median_ns"], queued["most_ns"]) == (
                sum(waits),
                nearest_rank(waits, 50),
                max(waits),
            )
            assert row["soon"] == sum(wait <= 10_000 for wait in waits)
        waiting = [(max(one[4], low), min(one[2], high)) for one in mine if one[4] is not None]
        waiting = [(begin, end) for begin, end in waiting if end > begin]
        assert row["empty_ns"] == high - low - covered(waiting, low, high)
        assert row["depth_mean"] == pytest.approx(sum(end - begin for begin, end in waiting) / (high - low))
        deepest = max((sum(begin <= at < end for begin, end in waiting) for at, _ in waiting), default=0)
        assert row["depth_most"] == deepest


def test_map(export, answer):
    _, path = export
    found = answer("map", path, "--parts", "7")
    edges = found["edges_ns"]
    operations = sql(path, 'SELECT device, start, "end", kernel, name FROM operations', OPERATIONS)
    assert edges[0] == min(one[1] for one in operations)
    assert edges[-1] == max(one[2] for one in operations)
    for gpu in found["gpus"]:
        mine = [one[1:] for one in operations if one[0] == gpu["device"]]
        chosen = {
            "busy_ns": mine,
            "compute_ns": [one for one in mine if one[2] and "nccl" not in one[3]],
            "communication_ns": [one for one in mine if one[2] and "nccl" in one[3]],
            "memory_ns": [one for one in mine if not one[2]],
        }
        for measure, rows in chosen.items():
            spans = [row[:2] for row in rows]
            assert gpu[measure] == [covered(spans, low, high) for low, high in pairwise(edges)]


def test_summary_by_short_names(export, answer):
    _, path = export
    expected = {
        (device, name): (count, total)
        for device, name, count, total in sql(
            path,
            """SELECT deviceId, value, count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL
            JOIN StringIds ON id = shortName GROUP BY 1, 2""",
        )
    }
    for gpu in answer("summary", path, "--short"):
        kernels = [row for row in gpu["operations"] if row["kind"] != "memory"]
        assert {(gpu["device"], row["name"]): (row["count"], row["total_ns"]) for row in kernels} == {
            key: value for key, value in expected.items() if key[0] == gpu["device"]
        }


def test_search_inside_ranges(export, answer):
    name, path = export
    parent = RANGES[name][0].rstrip("*")
    chosen = f"""CREATE TEMP TABLE outer_ranges AS SELECT * FROM names WHERE instr(name, '{parent}');
        CREATE INDEX temp.by_outer_thread ON outer_ranges (thread, start);"""
    around = """EXISTS (SELECT 1 FROM outer_ranges AS other WHERE other.thread = {0}.thread
        AND other.start <= {0}.{1} AND other."end" > {0}.{1} {2})"""
    launched = sql(
        path,
        f"""SELECT name, count(*), sum("end" - start) FROM operations WHERE kernel
        AND {around.format("operations", "call_start", "")} GROUP BY name""",
        OPERATIONS + chosen,
    )
    found = answer("search", path, "*", "--parent", parent)
    told = {(row["table"], row["name"]): (row["count"], row["total_ns"]) for row in found}
    assert launched
    assert {key[1]: told[key] for key in told if key[0] == "operations" and not key[1].startswith("Mem")} == {
        own: (count, total) for own, count, total in launched
    }
    deeper = 'AND other.row <> names.row AND other."end" >= names."end"'
    nested = sql(
        path,
        f"SELECT name, count(*) FROM names WHERE {around.format('names', 'start', deeper)} GROUP BY name",
        OPERATIONS + chosen,
    )
    assert {key[1]: told[key][0] for key in told if key[0] == "ranges"} == dict(nested)


def test_iterations_in_detail_and_in_order(simulated, answer):
    operations = sql(simulated, 'SELECT device, name, start, "end", call_start, kernel FROM operations', OPERATIONS)
    every = [row for row in answer("iterations", simulated) if row["device"] == 3]
    windows = {row["number"]: (row["window_start_ns"], row["window_end_ns"]) for row in every}
    assert sorted(windows) == [0, 1, 2]
    totals: dict[int, dict[str, int]] = {}
    for number, (low, high) in windows.items():
        totals[number] = defaultdict(int)
        for device, name, start, end, _, kernel in operations:
            if device == 3 and kernel and min(end, high) > max(start, low):
                totals[number][name] += min(end, high) - max(start, low)
    (row,) = answer("iterations", simulated, "--gpu", "3", "--number", "1")
    told = {one["name"]: (one["total_ns"], one["usual_ns"]) for one in row["operations"] if one["kind"] != "memory"}
    expected = {name: (totals[1][name], min(totals[0][name], totals[2][name])) for name in told}
    assert told == expected
    assert set(told) == set().union(*totals.values())

    (one,) = answer("tree", simulated, "--in-order", "--gpu", "3", "--iteration", "1")
    low, high = windows[1]
    # The window of the order is that of the host, which the measures cut at the last thing on the GPU.
    shown = [step for step in one["steps"] if step["kind"] != "range"]
    mine = sorted(row[4] for row in operations if row[0] == 3 and row[4] is not None and low <= row[4] < high)
    assert sorted(step["launched_ns"] for step in shown) == mine
    for thread in {step["thread"] for step in one["steps"]}:
        times = [step["launched_ns"] for step in one["steps"] if step["thread"] == thread]
        assert times == sorted(times)
    # What a range says that it launched is below it.
    for place, step in enumerate(one["steps"]):
        if step["kind"] == "range":
            below = []
            for other in one["steps"][place + 1 :]:
                if other["thread"] != step["thread"] or other["depth"] <= step["depth"]:
                    break
                below.append(other)
            assert step["operations"] == sum(other["kind"] != "range" for other in below)


def test_suggests_the_gpu_and_the_iteration_nearest_to_the_medians(simulated, answer):
    found = answer("suggest", simulated)
    measures = answer("overlap", simulated)
    parts = [
        (one["compute_ns"], one["exposed_ns"], one["busy_ns"] - one["compute_ns"] - one["exposed_ns"], one["idle_ns"])
        for one in measures
    ]
    middle = [sorted(values)[3] for values in zip(*parts, strict=True)]
    distances = [sum(abs(a - b) for a, b in zip(values, middle, strict=True)) for values in parts]
    best = distances.index(min(distances))
    assert (found["gpu"]["device"], found["distance_ns"], found["gpus"]) == (
        measures[best]["device"],
        min(distances),
        8,
    )
    spans = {
        row["number"]: row["span_ns"]
        for row in answer("iterations", simulated)
        if row["device"] == found["gpu"]["device"]
    }
    number = min((1, 2), key=lambda one: spans[one])
    assert found["iteration"]["number"] == number
    (again,) = answer("overlap", simulated, *found["options"].split())
    assert again["span_ns"] == spans[number]
