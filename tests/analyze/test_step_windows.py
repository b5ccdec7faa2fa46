"""Windows of training steps where the host runs ahead of the GPU: the kernels launched in a step are its window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.damage import call
from tests.kineto_file import KinetoFile
from tests.nsys_file import Export

MS = 1_000_000
STEPS, KERNELS, LENGTH, GAP = 3, 20, 4 * MS, MS // 100
SPAN = KERNELS * LENGTH + (KERNELS - 1) * GAP


def _launches(*, impossible: bool = False) -> list[tuple[int, int, int]]:
    """(launch, start, end) of each kernel, ns: 20 of 4 ms in each step, of which the host launches all within 10 ms.

    With ``impossible`` the first one ends before the step begins in which it was launched by its correlation.
    """
    found = [(10 * MS + MS // 2, MS // 10, MS // 5)] if impossible else []
    for number in range(STEPS * KERNELS):
        step, place = divmod(number, KERNELS)
        start = 2 * MS + number * (LENGTH + GAP)
        found.append((step * 10 * MS + MS + place * MS // 4, start, start + LENGTH))
    return found


def _kineto(path: Path, *, launches: bool = True, impossible: bool = False) -> Path:
    file = KinetoFile(rank=0, world_size=1, groups=[])
    for step in range(STEPS):
        file.annotation(f"ProfilerStep#{step}", step * 10 * MS, (step + 1) * 10 * MS)
    for launched, start, end in _launches(impossible=impossible):
        file.kernel("gemm", start, end, launched if launches else None)
    return file.write(path)


def _nsys(path: Path, *, launches: bool = True, impossible: bool = False) -> Path:
    export = Export()
    for step in range(STEPS):
        export.range(step * 10 * MS, (step + 1) * 10 * MS, f"ProfilerStep#{step}")
    for number, (launched, start, end) in enumerate(_launches(impossible=impossible), 1):
        export.kernel(start, end, "gemm", correlation=number)
        if launches:
            export.call(launched, launched + MS // 10, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    return export.write(path)


@pytest.mark.parametrize("write", [_kineto, _nsys])
def test_a_step_lasts_as_long_as_the_kernels_launched_in_it_on_every_surface(write, tmp_path):
    path = write(tmp_path / "d" / ("rank0.json" if write is _kineto else "rank0.sqlite"))
    answer = call("overlap", path, "--home", tmp_path / "home", "--json")
    rows = [row for row in answer.json if row["dimension"] == "all"]
    assert [row["window_end_ns"] - row["window_start_ns"] for row in rows] == [SPAN] * STEPS
    assert {(row["window_from"], row["kernels"], row["idle_ns"]) for row in rows} == {
        ("launches", KERNELS, (KERNELS - 1) * GAP)
    }
    if write is _nsys:
        rows = call("nsys", "iterations", path, "--home", tmp_path / "home", "--json").json
        assert {(row["window_end_ns"] - row["window_start_ns"], row["kernels"]) for row in rows} == {(SPAN, KERNELS)}
        assert {row["window_from"] for row in rows} == {"launches"}


@pytest.mark.parametrize("write", [_kineto, _nsys])
def test_what_ended_before_a_step_began_was_not_launched_in_it_whatever_its_correlation_says(write, tmp_path):
    path = write(tmp_path / "d" / ("rank0.json" if write is _kineto else "rank0.sqlite"), impossible=True)
    answer = call("overlap", path, "--home", tmp_path / "home", "--json")
    rows = [row for row in answer.json if row["dimension"] == "all"]
    assert [row["window_end_ns"] - row["window_start_ns"] for row in rows] == [SPAN] * STEPS
    if write is _nsys:
        rows = call("nsys", "iterations", path, "--home", tmp_path / "home", "--json").json
        assert [row["window_end_ns"] - row["window_start_ns"] for row in rows] == [SPAN] * STEPS


@pytest.mark.parametrize("write", [_kineto, _nsys])
def test_where_launches_are_not_recorded_the_window_is_said_to_be_the_hosts(write, tmp_path):
    path = write(tmp_path / "d" / ("rank0.json" if write is _kineto else "rank0.sqlite"), launches=False)
    rows = [
        row for row in call("overlap", path, "--home", tmp_path / "home", "--json").json if row["dimension"] == "all"
    ]
    assert {(row["window_end_ns"] - row["window_start_ns"], row["window_from"]) for row in rows} == {
        (10 * MS, "host_launches_unknown")
    }


@pytest.mark.long
def test_analyze_and_findings_speak_of_these_windows(tmp_path):
    path = _kineto(tmp_path / "d/rank0.json")
    answer = call("analyze", path, "--home", tmp_path / "home", "--tables")
    assert "step 80.190 ms" in answer.out and "the host runs ahead" in answer.out
    answer = call("sql", "--home", tmp_path / "home", "--json", "SELECT max(step_ns) AS ns FROM iterations")
    assert json.loads(answer.out) == [{"ns": SPAN}]
