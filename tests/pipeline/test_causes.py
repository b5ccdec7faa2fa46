"""The graph of a step from real files: it gives the trace back, its path is the step, and its predictions come true."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks import edges
from benchmarks.what_if import cases, outcome, what_if_of
from tests.commands.jobs import analysed_at, home_of, traces_of
from tests.damage import call
from tests.in_process import ranks_in_this_process
from tests.nsys_file import Export
from tests.sets import fast
from tests.show.home import fill_home
from tests.simulate.conftest import small
from traceviz_dag.analyze.causes import step_work
from traceviz_dag.analyze.causes.critical_path import critical_path, slacks
from traceviz_dag.analyze.causes.edits import AllTimes, StepEdits
from traceviz_dag.analyze.causes.step_work import StepWork
from traceviz_dag.analyze.causes.what_if import WIDEST, Edit, Suspects, WhatIf
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline import causes
from traceviz_dag.pipeline.causes import RankedStep, causes_tables, ranked_steps, side_by_side, steady_steps
from traceviz_dag.pipeline.certainty import stored_verdict
from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at
from traceviz_dag.read.events import MISSING
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import ContextExchange, Dispatcher, Edges, Era, Faults, Graphs, Layout, Recompute

JOBS = {
    "1f1b": small(pp=2, dp=2, layers=4),
    "interleaved": small(tp=2, pp=2, vpp=2, layers=4, recompute=Recompute.FULL),
    "combined experts": small(pp=2, vpp=2, dp=2, ep=2, layers=4, overlap_expert=True),
    "context ring": small(cp=2, dp=2, context_exchange=ContextExchange.POINT_TO_POINT),
    "data alone": small(dp=4),
    "one rank": small(),
    "graphs": small(tp=2, pp=2, cuda_graphs=Graphs.LAYER),
    "old": small(tp=2, dp=2, era=Era.TORCH_2_3),
    "without stacks": small(pp=2, dp=2, stacks=False),
    "clocks apart": small(pp=2, dp=2, clock_skew_ms=30.0, clock_drift_ppm=20.0, node_size=2),
    "recorded waits": small(pp=2, dp=2, cuda_sync=True),
}


@pytest.fixture(scope="module", autouse=True)
def _ranks_in_this_process() -> Iterator[None]:
    with ranks_in_this_process():
        yield


@contextmanager
def analysed(settings: JobSettings, folder: Path) -> Iterator[StoredIteration]:
    """A simulated job, analysed."""
    simulate(settings, folder / "job", workers=1)
    with iterations_at(folder / "job", folder / "home") as iterations:
        yield iterations[0]


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Iterator[Callable[[str], StoredIteration]]:
    """One of the jobs above, by name, analysed once."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(analysed(JOBS[name], tmp_path_factory.mktemp("job"))))


