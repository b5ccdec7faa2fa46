"""A trace format of another package: a few lines and an entry point, known to every command, worker and sensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage import call
from tests.other_packages import environment, installed, shown_in, traceviz
from traceviz_dag.lake.inputs import RankInput, all_registered
from traceviz_dag.pipeline.formats.registry import format_of_trace, trace_format
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.read.formats import file_formats

TINY, POINTS = shown_in("formats.md")
"""The format that the docs show, and its entry point."""

HEAD = "[project.entry-points.traceviz_dag.trace_formats]"
BEGIN_NS = 1_000_000


def tiny(path: Path, rank: int, world_size: int = 2, end: str = "end\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kernels = [
        ("gemm", BEGIN_NS, 400),
        ("ncclDevKernel_AllReduce_Sum", BEGIN_NS + 300, 300),
        ("gemm", 2 * BEGIN_NS, 100),
    ]
    rows = "".join(f"{name} {start} {duration} {stream}\n" for stream, (name, start, duration) in enumerate(kernels))
    path.write_text(f"tiny {rank} {world_size}\n{rows}{end}")
    return path


@pytest.fixture
def here(tmp_path) -> Iterator[None]:
    """The format is found in this process by its entry point."""
    with installed(tmp_path / "package", TINY, POINTS):
        yield


@pytest.mark.long
def test_doctor_and_analyze_take_a_format_of_another_package(tmp_path):
    job, home = tmp_path / "job/iteration_3", tmp_path / "home"
    for rank in range(2):
        tiny(job / f"r{rank}.tiny", rank)
    sql = "SELECT rank, format, status, traces.kernels, hidden_ns, compute_ns FROM traces JOIN overlap USING (rank) "
    sql += "WHERE window_name = 'kernels' AND dimension = 'all' ORDER BY rank"
    (said, done, rows), _ = traceviz(
        environment(tmp_path / "package", TINY, POINTS),
        ["doctor", tmp_path / "job", "--home", home, "--json"],
        ["analyze", tmp_path / "job", "--home", home],
        ["sql", sql, "--home", home, "--json"],
    )
    assert said.code == 0, said.err
    (capture,) = said.json
    assert (capture["iteration"], capture["ranks"], capture["gpu"], capture["problems"]) == (3, 2, 2, [])
    assert done.code == 2 and done.err.count("\n") == 1, done.err
    assert "2 of 2 communication kernels have no certain wait" in done.err
    expected = {"format": "tiny", "status": "read", "kernels": 3, "hidden_ns": 100, "compute_ns": 500}
    assert rows.json == [{"rank": rank, **expected} for rank in range(2)]


@pytest.mark.usefixtures("here")
def test_the_sensor_registers_it_and_waits_for_the_ends_of_files(tmp_path):
    from sensors.ledger import read_ledger
    from tests.sensors.ticks import Sensor

    root, home = tmp_path / "root", tmp_path / "home"
    tiny(root / "job/r0.tiny", 0)
    tiny(root / "job/r1.tiny", 1, end="")
    sensor = Sensor(home, root)

    def registered() -> list[tuple[str, str]]:
        for request in (*sensor.tick().run_requests, *sensor.tick().run_requests):
            sensor.register(request)
        return [(record.state.value, record.reason) for record in read_ledger(home).values()]

    assert registered() == [("waiting", "still being written: r1.tiny")]
    assert not list(all_registered(home)) and not sensor.instance.get_dynamic_partitions("iteration")
    tiny(root / "job/r1.tiny", 1)
    assert registered() == [("registered", "")]
    ranks = [(one.key, rank.rank, rank.format) for one in all_registered(home) for rank in one.ranks]
    assert ranks == [("job@0", 0, "tiny"), ("job@0", 1, "tiny")]
    assert sensor.instance.get_dynamic_partitions("iteration") == ["job@0"]


@pytest.mark.usefixtures("here")
def test_what_the_code_of_others_raises_costs_the_rank_of_its_file_alone(tmp_path):
    job, home = tmp_path / "job/iteration_3", tmp_path / "home"
    tiny(job / "r0.tiny", 0, 3)
    for name, text in {"r1.tiny": "tiny 1 3\ngemm abc\nend\n", "r2.tiny": "tiny two\nend\n"}.items():
        (job / name).write_text(text)
    done = call("analyze", tmp_path / "job", "--home", home, "--workers", "1")
    fault = "trace format tiny of tinyprof-traceviz cannot read it (ValueError: "
    assert done.code == 2 and "fault of traceviz" not in done.err
    assert all(f"{name}: {fault}" in done.err for name in ("r1.tiny", "r2.tiny")), done.err
    assert {"rank": 0, "status": "read"} in call(
        "sql", "SELECT rank, status FROM traces", "--home", home, "--json"
    ).json


@pytest.mark.usefixtures("here")
def test_a_file_that_only_bears_its_suffix_is_refused_in_its_words(tmp_path):
    path = tmp_path / "r0.tiny"
    path.write_text("something else")
    said = call("doctor", path, "--home", tmp_path / "home")
    assert said.code == 2
    assert said.err.strip().endswith(
        "r0.tiny: its content is not that of tiny traces; give a .tiny file that tinyprof wrote"
    )


@pytest.mark.parametrize(
    ("points", "fault"),
    [
        ("tiny = nowhere:TinyFormat", "cannot be loaded (ModuleNotFoundError: No module named 'nowhere')"),
        ("tiny = tinyprof_traceviz:TraceHeader", "tinyprof_traceviz:TraceHeader is no trace format"),
        (
            "a = tinyprof_traceviz:TinyFormat\nb = tinyprof_traceviz:TinyFormat",
            "a trace format is named 'tiny' already",
        ),
    ],
)
def test_a_package_whose_format_cannot_be_loaded_is_named(tmp_path, points, fault):
    tiny(tmp_path / "job/r0.tiny", 0, 1)
    with installed(tmp_path / "package", TINY, f"{HEAD}\n{points}"):
        said = call("doctor", tmp_path / "job")
    assert said.code == 2 and "of tinyprof-traceviz: " in said.err and fault in said.err
    assert "Traceback" not in said.err


def test_a_registered_rank_of_a_format_that_is_not_installed_says_so(tmp_path):
    path = tiny(tmp_path / "r0.tiny", 0)
    entry = RankInput(0, str(path), path.name, None, 1, 1, format="tiny")
    headers = trace_format(entry.format).headers([entry], None)
    assert not headers.found and "install the package that brings trace format tiny" in headers.faults[0]
    assert format_of_trace(RankTrace(path, path.name, 0, format="tiny")).extra_tables == ()


def test_no_two_formats_share_a_suffix():
    suffixes = [suffix for one in file_formats() for suffix in one.suffixes]
    assert len(suffixes) == len(set(suffixes)) and all(suffix == suffix.lower() for suffix in suffixes)
