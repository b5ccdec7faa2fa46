"""Named queries over one iteration, against figures that were worked out by hand."""

from __future__ import annotations

import errno
import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pytest

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake import across_ranks_views, catalogue, queries, summaries
from traceviz_dag.lake.lake import Lake
from traceviz_dag.system import duckdb_memory
from traceviz_dag.system.memory_limit import THREADS
from traceviz_dag.tables import ITERATIONS, RUNS

RUN = "night/1"


def overlap_rows(sample, windows: list[tuple]):
    """Windows as (device, window, step, dimension, start, end, compute, communication, hidden)."""
    device, window, step, dimension, start, end, compute, communication, hidden = map(list, zip(*windows, strict=True))
    return sample(
        "overlap",
        len(windows),
        device=device,
        window_name=window,
        step=step,
        dimension=dimension,
        window_start_ns=start,
        window_end_ns=end,
        compute_ns=compute,
        communication_ns=communication,
        hidden_ns=hidden,
        exposed_ns=[total - part for total, part in zip(communication, hidden, strict=True)],
        idle_ns=[e - s - c - m + h for s, e, c, m, h in zip(start, end, compute, communication, hidden, strict=True)],
    )


def trace_row(sample, **columns):
    return sample(
        "traces",
        **{
            "status": "read",
            "kernels": 10,
            "kernel_ns": 1000,
            "classified_ns": 900,
            "phase_known_ns": 500,
            "dimension_known_ns": 100,
            "communication_ns": 400,
            "microbatch_known_ns": 250,
            "launched_kernels": 9,
            "rows_read": 50,
            "rows_dropped": 1,
            "has_stacks": True,
            "has_shapes": True,
            "has_groups": True,
            "has_host_rows": True,
            "backend": "nccl",
            "step_kind": "training",
            **columns,
        },
    )


@pytest.fixture
def two_ranks(lake: Lake, sample) -> Lake:
    rank_0 = [
        ("gpu:0", "step", 7, "all", 100, 1100, 600, 300, 150),
        ("gpu:0", "step", 7, "tp", 100, 1100, 600, 100, 50),
        ("gpu:0", "kernels", None, "all", 150, 1000, 600, 300, 150),
    ]
    rank_1 = [("gpu:1", "kernels", None, "all", 0, 900, 701, 100, 0)]
    for rank, rows in enumerate((rank_0, rank_1)):
        lake.write("overlap", overlap_rows(sample, rows), run=RUN, iteration=7, rank=rank)
        trace = trace_row(sample, classified_ns=900 - 300 * rank, world_size=2)
        lake.write("traces", trace, run=RUN, iteration=7, rank=rank)
    other = overlap_rows(sample, [("gpu:0", "step", 8, "all", 0, 10**9, 10**9, 0, 0)])
    lake.write("overlap", other, run=RUN, iteration=8, rank=0)
    return lake


def test_an_iteration_over_its_ranks(two_ranks: Lake):
    table = queries.iterations(two_ranks, RUN, 7)
    assert table.schema.equals(pa.schema([ITERATIONS.schema.field(name) for name in table.column_names]))
    assert table.to_pylist() == [
        {
            "ranks": 2,
            "covered_ranks": [0, 1],
            "partial": False,
            "step_ns": 1000,  # rank 0's step; rank 1 has only its 900 ns of kernels
            "compute_ns": 651,  # (600 + 701) / 2, rounded
            "communication_ns": 200,
            "hidden_ns": 75,
            "exposed_ns": 125,
            "idle_ns": 175,  # (250 + 99) / 2, rounded
            "hidden_share": 150 / 400,
            "longest_computation_rank": 1,
            "unclassified_share": 0.25,
            "step_kind": "training",
        }
    ]


def test_several_steps_of_a_rank_count_as_one_rank(two_ranks: Lake, sample):
    steps = [("gpu:0", "step", n, "all", 0, 500 * n, 100 * n, 0, 0) for n in (1, 2, 3)]
    two_ranks.write("overlap", overlap_rows(sample, steps), run=RUN, iteration=7, rank=0)
    (row,) = queries.iterations(two_ranks, RUN, 7).to_pylist()
    assert (row["ranks"], row["step_ns"], row["compute_ns"]) == (2, 1500, 451)
    assert row["hidden_share"] == 0.0


