"""An exported iteration, read back by Perfetto itself, is what the tables say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.kineto_file import KinetoFile
from tests.show.home import fill_home
from tests.show.job import MemorySource, kernels, one_row
from traceviz_dag.analyze.wording import duration
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.inputs import register
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.pipeline.perfetto_export import export_iteration, export_path, match_ranks
from traceviz_dag.read.perfetto.engines import Engine
from traceviz_dag.read.perfetto.session import TraceSession, open_trace
from traceviz_dag.show.lanes.words import ALLOCATED, EXPOSED_TIME, IN_FLIGHT
from traceviz_dag.show.perfetto.iteration import Scope, write_iteration_trace
from traceviz_dag.simulate.job import simulate
from traceviz_dag.simulate.settings import JobSettings

MICROBATCHES, CHUNKS, STAGES, TENSOR = 4, 2, 2, 2
SKEWED = JobSettings(
    tp=TENSOR, pp=STAGES, vpp=CHUNKS, microbatches=MICROBATCHES, layers=4, node_size=2, clock_skew_ms=3.0, stacks=True
)

KERNELS = """
SELECT s.ts, s.dur, s.name, s.category, t.name AS stream, r.name AS rank_name,
    extract_arg(s.arg_set_id, 'debug.kernel_id') AS kernel_id,
    extract_arg(s.arg_set_id, 'debug.phase') AS phase,
    extract_arg(s.arg_set_id, 'debug.microbatch') AS microbatch,
    extract_arg(s.arg_set_id, 'debug.dimension') AS dimension,
    extract_arg(s.arg_set_id, 'debug.wait_ns') AS wait_ns
FROM slice s JOIN track t ON s.track_id = t.id JOIN track r ON t.parent_id = r.id
WHERE t.name GLOB 'stream*' ORDER BY rank_name, kernel_id
"""
FLOWS = """
SELECT a.category, a.ts AS begun, b.ts + b.dur AS ended, ra.name AS sender, rb.name AS receiver
FROM flow f JOIN slice a ON f.slice_out = a.id JOIN slice b ON f.slice_in = b.id
JOIN track ta ON a.track_id = ta.id JOIN track ra ON ta.parent_id = ra.id
JOIN track tb ON b.track_id = tb.id JOIN track rb ON tb.parent_id = rb.id
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> LakeSource:
    """A simulated job whose nodes' clocks differ, with its tables across ranks."""
    folder = tmp_path_factory.mktemp("perfetto")
    (inputs,) = fill_home(folder / "home", [simulate(SKEWED, folder / "job", workers=1)])
    return LakeSource(open_lake(folder / "home"), inputs.run, inputs.iteration)


@pytest.fixture(scope="module")
def exported(source: LakeSource, trace_processor: Engine):
    written = export_iteration(source)
    with open_trace(written.path, trace_processor) as session:
        yield written, session


def frame(session: TraceSession, sql: str) -> pd.DataFrame:
    return session.query(sql).to_pandas()


def test_kernels_come_back_as_the_tables_have_them_on_solved_clocks(source: LakeSource, exported) -> None:
    written, session = exported
    expected = source.lake.query(
        "SELECT k.rank, kernel_id, aligned_start_ns, k.duration_ns, name, category, k.phase, microbatch, k.dimension, "
        "wait_aligned_ns FROM kernels_aligned k LEFT JOIN collectives USING (run, iteration, rank, kernel_id) "
        "ORDER BY k.rank, kernel_id"
    ).to_pandas()
    found = frame(session, KERNELS)
    found["rank"] = found["rank_name"].str.extract(r"rank (\d+)").astype(int)
    found = found.sort_values(["rank", "kernel_id"], ignore_index=True)
    assert session.problems == []
    assert written.clock.startswith("clocks solved")
    assert len(expected) == len(found) > 1000
    for here, there in (
        *(("rank", "rank"), ("kernel_id", "kernel_id"), ("ts", "aligned_start_ns"), ("dur", "duration_ns")),
        *(("name", "name"), ("category", "category"), ("phase", "phase"), ("dimension", "dimension")),
        *(("microbatch", "microbatch"), ("wait_ns", "wait_aligned_ns")),
    ):
        pd.testing.assert_series_equal(found[here], expected[there], check_names=False, check_dtype=False)
    recorded = source.lake.query("SELECT start_ns FROM kernels").column(0).to_pylist()
    assert set(recorded) != set(expected["aligned_start_ns"].tolist()), "the clocks must differ"


