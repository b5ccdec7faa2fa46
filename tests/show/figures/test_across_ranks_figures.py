"""Figures across ranks against their tables: every value is drawn where it belongs, and what is missing is said."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.text import Text

from tests.show.across_ranks import MS, WAITS, clock_rows, period_job, pipeline_job, waiting_job
from tests.show.drawn import collections, texts, title
from tests.show.job import MemorySource, job
from traceviz_dag.show.figures.bubble_waterfall import draw_bubble_waterfall
from traceviz_dag.show.figures.clock_residuals import draw_clock_residuals
from traceviz_dag.show.figures.model_replica import draw_model_replica
from traceviz_dag.show.figures.overlap_savings import draw_overlap_savings
from traceviz_dag.show.figures.period_distribution import draw_period_distribution, period_spreads, score_spreads
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.same_work import draw_same_work
from traceviz_dag.show.figures.wait_map import draw_wait_map
from traceviz_dag.show.figures.wait_panels import CLASSES, WaitPanel, class_edges, class_names
from traceviz_dag.show.figures.wait_rows import map_rows
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.alignment import SENTENCE
from traceviz_dag.show.page.bubbles import MOST_ROWS, PARTS
from traceviz_dag.vocabulary import TimeAlignment


def cells(figure, dimension: str) -> dict[tuple[int, int], int]:
    """(row, column) → class of each cell that is drawn."""
    boxes = {name: box for name, box in collections(figure).items() if name.startswith(f"{dimension}/class-")}
    height = max(box.bottoms.max() for box in boxes.values()) / 2
    found = {}
    for name, box in boxes.items():
        assert box.colour == palette.WAITING[int(name[-1])]
        middles = zip((box.tops + box.bottoms) / 2 // height, (box.starts + box.ends) / 2 // 1, strict=True)
        found |= {(int(row), int(column)): int(name[-1]) for row, column in middles}
    return found


def test_every_wait_rests_in_the_cell_of_its_rank_and_communication():
    figure = draw_wait_map(waiting_job())
    for dimension, by_rank in WAITS.items():
        expected = {
            (rank, number): int(np.searchsorted([0, MS, 3 * MS, 10 * MS, 30 * MS], wait, side="right")) - 1
            for rank, waits in enumerate(by_rank)
            for number, wait in enumerate(waits)
        }
        assert cells(figure, dimension) == expected
    assert "30 ms and more" in texts(figure) and "1 ms to 3 ms" in texts(figure)


def test_the_map_names_the_rank_that_the_others_wait_for_or_nobody():
    figure = draw_wait_map(waiting_job())
    # Rank 1 was last in two of the TP communications and in the DP one, rank 0 in one.
    late = "Rank 1 delayed its peers by 45.3 ms of its own (backward computation), last in 3 of 4"
    assert title(figure).startswith(late)
    even = draw_wait_map(waiting_job({"tp": [[0, 100], [100, 0]]}))
    assert title(even).startswith("No rank is to blame for the waiting of its stage's peers; ")
    assert draw_wait_map(MemorySource()) is None


def test_a_map_says_on_which_clocks_it_rests_and_what_is_not_matched():
    source = waiting_job()
    source.tables["rank_clocks"][None] = clock_rows([0, 1], refused=[0, 1])
    whole = source.tables["collectives"][None]
    unmatched = whole.slice(0, 1).to_pylist()[0] | {"wait_ns": None, "communication": None, "fault": "no_peer"}
    columns = {name: [unmatched[name]] for name in whole.column_names}
    source.tables["collectives"][None] = pa.concat_tables([whole, pa.Table.from_pydict(columns, whole.schema)])
    said = " ".join(texts(draw_wait_map(source)))
    assert "clocks as recorded, not solved: only 3 matched communications" in said
    assert "of 9 communication kernels some are not matched, or not wholly: 1 no peer" in said


@pytest.mark.long
def test_similar_ranks_share_a_row_and_who_differs_has_its_own():
    waits = {"tp": [[0 if rank == 77 else (5 if rank == 5 else 1) * MS] * 20 for rank in range(128)]}
    figure = draw_wait_map(waiting_job(waits))
    assert title(figure).startswith("Rank 77 ")
    assert {"stage 0: 126 ranks", "rank 5", "rank 77"} <= set(texts(figure))
    assert "rows of 126 ranks are shared" in " ".join(texts(figure))
    tops = {round(top, 6) for name, box in collections(figure).items() if name.startswith("tp/") for top in box.tops}
    assert len(tops) == 3


def test_of_hundreds_of_late_ranks_the_worst_have_rows_of_their_own():
    ranks, late = 1024, [*range(1000, 0, -4)]
    wait = [0 if rank in late else MS for rank in range(ranks)]
    waits = {"rank": range(ranks), "judged_wait_ns": wait, "stage": [0] * ranks, "dimension": ["tp"] * ranks}
    rows = map_rows(pa.table({name: [*values] for name, values in waits.items()}), np.arange(ranks), late)
    alone = {row.ranks[0] for row in rows if len(row.ranks) == 1}
    assert {*late[:32]} <= alone and late[32 + 24] not in alone and len(rows) < 130
    assert sorted(rank for row in rows for rank in row.ranks) == [*range(ranks)]


def test_ranks_that_differ_share_rows_with_their_neighbours():
    waits = {"tp": [[0 if rank == 77 else (rank % 2 + 1) * MS] for rank in range(128)]}
    figure = draw_wait_map(waiting_job(waits))
    assert "rank 77" in texts(figure) and "ranks 0 to 1" in texts(figure)
    assert sum(text.startswith("rank") for text in texts(figure)) <= 70
    few = draw_wait_map(waiting_job({"tp": [[rank * MS] for rank in range(16)]}))
    assert {f"rank {rank}" for rank in range(16)} <= set(texts(few))


def test_classes_follow_what_there_is_to_see():
    def of(*waits: float) -> list[int]:
        return class_edges([WaitPanel("tp", 1, np.array([waits]), 1, 1)])

    assert of(1e3, 1e4, 3e7) == [0, 10_000, 100_000, 1_000_000, 10_000_000]
    assert of(2e5, 5e5, 4e6) == [0, 100_000, 300_000, 1_000_000, 3_000_000], "steps of three where all are alike"
    assert of(0, np.nan, 0)[0] == 0
    assert class_names(of(2e5, 5e5, 4e6))[1:3] == ["0.1 ms to 0.3 ms", "0.3 ms to 1 ms"]
    assert len(class_names(of(1.0))) == CLASSES


def test_the_parts_of_a_bubble_begin_where_the_part_before_ends_and_reach_the_span():
    source = pipeline_job()
    boxes = collections(draw_bubble_waterfall(source))
    for row in source.tables["pipelines"][None].to_pylist():
        name = f"pipeline-0/stage-{row['stage']}"
        at = row["ideal_ns"]
        assert boxes[f"{name}/ideal"].ends[0] == pytest.approx(at, abs=1)
        for column, _, colour in PARTS:
            box, end = boxes[f"{name}/{column}"], at + row[column]
            assert box.colour == colour
            assert (box.starts[0], box.ends[0]) == pytest.approx((min(at, end), max(at, end)), abs=1)
            at = end
        assert at == row["span_ns"]
    drawn = draw_bubble_waterfall(source)
    assert title(drawn).startswith("17 % of the pipelines' time is bubble, most of it fill and drain (17 %)")
    assert "; rank 1, the only one measured of stage 1, computes 14 % longer than the mean stage" in title(drawn)


def test_of_several_steps_the_waterfall_shows_the_longest():
    longest = pipeline_job()
    table = longest.tables["pipelines"][None]
    shorter = [
        {**row, "step": row["step"] + more, "ideal_ns": row["ideal_ns"] // 2, "span_ns": row["span_ns"] // 2}
        for more in (-1, 1)
        for row in table.to_pylist()
    ]
    several = replace(
        longest,
        tables={
            **longest.tables,
            "pipelines": {None: pa.concat_tables([table, pa.Table.from_pylist(shorter, schema=table.schema)])},
        },
    )
    ends = {name: box.ends.tolist() for name, box in collections(draw_bubble_waterfall(several)).items()}
    assert ends == {name: box.ends.tolist() for name, box in collections(draw_bubble_waterfall(longest)).items()}


def test_of_too_many_pipelines_similar_ones_fold_and_the_figure_says_so():
    figure = draw_bubble_waterfall(pipeline_job(stages=4, pipelines=20))
    assert {name.split("/")[0] for name in collections(figure)} == {"pipeline-19"}
    assert "pipeline 19 + 19 similar" in texts(figure)
    assert "20 pipelines, of 1 kind: the longest" in " ".join(texts(figure))


def test_of_too_many_unlike_pipelines_the_longest_are_drawn_and_the_figure_says_so():
    figure = draw_bubble_waterfall(pipeline_job(stages=4, pipelines=20, apart_ns=4 * MS))
    drawn = {name.split("/")[0] for name in collections(figure)}
    assert drawn == {f"pipeline-{number}" for number in range(20 - MOST_ROWS // 4, 20)}
    assert "the 8 longest of 20 pipelines" in " ".join(texts(figure))
    assert draw_bubble_waterfall(pipeline_job(refusal="ranks 2 of the pipeline have no micro-batches")) is None


def test_every_unit_is_in_a_column_of_the_period_distribution():
    source = period_job()
    known = source.tables["periods"][None].slice(0, 40)
    (stage,) = period_spreads(known)
    assert len(stage.values) == 20, "a unit counts once, whatever pairs it is in"
    figure = draw_period_distribution(source)
    boxes = collections(figure)
    for value in stage.values:
        box = boxes["stage/stage 0"]
        assert ((box.starts <= value + 1) & (value - 1 <= box.ends)).any()
    pair, dimension = score_spreads(known)
    assert (pair.label, dimension.label) == ("stages 0 and 1", "computation + tp")
    assert title(figure).startswith("Periods of stage 0: p50 11.0 ms, p99 31.3 ms; stages 0 and 1 overlap least")
    said = " ".join(texts(figure))
    assert "1 score below -1 or above 2 is drawn at the edge; below -1, neither of the pair runs for longer" in said
    assert "1 pair has no measures, such as computation + dp, stage 0: no dp in it" in said


def test_two_modes_of_a_period_are_said():
    source = period_job()
    table = source.tables["periods"][None]
    rows = table.to_pylist()
    for row in rows:
        if row["unit"] is not None and row["unit"] % 3 == 0:
            row["period_ns"] = 36 * MS
        if row["kind"] == "stages" and row["unit"] >= 10:
            row["overlap_score"] += 0.4
    source.tables["periods"][None] = pa.Table.from_pylist(rows, table.schema)
    said = " ".join(texts(draw_period_distribution(source)))
    assert "stage 0: two modes: " in said
    assert re.search(r"stages 0 and 1: two modes: 50 % of the units near 0\.5\d, 50 % near 1\.0\d", said)


def test_residuals_and_offsets_of_each_clock_are_drawn_and_a_refused_one_is_said():
    offsets = {1: 4 * MS, 2: -2 * MS}
    source = MemorySource({"rank_clocks": {None: clock_rows(range(4), offsets, refused=[3])}})
    figure = draw_clock_residuals(source)
    boxes = collections(figure)
    for name, ranks in (("residuals/solved", 3), ("residuals/refused", 1)):
        box = boxes[name]
        assert len(box.starts) == ranks
        assert (box.tops, box.bottoms) == (pytest.approx(-2.0), pytest.approx(3.0))
    drawn = boxes["offsets/solved"]
    assert (drawn.tops + drawn.bottoms).tolist() == pytest.approx([0.0, 4.0, -2.0])
    assert title(figure).startswith("Clocks solved for 3 of 4 ranks; ends agree within -2.0 to +3.0 µs")
    assert "not solved: only 3 matched communications; 5 are needed" in texts(figure)
    assert draw_clock_residuals(MemorySource()) is None


def test_numbers_of_thousands_of_ranks_do_not_touch():
    figure = draw_clock_residuals(MemorySource({"rank_clocks": {None: clock_rows(range(4096))}}))
    figure.canvas.draw()
    for axes in figure.axes[1:]:
        labels = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert all(first.x1 + 4 < second.x0 for first, second in pairwise(labels))


def test_solved_clocks_move_each_rank_by_what_it_is_ahead():
    source = job()
    source.tables["rank_clocks"] = {None: clock_rows(range(4), {2: 3 * MS})}
    starts = {
        alignment: collections(draw_pipeline_group(source, 0, alignment))["rank-2/forward-0"].starts.min()
        for alignment in (TimeAlignment.GLOBAL, TimeAlignment.SOLVED)
    }
    assert starts[TimeAlignment.GLOBAL] - starts[TimeAlignment.SOLVED] == pytest.approx(3 * MS, abs=1)
    figure = draw_pipeline_group(source, 0, TimeAlignment.SOLVED)
    said = " ".join(texts(figure))
    assert "clocks solved from matched communications: ends agree within -2.0 to +3.0 µs" in said
    assert figure.axes[1].get_xlabel().startswith("time since the first kernel, on solved clocks")


@pytest.mark.parametrize(
    ("clocks", "why"),
    [
        (None, "no table rank_clocks has ranks 0, 2"),
        (clock_rows(range(4), refused=[2]), "rank 2: only 3 matched communications; 5 are needed"),
        (
            pa.concat_tables([clock_rows([0, 1]), clock_rows([2, 3], component=1)]),
            "nothing connects 2 groups of these ranks",
        ),
    ],
)
def test_clocks_that_cannot_be_compared_stay_as_recorded_and_the_figure_warns(clocks, why):
    source = job()
    if clocks is not None:
        source.tables["rank_clocks"] = {None: clocks}
    figure = draw_pipeline_group(source, 0, TimeAlignment.SOLVED)
    assert f"clocks are not solved ({why}) and are as recorded" in texts(figure)
    recorded = collections(draw_pipeline_group(source, 0))["rank-2/forward-0"].starts
    assert (collections(figure)["rank-2/forward-0"].starts == recorded).all()


def test_many_ranks_are_aggregated_on_solved_clocks_too():
    source = job(ranks=96, stages=2, microbatches=1)
    source.tables["rank_clocks"] = {None: clock_rows(range(96), {rank: rank * MS for rank in range(96)})}
    figure = draw_model_replica(source, 0, TimeAlignment.SOLVED)
    assert SENTENCE[TimeAlignment.SOLVED] in " ".join(texts(figure))


def test_narrow_cells_of_one_class_are_drawn_as_one_and_cover_what_they_covered():
    waits = {"tp": [[0] * 100, [MS if 20 <= number < 70 else 5 for number in range(100)]]}
    boxes = collections(draw_wait_map(waiting_job(waits)))
    assert sorted((box.starts.tolist(), box.ends.tolist()) for box in boxes.values()) == [
        ([0.0, 0.0, 70.0], [100.0, 20.0, 100.0]),
        ([20.0], [70.0]),
    ]


def test_the_same_work_is_a_map_of_ranks_and_classes_that_names_the_slowest_of_a_kind():
    classes = ("products", "attention", "memory_bound")
    ratios = dict.fromkeys(range(4), (1.0, 1.0, 1.0)) | {2: (1.29, 1.26, 1.01)}
    speeds = [
        {"rank": rank, "stage": rank // 2, "peers": 1, "slow_ratio": 1.28 if rank == 2 else None}
        | {"kind": "core_clock" if rank == 2 else None, "kind_evidence": "its products" if rank == 2 else None}
        for rank in ratios
    ]
    rows = [
        {"rank": rank, "work_class": name, "ratio": ratio}
        for rank, told in ratios.items()
        for name, ratio in zip(classes, told, strict=True)
    ]
    tables = {"rank_speeds": {None: pa.Table.from_pylist(speeds)}, "class_speeds": {None: pa.Table.from_pylist(rows)}}
    source = MemorySource(tables)
    figure = draw_same_work(source)
    assert title(figure) == "Rank 2 (stage 1), core clock: its products"
    shown = texts(figure)
    assert {"products", "attention", "memory-bound", "1.29", "rank 2 · stage 1", "core clock"} <= set(shown)
    boxes = collections(figure)
    assert len(boxes["class-0"].starts) == 10 and len(boxes["class-3"].starts) == 2
    assert draw_same_work(MemorySource()) is None
    many = [{**speeds[2], "rank": rank} for rank in range(512)]
    slow = [{"rank": rank, "work_class": "products", "ratio": 1.3} for rank in range(512)]
    tables = {"rank_speeds": {None: pa.Table.from_pylist(many)}, "class_speeds": {None: pa.Table.from_pylist(slow)}}
    figure = draw_same_work(MemorySource(tables))
    assert "ranks 0, 1, 2 … 511 (512) marked" in " ".join(texts(figure))
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text().startswith("rank ")]
    assert len(sizes) > 32 and min(sizes) > 7, "as many as can be read"


def test_overlap_that_costs_more_than_it_saves_is_drawn_below_zero():
    nets = {("tp", 0): -1.9 * MS, ("tp", 1): -2.1 * MS, ("dp", 0): 4 * MS, ("dp", 1): 6 * MS}
    rows = [
        {"rank": rank, "device": "gpu:0", "window_name": window, "step": step, "dimension": dimension}
        | {"hidden_ns": 8 * MS, "judged_share": 1.0, "extra_ns": 8 * MS - net, "reason": None}
        | {"net_ns": net, "net_low_ns": net - 1000, "net_high_ns": net + 1000}
        for (dimension, rank), net in nets.items()
        # The kernels' own window counts only where no step is marked.
        for window, step in (("step", 7), ("kernels", None))
    ]
    unknown = dict.fromkeys(("extra_ns", "net_ns", "net_low_ns", "net_high_ns"))
    rows.append(rows[0] | unknown | {"dimension": "cp", "judged_share": 0.1, "reason": "it is not known"})
    figure = draw_overlap_savings(MemorySource({"overlap_savings": {None: pa.Table.from_pylist(rows)}}))
    assert title(figure) == "Overlap of TP communication costs 2.00 ms per rank and step more than it saves"
    shown = texts(figure)
    assert {"−2.00 ms", "5.00 ms", "10.0 ms"} <= set(shown)
    assert any("costs more than it saves: TP" in text for text in shown)
    assert any("the saving of CP is unknown in 1 of 1 window: it is not known" in text for text in shown)
    boxes = collections(figure)
    assert "saved/tp" not in boxes and boxes["saved/dp"].ends == pytest.approx([5 * MS])
    assert draw_overlap_savings(MemorySource()) is None
