"""Records of pipeline operations: a real job against its published results, and a small one whose loss is known."""

import json
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from traceviz_dag.analyze.causes.records_delays import records_costs
from traceviz_dag.analyze.causes.records_work import records_work
from traceviz_dag.analyze.causes.slowdowns import slowdowns
from traceviz_dag.commands.main import app
from traceviz_dag.errors import BadInputError, NoEvidenceError
from traceviz_dag.read.records.pipeline_records import read_pipeline_records

_META = "dp_size: {data_parallel}\npp_size: 2\nvpp_size: 1\n"


@pytest.fixture(scope="module")
def published(shared_data):
    folder = shared_data / "straggler_analysis"
    return slowdowns(records_work(read_pipeline_records(folder / "trace-SE.parquet"))), folder


def test_a_real_job_has_the_published_slowdown_and_shares(published):
    found, folder = published
    told = {name: json.loads((folder / f"{name}-SE.json").read_text()) for name in ("result", "ms", "mw")}
    assert found.slowdown == pytest.approx(told["result"]["blocking_slowdown"], abs=1e-6)
    assert found.recovered_by_last_stage == pytest.approx(told["ms"]["Ms"], abs=1e-6)
    assert found.recovered_by_slowest_ranks == pytest.approx(told["mw"]["Mw"], abs=1e-6)
    assert found.step_ns == pytest.approx(told["ms"]["tori"] * 1e9, rel=1e-6)
    assert found.ideal_step_ns == pytest.approx(told["ms"]["tideal"] * 1e9, rel=1e-6)
    for ours, theirs in (
        (found.by_stage, told["result"]["blocking_decompose_by_stage"]),
        (found.by_data_parallel_rank, told["result"]["blocking_decompose_by_dp_rank"]),
        (found.by_operation, told["result"]["blocking_decompose_by_optype"]),
    ):
        alike = {str(key): value for key, value in ours.items() if str(key) in theirs}
        assert alike == pytest.approx({key: theirs[key] for key in alike}, abs=1e-6)
        assert len(alike) >= len(theirs) - 2


def _rows(step, rank, stage, microbatches=4, forward=0.010, backward=0.020, transfer=0.001):
    """A stage of a two-stage job that runs all forward steps, then all backward steps, each after its message."""
    place, now = (rank, stage, 2 * rank + stage, step), 0.0
    rows = [(*place, "params-all-gather", now, transfer, 0, -1)]
    now += transfer
    parts = (("forward", forward, stage == 1), ("backward", backward, stage == 0))
    for direction, duration, receives in parts:
        for number in range(microbatches):
            if receives:
                rows.append((*place, f"{direction}-recv", now, transfer, number, -1))
                now += transfer
            rows.append((*place, f"{direction}-compute", now, duration, number, number))
            now += duration
            if not receives:
                rows.append((*place, f"{direction}-send", now, transfer, number, -1))
    for name in ("grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"):
        rows.append((*place, name, now, transfer, 0, -1))
        now += transfer
    return rows


def _write(folder, rows, data_parallel=2):
    names = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    table = pa.table({**columns, "mc": [0] * len(rows)})
    pq.write_table(table, folder / "trace-job.parquet")
    (folder / "meta-job.yaml").write_text(_META.format(data_parallel=data_parallel))
    return folder / "trace-job.parquet"


def _job(steps=(1, 2), slow=None, **changed):
    return [
        row
        for step in steps
        for rank in range(2)
        for stage in range(2)
        for row in _rows(step, rank, stage, **(changed if slow == (rank, stage) else {}))
    ]


def _found(path):
    return slowdowns(records_work(read_pipeline_records(path)))


def test_a_slow_rank_and_its_stage_are_charged_and_a_healthy_job_is_not(tmp_path):
    healthy = _found(_write(tmp_path, _job()))
    assert healthy.slowdown == pytest.approx(1.0, abs=0.02)
    slow = _found(_write(tmp_path, _job(slow=(1, 1), forward=0.030, backward=0.060)))
    assert slow.slowdown > 1.2
    assert max(slow.by_stage, key=slow.by_stage.__getitem__) == 1
    assert max(slow.by_data_parallel_rank, key=slow.by_data_parallel_rank.__getitem__) == 1
    assert slow.slowest_ranks == ((1, 1),)
    assert slow.recovered_by_slowest_ranks > 0.9


def test_where_no_time_is_lost_no_share_of_it_is_won_back_and_the_command_says_why(tmp_path):
    rows = [row for rank in range(2) for stage in range(2) for row in _rows(1, rank, stage, transfer=0)]
    path = _write(tmp_path, rows)
    found = _found(path)
    assert found.slowdown == pytest.approx(1)
    assert found.recovered_by_last_stage is found.recovered_by_slowest_ranks is None
    text, answer = (
        CliRunner().invoke(app, ["what-if", "--records", str(path), *more]).stdout for more in ((), ("--json",))
    )
    reason = "the step is no longer than the ideal one, so no time is lost"
    assert f"  {reason}: no part of the job can save any of it\n" in text
    told = json.loads(answer)
    shares = (told["recovered_by_last_stage"], told["recovered_by_slowest_ranks"], told["recovered_reason"])
    assert shares == (None, None, reason)