def test_arrows_run_from_sends_to_receives_and_never_against_time(source: LakeSource, exported) -> None:
    written, session = exported
    flows = frame(session, FLOWS)
    assert len(flows) == written.arrows > 0
    assert written.backward == 0
    assert (flows["ended"] >= flows["begun"]).all()
    assert (flows["sender"] != flows["receiver"]).all()
    flows = flows[flows["category"] != "critical_path"]
    messages = flows[flows["category"] == "pp_communication"]
    matched = match_ranks(source)
    assert matched is not None
    ends = matched.matches.messages.sender, matched.matches.messages.receiver
    assert len(ends[0]) == TENSOR * 2 * MICROBATCHES * (STAGES * CHUNKS - 1)
    # Two messages between the same two kernels, an activation and a gradient, are one arrow.
    assert len(messages) == len(set(zip(*(end.tolist() for end in ends), strict=True)))
    ranks = messages[["sender", "receiver"]].apply(lambda column: column.str.extract(r"rank (\d+)")[0].astype(int))
    assert set((ranks["sender"] - ranks["receiver"]).abs()) == {TENSOR}


PATH = """
SELECT s.id, s.ts, s.dur, s.name, t.parent_id IS NULL AS whole, coalesce(r.name, '') AS rank_name,
    extract_arg(s.arg_set_id, 'debug.segment') AS segment, extract_arg(s.arg_set_id, 'debug.rank') AS rank,
    extract_arg(s.arg_set_id, 'debug.stage') AS stage, extract_arg(s.arg_set_id, 'debug.cause') AS cause,
    extract_arg(s.arg_set_id, 'debug.category') AS category, extract_arg(s.arg_set_id, 'debug.module') AS module,
    extract_arg(s.arg_set_id, 'debug.microbatch') AS microbatch,
    extract_arg(s.arg_set_id, 'debug.kernel_id') AS kernel_id
FROM slice s JOIN track t ON s.track_id = t.id LEFT JOIN track r ON t.parent_id = r.id
WHERE s.category = 'critical_path' ORDER BY segment
"""


def test_the_critical_path_comes_back_as_one_lane_and_on_its_ranks(source: LakeSource, exported) -> None:
    _, session = exported
    found = frame(session, PATH)
    lane, of_ranks = (
        found[found["whole"] == 1].reset_index(drop=True),
        found[found["whole"] == 0].reset_index(drop=True),
    )
    expected = source.lake.query("SELECT * FROM path_segments ORDER BY segment").to_pandas()
    columns = ("segment", "rank", "stage", "cause", "category", "module", "microbatch", "kernel_id")
    for part in (lane, of_ranks):
        for column in columns:
            pd.testing.assert_series_equal(part[column], expected[column], check_dtype=False)
        assert part["dur"].tolist() == expected["duration_ns"].tolist()
    assert (
        len(
            session.query(
                "SELECT DISTINCT track_id FROM slice s JOIN track t ON s.track_id = t.id "
                "WHERE category = 'critical_path' AND t.parent_id IS NULL"
            )
        )
        == 1
    )
    assert (lane["ts"] + lane["dur"]).tolist()[:-1] == lane["ts"].tolist()[1:], "no gap, and no overlap"
    assert [int(name.split(" ")[1]) for name in of_ranks["rank_name"]] == of_ranks["rank"].tolist()
    # On its rank a segment of a kernel's run is inside the kernel, on the clock of the trace.
    kernels = source.lake.query(
        "SELECT segment, aligned_start_ns AS start, aligned_start_ns + k.duration_ns AS end FROM path_segments p "
        "JOIN kernels_aligned k USING (run, iteration, rank, kernel_id) "
        "WHERE cause IN ('work', 'transfer', 'unmatched')"
    ).to_pandas()
    inside = of_ranks.merge(kernels, on="segment")
    assert len(inside) > 20
    assert ((inside["start"] <= inside["ts"]) & (inside["ts"] + inside["dur"] <= inside["end"])).all()
    away = int((lane["ts"] - of_ranks["ts"]).abs().max())
    (said,) = session.query(
        "SELECT extract_arg(arg_set_id, 'debug.critical path') AS said FROM slice WHERE name GLOB 'clocks*'"
    )["said"].to_pylist()
    assert f"segments are up to {duration(away)} from where their ranks have them" in said


def test_arrows_of_the_path_are_where_it_moves_to_another_rank(source: LakeSource, exported) -> None:
    _, session = exported
    flows = frame(
        session,
        "SELECT extract_arg(a.arg_set_id, 'debug.segment') AS begun, "
        "extract_arg(b.arg_set_id, 'debug.segment') AS ended FROM flow f JOIN slice a ON f.slice_out = a.id "
        "JOIN slice b ON f.slice_in = b.id "
        "WHERE a.category = 'critical_path' ORDER BY begun",
    )
    moves = source.lake.query(
        "SELECT segment FROM (SELECT segment, rank, lead(rank) OVER (ORDER BY segment) AS next FROM path_segments) "
        "WHERE rank <> next ORDER BY segment"
    )["segment"].to_pylist()
    assert flows["begun"].tolist() == moves and len(moves) > 2
    assert (flows["ended"] - flows["begun"]).tolist() == [1] * len(moves)


