"""TraceViz's files: its names, its columns, its meaning of the classes, and what its reader gets out of them."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.analyze.across_ranks import analysed
from tests.sets import fast
from tests.show.job import job
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.pipeline.traceviz_export import Export, export_groups, export_ranks, write_kernel_analysis
from traceviz_dag.show.traceviz_files import (
    STEP_COLUMN,
    as_csv,
    comm_comp_overlap,
    folder_name,
    format_duration,
    kernel_tables,
    statistics,
)
from traceviz_dag.vocabulary import TimeAlignment

# In the order in which its reader looks for one.
ITS_STEP_COLUMNS = ("fwdstep_sliceid", "bwdstep_sliceid", "pp_sliceid", "dp_sliceid", "opt_sliceid")
RUNS = ("tp2_pp2_vpp2_full", "pp4_1f1b", "pp2_dp2_distopt_overlap", "pp2_ep2_moe")


@pytest.fixture(scope="module")
def tables():
    return kernel_tables(job(chunks=2).tables["kernels"][1])


def length(pairs: list[tuple[int, int]]) -> int:
    """Time that intervals cover, by counting: slow, and nothing can be wrong with it."""
    total, reached = 0, -1
    for start, end in sorted(pairs):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def test_each_table_has_what_its_reader_asks_for(tables):
    assert set(tables) == set(STEP_COLUMN)
    for name, table in tables.items():
        found = [column for column in ITS_STEP_COLUMNS if column in table.column_names]
        assert found == [STEP_COLUMN[name]]
        assert {"ts", "dur", "slice_id", "name"} <= set(table.column_names)
        assert table["ts"].type == table["dur"].type == "int64" and not table["ts"].null_count
        assert table[STEP_COLUMN[name]].null_count == 0


def test_the_recompute_is_part_of_the_backward_and_its_steps_are_the_same(tables):
    whole, again = (tables[name].to_pandas() for name in ("bwd_computation", "bwd_computation_recompute"))
    assert set(again["slice_id"]) < set(whole["slice_id"])
    joined = again.merge(whole, on="slice_id", suffixes=("", "_whole"))
    assert (joined["bwdstep_sliceid"] == joined["bwdstep_sliceid_whole"]).all()
    assert whole["bwdstep_sliceid"].nunique() == 8


def test_no_kernel_is_counted_twice_but_the_recompute(tables):
    seen = np.concatenate([table["id"].to_numpy() for name, table in tables.items() if "recompute" not in name])
    assert len(seen) == len(np.unique(seen))


def test_statistics_are_what_its_aggregator_computes(tables):
    found = pd.read_csv(io.BytesIO(as_csv(statistics(tables))))
    assert found.columns.tolist() == [
        "category", "mbs_id", "slice_id", "start_time", "end_time",
        "actual_duration", "merged_duration", "actual_duration_ns", "merged_duration_ns",
    ]  # fmt: skip
    for name, table in tables.items():
        frame = table.to_pandas().assign(end=lambda rows: rows.ts + rows.dur)
        key = "slice_id" if name == "optimizer_computation" else STEP_COLUMN[name]
        expected = frame.groupby(key).agg(start=("ts", "min"), end=("end", "max"), actual=("dur", "sum"))
        expected = expected.sort_values("start")
        own = found[found.category == name]
        assert own.mbs_id.tolist() == list(range(len(expected)))
        assert own.slice_id.tolist() == expected.index.tolist()
        assert own.start_time.tolist() == expected.start.tolist()
        assert own.end_time.tolist() == expected.end.tolist()
        assert own.actual_duration_ns.tolist() == expected.actual.tolist()
        assert own.merged_duration_ns.tolist() == (expected.end - expected.start).tolist()


def test_overlap_is_what_its_aggregator_computes(tables):
    found = pd.read_csv(io.BytesIO(as_csv(comm_comp_overlap(tables))))
    assert found.columns.tolist() == [
        "phase", "mbs_id", "slice_id", "start_time",
        "wall_clock", "actual_comm_time", "actual_comp_time", "comm_comp_overlap_time",
        "wall_clock_ns", "actual_comm_time_ns", "actual_comp_time_ns", "comm_comp_overlap_time_ns",
    ]  # fmt: skip
    assert found.phase.tolist() == ["Backward"] * 8 + ["Forward"] * 8
    for row in found.to_dict("records"):
        prefix = row["phase"][0].lower().replace("f", "fwd").replace("b", "bwd")
        parts = [
            [(a, a + d) for a, d, step in zip(*(table[each].to_pylist() for each in ("ts", "dur", key)), strict=True)
             if step == row["slice_id"]]
            for table, key in ((tables[f"{prefix}_{kind}"], f"{prefix}step_sliceid")
                               for kind in ("communication", "computation"))
        ]  # fmt: skip
        communication, computation = map(length, parts)
        assert row["actual_comm_time_ns"] == communication
        assert row["actual_comp_time_ns"] == computation
        assert row["comm_comp_overlap_time_ns"] == communication + computation - length(parts[0] + parts[1])
        assert row["wall_clock_ns"] == max(end for part in parts for _, end in part) - row["start_time"]
        assert row["wall_clock"] == format_duration(row["wall_clock_ns"])


def test_a_rank_without_a_class_has_no_file_of_it(tmp_path, tables):
    source = job(microbatches=1)
    whole = source.tables["kernels"][0]
    assert {path.stem for path in write_kernel_analysis(whole, tmp_path)} == set(STEP_COLUMN)
    without = whole.filter(np.array([name != "optimizer_computation" for name in whole["category"].to_pylist()]))
    written = write_kernel_analysis(without, tmp_path)
    assert (
        {path.stem for path in written}
        == {path.stem for path in tmp_path.iterdir()}
        == (set(STEP_COLUMN) - {"optimizer_computation"})
    )
    assert comm_comp_overlap({}).num_rows == statistics({}).num_rows == 0


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("iteration_2/rank_0003_iter_2.pt.trace.json.gz", "rank_0003_iter_2.pt.trace_kernel_analysis"),
        ("rank4.1767595720694.pt.trace.json", "rank4.1767595720694.pt.trace_kernel_analysis"),
        ("torch_profile/rank-3.json.gz", "rank3.rank-3_kernel_analysis"),
        ("host_77.1700000000.pt.trace.json", "rank3.host_77.1700000000.pt.trace_kernel_analysis"),
    ],
)
def test_folders_have_names_in_which_it_finds_the_rank(trace, expected):
    assert folder_name(trace, 3) == expected


@pytest.mark.parametrize("run", fast(RUNS, *RUNS[1::2]))
def test_classes_mean_what_they_mean_there(shared_data, run):
    folder = shared_data / "megatron_gpu" / run
    of_ranks = [analysed(folder).lake.table("kernels", run, 2, rank).arrow() for rank in range(4)]
    for rank, kernels in enumerate(of_ranks):
        truth = pq.read_table(folder / "truth" / f"rank_{rank:04d}.parquet").to_pandas()
        ours: dict[tuple[int, int], set[str]] = {}
        for name, table in kernel_tables(kernels).items():
            for key in zip(table["correlation_id"].to_pylist(), table["dur"].to_pylist(), strict=True):
                ours.setdefault(key, set()).add(name)
        for key, theirs in zip(
            zip(truth["correlation"].tolist(), truth["dur_ns"].tolist(), strict=True), truth["tv_category"], strict=True
        ):
            expected = set() if theirs in ("memory", "other") else {theirs, theirs.removesuffix("_recompute")}
            assert ours.get(key, set()) == expected


@pytest.mark.long
def test_the_layout_is_its_own(shared_data, tmp_path):
    run = "tp2_pp2_vpp2_full"
    lake = analysed(shared_data / "megatron_gpu" / run).lake
    export = Export(lake.home, run, 2, tmp_path / "out")
    folders = list(export_ranks(export))
    pictures = list(export_groups(export, TimeAlignment.INDIVIDUAL))
    assert [folder.name for folder in folders] == [
        f"rank_{rank:04d}_iter_2.pt.trace_kernel_analysis" for rank in range(4)
    ]
    assert {path.name for path in folders[2].iterdir()} == {f"{name}.parquet" for name in STEP_COLUMN} | {
        "Rank2_statistics.csv", "Rank2_commcompOverlap_analysis.csv",
        "overlapping_timeline.png", "comm_comp_overlap_combined_rank2.png",
    }  # fmt: skip
    assert {str(path.relative_to(tmp_path / "out")) for path in pictures} == {
        "PP_group_0/pp_group_1_ranks_0_2_individual.png",
        "PP_group_1/pp_group_2_ranks_1_3_individual.png",
        "Model_Group_0/pp_group_0_ranks_0_2.png",
        "Model_Group_0/pp_group_1_ranks_1_3.png",
        "Model_Group_0/Model_Group_0_all_pp_groups_concatenated.png",
        "Model_Group_0/Model_Group_0_all_ranks_combined.png",
    }
    source = LakeSource(lake, run, 2)
    assert source.run == run and all(path.stat().st_size for path in pictures)