def test_a_step_that_lacks_operations_is_left_out_and_named(tmp_path):
    rows = _job(steps=(1, 2, 3))
    kept = [row for row in rows if not (row[3] == 2 and row[0] == 1 and row[4] == "backward-compute" and row[7] == 3)]
    work = records_work(read_pipeline_records(_write(tmp_path, kept)))
    assert set(work.step.tolist()) == {1, 3}
    assert work.faults == ("1 of 3 steps were left out: ranks lack operations in them (2)",)


def test_a_rank_that_is_missing_leaves_nothing_to_say(tmp_path):
    rows = [row for row in _job() if row[:2] != (1, 1)]
    with pytest.raises(NoEvidenceError, match="no step of the records has the same operations on all ranks"):
        records_work(read_pipeline_records(_write(tmp_path, rows)))


def test_rows_that_cannot_be_are_left_out_and_counted(tmp_path):
    strange = (0, 0, 0, 9, "tea-break", 0.1, 0.1, 0, -1)
    path = _write(tmp_path, [*_job(), strange, (*strange[:4], "optimizer", float("nan"), 0.1, 0, -1)])
    (fault,) = read_pipeline_records(path).faults
    assert fault.endswith("2 of 162 rows were left out (unknown operations tea-break)")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: path.write_bytes(b"PAR1 no"), "no Parquet file"),
        (lambda path: path.with_name("meta-job.yaml").unlink(), "meta-job.yaml"),
        (lambda path: path.with_name("meta-job.yaml").write_text("dp_size: [\n"), "no YAML"),
        (lambda path: path.with_name("meta-job.yaml").write_text("dp_size: yes\n"), "states no dp_size"),
        (
            lambda path: path.with_name("meta-job.yaml").write_text(_META.format(data_parallel=1)),
            "give the files of one",
        ),
        (lambda path: pq.write_table(pq.read_table(path).drop_columns(["stage"]), path), "no column stage"),
        (lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path), "no row is an operation"),
        (lambda path: _as_text(path, "duration"), "a column has another type"),
    ],
)
def test_files_that_are_no_records_are_one_line(tmp_path, spoil, told):
    path = _write(tmp_path, _job())
    spoil(path)
    with pytest.raises(BadInputError, match=told) as refused:
        read_pipeline_records(path)
    assert "\n" not in str(refused.value)


def _as_text(path, name):
    table = pq.read_table(path)
    words = pc.binary_join_element_wise(pc.cast(table[name], pa.string()), pa.scalar("s"), " ")
    pq.write_table(table.set_column(table.column_names.index(name), name, words), path)


def test_the_meta_file_is_found_beside_a_copy(tmp_path, shared_data):
    for name in ("trace-SE.parquet", "meta-SE.yaml"):
        shutil.copy(shared_data / "straggler_analysis" / name, tmp_path / name)
    records = read_pipeline_records(tmp_path / "trace-SE.parquet")
    assert (records.data_parallel, records.stages, records.rows.num_rows) == (32, 2, 107_328)


def test_waits_of_a_real_job_are_charged_to_the_nanosecond(shared_data):
    work = records_work(read_pipeline_records(shared_data / "straggler_analysis" / "trace-SE.parquet"))
    rows, steps = records_costs(work)
    latest: dict[int, int] = {}
    members = [
        (join, start) for join, start in zip(work.join.tolist(), work.start_ns.tolist(), strict=True) if join >= 0
    ]
    for join, start in members:
        latest[join] = max(latest.get(join, start), start)
    assert sum(row["cost_ns"] for row in rows) == sum(latest[join] - start for join, start in members)
    assert sum(row["cost_ns"] for row in rows if row["stage"] == 1) > 0.87 * sum(row["cost_ns"] for row in rows)
    assert len(steps) == 43 and rows[0]["rank"] == 66 and 0 < rows[0]["gain_ns"] < rows[0]["cost_ns"]


def test_the_waits_of_a_small_job_cost_what_its_slow_rank_takes_longer(tmp_path):
    rows, _ = records_costs(records_work(read_pipeline_records(_write(tmp_path, _job(slow=(1, 1), forward=0.03)))))
    assert sum(row["cost_ns"] for row in rows if row["rank"] == 3) > 0.8 * sum(row["cost_ns"] for row in rows)
    assert (
        rows[0]["rank"] == 3 and rows[0]["gain_ns"] > 0 and not any(row["gain_ns"] for row in rows if row["rank"] != 3)
    )
