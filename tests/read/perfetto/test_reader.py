"""Perfetto's reader and our own extract the same rows of real and simulated traces; what differs is accounted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.sets import fast
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import read_topology
from traceviz_dag.pipeline.ranks import classify_trace
from traceviz_dag.read.events import TraceEvents
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.perfetto.comparison import compare
from traceviz_dag.read.perfetto.engines import Engine
from traceviz_dag.read.perfetto.reader import read_session, read_with_perfetto
from traceviz_dag.read.perfetto.session import open_trace
from traceviz_dag.simulate.job import simulate
from traceviz_dag.simulate.settings import Era, JobSettings

EQUAL = ("kineto/dlrm8/rank3.json.gz", "kineto/hta/trace_filter_rank-0.json.gz")
OVERLAPPING = (
    "kineto/tracelens/b200_vllm_eager.json.gz",
    pytest.param("kineto/tracelens/mi300_resnet_act_checkpoint.json.gz", marks=pytest.mark.long),
)


def classified(path: Path, events: TraceEvents) -> pa.Table:
    """The kernels of a trace, classified alone, without what Perfetto is not asked for: inputs of operators and
    annotations. What kernels state themselves of sizes and types, ``compare`` compares."""
    kernels = classify_trace(events, 0, read_topology(inputs_below([path])[0]), load_rules(None)).kernels
    return kernels.drop_columns(["input_sizes", "in_elements", "dtype"])


@pytest.mark.parametrize("name", fast(EQUAL, EQUAL[0]))
def test_real_traces_are_read_alike_and_classified_alike(shared_data: Path, name: str, trace_processor: Engine) -> None:
    own, other = read_kineto(shared_data / name), read_with_perfetto(shared_data / name, trace_processor)
    assert all(
        (each.only_own, each.only_other) == (0, 0) and each.own > 200 for each in compare(own, other).differences
    )
    assert classified(shared_data / name, own).equals(classified(shared_data / name, other))


@pytest.mark.parametrize("name", OVERLAPPING)
@pytest.mark.long
def test_what_is_missing_is_what_perfetto_says_it_dropped(
    shared_data: Path, name: str, trace_processor: Engine
) -> None:
    found = compare(read_kineto(shared_data / name), read_with_perfetto(shared_data / name, trace_processor))
    # What neither table holds, such as annotations of the GPU, is dropped too.
    assert 0 < sum(each.only_own for each in found.differences) <= found.dropped
    assert sum(each.only_other for each in found.differences) == 0
    assert found.unexplained == 0


@pytest.mark.parametrize("era", fast(Era, Era.TORCH_2_3))
def test_simulated_traces_of_every_era_lose_nothing(tmp_path: Path, era: Era, trace_processor: Engine) -> None:
    run = simulate(JobSettings(pp=2, microbatches=2, layers=2, era=era), tmp_path / "job", workers=1)
    path = next(run.glob("iteration_*/rank_0001*"))
    found = compare(read_kineto(path), read_with_perfetto(path, trace_processor))
    assert found.dropped == 0
    assert all((each.only_own, each.only_other) == (0, 0) and each.own > 50 for each in found.differences)


def test_launches_and_steps_by_sql_are_those_of_the_classification(shared_data: Path, trace_processor: Engine) -> None:
    path = shared_data / "kineto/dlrm8/rank3.json.gz"
    own = classified(path, read_kineto(path)).to_pandas(integer_object_nulls=True)
    with open_trace(path, trace_processor) as session:
        read_session(session)
        launches = session.query(
            "SELECT s.ts, l.correlation, l.launch_ts, l.launch_name FROM traceviz_launches l "
            "JOIN slice s ON s.id = l.slice_id"
        ).to_pandas()
        steps = session.query("SELECT step FROM traceviz_steps")["step"].to_pylist()
        innermost = session.query(
            "SELECT s.ts, (SELECT name FROM traceviz_ancestors(l.launch_id) "
            "WHERE category = 'cpu_op' LIMIT 1) AS operator "
            "FROM traceviz_launches l JOIN slice s ON s.id = l.slice_id WHERE s.category = 'kernel'"
        ).to_pandas()
        base = session.base_ns
    launched = own[own["launch_start_ns"].notna()]
    joined = launched.merge(launches, on="correlation")
    assert len(joined) == len(launched) > 200
    assert np.array_equal(joined["launch_ts"] + base, joined["launch_start_ns"].astype(np.int64))
    assert (joined["launch_name_x"].astype(str) == joined["launch_name_y"]).all()
    assert set(own["step"].dropna()) <= set(steps)
    operators = own.assign(ts=own["start_ns"] - base).merge(innermost, on="ts")
    told = operators["operator_x"].notna() & operators["operator_y"].notna()
    assert told.sum() > 100
    assert (operators["operator_x"].astype(str) == operators["operator_y"])[told].all()
