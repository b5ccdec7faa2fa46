"""Schedules: the order of steps and exchanges equals that of authentic traces, and no job can hang."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from pathlib import Path

import msgspec
import pytest
from isal import igzip

from traceviz_dag.schedules import Backward, Combined, Exchange, Forward, InputGradient, Order, WeightGradient
from traceviz_dag.simulate.schedules import schedule_of
from traceviz_dag.simulate.settings import JobSettings

AUTHENTIC = {
    "pp4_1f1b": JobSettings(pp=4, microbatches=4),
    "tp2_pp2_vpp2_full": JobSettings(tp=2, pp=2, vpp=2, microbatches=4),
    "pp2_dp2_distopt_overlap": JobSettings(pp=2, dp=2, microbatches=4),
    "pp2_ep2_moe": JobSettings(pp=2, dp=2, ep=2, microbatches=4),
}
_SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
_P2P = "megatron/core/pipeline_parallel/p2p_communication.py"


class _Event(msgspec.Struct):
    name: str
    ts: float
    cat: str = ""


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]


def _python_frames(shared_data: Path, run: str, rank: int) -> list[str]:
    """Names of functions, in the order of their starts, without lines."""
    file = shared_data / "megatron_cpu" / run / "iteration_2" / f"rank_{rank:04d}_iter_2.pt.trace.json.gz"
    events = msgspec.json.decode(igzip.decompress(file.read_bytes()), type=_Trace).traceEvents
    frames = sorted((event for event in events if event.cat == "python_function"), key=lambda event: event.ts)
    return [re.sub(r"\(\d+\)", "", frame.name) for frame in frames]


def _authentic_order(frames: list[str]) -> list[str]:
    """F and B of forward_step and backward_step, chunk numbers of F, and the exchanges by name."""
    order = []
    for name in frames:
        if name == f"{_SCHEDULES}: forward_step":
            order.append("F")
        elif name == f"{_SCHEDULES}: backward_step":
            order.append("B")
        elif name.startswith("nn.Module: DistributedDataParallel_"):
            order[-1] = f"F{name[-1]}" if order[-1] == "F" else order[-1]
        elif name.startswith(f"{_P2P}: send_") or name.startswith(f"{_P2P}: recv_"):
            order.append(name.removeprefix(f"{_P2P}: "))
    return order


def _simulated_order(settings: JobSettings, stage: int) -> list[str]:
    order = []
    for action in schedule_of(settings, stage):
        if isinstance(action, Forward):
            order.append(f"F{action.chunk}")
        elif isinstance(action, Backward):
            order.append("B")
        elif isinstance(action, Exchange):
            order.append(action.call)
    return order


@pytest.mark.parametrize("run", AUTHENTIC)
def test_order_and_messages_equal_the_authentic_traces(shared_data: Path, run: str):
    settings = AUTHENTIC[run]
    ranks_per_stage = settings.world // settings.pp
    c10d = "torch/distributed/distributed_c10d.py"
    for rank in range(settings.world):
        frames, stage = _python_frames(shared_data, run, rank), rank // ranks_per_stage
        assert _simulated_order(settings, stage) == _authentic_order(frames), (run, rank)
        names = Counter(frames)
        exchanges = [a for a in schedule_of(settings, stage) if isinstance(a, Exchange)]
        sends = [transfer.sends for exchange in exchanges for transfer in exchange.transfers]
        assert (sends.count(True), sends.count(False)) == (names[f"{c10d}: isend"], names[f"{c10d}: irecv"])
        assert sum(bool(e.transfers) for e in exchanges) == names[f"{c10d}: batch_isend_irecv"]


def test_second_of_four_stages_starts_as_megatron_does():
    steps = [a for a in schedule_of(JobSettings(pp=4, microbatches=4), 1) if isinstance(a, Forward | Backward)]
    assert "".join("F" if isinstance(step, Forward) else "B" for step in steps) == "FFFBFBBB"


def test_zero_bubble_runs_each_gradient_of_weights_once_after_that_of_its_inputs_and_the_first_stage_as_1f1b():
    for stages, count in ((2, 2), (4, 3), (4, 8), (3, 16)):
        assert Order(stages, 1, count, split=True).actions(0) == Order(stages, 1, count).actions(0)
        for stage in range(1, stages):
            actions = Order(stages, 1, count, split=True).actions(stage)
            plain = Order(stages, 1, count).actions(stage)
            left = [each.microbatch for each in actions if isinstance(each, InputGradient)]
            done = [each.microbatch for each in actions if isinstance(each, WeightGradient)]
            assert done == left, "the oldest first"
            for one in left:
                assert actions.index(InputGradient(0, one)) < actions.index(WeightGradient(0, one))
            rest = [each for each in actions if not isinstance(each, WeightGradient)]
            assert [Backward(0, each.microbatch) if isinstance(each, InputGradient) else each for each in rest] == [
                *plain
            ]


def test_last_of_four_stages_leaves_three_gradients_of_weights_and_the_last():
    letters = {Forward: "F", Backward: "B", InputGradient: "I", WeightGradient: "W"}
    steps = [letters[type(each)] for each in Order(4, 1, 5, split=True).actions(3) if type(each) in letters]
    assert "".join(steps) == "FIFIFIFBFIWWWW"


def _jobs():
    for pp, vpp, rounds in product((2, 3, 4), (1, 2, 3), (1, 2, 4)):
        for overlap_p2p, overlap_expert in product((False, True), repeat=2):
            if vpp > 1 or not (overlap_p2p or overlap_expert):
                yield JobSettings(
                    pp=pp,
                    vpp=vpp,
                    layers=pp * vpp,
                    microbatches=pp * rounds,
                    overlap_p2p=overlap_p2p,
                    overlap_expert=overlap_expert,
                    dp=2,
                    ep=2 if overlap_expert else 1,
                )


def test_every_step_runs_once_and_forward_before_backward():
    for settings in _jobs():
        for stage in range(settings.pp):
            done: dict[str, list[tuple[int, int]]] = {"F": [], "B": []}
            for action in schedule_of(settings, stage):
                parts = [action.forward, action.backward] if isinstance(action, Combined) else [action]
                for part in parts:
                    if isinstance(part, Forward):
                        done["F"].append((part.chunk, part.microbatch))
                    elif isinstance(part, Backward):
                        assert (part.chunk, part.microbatch) in done["F"]
                        done["B"].append((part.chunk, part.microbatch))
            everything = sorted(product(range(settings.vpp), range(settings.microbatches)))
            assert sorted(done["F"]) == sorted(done["B"]) == everything


def test_each_message_has_its_other_end():
    for settings in _jobs():
        posted: Counter = Counter()
        for stage in range(settings.pp):
            for action in schedule_of(settings, stage):
                for transfer in action.transfers if isinstance(action, Exchange) else ():
                    peer = transfer.peer(stage, settings.pp)
                    ends = (stage, peer) if transfer.sends else (peer, stage)
                    posted[ends, transfer.gradient] += 1 if transfer.sends else -1
        assert not any(posted.values()), settings
