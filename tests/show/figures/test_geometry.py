"""What is drawn against the tables: every interval lies inside a block of its colour, and nothing is left out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.show.drawn import collections, numbers
from tests.show.job import MS, ZERO, fill_rank, job, kernels
from traceviz_dag.analyze.intervals import Intervals, measure, union
from traceviz_dag.show.figures.model_replica import draw_model_replica
from traceviz_dag.show.figures.overlap_bars import draw_overlap_bars, phase_bars
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import LEAST_FILL, Resolution, merge_for_page
from traceviz_dag.vocabulary import TimeAlignment

RANK = 1


def of_table(table, **wanted) -> Intervals:
    for column, value in wanted.items():
        mask = pc.is_null(table[column]) if value is None else pc.equal(table[column].cast("string"), value)
        table = table.filter(mask)
    starts = table["start_ns"].to_numpy()
    return Intervals(starts, starts + table["duration_ns"].to_numpy())


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 40)), min_size=1, max_size=60),
    st.integers(1, 60),
    st.integers(1, 30),
)
@settings(max_examples=100, deadline=None)
def test_merging_keeps_every_interval_and_its_time(pairs, gap, width):
    starts = np.array([start for start, _ in pairs])
    intervals = Intervals(starts, starts + np.array([length for _, length in pairs]))
    blocks = merge_for_page(intervals, Resolution(gap, width))
    inside = (blocks.starts[:, None] <= intervals.starts) & (intervals.ends <= blocks.ends[:, None])
    assert inside.any(axis=0).all()
    assert (blocks.ends - blocks.starts >= width).all(), "nothing is thinner than the page can show"
    assert ((blocks.filled > 0) & (blocks.filled <= 1)).all()
    covered = union(intervals.starts, np.maximum(intervals.ends, intervals.starts + 1))
    wide = merge_for_page(intervals, Resolution(gap, 1))
    assert (wide.filled * (wide.ends - wide.starts)).sum() == pytest.approx(measure(covered)), "areas stay true"


def test_the_timeline_holds_every_kernel_in_the_lane_and_colour_of_its_own():
    source = job()
    table = source.tables["kernels"][RANK]
    zero = int(table["start_ns"].to_numpy().min())
    boxes = collections(draw_rank_timeline(source, RANK))
    lanes = {
        "tp": "TP-communication",
        "pp": "PP-communication",
        "dp": "DP-communication",
        "embedding": "embedding-communication",
    }
    checked = 0
    for category in pc.unique(table["category"]).to_pylist():
        for dimension, lane in [*lanes.items(), (None, "memory" if category == "memory" else "computation")]:
            intervals = of_table(table, category=category, dimension=dimension)
            if not len(intervals.starts):
                continue
            drawn = boxes[f"rank-{RANK}/{lane}/{category}"]
            assert drawn.colour == palette.CATEGORY[category]
            assert drawn.holds(intervals, zero).all(), f"{category} on lane {lane}"
            checked += len(intervals.starts)
    assert checked == table.num_rows


def test_lanes_of_the_timeline_never_share_a_height():
    boxes = collections(draw_rank_timeline(job(), RANK))
    lanes: dict[str, list[float]] = {}
    for name, drawn in boxes.items():
        lane = name.split("/")[1].removesuffix("-0").removesuffix("-1")
        lane = "steps" if lane in ("forward", "backward") else lane
        lanes.setdefault(lane, []).extend([drawn.tops.min(), drawn.bottoms.max()])
    spans = sorted((min(ends), max(ends)) for ends in lanes.values())
    assert len(spans) == 8
    assert all(upper[1] < lower[0] for upper, lower in pairwise(spans))


def test_the_wall_clock_lane_has_the_areas_of_the_table():
    source = job()
    row = next(row for row in source.tables["overlap"][RANK].to_pylist() if row["dimension"] == "all")
    figure = draw_rank_timeline(source, RANK)
    axes = figure.axes[1]
    areas = {}
    for artist in axes.collections:
        if str(artist.get_gid()).startswith(f"rank-{RANK}/wall-clock/"):
            x, y = artist.get_paths()[0].vertices[:-1].T
            areas[artist.get_gid().rsplit("/", 1)[1]] = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    whole = (row["window_end_ns"] - row["window_start_ns"]) / sum(areas.values())
    assert areas["exposed"] * whole == pytest.approx(row["exposed_ns"], rel=1e-4)
    assert areas["hidden"] * whole == pytest.approx(row["hidden_ns"], rel=1e-3)
    assert areas["computation-only"] * whole == pytest.approx(row["compute_ns"] - row["hidden_ns"], rel=1e-4)


@pytest.mark.parametrize("alignment", TimeAlignment)
def test_a_pipeline_holds_every_step_and_kernel_of_every_rank(alignment):
    source = job(chunks=2)
    boxes = collections(draw_pipeline_group(source, 1, alignment))
    firsts = {rank: int(source.tables["kernels"][rank]["start_ns"].to_numpy().min()) for rank in (1, 3)}
    for rank, own in firsts.items():
        # Nobody solved these clocks: where that is asked for, they stand as recorded.
        zero = own if alignment is TimeAlignment.INDIVIDUAL else min(firsts.values())
        steps = source.tables["microbatches"][rank]
        steps = steps.filter(pc.equal(steps["dimension"], "all"))
        for phase in ("forward", "backward"):
            for chunk in (0, 1):
                part = steps.filter(pc.and_(pc.equal(steps["phase"], phase), pc.equal(steps["chunk"], chunk)))
                drawn = boxes[f"rank-{rank}/{phase}-{chunk}"]
                spans = Intervals(part["span_start_ns"].to_numpy(), part["span_end_ns"].to_numpy())
                assert len(spans.starts) == 4 == len(drawn.starts)
                assert drawn.holds(spans, zero).all()
                colours = palette.LATER_CHUNK if chunk else palette.CATEGORY
                assert drawn.colour == colours["fwd_computation" if phase == "forward" else "bwd_computation"]
        table = source.tables["kernels"][rank]
        recompute = [of_table(table, phase="recompute")]
        assert all(boxes[f"rank-{rank}/recompute"].holds(each, zero).all() for each in recompute)
        for category in ("pp_communication", "dp_communication", "other_communication", "fwd_communication"):
            assert boxes[f"rank-{rank}/{category}"].holds(of_table(table, category=category), zero).all()
        for category in ("optimizer_computation", "other_computation"):
            drawn = boxes[f"rank-{rank}/{category}"]
            assert drawn.colour == palette.CATEGORY[category]
            assert drawn.holds(of_table(table, category=category), zero).all()


def test_idle_stages_are_the_gaps_between_steps_and_are_drawn_behind_them():
    source = job()
    boxes = collections(draw_pipeline_group(source, 0))
    for rank in (0, 2):
        steps = [boxes[f"rank-{rank}/{side}-0"] for side in ("forward", "backward")]
        idle = boxes[f"rank-{rank}/stage-idle"]
        assert idle.colour == palette.STAGE_IDLE
        first = min(each.starts.min() for each in steps)
        last = max(each.ends.max() for each in steps)
        filled = sum((each.ends - each.starts).sum() for each in steps)
        assert (idle.ends - idle.starts).sum() == pytest.approx(last - first - filled, rel=1e-6)


def test_kernels_without_micro_batches_are_drawn_by_category():
    source = job(ranks=2, stages=2)
    plain = [
        {"start_ns": ZERO, "duration_ns": 4 * MS, "category": "fwd_computation"},
        {"start_ns": ZERO + 5 * MS, "duration_ns": 3 * MS, "category": "unclassified", "dimension": None},
        {"start_ns": ZERO + 9 * MS, "duration_ns": 2 * MS, "category": "bwd_computation"},
    ]
    for rank in (0, 1):
        fill_rank(source, rank, kernels(plain, rank))
    boxes = collections(draw_pipeline_group(source, 0))
    assert {name for name in boxes if name.startswith("rank-0/")} == {
        "rank-0/fwd_computation", "rank-0/unclassified", "rank-0/bwd_computation",
    }  # fmt: skip


def test_numbers_stand_in_every_block_that_has_room():
    few = draw_pipeline_group(job(microbatches=4), 0)
    assert numbers(few) == 2 * 2 * 4
    many = draw_pipeline_group(job(microbatches=300), 0)
    assert numbers(many) < 2 * 2 * 300 * 0.2, "numbers are left out where they would not be legible"


def test_bars_add_up_to_the_wall_clock_of_each_step():
    source = job(chunks=2)
    steps = source.tables["microbatches"][RANK].to_pylist()
    for bars in phase_bars(source, RANK):
        rows = [row for row in steps if row["dimension"] == "all" and row["phase"] == bars.phase]
        rows.sort(key=lambda row: (row["chunk"], row["microbatch"]))
        assert bars.labels == [str(row["microbatch"]) for row in rows]
        spans = [row["span_end_ns"] - row["span_start_ns"] for row in rows]
        assert bars.parts.sum(axis=0).tolist() == spans
        assert bars.parts[2].tolist() == [row["exposed_ns"] for row in rows]
    assert {"forward/computation-alone", "backward/hidden-communication", "whole/idle"} <= set(
        collections(draw_overlap_bars(source, RANK))
    )


def test_very_many_micro_batches_share_bars_without_losing_time():
    source = job(ranks=2, stages=2, microbatches=500)
    bars = phase_bars(source, 0)[0]
    rows = [row for row in source.tables["microbatches"][0].to_pylist() if row["dimension"] == "all"]
    spans = [row["span_end_ns"] - row["span_start_ns"] for row in rows if row["phase"] == "forward"]
    assert len(bars.labels) == 167 and bars.together == 3
    counts = np.full(167, 3)
    counts[-1] = 2
    assert (bars.parts.sum(axis=0) * counts).sum() == pytest.approx(sum(spans))


def test_sparse_work_stays_visible():
    sparse = Intervals(np.arange(0, 1_000, 10), np.arange(0, 1_000, 10) + 1)
    blocks = merge_for_page(sparse, Resolution(50, 10))
    assert blocks.filled.max() < LEAST_FILL
    source = job(ranks=2, stages=2)
    rows = [
        {"start_ns": ZERO + 10_000 * each, "duration_ns": 100, "category": "fwd_computation"} for each in range(999)
    ]
    fill_rank(source, 0, kernels([*rows, {"start_ns": ZERO + 900 * MS, "duration_ns": 5, "category": "memory"}]))
    drawn = collections(draw_rank_timeline(source, 0))["rank-0/computation/fwd_computation"]
    assert (drawn.bottoms - drawn.tops >= LEAST_FILL * 0.44 - 1e-9).all()


@pytest.mark.long
def test_a_replica_of_fewer_than_64_ranks_has_a_row_for_each():
    figure = draw_model_replica(job(ranks=56, stages=8), 0)
    ranks = {name.split("/")[0] for name in collections(figure) if name.startswith("rank-")}
    assert len(ranks) == 56
