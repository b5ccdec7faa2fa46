"""What makes a stage longer: more of the same kernels, work of its own, or slower kernels; and nothing besides."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from traceviz_dag.analyze.slow_stages import stage_speeds

_ONE_RANK = {0: (0,), 1: (1,), 2: (2,)}


def work(*rows: tuple[int, str, int, int], sizes: Mapping[tuple[int, str], str] | None = None) -> pa.Table:
    """Rows of (stage, kernel, times run, ns each); sizes of the inputs by stage and kernel."""
    grid = {"grid_x": 132, "grid_y": 1, "grid_z": 1, "around": 0, "steps": 1}
    return pa.Table.from_pylist(
        [
            {"stage": stage, "phase": "forward", "name": name, "input_sizes": (sizes or {}).get((stage, name))}
            | grid
            | {"ranks": [stage], "kernels": count, "time_ns": count * each}
            for stage, name, count, each in rows
        ]
    )


def parts(table: pa.Table, stage: int) -> tuple[int, int, int]:
    row = table.to_pylist()[stage]
    return row["more_work_ns"], row["own_work_ns"], row["slower_ns"]


def test_a_slow_gpu_is_slower_in_the_kernels_that_all_stages_run():
    rows = [(stage, name, 10, 140 if stage == 1 else 100) for stage in range(3) for name in ("a", "b")]
    speeds = stage_speeds(work(*rows, (2, "loss", 1, 3_000)), _ONE_RANK)
    assert parts(speeds, 1) == (0, -1_000, 533)
    assert round(speeds["ratio"][1].as_py(), 3) == 1.4 and speeds["rank"].to_pylist() == [0, 1, 2]
    assert parts(speeds, 2)[1] == 2_000


def test_more_layers_are_more_of_the_same():
    rows = [(stage, "a", 20 if stage == 0 else 10, 100) for stage in range(3)]
    assert parts(stage_speeds(work(*rows), _ONE_RANK), 0) == (667, 0, 0)


def test_a_kernel_that_does_more_under_the_same_name_is_not_a_slow_gpu():
    rows = [(stage, "a", 10, 100) for stage in range(3)]
    rows += [(stage, "elementwise", 1, 500 if stage == 2 else 50) for stage in range(3)]
    speeds = stage_speeds(work(*rows), _ONE_RANK)
    assert parts(speeds, 2) == (0, 300, 0) and speeds["ratio"][2].as_py() == 1.0


def test_kernels_that_one_rank_runs_by_other_names_make_no_stage_longer():
    """Four ranks a stage, of which stage 1 has the loss; one rank of stage 0 names its kernels otherwise."""

    def speeds(renamed: dict[int, list[int]]) -> pa.Table:
        rows = work((1, "loss", 4, 3_000)).to_pylist()
        for stage in (0, 1):
            others = renamed.get(stage, [])
            ranks = [4 * stage + place for place in range(4)]
            for name, running in (
                ("gemm", [rank for rank in ranks if rank not in others]),
                ("zz_gemm", [rank for rank in ranks if rank in others]),
            ):
                if running:
                    rows += work((stage, name, 10 * len(running), 1_000)).to_pylist()
                    rows[-1]["ranks"] = running
        rows[0]["ranks"] = [4, 5, 6, 7]
        ranks_of = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
        return stage_speeds(pa.Table.from_pylist([row | {"steps": 4} for row in rows]), ranks_of)

    healthy, odd = speeds({}), speeds({0: [2]})
    assert parts(healthy, 1) == parts(odd, 1) == (0, 1_500, 0)
    assert healthy["ratio"].to_pylist() == [1.0, 1.0] and odd["ratio"].to_pylist() == [None, None]
    assert odd["unsure_ns"].to_pylist() == [0, 0]
    # Where as many ranks of each stage run them, such as those of one length of sequences, they are compared.
    assert speeds({0: [2, 3], 1: [6, 7]})["ratio"].to_pylist() == [1.0, 1.0]


def test_products_of_one_name_and_grid_that_are_larger_on_one_stage_are_no_slow_gpu():
    """Half of the kernels take twice as long on stage 2: their sizes show it, or else that the others do not."""
    rows = [
        (stage, f"{kind} {n}", 10, 200 if kind == "product" and stage == 2 else 100)
        for stage in range(3)
        for kind in ("product", "norm")
        for n in range(5)
    ]
    sizes = {(stage, name): f"[[{each}]]" for stage, name, _, each in rows}
    for known in (sizes, None):
        table = stage_speeds(work(*rows, sizes=known), _ONE_RANK)
        assert parts(table, 2) == (0, 3333, 0) and table["ratio"][2].as_py() == 1.0
        assert table["unsure_ns"][2].as_py() == (0 if known else 3333), "without sizes it may be the GPU, too"
    equal = {(stage, name): "[[7]]" for stage, name, _, _ in rows}
    assert parts(stage_speeds(work(*rows, sizes=equal), _ONE_RANK), 2) == (0, 0, 3333), "the same work takes longer"


def test_memory_is_slow_where_all_that_it_bounds_is_and_grids_show_that_it_is_the_same_work():
    """Norms and elementwise kernels take twice as long on stage 2, products do not."""
    kinds = [("void norm::kernel", 2_048)] * 6 + [("nvjet_tst_gemm", 132)] * 6

    def speeds(blocks_of_norm: int, slow: int) -> dict[str, object]:
        rows = [
            (stage, f"{name} {n}", 10, 200 if stage == 2 and "norm" in name and n < slow else 100)
            for stage in range(3)
            for n, (name, _) in enumerate(kinds)
        ]
        table = work(*rows).to_pylist()
        table = [row | {"grid_x": blocks_of_norm if "norm" in row["name"] else 132} for row in table]
        return stage_speeds(pa.Table.from_pylist(table), _ONE_RANK).to_pylist()[2]

    slow = speeds(2_048, slow=6)
    assert (slow["memory_ratio"], slow["memory_slower_items"], slow["arithmetic_ratio"]) == (2.0, 1.0, 1.0)
    assert slow["slower_ns"] == 4_000 and slow["own_work_ns"] == 0
    for other in (speeds(132, slow=6), speeds(2_048, slow=3)):
        # Kernels that run as many blocks as products may be persistent; of the half that is slow each may do more.
        assert other["slower_ns"] == 0 and other["own_work_ns"] == other["unsure_ns"] > 0


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("abcd"), st.integers(1, 9), st.integers(1, 10**6)),
        min_size=1,
        max_size=16,
        unique_by=lambda row: row[:2],
    )
)
def test_the_parts_are_the_excess_and_all_stages_together_have_none(rows):
    table = stage_speeds(work(*rows), _ONE_RANK).to_pylist()
    assert len(table) != 1
    for row in table:
        assert row["more_work_ns"] + row["own_work_ns"] + row["slower_ns"] == row["compute_ns"] - row["mean_ns"]
    assert abs(sum(row["compute_ns"] - row["mean_ns"] for row in table)) <= len(table)
