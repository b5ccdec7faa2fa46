"""The model's times obey causality: streams are FIFO, nobody receives before it is sent, collectives end together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
import pytest

from tests.simulate.conftest import SOME_CONFIGURATIONS, Job, small
from traceviz_dag.simulate.items import Segment
from traceviz_dag.simulate.program.program import step_items
from traceviz_dag.simulate.settings import Faults, JobSettings, Recompute
from traceviz_dag.simulate.timing.model import Model

END_SPREAD_NS = 500


def _end(truth: pd.DataFrame) -> pd.Series:
    return truth["true_ts_ns"] + truth["dur_ns"]


@pytest.mark.parametrize("name", SOME_CONFIGURATIONS)
def test_streams_run_one_kernel_at_a_time(job_of: Callable[[str], Job], name: str):
    truth = job_of(name).truths()
    for _, kernels in truth.groupby(["rank", "stream"]):
        ordered = kernels.sort_values(["ts_ns", "dur_ns"])
        ends = (ordered["ts_ns"] + ordered["dur_ns"]).to_numpy()
        assert (ordered["ts_ns"].to_numpy()[1:] >= ends[:-1]).all()


@pytest.mark.parametrize("name", SOME_CONFIGURATIONS)
def test_wait_and_transfer_make_up_the_duration(job_of: Callable[[str], Job], name: str):
    truth = job_of(name).truths()
    assert (truth["wait_ns"] + truth["transfer_ns"] == truth["dur_ns"]).all()
    assert (truth[["wait_ns", "transfer_ns", "exposed_ns"]] >= 0).all().all()
    assert (truth["exposed_ns"] <= truth["dur_ns"]).all()
    quiet = truth[truth["kind"] != "communication"]
    assert (quiet["wait_ns"] == 0).all()


@pytest.mark.parametrize("name", SOME_CONFIGURATIONS)
def test_collectives_wait_for_their_last_member_and_end_together(job_of: Callable[[str], Job], name: str):
    job = job_of(name)
    truth = job.truths()
    collectives = truth[truth["match"].str.startswith("coll:")].assign(end=_end)
    assert len(collectives) or job.settings.world == 1
    for (match, peers), members in collectives.groupby(["match", "peers"], observed=True):
        assert sorted(members["rank"]) == sorted(int(rank) for rank in peers.strip("[]").split(", ")), match
        assert members["end"].max() - members["end"].min() < END_SPREAD_NS
        arrived = members["true_ts_ns"] + members["wait_ns"]
        assert abs(arrived - members["true_ts_ns"].max()).max() <= 1
        assert members["dimension"].nunique() == members["group"].nunique() == 1


@pytest.mark.parametrize("name", ["plain_pipeline", "interleaved", "overlapped_p2p", "combined", "ring_attention"])
def test_messages_end_after_both_ends_have_started(job_of: Callable[[str], Job], name: str):
    truth = job_of(name).truths()
    messages = truth[truth["match"].str.startswith("p2p:")].assign(end=_end)
    parts = messages.assign(part=messages["match"].str.split("|")).explode("part")
    assert len(parts)
    for part, ends in parts.groupby("part"):
        source, destination = (int(rank) for rank in part.split(":")[2:4])
        assert sorted(ends["rank"]) == sorted((source, destination))
        assert ends["end"].min() > ends["true_ts_ns"].max()


@pytest.mark.parametrize("name", ["plain_pipeline", "overlapped_p2p", "combined", "combined_overlapped_p2p"])
def test_each_step_follows_the_one_whose_result_it_needs(job_of: Callable[[str], Job], name: str):
    job = job_of(name)
    spans = pd.read_parquet(job.folder / "truth" / "microbatches.parquet")
    stages, replicas = job.settings.pp, job.settings.world // job.settings.pp
    spans["place"] = spans["chunk"] * stages + spans["stage"]
    spans["replica"] = spans["rank"] % replicas
    key = ["replica", "place", "microbatch"]
    forward, backward = (spans[spans["phase"] == phase].set_index(key) for phase in ("forward", "backward"))
    places = stages * job.settings.vpp
    for replica, place, microbatch in product(range(replicas), range(places), range(job.settings.microbatches)):
        here = replica, place, microbatch
        assert backward.loc[here, "start_ns"] >= forward.loc[here, "end_ns"]
        if place + 1 < places:
            following = replica, place + 1, microbatch
            assert forward.loc[following, "start_ns"] > forward.loc[here, "end_ns"]
            assert backward.loc[here, "start_ns"] > backward.loc[following, "end_ns"]


def test_experts_hold_the_tokens_that_the_splits_say(job_of: Callable[[str], Job]):
    job = job_of("experts")
    events = [event for event in job.trace(0)["traceEvents"] if event.get("cat") == "kernel"]
    sizes = [event["args"] for event in events if event["args"].get("Collective name") == "all_to_allv"]
    assert sizes
    hidden = job.settings.hidden
    for facts in sizes:
        sent = sum(int(part) for part in facts["In split size"].strip("[]").split(", "))
        row = hidden if facts["dtype"] == "BFloat16" else 1
        assert facts["In msg nelems"] == sent * row
    assert len({facts["Out split size"] for facts in sizes}) > 1


def test_routing_reads_the_scores_of_all_experts():
    """With 32 times as many experts every kernel that reads tokens x experts takes longer, by its bytes at least."""

    def of_routing(experts: int) -> dict[str, int]:
        program = Model(small(dp=2, ep=2, experts=experts, sequence=65_536, layers=1, microbatches=1)).hosts[0].program
        segments = [item for item in step_items(program, 0, 1) if isinstance(item, Segment)]
        kernels = [kernel for each in segments for kernel in each.template.kernels]
        parts = ("gatherTopK", "softmax_warp_forward", "scatter_gather", "sum_functor<long")
        return {part: max(kernel.base_ns for kernel in kernels if part in kernel.name) for part in parts}

    few, many = of_routing(8), of_routing(256)
    read_ns = 65_536 * (256 - 8) / 3_350  # a byte for each, at the 3.35 TB/s of the GPU
    assert all(many[part] - few[part] > read_ns for part in few), (few, many)


def _computation(settings: JobSettings) -> np.ndarray:
    return np.array(
        [
            int((times.ends - times.starts)[[match == "" for match in times.match]].sum())
            for times in Model(settings).step(1)
        ]
    )


def test_a_slow_gpu_computes_longer_and_alone():
    settings = small(pp=2, dp=2)
    healthy, sick = _computation(settings), _computation(settings.with_faults(slow_gpu=2, slow_gpu_factor=1.5))
    ratio = sick / healthy
    assert ratio[2] == pytest.approx(1.5, rel=0.02)
    assert np.delete(ratio, 2) == pytest.approx(1.0, rel=0.02)


def test_a_slow_link_slows_transfers_not_computation(job_of: Callable[[str], Job]):
    job = job_of("slow_link")
    truth = job.truths()
    gradients = truth[truth["role"] == "grad_sync"].groupby("rank")["transfer_ns"].sum()
    assert gradients[0] > 3 * gradients[2]


def test_faults_on_the_host_stop_the_rank_that_has_them():
    settings = small(pp=1, dp=2, overlap_param_gather=False)

    def first_forward(faulty: JobSettings) -> list[int]:
        return [int(times.starts[5]) for times in Model(faulty).step(1)]

    healthy = first_forward(settings)
    stalled = first_forward(settings.with_faults(data_stall=1, data_stall_ms=30.0))
    assert stalled[1] - healthy[1] > 29_000_000
    assert abs(stalled[0] - healthy[0]) < 1_000_000


def test_recompute_takes_longer_than_none():
    plain, full = _computation(small(pp=2)), _computation(small(pp=2, recompute=Recompute.FULL))
    assert (full > 1.2 * plain).all()


def test_measures_look_like_a_real_jobs():
    """The demo's step takes some hundred ms, and about half of it is computation."""
    settings = JobSettings.demo()
    times = Model(settings).step(settings.first_iteration)
    steps = [int(rank.marks[-1] - rank.marks[0]) for rank in times]
    assert 150e6 < max(steps) < 1500e6
    busy = _computation(settings)
    assert 0.25 < busy.mean() / max(steps) < 0.9
    assert busy.argmax() == settings.faults.slow_gpu


def test_two_steps_of_one_model_differ_but_last_alike():
    model = Model(small(pp=2, faults=Faults()))
    first, second = (model.step(number) for number in (1, 2))
    lengths = [[int(rank.marks[-1] - rank.marks[0]) for rank in step] for step in (first, second)]
    assert lengths[0] != lengths[1]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.1)
