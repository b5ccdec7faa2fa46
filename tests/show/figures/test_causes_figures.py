"""The figures of the critical path and of predicted gains against their tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.collections import LineCollection

from tests.analyze.advice import test_search
from tests.analyze.causes.test_reordered import FORWARD, perfect
from tests.show.across_ranks import MS, STEP, STEP_NS, US, gain_rows, one_row, path_job
from tests.show.drawn import collections, numbers, texts, title
from tests.show.job import MemorySource
from traceviz_dag.analyze.advice.advice_table import advice_items, advice_table
from traceviz_dag.analyze.advice.search import Advisor
from traceviz_dag.analyze.causes.efficiencies import Replayed, factor_rows
from traceviz_dag.schedules import Order
from traceviz_dag.show.figures.advised_pipelines import draw_advised_pipelines
from traceviz_dag.show.figures.critical_path import draw_critical_path
from traceviz_dag.show.figures.efficiency_tree import draw_efficiency_tree
from traceviz_dag.show.figures.path_lanes import MOST_LANES
from traceviz_dag.show.figures.predicted_gains import draw_predicted_gains
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.gain_rows import MOST_ROWS

PIPELINE = [
    (0, None, "host", None, 2 * MS),
    (0, 0, "work", "fwd_computation", 6 * MS),
    (2, 0, "transfer", "pp_communication", MS),
    (2, 0, "work", "bwd_computation", 20 * MS + 400),
    (2, None, "launch", "bwd_computation", 600),
    (0, None, "work", "optimizer_computation", 4 * MS),
]
STAGES = {0: 0, 1: 1, 2: 2}


def areas(figure) -> dict[str, float]:
    """Name of what is drawn in a lane → its time, ns: the area of its columns."""
    (axes,) = [each for each in figure.axes[1:] if each.get_xlabel()]
    found = {}
    heights = [line.get_ydata()[0] for line in axes.lines]
    lane = min(heights) / 0.88 * 0.76
    for artist in axes.collections:
        name = artist.get_gid()
        if name is None or name == "moves":
            continue
        x, y = artist.get_paths()[0].vertices.T
        found[name] = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2 / lane * MS
    return found


def test_each_nanosecond_of_the_path_is_in_the_lane_of_its_rank_and_in_the_profile():
    figure = draw_critical_path(path_job(PIPELINE, STAGES))
    expected = {
        "rank 0 · stage 0/host": 2 * MS,
        "rank 0 · stage 0/forward computation": 6 * MS,
        "rank 2 · stage 2/PP communication": MS,
        "rank 2 · stage 2/backward computation": 20 * MS + 400,
        "rank 2 · stage 2/launch lag": 600,
        "rank 0 · stage 0/optimizer computation": 4 * MS,
    }
    found = areas(figure)
    assert found.keys() == expected.keys()
    for name, length in expected.items():
        assert found[name] == pytest.approx(length, abs=20), name
    bars = {name: box for name, box in collections(figure).items() if name.startswith("profile/")}
    assert {name.partition("/")[2]: round(box.ends[0]) for name, box in bars.items()} == {
        name.partition("/")[2]: length for name, length in expected.items()
    }
    assert bars["profile/host"].colour == palette.HOST
    said = texts(figure)
    assert {"stage 1", "0 %", "61 %", "20.000", "33.001", "the step"} <= set(said), "the parts add up as printed"
    assert numbers(figure) == 3, "a number for each stay on a micro-batch: forward, its message, backward"
    assert title(figure) == (
        "The step is limited by stage 2 (rank 2) for 64 % of its 33.0 ms; 61 % of the path is backward computation"
    )
    assert "on 2 of 3 ranks, moves between ranks 2 times" in " ".join(said)
    (moves,) = [
        each for axes in figure.axes for each in axes.collections
        if isinstance(each, LineCollection) and each.get_gid() == "moves"
    ]  # fmt: skip
    assert [path.vertices[0][0] for path in moves.get_paths()] == pytest.approx([8.0, 29.001])


def test_a_path_that_is_mostly_communication_blames_no_rank_for_it():
    path = [(3, None, "transfer", "dp_communication", 30 * MS), (1, 0, "work", "fwd_computation", 9 * MS)]
    figure = draw_critical_path(path_job(path, dict.fromkeys(range(4), 0)))
    communication, rest = title(figure).split("; ")
    assert communication == "77 % of the step's 39.0 ms is limited by communication, mostly DP communication"
    assert rest == "of the rest most is on rank 1 (23 %)"


def test_thousands_of_segments_on_many_ranks_fold_and_stay_whole():
    tiny = [(number % 50, number // 500, "work", "bwd_computation", 2 * US) for number in range(20_000)]
    alone = draw_critical_path(path_job(tiny, dict.fromkeys(range(50), 0)))
    lanes = [text for text in texts(alone) if text.startswith("rank ") or text.endswith("other ranks")]
    assert len(lanes) == MOST_LANES and f"{51 - MOST_LANES} other ranks" in lanes
    assert title(alone).startswith("The critical path spreads over 50 ranks, none with more than 2.0 % of the 40.0 ms")
    assert sum(areas(alone).values()) == pytest.approx(40 * MS, rel=1e-6)
    stages = draw_critical_path(path_job(tiny, {rank: rank // 10 for rank in range(50)}))
    assert {f"stage {stage} · 10 ranks" for stage in range(5)} <= set(texts(stages))
    assert max(len(each.get_paths()) for axes in alone.axes for each in axes.collections) < 11_000
    assert draw_critical_path(MemorySource()) is None


def test_the_longest_step_is_drawn_and_one_that_is_refused_is_named():
    source = path_job(PIPELINE, STAGES)
    longer = path_job([*PIPELINE, (1, None, "host", None, MS)], STAGES, step=11)
    for name in ("path_segments", "path_items"):
        parts = [each.tables[name][None] for each in (source, longer)]
        source.tables[name] = dict(enumerate(parts))
    source.tables["what_if"] = {
        None: gain_rows(
            [
                {
                    "step": 11,
                    "edit": "fix_rank",
                    "rank": 2,
                    "gain_ns": 5 * MS,
                    "gain_low_ns": 4 * MS,
                    "gain_high_ns": 6 * MS,
                },
                {"step": 12, "refusal": "work waits for itself in a circle: kernel 7 of rank 0"},
            ],
            34 * MS,
        )
    }
    said = " ".join(texts(draw_critical_path(source)))
    assert "step 11, the longest of 2: 34.0 ms in 7 segments" in said
    assert "largest predicted gain: fix rank 2, 5.00 ms (15 %)" in said
    assert "step 12 is left out: work waits for itself in a circle: kernel 7 of rank 0" in said


def test_gains_are_ranked_bars_with_their_error_and_what_is_refused_says_why():
    edits = [
        {"edit": "hide", "dimension": "tp", "gain_ns": 3 * MS, "gain_low_ns": -MS, "gain_high_ns": 4 * MS},
        {"edit": "fix_rank", "rank": 5, "gain_ns": 8 * MS, "gain_low_ns": 7 * MS, "gain_high_ns": 9 * MS},
        {"edit": "no_pauses", "gain_ns": 0, "gain_low_ns": 0, "gain_high_ns": 0},
        {"edit": "equal_stages", "refusal": "the job has one pipeline stage"},
    ]
    figure = draw_predicted_gains(MemorySource({"what_if": {None: gain_rows(edits)}}))
    assert title(figure) == "The largest predicted gain is 8.00 ms (20 % of the step), 7.00 ms to 9.00 ms: fix rank 5"
    boxes = collections(figure)
    drawn = {name: (box.ends[0], box.colour) for name, box in boxes.items()}
    assert drawn == {
        "gain/fix rank 5": (pytest.approx(8 * MS), palette.HIDDEN),
        "gain/hide TP communication": (pytest.approx(3 * MS), palette.COMPUTATION_ONLY),
    }
    assert boxes["gain/fix rank 5"].tops[0] < boxes["gain/hide TP communication"].tops[0]
    bars = {
        each.get_gid(): each.get_paths()[0].vertices[:, 0].tolist()
        for axes in figure.axes for each in axes.collections if str(each.get_gid()).startswith("bar/")
    }  # fmt: skip
    assert bars == {"bar/fix rank 5": [7.0, 9.0], "bar/hide TP communication": [-1.0, 4.0]}
    said = texts(figure)
    assert {"refused: the job has one pipeline stage", "−1.00 ms", "7.5 %"} <= set(said)
    lines = " ".join(said)
    assert "gains do not add up" in lines and "no effect: no pauses of hosts" in lines
    assert "widened by the replay's error (−1.0 % of the step)" in lines


def test_of_many_edits_the_largest_gains_are_drawn_and_without_any_prediction_nothing_is():
    edits = [
        {"edit": "fix_rank", "rank": rank, "gain_ns": rank * US, "gain_low_ns": rank * US, "gain_high_ns": rank * US}
        for rank in range(1, 31)
    ]
    figure = draw_predicted_gains(MemorySource({"what_if": {None: gain_rows(edits)}}))
    assert len(collections(figure)) == MOST_ROWS and "gain/fix rank 30" in collections(figure)
    assert "10 more gain 10.0 µs or less each" in " ".join(texts(figure))
    refused = gain_rows([{"refusal": "the traces have no GPU"}], STEP_NS)
    assert draw_predicted_gains(MemorySource({"what_if": {None: refused}})) is None


def test_the_efficiency_tree_is_the_step_and_each_loss_lies_below_what_it_is_a_part_of():
    arrays = {"stage": [0, 1], "replica": [0, 0], "useful_ns": [40 * MS, 80 * MS], "ideal_ns": [90 * MS, 90 * MS]}
    restored = {"tp": np.array([95, 95]) * MS, "pp": np.array([120, 120]) * MS}
    step = Replayed(
        **{name: np.array(values) for name, values in arrays.items()},
        restored=restored,
        measured_ns=np.array([119, 125]) * MS,
    )
    table = pa.concat_tables([one_row("efficiencies", **{"step": STEP, **row}) for row in factor_rows(step)])
    figure = draw_efficiency_tree(MemorySource({"efficiencies": {None: table}}))
    assert title(figure) == (
        "Transfer loses 30.0 ms (24 %) of the 125 ms step, more than any other factor: communications take time once "
        "all have arrived, and nothing hides it"
    )
    drawn = {
        name: (round(box.starts[0] / MS, 6), round(box.ends[0] / MS, 6)) for name, box in collections(figure).items()
    }
    assert drawn == {
        **{"useful": (0, 60), "step/transfer": (60, 90), "step/load balance": (90, 110)},
        **{"step/serialisation": (110, 120), "step/host": (120, 125)},
        **{
            "transfer": (60, 90),
            "PP": (60, 85),
            "TP": (85, 90),
            "load balance": (90, 110),
            "between stages": (90, 110),
        },
        **{"serialisation": (110, 120), "host": (120, 125)},
    }
    assert {"Parallel efficiency", "48 %", "65.0 ms", "52 %", "TP", "95 %", "5.00 ms"} <= set(texts(figure))
    refused = one_row("efficiencies", step=STEP, factor="parallel_efficiency", reason="1 of 4 ranks were read")
    assert draw_efficiency_tree(MemorySource({"efficiencies": {None: refused}})) is None
    both = pa.concat_tables([table, refused])
    said = texts(draw_efficiency_tree(MemorySource({"efficiencies": {None: both}})))
    assert any(line.endswith("is left out: 1 of 4 ranks were read") for line in said)


def test_advised_pipelines_have_a_box_for_each_step_of_each_panel():
    order = Order(2, 1, 4)
    items = replace(perfect(order), layers=(4, 4), unknown=None)
    advisor = Advisor(items, test_search.Replayed(items), {})
    tables = {"advice": {None: advice_table(advisor, 3)}, "advice_items": {None: advice_items(advisor, 3)}}
    figure = draw_advised_pipelines(MemorySource(tables))
    assert figure is not None
    boxes = {
        each.get_gid(): len(each.get_paths()) for axes in figure.axes for each in axes.collections if each.get_gid()
    }
    stored = tables["advice_items"][None].to_pylist()
    places = {row["place"] for row in stored}
    assert 0 in places and len(places) > 1
    for place in places:
        mine = [row for row in stored if row["place"] == place]
        assert sum(count for name, count in boxes.items() if name.startswith(f"{place}/")) == len(mine)
        # The replay of the step as it is has its items where they were.
        if place == 0:
            assert {(row["start_ns"], row["duration_ns"]) for row in mine if row["stage"] == 0} >= {(0, FORWARD)}
    said = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert "now · " in said and "2 model chunks a stage" in said
    lost = tables["advice"][None]
    none = lost.set_column(lost.column_names.index("wins"), "wins", pa.array([False] * lost.num_rows))
    assert draw_advised_pipelines(MemorySource({**tables, "advice": {None: none}})) is None