def test_micro_batches_and_counters_come_back(source: LakeSource, exported) -> None:
    _, session = exported
    steps = frame(session, "SELECT s.name, t.name AS rank_name FROM slice s JOIN track t ON s.track_id = t.id")
    steps = steps[steps["rank_name"].str.startswith("rank")]
    names = {
        f"{phase} {number} chunk {chunk}"
        for phase in ("forward", "backward")
        for number in range(MICROBATCHES)
        for chunk in range(CHUNKS)
    }
    assert steps.groupby("rank_name")["name"].apply(set).tolist() == [names] * (TENSOR * STAGES)
    counters = frame(
        session,
        "SELECT t.name, r.name AS rank_name, c.ts, c.value FROM counter c JOIN track t ON c.track_id = t.id "
        "JOIN track r ON t.parent_id = r.id ORDER BY r.name, t.name, c.ts",
    )
    for rank_name, rows in counters.groupby("rank_name"):
        in_flight = rows[rows["name"] == IN_FLIGHT]["value"]
        assert in_flight.iloc[-1] == 0
        assert 1 <= in_flight.max() <= MICROBATCHES * CHUNKS
        exposed = rows[rows["name"] == EXPOSED_TIME]
        length = int((exposed["value"].to_numpy()[:-1] * np.diff(exposed["ts"].to_numpy())).sum())
        rank = int(str(rank_name).split(" ")[1])
        overlap = source.table("overlap", ("window_name", "dimension", "exposed_ns"), rank).to_pandas()
        whole = overlap[(overlap["window_name"] == "kernels") & (overlap["dimension"] == "all")]
        assert length == int(whole["exposed_ns"].iloc[0])


@pytest.mark.long
def test_a_pipeline_alone_and_clocks_as_recorded(source: LakeSource, trace_processor: Engine) -> None:
    written = export_iteration(source, Scope.PIPELINE, 1, recorded_clocks=True)
    assert written.path == export_path(source, Scope.PIPELINE, 1)
    assert written.ranks == (1, 3)
    assert written.clock.startswith("clocks as recorded")
    expected = source.lake.query("SELECT start_ns FROM kernels WHERE rank IN (1, 3) ORDER BY ALL").column(0).to_pylist()
    with open_trace(written.path, trace_processor) as session:
        found = session.query("SELECT ts FROM slice s JOIN track t ON s.track_id = t.id WHERE t.name GLOB 'stream*'")
        assert sorted(found["ts"].to_pylist()) == expected
        assert session.problems == []
        statement = session.query("SELECT name FROM slice WHERE name GLOB 'clocks*'")["name"].to_pylist()
        assert statement == [written.clock]
        path = frame(session, PATH)
        crossed = set(path[path["whole"] == 1]["rank"].tolist())
        assert set(path[path["whole"] == 0]["rank"].tolist()) == crossed & {1, 3}
    with pytest.raises(UsageError, match="no pipeline 7; known are 0, 1"):
        export_iteration(source, Scope.PIPELINE, 7)


def test_times_before_zero_are_shifted_and_said_to_be(tmp_path: Path, trace_processor: Engine) -> None:
    source = MemorySource()
    rows = [{"start_ns": start, "duration_ns": 5, "category": "fwd_computation"} for start in (-70, -60, 3)]
    source.tables["kernels"] = {0: kernels(rows)}
    source.tables["traces"] = {0: one_row("traces", status="read")}
    written = write_iteration_trace(source, tmp_path / "out.pftrace")
    assert written.clock.endswith("all times are shifted by 70 ns")
    with open_trace(written.path, trace_processor) as session:
        found = session.query("SELECT ts FROM slice WHERE category IS NOT NULL ORDER BY ts")["ts"].to_pylist()
        assert (found, session.problems) == ([0, 10, 73], [])


@pytest.mark.long
def test_allocated_memory_is_a_counter_inside_the_iteration(tmp_path: Path, trace_processor: Engine) -> None:
    run = tmp_path / "job"
    file = KinetoFile()
    file.annotation("ProfilerStep#7", 0, 100_000)
    for start in (10_000, 50_000):
        file.kernel("gemm", start, start + 20_000, launched=start - 1_000)
    for at, allocated in ((5_000, 1), (20_000, 4_096), (60_000, 2_048), (90_000, 1)):
        file.memory(at, allocated)
    file.write(run / "iteration_7/rank_0000_iter_7.pt.trace.json")
    (inputs,) = fill_home(tmp_path / "home", [run])
    register(tmp_path / "home", inputs)
    source = LakeSource(open_lake(tmp_path / "home"), inputs.run, inputs.iteration)
    with open_trace(export_iteration(source).path, trace_processor) as session:
        counts = frame(
            session,
            f"SELECT c.ts, c.value FROM counter c JOIN track t ON c.track_id = t.id WHERE t.name = '{ALLOCATED}' "
            "ORDER BY c.ts",
        )
    assert list(zip(counts["ts"], counts["value"].astype(int), strict=True)) == [(20_000, 4_096), (60_000, 2_048)]
