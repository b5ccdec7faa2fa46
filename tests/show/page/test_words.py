"""What figures say: findings with their numbers, clocks, partial data, aggregation."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.show.drawn import collections, texts, title
from tests.show.job import MS, ZERO, fill_rank, job, kernels, one_row
from traceviz_dag.analyze.intervals import intersect, measure
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.figures import notable_ranks
from traceviz_dag.show.figures.model_replica import RowOrder, draw_model_replica
from traceviz_dag.show.figures.overlap_bars import draw_overlap_bars
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.figures.stage_shares import BLOCK_STATES, EXPOSED_STATES, STAGE_IDLE, block_states
from traceviz_dag.show.page.activity import read_activity
from traceviz_dag.show.page.alignment import SENTENCE, align, read_clocks
from traceviz_dag.show.page.facts import ranks_named
from traceviz_dag.vocabulary import TimeAlignment


def test_the_timeline_states_what_the_table_says():
    source = job()
    row = next(row for row in source.tables["overlap"][0].to_pylist() if row["dimension"] == "all")
    exposed = share(row["exposed_ns"], row["communication_ns"])
    of_window = share(row["exposed_ns"], row["window_end_ns"] - row["window_start_ns"])
    assert title(draw_rank_timeline(source, 0)) == (
        f"Rank 0: {exposed} of communication is exposed, {of_window} of the iteration"
    )


def test_the_timeline_of_a_rank_that_the_others_wait_for_says_so_and_what_is_missing():
    source = job()
    delay = {"communications": 40, "last": 30, "own_ns": 5 * MS, "late_category": "fwd_computation"}
    late = [one_row("late_ranks", rank=rank, blamed=rank == 1, **delay) for rank in range(4)]
    source.tables["late_ranks"] = {None: pa.concat_tables(late)}
    source.tables["runs"] = {None: one_row("runs", failed_ranks=[], partial_ranks=[], missing_ranks=[9])}
    culprit, other = draw_rank_timeline(source, 1), draw_rank_timeline(source, 0)
    assert title(culprit) == (
        "Rank 1 delayed its peers by 5.00 ms of its own (forward computation), last in 30 of 40 communications"
    )
    assert "of communication is exposed" in title(other)
    assert "a delay is not a saving" in " ".join(texts(culprit)) and "of communication is exposed" in " ".join(
        texts(culprit)
    )
    assert "PARTIAL: rank 9 without a trace" in texts(culprit) and "PARTIAL: rank 9 without a trace" not in texts(other)


def test_of_many_ranks_the_one_that_delays_the_others_is_drawn():
    source = job()
    chosen = notable_ranks(source, range(4), most=2)
    late = [one_row("late_ranks", rank=rank, own_ns=MS, blamed=rank not in chosen) for rank in range(4)]
    source.tables["late_ranks"] = {None: pa.concat_tables(late)}
    assert set(range(4)) - set(chosen) and notable_ranks(source, range(4), most=2) == [0, 1, 2, 3]


def test_the_bars_state_what_is_hidden_in_each_phase():
    rows = [row for row in job().tables["microbatches"][0].to_pylist() if row["dimension"] == "all"]
    said = []
    for phase in ("forward", "backward"):
        own = [row for row in rows if row["phase"] == phase]
        said.append(f"{phase} hides {share(sum(r['hidden_ns'] for r in own), sum(r['communication_ns'] for r in own))}")
    assert title(draw_overlap_bars(job(), 0)) == f"Rank 0: {said[0]} and {said[1]} of its own communication"


def test_a_pipeline_states_how_long_its_stages_idle():
    source = job()
    shares = {}
    for rank in (0, 2):
        activity = read_activity(source, rank)
        ((first, last),) = activity.pipeline_spans()
        shares[rank] = measure(activity.stage_idle()) / (last - first)
    assert shares[0] > shares[2]
    percent = {rank: share(round(part * 1e6), 1_000_000) for rank, part in shares.items()}
    mean = share(round(sum(shares.values()) / 2 * 1e6), 1_000_000)
    found = title(draw_pipeline_group(source, 0))
    assert found.startswith(f"Pipeline 0: stages idle {mean} of the time")
    assert found.endswith(f"from {percent[2]} on stage 1 to {percent[0]} on stage 0")


def test_a_replica_names_the_rank_that_computes_longest_beside_its_stage():
    figure = draw_model_replica(job(ranks=8, stages=2, slow={5: 1.5}), 0)
    assert title(figure).startswith("Model replica 0: rank 5 computes for ")
    assert "longer than the median of the others of stage 1" in title(figure)
    even = draw_model_replica(job(ranks=8, stages=2), 0)
    assert "stages idle" in title(even)


def test_every_figure_of_several_ranks_says_on_which_clock_it_rests():
    for alignment in (TimeAlignment.GLOBAL, TimeAlignment.INDIVIDUAL):
        for figure in (
            draw_pipeline_group(job(), 0, alignment),
            draw_model_replica(job(), 0, alignment),
            draw_model_replica(job(ranks=64, stages=2, microbatches=1), 0, alignment),
        ):
            assert SENTENCE[alignment].split(",")[0].split(":")[0] in " ".join(texts(figure))


def test_global_keeps_the_clocks_and_individual_begins_each_rank_at_0():
    source = job()
    spans = {rank: read_activity(source, rank).span() for rank in (0, 2)}
    starts = {rank: start for rank, (start, _) in spans.items()}
    assert starts[2] - starts[0] == 4 * MS
    together = align(spans, read_clocks(source, spans, TimeAlignment.GLOBAL))
    assert together.zero_ns == {0: starts[0], 2: starts[0]}
    assert together.span_ns == max(end for _, end in spans.values()) - starts[0]
    alone = align(spans, read_clocks(source, spans, TimeAlignment.INDIVIDUAL))
    assert alone.zero_ns == starts
    assert alone.span_ns == max(end - start for start, end in spans.values())
    drawn = {
        alignment: collections(draw_pipeline_group(source, 0, alignment))["rank-2/forward-0"].starts.min()
        for alignment in TimeAlignment
    }
    assert drawn[TimeAlignment.GLOBAL] - drawn[TimeAlignment.INDIVIDUAL] == pytest.approx(4 * MS, abs=1)


def test_missing_ranks_are_said_in_title_and_row():
    figure = draw_pipeline_group(job(missing=[2]), 0)
    assert title(figure).endswith("(PARTIAL: 1 of 2 ranks)")
    assert "rank 2 has no usable trace and is left out" in texts(figure)
    assert "no trace" in texts(figure), "the row says it, too"
    whole = draw_pipeline_group(job(), 0)
    assert "PARTIAL" not in title(whole)


def test_a_failed_trace_is_said_in_its_row():
    source = job(missing=[2])
    source.tables["traces"][2] = one_row("traces", status="failed", fault="broken")
    assert "the trace could not be read" in texts(draw_pipeline_group(source, 0))


def test_a_trace_that_was_read_in_part_is_said_and_blames_nobody():
    source = job(ranks=8, stages=2, slow={1: 1.5}, partial=[0, 2, 3])
    figure = draw_model_replica(source, 0)
    assert "a part of the trace of ranks 0, 2, 3 could not be read" in texts(figure)
    assert "rank 1 computes" not in title(figure), "its only peers were cut short"
    assert title(draw_rank_timeline(source, 0)).endswith("(PARTIAL trace)")
    assert title(draw_overlap_bars(source, 0)).endswith("(PARTIAL trace)")


def test_unknown_micro_batches_are_said():
    source = job(ranks=2, stages=2)
    fill_rank(source, 0, kernels([{"start_ns": ZERO, "duration_ns": MS, "category": "fwd_computation"}]))
    said = "the micro-batches of rank 0 are unknown: kernels are shown, no idle share"
    assert said in texts(draw_pipeline_group(source, 0))
    assert any("no micro-batch is known" in text for text in texts(draw_overlap_bars(source, 0)))


def test_ranks_without_kernels_have_no_figures_of_their_own():
    source = job(missing=[3])
    assert draw_rank_timeline(source, 3) is None
    assert draw_overlap_bars(source, 3) is None
    with pytest.raises(UsageError, match="no pipeline 9"):
        draw_pipeline_group(source, 9)
    with pytest.raises(UsageError, match="no replica 4"):
        draw_model_replica(source, 4)


@pytest.mark.parametrize(
    ("ranks", "rows"), [(64, 8), *(pytest.param(*of, marks=pytest.mark.long) for of in ((56, 56), (256, 8), (1024, 8)))]
)
def test_beyond_a_page_ranks_are_aggregated_by_stage_and_the_figure_says_so(ranks, rows):
    source = job(ranks=ranks if ranks < 256 else 16, stages=8, microbatches=2)
    if ranks >= 256:
        repeat(source, ranks)
    figure = draw_model_replica(source, 0)
    names = {name.split("/")[0] for name in collections(figure)}
    assert len(names) == rows
    said = f"aggregated: {ranks} ranks in 8 rows" in " ".join(texts(figure))
    assert said == (ranks >= 64)


def test_a_rank_that_is_an_outlier_of_its_stage_has_a_separate_row_beside_the_aggregated_ones():
    figure = draw_model_replica(job(ranks=64, stages=8, microbatches=2, slow={13: 1.5}), 0)
    names = {name.split("/")[0] for name in collections(figure)}
    assert names == {*(f"stage-{stage}" for stage in range(8)), "rank-13"}
    said = " ".join(texts(figure))
    assert "aggregated: 63 ranks in 8 rows, one per stage; rank 13 apart" in said
    assert any(text.startswith("computes +") for text in texts(figure))


def repeat(source, ranks: int) -> None:
    """Stretch a job of 16 ranks by letting further ranks share the tables of the first ones of their stage."""
    import pyarrow as pa

    for name in ("kernels", "microbatches", "overlap", "traces"):
        found = source.tables[name]
        source.tables[name] = {rank: found[rank * 16 // ranks] for rank in range(ranks)}
    rows = [
        one_row("topology", rank=rank, stage=rank * 8 // ranks, stages=8, pipeline=rank % (ranks // 8), model_replica=0)
        for rank in range(ranks)
    ]
    source.tables["topology"][None] = pa.concat_tables(rows)


def test_the_states_of_a_rank_are_disjoint_and_hold_its_steps():
    activity = read_activity(job(chunks=2), 0)
    states = block_states(activity)
    assert set(states) == set(BLOCK_STATES)
    names = list(states)
    for place, name in enumerate(names):
        for other in names[:place]:
            assert measure(intersect(states[name], states[other])) == 0
    ((first, last),) = activity.pipeline_spans()
    inside = sum(measure(states[name]) for name in ("fwd_computation", "bwd_computation", *EXPOSED_STATES, STAGE_IDLE))
    inside += measure(states["bwd_computation_recompute"])
    assert inside == last - first


def test_both_orders_of_a_replica_hold_the_same_rows():
    by_order = [set(collections(draw_model_replica(job(ranks=8), 0, order=order))) for order in RowOrder]
    assert by_order[0] == by_order[1]
    assert "stage 1" in texts(draw_model_replica(job(ranks=8), 0, order=RowOrder.STAGE))


def test_numbers_are_written_for_people():
    assert [duration(value) for value in (0, 999, 1_500, 99_940_000, 123_456_789, 2e9)] == [
        "0 ns", "999 ns", "1.50 µs", "99.9 ms", "123 ms", "2.00 s",
    ]  # fmt: skip
    assert [share(*pair) for pair in ((0, 5), (5, 0), (1, 300), (1, 3), (999, 1000))] == [
        "0 %", "0 %", "0.3 %", "33 %", "100 %",
    ]  # fmt: skip
    assert ranks_named([3]) == "rank 3"
    assert ranks_named(range(64)) == "ranks 0, 1, 2 … 63 (64)"


def test_lanes_and_rows_state_the_figures_of_the_table():
    source = job()
    rows = {row["dimension"]: row for row in source.tables["overlap"][0].to_pylist()}
    said = texts(draw_rank_timeline(source, 0))
    for dimension in ("tp", "pp", "dp"):
        row = rows[dimension]
        hidden = share(row["hidden_ns"], row["communication_ns"])
        assert f"{duration(row['communication_ns'])}, {hidden} hidden" in said
    assert duration(rows["all"]["compute_ns"]) in said
    assert f"{duration(rows['all']['exposed_ns'])} exposed" in said
    computes = duration(rows["all"]["compute_ns"])
    assert [text for text in texts(draw_pipeline_group(source, 0)) if text.endswith(f"· {computes}")]


def test_figures_speak_of_the_training_step_where_there_is_one():
    from traceviz_dag.analyze.overlap import overlap_table

    source = job()
    table = source.tables["kernels"][0]
    first = int(table["start_ns"].to_numpy().min())
    source.tables["overlap"][0] = overlap_table(table, [(10, first - MS, first + 20 * MS)])
    row = next(
        row for row in source.tables["overlap"][0].to_pylist()
        if row["window_name"] == "step" and row["dimension"] == "all"
    )  # fmt: skip
    figure = draw_rank_timeline(source, 0)
    assert title(figure).endswith("of the step") and f"step {duration(21 * MS)}" in " ".join(texts(figure))
    assert duration(row["compute_ns"]) in texts(figure)
