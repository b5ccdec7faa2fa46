"""Windows cut anywhere, against micro-batches that are counted here: nothing of the product is imported.

The command line writes a whole job with call stacks. Its rows are cut here, and the n-th forward or backward step that
the whole file's frames show is the micro-batch of all that is launched within. The command line reads what is left.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import duckdb
import pytest

Row = dict[str, Any]
Truth = dict[int, int]

MICROBATCHES = 4
STEPS = {"forward_step": "forward", "backward_step": "backward"}
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
HOST = ("python_function", "cpu_op", "user_annotation", *CALLS)


def traceviz(*words: object) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "traceviz_dag.commands.main", *map(str, words)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def end(row: Row) -> float:
    return float(row["ts"] + row.get("dur", 0))


def is_step(row: Row) -> bool:
    function = row["name"].partition("): ")[2]
    return row.get("cat") == "python_function" and "schedules.py(" in row["name"] and function in STEPS


def counted(rows: Iterable[Row]) -> Truth:
    """Correlation → micro-batch of the step around the launch; -1 outside of all; each training step counts anew."""
    rows = list(rows)
    marks = sorted(row["ts"] for row in rows if row["name"].startswith("ProfilerStep#"))
    steps: list[tuple[float, float, int]] = []
    seen: dict[tuple[int, str], int] = {}
    for row in sorted(filter(is_step, rows), key=lambda row: row["ts"]):
        key = sum(mark <= row["ts"] for mark in marks), row["name"].partition("): ")[2]
        steps.append((row["ts"], end(row), seen.setdefault(key, 0)))
        seen[key] += 1
    assert set(seen.values()) == {MICROBATCHES}
    return {
        row["args"]["correlation"]: next((n for begin, stop, n in steps if begin <= row["ts"] < stop), -1)
        for row in rows
        if row.get("cat") in CALLS
    }


def cut(rows: Iterable[Row], start: float, stop: float, gap: tuple[float, float], shift: float) -> list[Row]:
    """What a profiler holds that runs from start to stop, without the host's rows that start within the gap; marks come
    late, and each ends where the next starts. All moments are shares of the calls, since hosts run ahead and wait."""
    rows = [dict(row) for row in rows]
    marks = sorted((row for row in rows if row["name"].startswith("ProfilerStep#")), key=lambda row: row["ts"])
    calls = {row["args"]["correlation"]: row["ts"] for row in rows if row.get("cat") in CALLS}
    moments = sorted(moment for moment in calls.values() if marks[0]["ts"] <= moment < end(marks[-1]))
    before, after = marks[0]["ts"], float("inf")
    begin, last, *lost = (
        before if share == 0 else after if share == 1 else moments[int(share * len(moments))]
        for share in (start, stop, *gap)
    )
    late = [moments[int((place + shift) / len(marks) * len(moments))] for place in range(len(marks))] if shift else []
    for row, moment, following in zip(marks, late, [*late[1:], end(marks[-1])], strict=False):
        row["ts"], row["dur"] = moment, following - moment
    kept = []
    for row in rows:
        if row.get("cat") in GPU:
            held = row["ts"] >= begin and calls.get(row["args"]["correlation"], begin) < last
        elif row.get("cat") in HOST:
            open_ = row["cat"] in ("python_function", "user_annotation") and row["ts"] < begin < end(row)
            of_gap = not row["name"].startswith("ProfilerStep#") and lost[0] <= row["ts"] < lost[1]
            held = (open_ or begin <= row["ts"] < last) and not of_gap
            row["ts"], stops = max(row["ts"], begin), min(end(row), last)
            row["dur"] = max(stops - row["ts"], 0)
        else:
            held = "ts" not in row or row.get("ph") == "M" or begin <= row["ts"] < last
        if held:
            kept.append(row)
    return kept


NO_GAP = (0.0, 0.0)
WINDOWS: dict[str, tuple[float, float, tuple[float, float], float]] = {
    "whole": (0.0, 1.0, NO_GAP, 0.0),
    "starts": (0.41, 1.0, NO_GAP, 0.0),
    "stops": (0.0, 0.58, NO_GAP, 0.0),
    "marks come late": (0.0, 1.0, NO_GAP, 0.35),
    "rows lost": (0.0, 1.0, (0.46, 0.52), 0.0),
}
FEW = ("whole", "starts", "marks come late", "rows lost")


def with_stacks(rows: Iterable[Row]) -> list[Row]:
    return list(rows)


def without_stacks(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.get("cat") != "python_function"]


BOTH = (with_stacks, without_stacks)


@pytest.mark.long
@pytest.mark.parametrize(("windows", "kinds"), [(FEW, (without_stacks,)), (tuple(WINDOWS), BOTH)])
def test_nothing_wrong_is_said_of_a_cut_window_and_it_is_partial(tmp_path, windows, kinds):
    job = tmp_path / "job"
    settings = ("--pp", 2, "--layers", 4, "--microbatches", MICROBATCHES, "--iterations", 1)
    assert traceviz("simulate", job, *settings, "--seed", 11).returncode == 0
    files = sorted(job.rglob("*.json.gz"))
    assert len(files) == 2
    truths = []
    for path in files:
        trace = json.loads(gzip.decompress(path.read_bytes()), strict=False)
        rows = trace["traceEvents"]
        truths.append(counted(rows))
        for name in windows:
            for kind in kinds:
                run = f"{name} {kind.__name__}".replace(" ", "_")
                written = tmp_path / "cut" / run / path.relative_to(job)
                written.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps({**trace, "traceEvents": kind(cut(rows, *WINDOWS[name]))})
                written.write_bytes(gzip.compress(text.encode(), 1))
    found = traceviz("analyze", tmp_path / "cut", "--home", tmp_path / "home", "--json")
    assert found.returncode == 2
    answers = json.loads(found.stdout)
    told = {answer["run"] for answer in answers}
    whole = {f"whole_{kind.__name__}" for kind in kinds}
    assert told - {answer["run"] for answer in answers if answer["partial"]} == whole
    kernels = duckdb.sql(f"""
        SELECT run, rank, correlation, duration_ns, microbatch
        FROM read_parquet('{tmp_path}/home/lake/kernels/**/*.parquet', hive_partitioning = true)
    """).fetchall()
    wrong: dict[str, list[int]] = {}
    for run, rank, correlation, duration, microbatch in kernels:
        of_run, truth = wrong.setdefault(run, [0, 0, 0]), truths[rank].get(correlation, -1)
        of_run[0] += duration
        of_run[1] += duration if microbatch not in (None, truth) else 0
        of_run[2] += duration if microbatch is None and truth >= 0 else 0
    assert set(wrong) == told
    assert {run: f"{lost / all_:.2%}" for run, (all_, lost, _) in wrong.items() if lost >= 0.001 * all_} == {}
    # Else saying nothing would do.
    assert all(wrong[run][2] < 0.01 * wrong[run][0] for run in whole)
