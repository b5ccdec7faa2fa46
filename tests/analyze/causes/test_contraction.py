"""A contracted graph ends as the whole one does, whatever edits make of the times."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings

from tests.analyze.causes.small_steps import END, edges_drawn, kernels_drawn, small_steps, waits_drawn
from traceviz_dag.analyze.causes.contraction import contracted
from traceviz_dag.analyze.causes.kernel_edges import KernelEdges
from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.analyze.causes.rank_work import EdgeKind, HostWaits, rank_work
from traceviz_dag.analyze.causes.step_work import Members, StepWork, step_work, without_lags
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING


@settings(deadline=None)
@given(small_steps())
def test_no_edit_and_no_time_shows_the_contracted_step_from_the_whole_one(step: StepWork) -> None:
    smaller = contracted(step)
    assert smaller.graph.nodes <= step.graph.nodes
    assert len(smaller.waiting) <= len(step.waiting)
    what_if = WhatIf(step, [0] * len(step.ranks))
    times = step.times()
    made = [times, what_if.edits.hidden(times, "all", unmatched=True), what_if.edits.faster(times, "tp", 2.7)]
    made += [what_if.edits.no_jitter(made[-1])] if (what_if.step.works[0].kernels.microbatch != MISSING).any() else []
    with suppress(NoEvidenceError):
        made.append(what_if.edits.host_free(made[-1]))
    if any(work.section_hidden.any() for work in step.works):
        made.append(what_if.edits.no_hidden_waits(made[-1]))
    if len(step.ranks) > 1:
        made.append(what_if.edits.fix_rank(made[-1], 1))
        with suppress(NoEvidenceError):
            made.append(what_if.edits.fix_links(times, [1]))
    with suppress(NoEvidenceError):
        made.append(what_if.edits.no_congestion(times))
    for each in [*made, *map(without_lags, made)]:
        whole, fewer = step.replay(each), smaller.replay(each)
        assert smaller.step_ns(fewer) == step.step_ns(whole)
        for place, (work, other) in enumerate(zip(step.works, smaller.works, strict=True)):
            at, low = int(step.base[place]), int(smaller.base[place])
            # Arrivals, sections and the end of the step are where they were; so are joined kernels and streams' ends.
            tail = whole[at + work.segments : at + work.nodes]
            assert fewer[low + other.segments : low + other.nodes].tolist() == tail.tolist()
            last = np.append(other.first[1:], len(other.kernels)) - 1
            assert fewer[low + other.segment[last]].tolist() == whole[at + work.segment[last]].tolist()


@settings(deadline=None)
@given(small_steps())
def test_no_bar_of_hidden_communication_is_below_zero_or_above_what_there_is(step: StepWork) -> None:
    what_if = WhatIf(step, [0] * len(step.ranks))
    transfers = [
        times.duration_ns[work.kernels.communicates] for times, work in zip(step.times(), step.works, strict=True)
    ]
    there = sum(int(np.maximum(each, 0).sum()) for each in transfers)
    for edit in (what_if.hide("all"), what_if.faster("tp", 2.7)):
        found = what_if.predict(edit)
        # A transfer below 0, which steps that are drawn have, becomes longer.
        if all((each >= 0).all() for each in transfers):
            assert 0 <= found.gain_low_ns <= found.gain_ns <= found.gain_high_ns
        assert found.gain_high_ns <= max(there, found.gain_ns)


@pytest.mark.parametrize(
    ("first_ends", "second_starts", "kept"),
    [
        pytest.param(20, 20, 1, id="the later kernel of a stream has the earlier one behind it"),
        pytest.param(20, 15, 2, id="but not where it may end before it"),
    ],
)
def test_a_wait_that_others_imply_goes_unless_a_lag_below_zero_undoes_it(first_ends, second_starts, kept):
    """Kernel 2 waits for kernels 0 and 1, and kernel 1 comes behind kernel 0: on its stream, or by an event."""
    for stream, waits in (([0, 0, 1], ((2, 0), (2, 1))), ([0, 1, 2], ((1, 0), (2, 0), (2, 1)))):
        start, end = np.array([0, second_starts, 40]), np.array([first_ends, 40, 60])
        none, zero = np.full(3, MISSING), np.zeros(3, np.int64)
        no = np.zeros(3, dtype=bool)
        kernels = RankKernels(
            np.arange(3), start, end, np.array(stream), zero, none, none, zero, no, ~no, zero - 1, zero - 1,
            np.array([0, 1, 0]), none, none, none, zero, zero - 1, zero, no, zero, zero, no, none, none, no, no, 0, (),
            (),
        )  # fmt: skip
        nothing = np.empty(0, np.int64)
        waiting, waited_for = np.array(waits).T
        edges = KernelEdges(waiting, waited_for, np.zeros(len(waits), np.int64), nothing, nothing)
        work = rank_work(kernels, edges, nothing, HostWaits(nothing, nothing, nothing, nothing, nothing), (0, 60))
        step = step_work([0], [work], Members(nothing, nothing, nothing))
        smaller = contracted(step)
        found = (smaller.kind == EdgeKind.EVENT) & (smaller.waiting == 2)
        assert int(found.sum()) == kept


def test_a_pause_is_taken_away_once_whatever_edits_name_it():
    draw = np.random.default_rng(3)
    kernels = [kernels_drawn(draw, 8, 2) for _ in range(2)]
    nothing = np.empty(0, np.int64)
    works = [
        rank_work(each, edges_drawn(draw, each), nothing, waits_drawn(draw, each), (0, END), {3: 200_000, 5: 300_000})
        for each in kernels
    ]
    edits = WhatIf(step_work([0, 1], works, Members(nothing, nothing, nothing)), [0, 0]).edits
    times = edits.step.times()
    both = edits.no_pauses(edits.fix_rank(times, 0))
    for place, alone in enumerate((edits.fix_rank(times, 0)[0], edits.no_pauses(times)[1])):
        assert both[place].launch_ns.tolist() == alone.launch_ns.tolist() != times[place].launch_ns.tolist()
        assert both[place].host_end_ns == alone.host_end_ns