def test_an_iteration_is_partial_when_a_rank_failed_or_is_missing_and_unknown_without_a_world(two_ranks: Lake, sample):
    two_ranks.write("topology", sample("topology", 4, rank=[0, 1, 2, 3]), run=RUN, iteration=7)
    assert queries.iterations(two_ranks, RUN, 7)["partial"].to_pylist() == [True]
    two_ranks.delete("topology", run=RUN)
    for rank in (0, 1):
        two_ranks.write("traces", trace_row(sample), run=RUN, iteration=7, rank=rank)
    assert queries.iterations(two_ranks, RUN, 7)["partial"].to_pylist() == [None]
    two_ranks.write("traces", trace_row(sample, status="failed"), run=RUN, iteration=7, rank=2)
    assert queries.iterations(two_ranks, RUN, 7)["partial"].to_pylist() == [True]


def test_a_rank_that_was_read_in_part_is_left_out_unless_asked_for(two_ranks: Lake, sample):
    two_ranks.write("traces", trace_row(sample, status="partial", world_size=2), run=RUN, iteration=7, rank=1)
    (row,) = queries.iterations(two_ranks, RUN, 7).to_pylist()
    assert (row["covered_ranks"], row["partial"], row["compute_ns"], row["longest_computation_rank"]) == (
        [0],
        True,
        600,
        0,
    )
    (row,) = queries.iterations(two_ranks, RUN, 7, with_partial=True).to_pylist()
    assert (row["covered_ranks"], row["partial"], row["compute_ns"], row["longest_computation_rank"]) == (
        [0, 1],
        True,
        651,
        1,
    )
    (run,) = queries.runs(two_ranks, RUN, 7).to_pylist()
    assert (run["partial_ranks"], run["complete"]) == ([1], False)


def test_nothing_measured_is_no_row_and_no_figure(two_ranks: Lake, sample):
    assert queries.iterations(two_ranks, RUN, 99).num_rows == 0
    assert queries.iterations(two_ranks, "absent", 7).num_rows == 0
    assert queries.runs(two_ranks, RUN, 99).num_rows == 0
    idle = overlap_rows(sample, [("cpu", "kernels", None, "all", 0, 10, 0, 0, 0)])
    two_ranks.write("overlap", idle, run=RUN, iteration=99, rank=0)
    (row,) = queries.iterations(two_ranks, RUN, 99).to_pylist()
    assert (row["hidden_share"], row["longest_computation_rank"], row["unclassified_share"]) == (None, None, None)
    assert row["partial"] is None


def test_a_run_with_a_failed_and_a_missing_rank_and_uneven_capture(lake: Lake, sample):
    rows = [
        trace_row(sample, world_size=4, device_name="H100", steps=[[5]]),
        trace_row(sample, status="failed", backend=None, has_stacks=None, has_shapes=None, has_groups=None),
        trace_row(sample, device_name="H100", has_stacks=False, steps=[[5]]),
    ]
    for rank, row in zip((3, 2, 0), rows, strict=True):
        lake.write("traces", row, run=RUN, iteration=1, rank=rank)
    table = queries.runs(lake, RUN, 1)
    assert table.schema.equals(RUNS.schema)
    assert table.to_pylist() == [
        {
            "ranks": 2,
            "failed_ranks": [2],
            "partial_ranks": [],
            "missing_ranks": [1],
            "expected_ranks": 4,
            "captured_ranks": None,
            "complete": False,
            "backend": "nccl",
            "device_name": "H100",
            "has_stacks": None,
            "has_shapes": True,
            "has_groups": True,
            "parity": False,
        }
    ]
    lake.write("runs", table, run=RUN, iteration=1)