def steps_of(iteration: StoredIteration) -> list[RankedStep]:
    """The graphs of an iteration's steps."""
    return list(ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages")))


def kernels_given_back(step: StepWork, times: AllTimes) -> np.ndarray:
    """The replay, which ends each kernel, and each rank's step, when the trace does."""
    ends = step.replay(times)
    for place, work in enumerate(step.works):
        last = np.append(work.first[1:], len(work.kernels)) - 1
        low = step.base[place]
        replayed = ends[low : low + work.segments] + step.begin_ns[place] + step.offset_ns[place]
        np.testing.assert_array_equal(replayed, work.kernels.end_ns[last])
        assert ends[low + work.end] + step.begin_ns[place] + step.offset_ns[place] == work.end_ns
    return ends


@pytest.mark.parametrize("name", fast(JOBS, "combined experts", "one rank"))
def test_the_replay_gives_every_kernel_back_and_the_path_is_the_step(job, name):
    iteration = job(name)
    assert iteration.ranks == tuple(range(JOBS[name].world)), "in this order everywhere"
    for ranked in steps_of(iteration):
        step, times = ranked.step, ranked.step.times()
        ends = kernels_given_back(step, times)
        path = critical_path(step, times)
        assert path.duration_ns.sum() == step.step_ns(ends)
        assert (path.duration_ns > 0).all()
        slack = slacks(step, times)
        assert min(each.min() for each in slack) == 0
        for place, kernel in zip(path.rank.tolist(), path.kernel.tolist(), strict=True):
            assert kernel < 0 or slack[place][kernel] <= 0


def test_ranks_that_are_taken_together_or_one_by_one_take_the_same(job, monkeypatch):
    (ranked,) = steps_of(job("1f1b"))
    times = ranked.step.times()
    together = ranked.step.weights(times)
    monkeypatch.setattr(step_work, "_TOGETHER", 1)
    for one, other in zip(together, replace(ranked.step).weights(times), strict=True):
        np.testing.assert_array_equal(one, other)


def test_edits_that_go_on_from_others_save_what_they_save_when_all_are_made_anew(job):
    (ranked,) = steps_of(job("1f1b"))
    what_if = ranked.what_if()
    names = [(name, None, None, None) for name in ("host_free", "no_jitter", "equal_stages")]
    sets = [names[1:2], names[:1], names[:2], names, names[:2], []]
    alone = [what_if.saved_by([some])[0] for some in sets]
    assert what_if.saved_by(sets) == alone
    assert len(set(alone)) > 3


def test_kernels_that_are_read_in_turn_are_those_of_each_rank(job):
    iteration, names = job("1f1b"), ("kernel_id", "name", "step", "duration_ns", "beside_ns")
    for rank in iteration.ranks:
        assert iteration.kernels_in_turn(rank, names).to_pylist() == iteration.kernels(rank, names).to_pylist()


def test_joined_steps_give_every_kernel_back_and_their_path_is_the_period():
    steps = steady_steps(analysed_at(traces_of("two_steps")))
    work, times = steps.steady.work, steps.steady.times
    kernels_given_back(work, times)
    segments = steps.path_segments()
    assert pc.sum(segments["duration_ns"]).as_py() == steps.steady.period_ns
    assert steps.numbers[1] in segments["step"].unique().to_pylist()

    def shows_nothing(times):
        raise NoEvidenceError("nothing of the kind here")

    first, second = steps.steady.steps
    everywhere = steps.steady.predict([[first.hide("all")], [second.hide("all")]])
    nothing = Edit("hide", shows_nothing)
    of_first, of_second = ([[first.hide("all")], [nothing]], [[nothing], [second.hide("all")]])
    # The period of two steps is the second one.
    assert abs(steps.steady.predict(of_first).gain_ns) < everywhere.gain_ns / 10
    assert steps.steady.predict(of_second).gain_ns > everywhere.gain_ns * 0.9
    with pytest.raises(NoEvidenceError, match="nothing of the kind here"):
        steps.steady.predict([[nothing], [nothing]])


@pytest.mark.long
def test_what_is_gained_in_a_period_comes_true(tmp_path):
    settings = small(pp=2, dp=2, layers=4, iterations=3, layout=Layout.TORCH_PROFILE, faults=Faults(slow_gpu=1))
    period = {}
    for name, job in {"slow": settings, "fixed": replace(settings, faults=Faults())}.items():
        simulate(job, tmp_path / name, workers=1)
        with iterations_at(tmp_path / name, tmp_path / f"{name}_home") as iterations:
            steady = steady_steps(iterations).steady
            period[name] = steady.period_ns
            if name == "slow":
                edits = [[one.fix_rank(1)] for one in steady.steps]
                found = steady.predict(edits)
                alone = [one.predict(*mine).gain_ns for one, mine in zip(steady.steps, edits, strict=True)]
    assert found.gain_ns == pytest.approx(period["slow"] - period["fixed"], rel=0.1)
    assert found.gain_low_ns <= min(alone) and max(alone) <= found.gain_high_ns


def test_what_does_not_follow_one_another_is_not_joined(job):
    iteration = job("1f1b")
    with pytest.raises(NoEvidenceError, match="needs two training steps that follow one another, and there is one"):
        steady_steps([iteration])
    with pytest.raises(NoEvidenceError, match="pass between steps 10 and 10"):
        steady_steps([iteration, iteration])


@pytest.mark.parametrize("name", fast(["interleaved", "clocks apart"], "interleaved"))
def test_shifted_clocks_change_no_time_no_path_and_no_gain(job, name):
    iteration = job(name)
    assert len(steps_of(iteration)) == 1
    shifted = StoredSource(iteration, dict(zip(iteration.ranks, SHIFTS, strict=False)))
    collectives, messages = iteration.table("collectives"), iteration.table("messages")
    plain, moved = causes_tables(iteration, collectives, messages), causes_tables(shifted, collectives, messages)
    assert moved["what_if"].equals(plain["what_if"])
    same = ["rank", "kernel_id", "cause", "duration_ns"]
    assert moved["path_segments"].select(same).equals(plain["path_segments"].select(same))
    assert moved["path_items"].equals(plain["path_items"])


@pytest.mark.parametrize("told_later", [0, 5])
def test_ranks_read_in_other_processes_before_they_are_matched_give_the_same_causes(told_later, job, monkeypatch):
    """Also where matching says of communications of some ranks that they are of another dimension."""
    iteration = job("1f1b")
    collectives, messages = iteration.table("collectives"), iteration.table("messages")
    place, names = collectives.column_names.index("dimension"), collectives["dimension"].cast(pa.string())
    others = pc.if_else(pc.less(collectives["rank"], told_later), "ep", names)
    collectives = collectives.set_column(place, "dimension", others.dictionary_encode())
    here = causes_tables(iteration, collectives, messages)
    assert ("ep" in here["what_if"]["dimension"].to_pylist()) == (told_later > 0)
    for name in ("RANKS_OF_A_CHUNK", "_AT_ONCE"):
        monkeypatch.setattr(causes, name, 3)
    monkeypatch.setattr(causes, "rank_kernels", None)
    with side_by_side(iteration, iteration.stored_kernels, 2) as processes:
        there = causes_tables(iteration, collectives, messages, side_by_side=processes)
    assert there.keys() == here.keys() and all(there[name].equals(rows) for name, rows in here.items())


SHIFTS = (50_000_000, -50_000_000, 7, 12_345_678, -3, 0, 1_000, -40_000_000)


@dataclass(frozen=True)
class StoredSource:
    """An iteration whose ranks' clocks are shifted by constants."""

    stored: StoredIteration
    shift: dict[int, int]

    @property
    def ranks(self):
        return self.stored.ranks

    @property
    def topology(self):
        return self.stored.topology

    def kernels(self, rank, columns):
        return self._shifted(self.stored.kernels(rank, columns), rank, ("start_ns", "launch_start_ns"))

    def synchronizations(self, rank):
        return self._shifted(self.stored.synchronizations(rank), rank, ("start_ns",))

    def hidden_waits(self, rank):
        return self.stored.hidden_waits(rank)

    def pauses(self, rank):
        return self.stored.pauses(rank)

    def windows(self):
        table = self.stored.windows()
        by = pa.array([self.shift[rank] for rank in table["rank"].to_pylist()], pa.int64())
        for name in ("window_start_ns", "window_end_ns"):
            table = table.set_column(table.column_names.index(name), name, pc.add(table[name], by))
        return table

    def _shifted(self, table, rank, names):
        for name in set(names) & set(table.column_names):
            table = table.set_column(table.column_names.index(name), name, pc.add(table[name], self.shift[rank]))
        return table


@pytest.mark.parametrize(
    ("name", "reading", "found"),
    [
        pytest.param("tp2 pp2 dp2 interleaved", "recorded", 1.0, marks=pytest.mark.long),
        pytest.param("tp2 pp2 dp2 torch 2.3", "recorded", 1.0, marks=pytest.mark.long),
        pytest.param("tp2 pp2 dp2 interleaved", "stripped", 0.99, marks=pytest.mark.long),
        pytest.param("cp2 dp2 ring", "stripped", 0.99, marks=pytest.mark.long),
        pytest.param("ep2 pp2 dp2 combined", "stripped", 0.95, marks=pytest.mark.long),
        ("tp4", "without calls", 0.95),
        pytest.param("Megatron-FSDP, dp4 full recompute", "stripped", 0.99, marks=pytest.mark.long),
        pytest.param("Megatron-FSDP, ep2 pp2 dp4 interleaved", "stripped", 0.99, marks=pytest.mark.long),
        pytest.param("Megatron-FSDP, offloaded modules, tp2 dp2", "without calls", 0.99, marks=pytest.mark.long),
        pytest.param("offloaded modules, tp2 pp2 interleaved", "stripped", 0.99, marks=pytest.mark.long),
    ],
)
def test_waits_between_streams_are_found_and_none_is_invented(name, reading, found, tmp_path):
    """All that rows of synchronisation tell, and without them nearly all; what is inferred follows from the truth."""
    one = edges.outcome(dict(edges.jobs())[name], reading, tmp_path)
    assert one.recall >= found and sum(one.true.values()) > 400, one.missed[:9]
    assert one.precision == 1 and sum(one.claimed.values()) > 350, one.wrong[:9]


@pytest.mark.parametrize(
    "name",
    ["ep2 combined, overlapped messages", "ep2 dp2 combined, torch 2.4"],
)
@pytest.mark.long
def test_steps_that_run_into_each_other_on_two_streams_keep_their_waits_apart_without_rows(name, tmp_path):
    """What a call hands over from stream to stream, and what waits for which step's communication."""
    one = edges.outcome(dict(edges.jobs())[name], "stripped", tmp_path)
    assert one.recall >= 0.96, one.missed[:9]
    assert one.precision >= 0.985, one.wrong[:9]


DEAR_GAINS = (
    *("tp2 pp4 over nodes stall 0", "tp2 pp4 over nodes slow gpu 4"),
    *(
        "tp2 pp2 torch 2.3 collection 1",
        "tp2 dp2 pp2 slow gpu 3",
        "combined ep2 pp2 slow gpu 1",
        "pp4 stall 0",
        "tp2 dp2 pp2 slow gpu 3, link 4",
    ),
    *(
        "dp4 varying sequences, tiny kernels 1",
        "pp4 split, no stacks",
        "dp2 pp2 slow link 1",
        "tp2 dp2 pp2 slow group, stall",
    ),
    *(
        "tp2 dp2 pp2 slow gpu 3 beside its pause",
        "dp4 graph break 1",
        "combined ep2 pp2 uneven",
        "dp3 algorithm 1",
        "dp2 pp2 vpp2 to 1f1b",
        "tp2 dp2 pp2 pause 3 beside its slow gpu",
    ),
)


@pytest.mark.parametrize(
    "name",
    [
        "pp2 split",
        *(
            pytest.param(dear, marks=pytest.mark.long)
            for dear in ("dp2 small hidden wait", "dp3 throttled gpu 1", "dp4 whole graph throttled gpu 0", *DEAR_GAINS)
        ),
    ],
)
def test_a_predicted_gain_comes_true(name, tmp_path):
    (case,) = (case for case in cases() if case.name == name)
    one = outcome(case, tmp_path)
    assert one.right, (one.gain_ns, one.true_gain_ns)


@pytest.mark.long
def test_hiding_communication_never_hides_waiting_for_a_slow_rank(tmp_path):
    with analysed(small(tp=4, faults=replace(small().faults, slow_gpu=2)), tmp_path) as iteration:
        (ranked,) = steps_of(iteration)
    what_if = WhatIf(ranked.step, ranked.stages)
    together = what_if.predict(what_if.hide("all"), what_if.fix_rank(2))
    hidden, fixed = what_if.predict(what_if.hide("all")), what_if.predict(what_if.fix_rank(2))
    assert 0 < hidden.gain_ns < together.gain_ns
    assert fixed.gain_ns < together.gain_ns
    assert what_if.predict().gain_ns == 0


@pytest.mark.long
@pytest.mark.parametrize("lost", fast(["communication", "members_found"], "communication"))
def test_a_gain_that_depends_on_unmatched_communication_is_not_predicted_and_its_bar_holds_the_truth(lost, tmp_path):
    with analysed(small(tp=4, faults=replace(small().faults, slow_gpu=2, slow_gpu_factor=3.0)), tmp_path) as iteration:
        collectives, messages = iteration.table("collectives"), iteration.table("messages")
        place = collectives.schema.get_field_index(lost)
        values = pa.nulls(len(collectives)) if lost == "communication" else pc.subtract(collectives[lost], 1)
        unsure = collectives.set_column(place, lost, values.cast(collectives.schema.field(lost).type))
        (known,), (open_,) = (
            [WhatIf(each.step, each.stages) for each in ranked_steps(iteration, table, messages)]
            for table in (collectives, unsure)
        )
    for rank in (1, 2):
        true, told = known.predict(known.fix_rank(rank)), open_.predict(open_.fix_rank(rank))
        assert true.undecided is None and told.gain_low_ns <= true.gain_ns <= told.gain_high_ns
    assert true.gain_ns > 0.01 * true.step_ns
    assert "communication kernels are not matched with all their members" in told.undecided
    suspects = Suspects(ranks=[1, 2])
    assert 2 in {edit.rank for edit, _ in open_.standard_and_refused(suspects)[1] if edit.name == "fix_rank"}
    assert not known.standard_and_refused(suspects)[1] or 2 not in {
        edit.rank for edit, _ in known.standard_and_refused(suspects)[1] if edit.name == "fix_rank"
    }


def test_what_a_free_host_would_gain_more_is_no_open_question_beside_one(job, monkeypatch):
    """What several groups may have met in changes nothing of the gain, whose bar a pausing host makes wide."""
    (ranked,) = steps_of(job("1f1b"))
    monkeypatch.setattr("traceviz_dag.analyze.causes.what_if.error_bar", lambda gain, *_: (gain, 4 * gain))
    what_if = WhatIf(ranked.step, ranked.stages, loose=ranked.step)
    told = what_if.predict(what_if.hide("all"))
    assert what_if.open_question is not None and told.undecided is None
    assert told.gain_high_ns - told.gain_ns > WIDEST * told.step_ns


@pytest.mark.parametrize("blind", [(3,), pytest.param((0, 1, 2, 3), marks=pytest.mark.long)])
@pytest.mark.long
def test_a_gain_that_depends_on_launches_that_are_not_recorded_is_not_predicted_and_the_verdict_says_so(
    blind, tmp_path
):
    """Operators still stand for the launches of most kernels, but for those of no message between stages."""
    simulate(small(pp=2, dp=2, layers=4, faults=replace(small().faults, slow_gpu=3)), tmp_path / "job", workers=1)
    for rank in blind:
        (path,) = (tmp_path / "job").rglob(f"rank_{rank:04}_*.gz")
        content = json.loads(gzip.decompress(path.read_bytes()))
        lost = ("cuda_runtime", "cuda_driver", "ac2g")
        kept = [row for row in content["traceEvents"] if row.get("cat") not in lost]
        path.write_bytes(gzip.compress(json.dumps({**content, "traceEvents": kept}).encode()))
    fill_home(tmp_path / "home", [tmp_path / "job"])
    lake = open_lake(tmp_path / "home")
    (place,) = lake.partitions("topology")
    found = stored_verdict(lake, place.run, place.iteration, "")
    told = {row["edit"]: row for row in lake.query("FROM what_if WHERE rank IS NULL OR rank = 3").to_pylist()}
    for edit in ("fix_rank", "host_free", "no_pauses"):
        assert told[edit]["gain_ns"] is None and "recorded no launches of communication" in told[edit]["refusal"], edit
    assert found is not None
    assert f"launches of some kernels are not recorded on {len(blind)} of 4 ranks" in found.doubts


@pytest.mark.long
def test_lost_kernels_of_communication_blame_no_innocent_peer_and_no_answer_is_sure(tmp_path):
    faults = replace(small().faults, slow_gpu=5, slow_gpu_factor=1.3)
    settings = JobSettings(tp=2, pp=2, dp=2, layers=4, microbatches=4, seed=31001, faults=faults)
    simulate(settings, tmp_path / "job", workers=1)
    for path in sorted((tmp_path / "job").rglob("rank_*.gz")):
        draw = random.Random(100 + int(path.name[5:9]))
        content = json.loads(gzip.decompress(path.read_bytes()))
        # With their launches: else the rank counts as read in part.
        lost = {
            row["args"]["correlation"]
            for row in content["traceEvents"]
            if row.get("cat") == "kernel" and "nccl" in row["name"] and draw.random() < 0.1
        }
        kept = [row for row in content["traceEvents"] if row.get("args", {}).get("correlation") not in lost]
        path.write_bytes(gzip.compress(json.dumps({**content, "traceEvents": kept}).encode()))
    answer = call("analyze", tmp_path / "job", "--home", tmp_path / "home", "--no-report")
    assert answer.code == 2 and "their traces lost rows" in answer.err
    lake = open_lake(tmp_path / "home")
    assert {row["rank"] for row in lake.query("FROM findings WHERE rule = 'slow_rank'").to_pylist()} == {5}
    late = {row["rank"]: row["own_ns"] for row in lake.query("FROM late_ranks").to_pylist()}
    assert late[4] < 0.3 * late[5], "what it hands on would be its own"


@pytest.mark.long
def test_the_bar_of_congestion_holds_what_transfers_lost_that_have_too_few_like_them_to_be_judged(tmp_path):
    """A burst hits the only all-reduce of the embedding, which no like one shows to be slow."""
    found = {}
    for bursts in (0.3, 0.0):
        settings = JobSettings(tp=4, pp=2, layers=4, microbatches=2, seed=89254, stacks=False, node_size=4)
        settings = replace(
            settings, overlap_grad_reduce=False, overlap_param_gather=False, faults=Faults(bursts=bursts)
        )
        with analysed(settings, tmp_path / f"{bursts}") as iteration:
            (ranked,) = steps_of(iteration)
        found[bursts] = ranked.what_if()
    (edit,) = (edit for edit in found[0.3].general() if edit.name == "no_congestion")
    told, true = found[0.3].predict(edit), found[0.3].step_ns - found[0.0].step_ns
    assert told.gain_low_ns <= told.gain_ns < true <= told.gain_high_ns


@pytest.mark.long
def test_a_slow_rank_that_a_slower_stage_hides_is_a_finding_with_what_it_saves_after_that(tmp_path):
    """Ranks 0 and 1 are slow stages of one pipeline: alone rank 1 costs next to nothing, both cost 14 % together."""
    settings = JobSettings(
        pp=4, vpp=2, layers=8, microbatches=8, sequence=1024, persistent=True, seed=71010, iterations=1
    )
    settings = settings.with_faults(slow_stage=1, slow_group=0)
    with analysed(settings, tmp_path) as iteration:
        found = [row for row in iteration.findings() if row["class"] == "fault" and row["severity"] == "finding"]
    assert [row["rank"] for row in found] == [0, 1]
    assert found[1]["gain_ns"] < 0.01 * found[1]["step_ns"] < found[1]["gain_after_ns"]


def test_a_link_whose_transfers_nobody_else_makes_says_how_much_of_them_stays(tmp_path):
    """The group of context parallelism shows its slow link; of the gradients' all-reduce there is no other group."""
    job = JobSettings(cp=2, dp=2, layers=2, microbatches=2, iterations=1, seed=5031).with_faults(slow_link=1)
    with analysed(job, tmp_path) as iteration:
        (found,) = (row for row in iteration.findings() if row["rule"] == "slow_link")
        (predicted,) = (row for row in iteration.table("what_if").to_pylist() if row["edit"] == found["edit"])
    share = predicted["untouched_share"]
    assert share > 0.5 and f"{share:.0%}".replace("%", " %") in found["detail"]
    assert "or up to" in found["statement"] and found["gain_high_ns"] > 2 * found["gain_ns"]


@pytest.mark.long
def test_work_that_no_peer_runs_is_known_where_peers_differ_among_each_other(tmp_path):
    """With dynamic context parallelism ranks run more or fewer of a kernel."""
    healthy = JobSettings(cp=2, dp=4, layers=2, microbatches=2, dynamic_context=True, iterations=1, seed=72023)
    busy = what_if_of(healthy.with_faults(tiny_kernels=3, tiny_kernels_count=500), tmp_path / "busy")
    true_ns = busy.step_ns - what_if_of(healthy, tmp_path / "usual").step_ns
    assert busy.predict(busy.fix_rank(3)).gain_ns == pytest.approx(true_ns, rel=0.1)


@pytest.mark.long
def test_fixing_a_host_that_pauses_takes_no_jitter_off_its_gpu(tmp_path):
    """Which the median of its peers would, though no GPU is as even as that."""
    healthy = small(cp=2, dp=2)
    with analysed(replace(healthy, faults=Faults(data_stall=1)), tmp_path / "late") as iteration:
        (found,) = (row for row in iteration.findings() if row["rule"] == "data_stall")
    true_ns = found["step_ns"] - what_if_of(healthy, tmp_path / "usual").step_ns
    assert (found["edit"], found["rank"], found["severity"]) == ("no_pauses", 1, "finding")
    assert found["gain_ns"] == pytest.approx(true_ns, rel=0.001)


def test_what_a_missing_rank_was_waited_for_is_no_transfer_and_no_sure_gain(tmp_path):
    """Of the messages with a stage that was not read, nothing shows the wait from the transfer."""
    with analysed(small(pp=2, edges=Edges(missing_rank=0)), tmp_path) as iteration:
        (ranked,) = steps_of(iteration)
        path = iteration.table("path_segments").to_pylist()
        rows = iteration.kernels(1, ("kernel_id", "kind", "dimension", "duration_ns")).to_pylist()
    messages = {row["kernel_id"]: row["duration_ns"] for row in rows if row["dimension"] == "pp"}
    on_path = [row for row in path if row["kernel_id"] in messages and row["cause"] not in ("launch", "unexplained")]
    assert {row["cause"] for row in on_path} == {"unmatched"} and "transfer" not in {row["cause"] for row in path}
    what_if = WhatIf(ranked.step, ranked.stages)
    hidden, faster = (what_if.predict(edit) for edit in (what_if.hide("pp"), what_if.faster("pp", 2)))
    assert hidden.gain_ns == faster.gain_ns == 0 >= hidden.gain_low_ns
    assert 0 < faster.gain_high_ns < hidden.gain_high_ns
    assert hidden.gain_high_ns >= sum(row["duration_ns"] for row in on_path)
    equal = next(edit for edit in what_if.general() if edit.name == "equal_stages")
    with pytest.raises(NoEvidenceError, match="no rank of pipeline stage 0 was read"):
        what_if.predict(equal)


def test_what_would_change_ranks_that_nobody_saw_is_not_predicted(tmp_path):
    """The slow GPU is in the other replica: what all ranks would gain, this one does not show."""
    settings = small(pp=2, dp=2, faults=Faults(slow_gpu=1), edges=Edges(captured_ranks="0,2"))
    with analysed(settings, tmp_path) as iteration:
        rows = iteration.table("what_if").to_pylist()
        assert iteration.completeness.partial is False
    general = [row for row in rows if row["rank"] is None and row["ranks"] is None]
    assert {row["edit"] for row in general} >= {"no_jitter", "equal_stages", "no_pauses", "hide"}
    for row in general:
        assert row["gain_ns"] is None and row["refusal"] == "it would also change 2 ranks that were not read whole"


def test_nor_is_it_where_no_group_shows_which_ranks_make_a_model(tmp_path):
    """One rank of a job with experts, whose groups bear no names."""
    edges, faults = Edges(captured_ranks="3"), Faults(garbage_collection=1)
    settings = small(pp=2, dp=4, ep=2, dispatcher=Dispatcher.DEEPEP, faults=faults, edges=edges)
    (path,) = simulate(settings, tmp_path / "job", workers=1).glob("iteration_*/rank_0003*")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    for group in trace["distributedInfo"]["pg_config"]:
        group["pg_desc"] = "undefined"
    for row in trace["traceEvents"]:
        row.get("args", {}).pop("Process Group Description", None)
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    with iterations_at(tmp_path / "job", tmp_path / "home") as (iteration,):
        assert not iteration.topology.replicas.closure
        rows = iteration.table("what_if").to_pylist()
    general = [row for row in rows if row["rank"] is None and row["ranks"] is None]
    assert general and {row["refusal"] for row in general} == {"it would also change 7 ranks that were not read whole"}


@pytest.mark.parametrize(
    ("name", "untold"),
    [
        (
            "one rank",
            {
                "fix_rank": "rank 0 is the only one that was read, so nothing shows what is usual",
                "equal_stages": "only one pipeline stage was read, so there are none to even out",
                "balanced_experts": "no all-to-alls show experts whose load differs",
            },
        ),
        (
            "data alone",
            {"even_layers": "only one pipeline stage was read", "fix_link": "no transfer without rank 0"},
        ),
    ],
)
def test_edits_that_a_step_shows_nothing_of_are_refused_and_not_ranked(job, name, untold):
    iteration = job(name)
    (ranked,) = steps_of(iteration)
    what_if = WhatIf(ranked.step, ranked.stages)
    standard = [edit.name for one in what_if.standard() for edit in one.edits]
    edits = {edit.name: edit for edit in (*what_if.general(), what_if.fix_rank(0), what_if.fix_link(0))}
    assert {"no_pauses", "host_free"} <= set(standard) and not set(untold) & set(standard)
    for edit, reason in untold.items():
        with pytest.raises(NoEvidenceError, match=reason):
            what_if.predict(edits[edit])


def test_kernels_that_every_stage_runs_equally_often_do_not_grow_with_its_layers():
    """Of 6 and 2 layers: three backward kernels of each micro-batch become those of a kind of their own."""
    lake = open_lake(home_of("bad_split"))
    (part,) = lake.partitions("topology")
    (ranked,) = steps_of(StoredIteration(lake, part.run, part.iteration))
    factors = StepEdits(ranked.step, ranked.stages).layers.factor
    works, moved = [], []
    for work, factor in zip(ranked.step.works, factors, strict=True):
        of_layers = np.flatnonzero((work.kernels.layer == MISSING) & (factor != 1))
        batches = work.kernels.microbatch[of_layers]
        chosen = np.concatenate([of_layers[batches == batch][:3] for batch in np.unique(batches)])
        signature = work.kernels.signature.copy()
        signature[chosen] = 1
        works.append(replace(work, kernels=replace(work.kernels, signature=signature)))
        moved.append(chosen)
    after = StepEdits(replace(ranked.step, works=tuple(works)), ranked.stages).layers.factor
    assert all(len(chosen) > 3 and (factor[chosen] == 1).all() for chosen, factor in zip(moved, after, strict=True))


def test_a_recorded_wait_makes_the_edge_it_says(shared_data, tmp_path):
    """The wait of stream 24 is for stream 20, and none is for stream 28."""
    file = shared_data / "kineto" / "hta_sync" / "cuda_event_sync_multi_stream.json.gz"
    with iterations_at(file, tmp_path) as (iteration,):
        table = iteration.table("path_edges")
        recorded = table.filter(pc.equal(table["edge_evidence"].cast(pa.string()), "recorded")).to_pylist()
        (rank,) = iteration.ranks
        rows = iteration.kernels(rank, ("kernel_id", "stream")).to_pylist()
        stream = {row["kernel_id"]: row["stream"] for row in rows}
    pairs = {
        (stream[row["waited_for_kernel_id"]], stream[row["waiting_kernel_id"]])
        for row in recorded
        if row["waiting_kernel_id"] is not None
    }
    assert (20, 24) in pairs
    assert not [pair for pair in pairs if 28 in pair]


def test_a_wait_that_is_not_recorded_is_unknown_rather_than_wrong(shared_data, tmp_path):
    """The same trace without its rows of synchronisation: no edge but that of streams 20 and 24."""
    source = shared_data / "kineto" / "hta_sync" / "cuda_event_sync_multi_stream.json.gz"
    trace = json.loads(gzip.decompress(source.read_bytes()))
    rows = [row for row in trace["traceEvents"] if row.get("cat") != "cuda_sync"]
    assert len(rows) < len(trace["traceEvents"])
    file = tmp_path / "stripped.json"
    file.write_text(json.dumps({**trace, "traceEvents": rows}))
    with iterations_at(file, tmp_path / "home") as (iteration,):
        table = iteration.table("path_edges").to_pylist()
        kernels = iteration.kernels(iteration.ranks[0], ("kernel_id", "stream")).to_pylist()
    stream = {row["kernel_id"]: row["stream"] for row in kernels}
    known = [row for row in table if row["kind"] == "event" and row["edge_evidence"] != "unknown"]
    assert {(stream[row["waited_for_kernel_id"]], stream[row["waiting_kernel_id"]]) for row in known} <= {(20, 24)}


def test_an_export_of_nsight_systems_ties_streams_by_its_events_and_hosts_by_their_calls(tmp_path):
    """A GPU whose clock is ahead: what the host waited for ends 6 us after the call's return, as in real exports."""
    us = 1_000
    export = Export()
    named = ((10, "cudaLaunchKernel"), (20, "cudaEventRecord"), (30, "cudaStreamWaitEvent"), (40, "cudaLaunchKernel"))
    for correlation, (start, name) in enumerate(named, 1):
        export.call(start * us, (start + 5) * us, correlation, name=name)
    export.record(2, 900)
    export.synchronization(31 * us, 32 * us, 3, sync_id=900)
    export.kernel(100 * us, 200 * us, "producer", correlation=1)
    export.kernel(210 * us, 300 * us, "consumer", stream=20, correlation=4)
    export.call(50 * us, 294 * us, 5, name="cudaStreamSynchronize")
    export.synchronization(51 * us, 294 * us, 5, kind=3)
    export.call(320 * us, 325 * us, 6)
    export.kernel(340 * us, 350 * us, "last", correlation=6)
    with iterations_at(export.write(tmp_path / "job.sqlite"), tmp_path / "home") as (iteration,):
        edges_found = iteration.table("path_edges").to_pylist()
        path = iteration.table("path_segments").to_pylist()
        (rank,) = iteration.ranks
        rows = iteration.kernels(rank, ("kernel_id", "name")).to_pylist()
    name_of = {row["kernel_id"]: row["name"] for row in rows} | {None: "host"}
    told = {
        (row["kind"], row["edge_evidence"], name_of[row["waited_for_kernel_id"]], name_of[row["waiting_kernel_id"]])
        for row in edges_found
    }
    assert told == {
        ("event", "recorded", "producer", "consumer"),
        ("synchronisation", "order", "consumer", "host"),
    }
    # The step ends with the GPU, since no ProfilerStep shows when its host ended.
    assert [(row["cause"], name_of[row["kernel_id"]]) for row in path if row["cause"] == "work"] == [
        ("work", name) for name in ("producer", "consumer", "last")
    ]
    assert sum(row["duration_ns"] for row in path) == 340 * us


def test_a_real_export_spends_its_step_on_work_and_hosts_and_not_in_calls_that_wait(shared_data, tmp_path):
    with iterations_at(shared_data / "nsys" / "mfu_2gpu_before.sqlite", tmp_path) as (iteration,):
        path = iteration.table("path_segments")
        edges_found = iteration.table("path_edges").to_pylist()
    spent = dict(
        path.group_by("cause")
        .aggregate([("duration_ns", "sum")])
        .select(["cause", "duration_ns_sum"])
        .to_pandas()
        .values
    )
    assert sum(spent.values()) == 299_848_812
    assert spent["synchronisation"] < 0.01 * sum(spent.values()) < spent["work"]
    assert {row["rank"] for row in edges_found if row["kind"] == "synchronisation"} == {0, 1}


def test_work_that_waits_for_itself_is_named_and_costs_no_other_table(job):
    """Two ranks that carried two messages in opposite orders cannot both have waited for the other."""
    iteration = job("1f1b")
    collectives, messages = iteration.table("collectives"), iteration.table("messages")
    first = messages.slice(0, 1).to_pylist()[0]
    later = [row for row in messages.to_pylist() if row["sender_rank"] == first["sender_rank"]][-1]
    crossed = [
        {**first, "receiver_kernel_id": later["receiver_kernel_id"], "receiver_rank": later["receiver_rank"]},
        {**later, "receiver_kernel_id": first["receiver_kernel_id"], "receiver_rank": first["receiver_rank"]},
    ]
    wrong = pa.Table.from_pylist(crossed, schema=messages.schema)
    tables = causes_tables(iteration, collectives, wrong)
    (row,) = tables["what_if"].to_pylist()
    assert row["refusal"].startswith("work waits for itself in a circle: kernel ")
    assert tables["path_segments"].num_rows == 0


def test_hiding_communication_of_a_rank_gains_no_more_than_there_is_of_it(tmp_path, shared_data):
    fill_home(tmp_path, [shared_data / "kineto/tracelens/b200_vllm_eager.json.gz"])
    (row,) = (
        open_lake(tmp_path)
        .query(
            "SELECT gain_low_ns, gain_ns, gain_high_ns, communication_ns FROM what_if JOIN overlap USING (dimension) "
            "WHERE edit = 'hide' AND dimension = 'tp' AND window_name = 'kernels'"
        )
        .to_pylist()
    )
    assert 0 <= row["gain_low_ns"] <= row["gain_ns"] <= row["gain_high_ns"] <= row["communication_ns"]


@pytest.mark.long
def test_no_step_is_predicted_shorter_than_the_kernels_of_a_stream_take(tmp_path, shared_data):
    fill_home(tmp_path, [shared_data / "kineto/hta/nccl_parser_config.json.gz"])
    rows = (
        open_lake(tmp_path)
        .query(
            "SELECT step_ns - gain_high_ns AS least_ns, busy_ns FROM what_if JOIN (SELECT iteration, max(busy_ns) AS "
            "busy_ns FROM (SELECT iteration, stream, sum(duration_ns) AS busy_ns FROM kernels WHERE step IS NOT NULL "
            "GROUP BY ALL) GROUP BY iteration) USING (iteration) WHERE edit = 'host_free'"
        )
        .to_pylist()
    )
    assert len(rows) >= 3
    assert all(row["least_ns"] >= row["busy_ns"] for row in rows)


def test_a_step_that_cannot_be_replayed_does_not_keep_others_from_saying_what_fixes_save_together():
    """The first of two steps has lost its kernels."""

    class Lost(StoredIteration):
        def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
            table = super().kernels(rank, columns)
            if "step" not in columns:
                return table
            return table.filter(pc.not_equal(table["step"], pc.min(table["step"])))

    (whole,) = analysed_at(traces_of("two_steps"))
    lost = Lost(whole.lake, whole.run, whole.iteration)
    assert [len(list(each.what_ifs())) for each in (whole, lost)] == [2, 1]
    with pytest.raises(NoEvidenceError, match="no rank has kernels in this step"):
        steps_of(lost)
