"""A fault can be left out with the same seed and nothing else changes; one that changes nothing is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from tests.sets import fast
from tests.simulate.conftest import CONFIGURATIONS, small
from traceviz_dag.errors import UsageError
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.items import Segment
from traceviz_dag.simulate.program.program import step_items
from traceviz_dag.simulate.settings import Faults, Graphs, JobSettings, Recompute
from traceviz_dag.simulate.timing.model import Model
from traceviz_dag.simulate.timing.streams import StepTimes
from traceviz_dag.simulate.work.faults import refuse_idle_faults

JOBS = {
    "1f1b": small(pp=2, dp=2, layers=6),
    "interleaved": small(tp=2, pp=2, vpp=2, layers=8, recompute=Recompute.FULL),
    "experts": small(pp=2, dp=2, ep=2, layers=6, overlap_grad_reduce=False, node_size=2),
    "combined": small(pp=2, vpp=2, dp=2, ep=2, layers=8, overlap_expert=True),
    "layer_graphs": small(tp=2, pp=2, layers=6, cuda_graphs=Graphs.LAYER),
    "without_stacks": small(dp=2, stacks=False),
    "nodes": small(tp=2, dp=2, pp=2, layers=2, node_size=2),
}
FAULTS = {
    "slow_gpu": {"slow_gpu": 1},
    "slow_link": {"slow_link": 1},
    "throttle": {"throttle": 1, "throttle_from_ms": 3.0, "throttle_to_ms": 6.0},
    "slow_group": {"slow_group": 1},
    "slow_node": {"slow_node": 0},
    "slow_stage": {"slow_stage": 0},
    "slow_nic": {"slow_nic": 1},
    "slow_memory": {"slow_memory": 1},
    "other_algorithm": {"other_algorithm": 0},
    "varying_sequences": {"varying_sequences": 0.5},
    "bursts": {"bursts": 0.4, "bursts_every_ms": 3.0},
    "loader_late": {"loader_late": 0, "loader_late_ms": 2.0},
    "data_stall": {"data_stall": 0, "data_stall_ms": 7.0},
    "garbage_collection": {"garbage_collection": 1, "garbage_collection_ms": 5.0},
    "hidden_synchronisation": {"hidden_synchronisation": 1},
    "pageable_copy": {"pageable_copy": 0},
    "graph_break": {"graph_break": 1, "graph_break_ms": 3.0},
    "tiny_kernels": {"tiny_kernels": 0, "tiny_kernels_count": 20},
    "expert_imbalance": {"expert_imbalance": 0.4},
    "bad_stage_split": {"bad_stage_split": 1},
    "slow_clock": {"slow_clock": 1},
}
OF_WHOLE_STAGES = ("zero", "finalize", "optimizer")
STEP = 3
OF_PARTS = (
    *("throttle", "slow_group", "slow_node", "slow_stage", "slow_nic", "slow_memory", "other_algorithm"),
    *("slow_clock", "varying_sequences", "bursts", "loader_late"),
)
"""Faults of parts of a job, which one job with nodes shows."""
PAIRS = [
    (name, fault)
    for name, job in JOBS.items()
    for fault in FAULTS
    if (name == "nodes") == (fault in OF_PARTS)
    and not (fault == "expert_imbalance" and job.ep == 1)
    and not (fault == "bad_stage_split" and job.pp == 1)
]
OF_OWN_WAYS = (
    *(("nodes", fault) for fault in OF_PARTS),
    *(("without_stacks", fault) for fault in ("data_stall", "garbage_collection", "slow_link", "tiny_kernels")),
    *(("experts", "expert_imbalance"), ("experts", "hidden_synchronisation"), ("interleaved", "pageable_copy")),
    *(("1f1b", "slow_gpu"), ("1f1b", "bad_stage_split"), ("layer_graphs", "bad_stage_split")),
    *(("combined", "graph_break"),),
)
"""Each fault in one job at least, and all jobs: together they take all ways through the simulator."""


def _program(key: str) -> str:
    """What the host runs in a segment; a stalled loader runs what any loader runs."""
    return "batch" if key.startswith("batch:") else key


def _times(settings: JobSettings) -> tuple[Model, list[StepTimes]]:
    model = Model(settings)
    return model, model.step(STEP)


_shared_times = cache(_times)


def _touches(fault: str, job: JobSettings, rank: int, communicates: bool) -> bool:
    """Whether a fault may change how long a kernel (of a communication: its transfer) takes."""
    chosen = FAULTS[fault].get(fault)
    if fault in ("slow_link", "slow_nic", "bursts", "varying_sequences") and communicates:
        return True
    of_ranks = {
        **dict.fromkeys(("slow_gpu", "throttle", "slow_clock", "slow_memory", "other_algorithm"), rank == chosen),
        "slow_group": rank // job.tp == 1 // job.tp,
        "slow_node": rank // job.node_size == 0,
        "slow_stage": rank < job.world // job.pp,
        "varying_sequences": True,
    }
    return not communicates and of_ranks.get(fault, False)


def _own(model: Model, times_of_ranks: list[StepTimes], fault: str) -> dict[tuple, int]:
    """Own durations (of communications: transfers) of kernels and lengths of host work, except where faults act."""
    found = {}
    for rank, times in enumerate(times_of_ranks):
        lengths, stalls, kernel = iter(times.marks.tolist()), iter(times.stalls), 0
        counts: Counter[tuple] = Counter()
        for item in step_items(model.hosts[rank].program, rank, STEP):
            next(lengths)
            if not isinstance(item, Segment):
                continue
            kind, at = item.template.key.partition(":")[0], item.context
            place = rank, kind, at.phase, at.microbatch, at.chunk, at.layer
            counts[place] += 1
            values = {(*place, counts[place], "host", _program(item.template.key)): next(lengths)}
            for _ in item.template.synchronisations:
                next(stalls)
            for launched in item.template.kernels:
                communicates = times.match[kernel] != ""
                begin = times.ready[kernel] if communicates else times.starts[kernel]
                what = launched.collective
                named = (*place, launched.name, what.role if what else "")
                counts[named] += 1
                key = (*named, counts[named])
                uneven = launched.by_tokens or bool(what and what.uneven)
                touched = _touches(fault, model.hosts[rank].settings, rank, communicates)
                if not touched and not (uneven and fault == "expert_imbalance"):
                    values[key] = int(times.ends[kernel] - begin)
                kernel += 1
            if not (kind in OF_WHOLE_STAGES and fault == "bad_stage_split"):
                found |= values
    return found


def _assert_left_alone(faulty: tuple[Model, list[StepTimes]], without: tuple[Model, list[StepTimes]], fault: str):
    job, healthy = _own(*faulty, fault), _own(*without, fault)
    common = job.keys() & healthy.keys()
    assert {key: job[key] for key in common} == {key: healthy[key] for key in common}
    if fault == "bad_stage_split":
        # A rank keeps its layers but for those that move and those whose number moves with them.
        assert 0.4 * len(healthy) < len(common) < len(healthy)
    else:
        assert common == healthy.keys() and common


@pytest.mark.parametrize(("name", "fault"), fast(PAIRS, *OF_OWN_WAYS))
def test_a_fault_changes_the_step_and_leaves_alone_what_it_does_not_touch(name: str, fault: str):
    settings = JOBS[name].with_faults(**FAULTS[fault])
    refuse_idle_faults(settings)
    faulty, healthy = _times(settings), _shared_times(JOBS[name])
    assert [times.ends.tolist() for times in faulty[1]] != [times.ends.tolist() for times in healthy[1]]
    _assert_left_alone(faulty, healthy, fault)


TOGETHER = {
    key: value
    for fault, settings in FAULTS.items()
    for key, value in settings.items()
    # Sequences vary in dense models only; what acts by the clock acts elsewhere when another fault goes.
    if fault not in ("varying_sequences", "throttle", "bursts")
}


@pytest.mark.parametrize("fault", fast([fault for fault in FAULTS if fault in TOGETHER], *list(TOGETHER)[::4]))
def test_one_of_several_faults_can_be_left_out(fault: str):
    faulty = JOBS["experts"].with_faults(**TOGETHER)
    without = faulty.with_faults(**{fault: getattr(Faults(), fault)})
    _assert_left_alone(_shared_times(faulty), _times(without), fault)


@pytest.mark.parametrize("stacks", [True, False])
def test_pauses_last_as_long_as_the_truth_says(stacks: bool):
    faults = Faults(data_stall=0, data_stall_ms=30.0, garbage_collection=1, garbage_collection_ms=12.5)
    stalls = [set(times.stalls.tolist()) for times in Model(small(dp=2, stacks=stacks, faults=faults)).step(1)]
    assert (30_000_000 in stalls[0], 12_500_000 in stalls[1]) == (True, True)


def test_faults_of_all_kinds_at_once_are_all_culprits(tmp_path: Path):
    simulate(JOBS["experts"].with_faults(**TOGETHER), tmp_path, workers=1)
    culprits = pd.read_parquet(tmp_path / "truth/culprits.parquet")
    assert sorted(culprits["fault"]) == sorted(fault for fault in FAULTS if fault in TOGETHER)
    ranks = dict(zip(culprits["fault"], map(list, culprits["ranks"]), strict=True))
    together = ranks["slow_gpu"], ranks["slow_node"], ranks["slow_stage"], ranks["expert_imbalance"]
    assert together == ([1], [0, 1], [0, 1], [])


def _slower(fault: str, **changes) -> dict[tuple[int, str], float]:
    """By how much kernels take longer with a fault, by rank and name of the kernel; a communication's transfer by its
    role."""
    totals = []
    for faults in ({}, FAULTS[fault] | changes):
        model, times_of_ranks = _times(JOBS["nodes"].with_faults(**faults))
        total: Counter[tuple[int, str]] = Counter()
        for rank, times in enumerate(times_of_ranks):
            items = step_items(model.hosts[rank].program, rank, STEP)
            launched = [kernel for item in items if isinstance(item, Segment) for kernel in item.template.kernels]
            begins = [
                ready if match else start
                for ready, start, match in zip(times.ready, times.starts, times.match, strict=True)
            ]
            for kernel, begin, end in zip(launched, begins, times.ends, strict=True):
                total[rank, kernel.collective.role if kernel.collective else kernel.name] += int(end - begin)
        totals.append(total)
    return {key: totals[1][key] / totals[0][key] for key in totals[0] if totals[0][key] and key in totals[1]}


def test_faults_of_parts_of_a_job_slow_what_they_name():
    """The flash kernel is bound by arithmetic, the layer norm by memory; dp goes between nodes, tp inside them."""
    flash, norm = "flash::flash_fwd", "ln_fwd_tuned"

    def kinds(ratios: dict[tuple[int, str], float], word: str) -> list[float]:
        return [round(value, 1) for (_, name), value in sorted(ratios.items()) if word in name]

    memory = _slower("slow_memory", slow_memory_factor=3.0)
    assert kinds(memory, norm) == [1.0, 3.0] + [1.0] * 6 and kinds(memory, flash) == [1.0] * 8
    clock = _slower("slow_clock", slow_clock_factor=1.5)
    assert kinds(clock, flash) == [1.0, 1.5] + [1.0] * 6 and kinds(clock, norm) == [1.0] * 8
    group, node, stage = (_slower(fault, **{f"{fault}_factor": 1.5}) for fault in OF_PARTS[1:4])
    assert kinds(group, flash) == kinds(node, flash) == [1.5] * 2 + [1.0] * 6
    assert kinds(stage, flash) == [1.5] * 4 + [1.0] * 4
    card = _slower("slow_nic")
    between = kinds(card, "grad_sync")
    assert kinds(card, "activation") == [1.0] * 8 and min(between) == 1.0 < 3.0 < max(between)


@pytest.mark.parametrize("name", ["combined", "experts"])
def test_a_hidden_wait_holds_the_host_in_each_forward_step(name: str):
    job = JOBS[name]
    waits = [len(Model(job.with_faults(**fault)).step(1)[1].stalls) for fault in ({}, FAULTS["hidden_synchronisation"])]
    assert waits[1] - waits[0] == job.vpp * job.microbatches


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            small(pp=4, dp=2, faults=Faults(data_stall=3)),
            "--data-stall 3: rank 3 is in stage 1 and loads no data; ranks 0-1, 6-7 do",
        ),
        (small(faults=Faults(slow_link=0)), "--slow-link 0: the job's only rank has no links"),
        (small(dp=2, faults=Faults(slow_nic=1)), "--slow-nic 1: the job is on one node"),
        (small(dp=2, node_size=2, faults=Faults(slow_nic=1)), "--slow-nic 1: the job is on one node"),
        (small(dp=2, faults=Faults(slow_node=1)), "--slow-node 1: the job runs on 1 nodes"),
        (small(experts=4, faults=Faults(expert_imbalance=0.5)), "raise --ep"),
        (small(pp=2, faults=Faults(slow_gpu=1, slow_gpu_factor=1.0)), "slow GPU of 1: it must be above 1"),
        (small(pp=2, faults=Faults(data_stall=1, data_stall_ms=0.0)), "data stall of 0: it must be above 0"),
        *(
            (replace(CONFIGURATIONS["whole_graph"], faults=Faults(**fault)), words)
            for fault, words in (
                ({"hidden_synchronisation": 1}, "--hidden-sync 1: with --cuda-graphs iteration"),
                ({"data_stall": 0}, "--data-stall 0: with --cuda-graphs iteration"),
                ({"garbage_collection": 2}, "--gc-pause 2: with --cuda-graphs iteration"),
            )
        ),
    ],
)
def test_faults_that_change_nothing_are_refused(tmp_path: Path, settings: JobSettings, words: str):
    with pytest.raises(UsageError) as caught:
        simulate(settings, tmp_path / "job", workers=1)
    assert words in str(caught.value)
    assert not (tmp_path / "job").exists()