def test_a_complete_run_and_one_of_unknown_size(lake: Lake, sample):
    for rank in (0, 1):
        lake.write("traces", trace_row(sample, steps=[[5, 6]]), run=RUN, iteration=1, rank=rank)
    (unknown,) = queries.runs(lake, RUN, 1).to_pylist()
    assert (unknown["expected_ranks"], unknown["missing_ranks"], unknown["complete"]) == (None, None, None)
    assert unknown["parity"] is True
    lake.write("topology", sample("topology", 2, rank=[0, 1]), run=RUN, iteration=1)
    (known,) = queries.runs(lake, RUN, 1).to_pylist()
    assert (known["expected_ranks"], known["missing_ranks"], known["complete"]) == (2, [], True)
    lake.write("traces", trace_row(sample, steps=[[5]]), run=RUN, iteration=1, rank=1)
    assert queries.runs(lake, RUN, 1)["parity"].to_pylist() == [False]


def test_ranks_that_the_capture_did_not_choose_are_not_missing(lake: Lake, sample):
    lake.write("topology", sample("topology", 64, rank=list(range(64))), run=RUN, iteration=1)
    for rank in (0, 1, 9):
        row = trace_row(sample, world_size=64, captured_ranks="0-1, 8-9", steps=[[5]])
        lake.write("traces", row, run=RUN, iteration=1, rank=rank)
    (said,) = queries.runs(lake, RUN, 1).to_pylist()
    assert (said["expected_ranks"], said["captured_ranks"]) == (64, "0-1, 8-9")
    assert (said["missing_ranks"], said["complete"]) == ([8], False) and queries.trace_files(lake, RUN, 1).partial
    # A trace that states no choice leaves open what it was.
    lake.write("traces", trace_row(sample, world_size=64, steps=[[5]]), run=RUN, iteration=1, rank=8)
    assert len(queries.trace_files(lake, RUN, 1).missing) == 60
    lake.write("traces", row, run=RUN, iteration=1, rank=8)
    (said,) = queries.runs(lake, RUN, 1).to_pylist()
    assert (said["missing_ranks"], said["complete"]) == ([], True)
    assert queries.trace_files(lake, RUN, 1).partial is False


def test_a_run_whose_ranks_all_failed(lake: Lake, sample):
    lake.write("traces", trace_row(sample, status="failed", world_size=1), run=RUN, iteration=1, rank=0)
    (row,) = queries.runs(lake, RUN, 1).to_pylist()
    assert (row["ranks"], row["failed_ranks"], row["missing_ranks"]) == (0, [0], [])
    assert (row["complete"], row["parity"], row["backend"]) == (False, None, None)


CUT_STEPS_SQL = """
WITH here AS (FROM traces WHERE run = $run AND iteration = $iteration),
cut AS (SELECT rank, unnest(cut_steps) AS step, list_min(steps) AS first FROM here)
SELECT
    step, CASE WHEN step < first THEN 'start' ELSE 'stop' END AS edge, list_sort(list(DISTINCT rank)) AS ranks,
    coalesce((SELECT list_sort(list(DISTINCT rank)) FROM here WHERE list_contains(steps, cut.step)), []) AS whole,
    count(DISTINCT rank) = (SELECT count(DISTINCT rank) FROM here) AS everywhere
FROM cut GROUP BY ALL ORDER BY step
"""


def test_cut_steps_are_those_of_a_query(lake: Lake, sample):
    held = {0: ([3], [2, 4]), 1: ([3, 4], [2]), 2: ([], [5]), 3: (None, None), 10: ([2, 3], [4])}
    for rank, (steps, cut) in held.items():
        trace = trace_row(sample, steps=[steps], cut_steps=[cut])
        lake.write("traces", trace, run=RUN, iteration=1, rank=rank)
    found = summaries.cut_steps(queries.trace_files(lake, RUN, 1))
    assert found == lake.query_iteration(CUT_STEPS_SQL, run=RUN, iteration=1).to_pylist()
    assert found[0] == {"step": 2, "edge": "start", "ranks": [0, 1], "whole": [10], "everywhere": False}
    assert [(one["step"], one["edge"]) for one in found] == [(2, "start"), (4, "stop"), (5, "stop")]


@pytest.mark.parametrize(
    "sql",
    [
        summaries.WINDOWS_SQL,
        summaries.DIMENSIONS_SQL,
        summaries.CATEGORY_SHARES_SQL,
    ],
)
def test_the_same_query_runs_over_the_whole_catalogue(two_ranks: Lake, sql):
    values = {"run": RUN, "iteration": 7}
    assert two_ranks.query(sql, values).equals(two_ranks.query_iteration(sql, run=RUN, iteration=7))


def test_a_damaged_file_is_named(two_ranks: Lake):
    folder = two_ranks.home / "lake" / "overlap" / "run=night%2F1" / "iteration=7"
    (folder / "rank=1" / "part.parquet").write_bytes(b"damaged")
    with pytest.raises(BadInputError, match=r"rank=1/part\.parquet"):
        queries.iterations(two_ranks, RUN, 7)


def test_a_file_that_the_system_does_not_open_is_not_called_damaged(two_ranks: Lake, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def refuse_duckdb(*_, **__):
        raise duckdb.IOException(f'Cannot open file "part.parquet": {os.strerror(errno.EMFILE)}')

    monkeypatch.setattr("traceviz_dag.lake.reader.pq.ParquetFile", refuse)
    with pytest.raises(BadInputError, match=r"cannot be read .*; raise the limit of open files"):
        two_ranks.table("overlap", RUN, 7).arrow()
    monkeypatch.setattr("traceviz_dag.lake.read_only.fetch", refuse_duckdb)
    with pytest.raises(BadInputError, match=r"cannot be read.*; raise the limit of open files"):
        two_ranks.query_iteration("FROM overlap", run=RUN, iteration=7)


def test_dollar_signs_in_texts_names_and_comments_name_no_parameter(two_ranks: Lake):
    sql = """SELECT '$run isn''t $iteration' AS "$run", $iteration AS n -- rank's $run
        /* $run */"""
    assert catalogue.named_parameters(sql) == {"iteration"}
    assert catalogue.with_values(sql, {"run": "1", "iteration": "2"}) == sql.replace("$iteration AS n", "2 AS n")
    (row,) = two_ranks.query_iteration(sql, run="$iteration 'of' $run", iteration=7).to_pylist()
    assert row == {"$run": "$run isn't $iteration", "n": 7}


def test_a_part_that_queries_share_is_asked_once_and_their_rows_are_the_same(two_ranks: Lake):
    inner = "(SELECT rank FROM overlap WHERE run = $run AND iteration = $iteration)"
    outer = f"SELECT max(rank) AS rank FROM {inner}"
    asked = [outer, f"SELECT count(*) AS rows FROM {inner} WHERE rank IN ({outer})", "SELECT 1 AS one"]
    with two_ranks.session(run=RUN, iteration=7) as session:
        alone = session.ask_each(asked)
        assert session.ask_each(asked, [inner, outer]) == alone
        made = {name for (name,) in session.views.connection.execute("SHOW TABLES").fetchall()}
        assert {"shared_0", "shared_1"} <= made
    assert alone[1]["rows"].to_pylist() != [0]


@pytest.mark.parametrize("mentions", [1, 9])
def test_a_session_sees_what_is_written_while_it_is_open(two_ranks: Lake, sample, mentions):
    inner = "(SELECT rank, step FROM overlap WHERE run = $run AND iteration = $iteration AND dimension = 'all')"
    asked = [f"SELECT count(DISTINCT step) AS steps FROM {inner}", *(f"FROM {inner} -- {n}" for n in range(mentions))]
    step = [("gpu:1", "step", 8, "all", 0, 500, 100, 0, 0)]
    with two_ranks.session(run=RUN, iteration=7) as session:
        lake = session.within()
        before = session.ask_each(asked, [inner])
        assert session.ask_each(asked, [inner]) == before
        two_ranks.write("overlap", overlap_rows(sample, step), run=RUN, iteration=7, rank=1)
        after = session.ask_each(asked, [inner])
        assert lake.query_iteration(asked[0], run=RUN, iteration=7) == after[0]
        assert lake.query_iteration(asked[0], run=RUN, iteration=8)["steps"].to_pylist() == [1]
    assert [rows[0]["steps"][0].as_py() for rows in (before, after)] == [1, 2]
    assert [8 in rows[1]["step"].to_pylist() for rows in (before, after)] == [False, True]


def test_a_session_lists_the_files_of_a_table_once_until_somebody_writes_one(two_ranks: Lake, sample, monkeypatch):
    listed = []
    find_parts = catalogue.find_parts
    monkeypatch.setattr(catalogue, "find_parts", lambda *place: (listed.append(place[1].name), find_parts(*place))[1])
    asked = "SELECT count(*) AS rows FROM overlap WHERE run = $run AND iteration = $iteration"
    with two_ranks.session(run=RUN, iteration=7) as session:
        counts = [session.ask(f"{asked} AND rank < {rank}")["rows"][0].as_py() for rank in range(3)]
        assert counts[0] < counts[1] < counts[2] and listed == ["overlap"]
        step = [("gpu:1", "step", 8, "all", 0, 500, 100, 0, 0)]
        two_ranks.write("overlap", overlap_rows(sample, step), run=RUN, iteration=7, rank=1)
        assert session.ask(asked)["rows"][0].as_py() == counts[1] + 1 and listed == ["overlap"] * 2


def test_a_file_that_somebody_damages_or_deletes_under_a_session_is_named(two_ranks: Lake):
    asked = "SELECT sum(exposed_ns) AS ns FROM overlap WHERE run = $run AND iteration = $iteration"
    path, other = (two_ranks.path("overlap", run=RUN, iteration=7, rank=rank) for rank in (1, 0))
    whole = path.read_bytes()
    with two_ranks.session(run=RUN, iteration=7) as session:
        session.ask(asked)
        for damaged in (other.read_bytes(), whole[:-30], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
            path.write_bytes(damaged)
            with pytest.raises(BadInputError, match="the file is damaged, or is not the one"):
                session.ask(asked)
        path.unlink()
        assert session.ask(f"{asked} AND rank = 1")["ns"].to_pylist() == [None]


ENDLESS = " UNION ALL ".join(
    ["SELECT count(*) AS rows FROM range(9000000000000) AS many(n) WHERE hash(n) % 7 = n % 5"] * 4
)
"""Each thread of DuckDB has a share of it: if one gets signals, another works on, and notices none."""


@pytest.fixture
def several_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """DuckDB as users have it; tests give it one thread."""
    monkeypatch.setenv(THREADS, "2")
    duckdb_memory._kept.cache_clear()
    yield
    duckdb_memory._kept.cache_clear()


@contextmanager
def interrupted() -> Iterator[None]:
    """What runs meets a signal whose handler does what that of Ctrl-C does, also where the tests ignore interrupts."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    faulthandler.dump_traceback_later(60, exit=True)  # Nothing else would end it.
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "ask",
    [
        lambda lake: lake.query(ENDLESS),
        lambda lake: lake.query_iteration(ENDLESS, run=RUN, iteration=7),
        lambda lake: lake.ask_iteration(ENDLESS, ["overlap"], run=RUN, iteration=7),
        lambda lake: across_ranks_views.rows_of_query(ENDLESS, RUN, 7),
    ],
)
@pytest.mark.usefixtures("several_threads")
def test_an_interrupt_of_a_query_is_no_error_of_the_query(two_ranks: Lake, ask: Callable[[Lake], object]):
    with interrupted():
        ask(two_ranks)


@pytest.mark.usefixtures("several_threads")
def test_a_session_answers_after_an_interrupt_also_of_the_tables_that_it_makes(two_ranks: Lake, monkeypatch):
    monkeypatch.setattr(catalogue, "_READ_ONCE", ((1, 1 << 20),))
    with two_ranks.session(run=RUN, iteration=7) as session:
        with interrupted():
            session.ask(ENDLESS)
        with monkeypatch.context() as patch, interrupted():
            patch.setattr(catalogue, "_rows", lambda *_: ENDLESS)
            session.ask("FROM overlap, traces")
        with monkeypatch.context() as patch, interrupted():
            patch.setattr(catalogue, "_rows", lambda *_: ENDLESS)
            patch.setattr(catalogue, "LEAST_COPIED", 2)
            session.within().rows("overlap", RUN, 7)
        assert session.ask("SELECT count(*) AS rows FROM overlap JOIN traces USING (rank)")["rows"].to_pylist() == [4]
