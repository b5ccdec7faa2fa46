"""The classification of small simulated jobs against what really happened: a slice of ``benchmarks/accuracy.py``."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.accuracy import (
    COMBINED,
    INTERLEAVED,
    MODELS_OF_TODAY,
    NSYS_PIPELINE,
    OLD,
    PIPELINE,
    SMALL,
    Configuration,
    Score,
    run,
)
from tests.damage import events_of, write_events
from tests.sets import fast
from traceviz_dag.analyze.accuracy import compared, shares
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import read_topology
from traceviz_dag.pipeline.ranks import classify_trace
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.truth import read_truth, truth_folder
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Faults, Graphs, Recompute

JOBS = {
    "combined_1f1b_interleaved": Configuration("stacks", "combined", COMBINED),
    "graphs_of_layers": Configuration("stacks", "graphs", replace(PIPELINE, cuda_graphs=Graphs.LAYER)),
    "without_stacks": Configuration(
        "no stacks", "interleaved", replace(INTERLEAVED, stacks=False, overlap_p2p=True, recompute=Recompute.FULL)
    ),
    "without_descriptions": Configuration(
        "no descriptions", "experts", replace(PIPELINE, ep=2, etp=1, era=OLD, stacks=False)
    ),
    "without_any_source": Configuration(
        "no descriptions", "no topology file, stacks off", replace(PIPELINE, era=OLD, stacks=False)
    ),
    "combined_without_stacks": Configuration(
        "no stacks", "combined, overlapped P2P", replace(COMBINED, stacks=False, overlap_p2p=True)
    ),
    "hybridep_without_stacks": Configuration(
        "no stacks", "HybridEP", MODELS_OF_TODAY["no stacks"]["experts over HybridEP"]
    ),
    "hybridep": Configuration("stacks", "HybridEP", MODELS_OF_TODAY["stacks"]["experts over HybridEP, tp2 etp2 ep4"]),
    "further_tokens": Configuration(
        "stacks", "MTP", MODELS_OF_TODAY["stacks"]["two further tokens, interleaved, experts"]
    ),
    "hybrid_without_groups": Configuration(
        "no stacks, no groups", "hybrid", MODELS_OF_TODAY["no stacks"]["hybrid model with experts, cp2"]
    ),
    "dynamic_context_without_stacks": Configuration(
        "no stacks", "dynamic context", MODELS_OF_TODAY["no stacks"]["dynamic context, tp2 cp2 dp2"]
    ),
    "agreement_after_the_optimizer": Configuration("stacks", "agreement", replace(PIPELINE, agreement=True)),
    "agreement_without_stacks": Configuration(
        "no stacks", "agreement", replace(PIPELINE, agreement=True, stacks=False, microbatches=6)
    ),
    "neither_stacks_nor_groups": Configuration(
        "no stacks, no groups", "interleaved", replace(INTERLEAVED, stacks=False, agreement=True)
    ),
    "nsys_experts_of_equal_ranks": Configuration(
        "nsys", "experts, no topology file", replace(NSYS_PIPELINE, ep=2, etp=1, recompute=Recompute.SELECTIVE)
    ),
}


@cache
def score_of(name: str) -> Score:
    return run(JOBS[name])


@pytest.mark.parametrize(
    "name",
    fast(JOBS, "combined_without_stacks"),
)
def test_a_simulated_job_reaches_the_targets_of_its_part_of_the_matrix(name):
    score = score_of(name)
    assert score.read == 1.0 and score.kernels > 2_000
    assert not score.misses(), score.findings


def test_combined_steps_without_stacks_have_their_spans_to_the_nanosecond():
    score = score_of("combined_without_stacks")
    assert score.right["microbatch"] == 1.0
    assert score.spans.expected == score.spans.equal > 0 and not score.spans.unexpected


def test_without_stacks_many_additions_in_a_row_are_the_models_own_and_no_counter_of_tokens():
    job = replace(SMALL, stacks=False, seed=9059, faults=Faults(tiny_kernels=0, tiny_kernels_count=40))
    score = run(Configuration("no stacks", "tiny kernels", job))
    assert set(score.wrong.values()) == {0.0} and set(score.right.values()) == {1.0}


def test_where_neither_stacks_nor_groups_are_computation_is_reported_and_communication_unknown():
    score = score_of("neither_stacks_nor_groups")
    assert score.non_communication == 1.0 and score.unknown > 0.01
    assert set(score.wrong.values()) == {0.0}


@pytest.mark.long
def test_ranks_that_several_groups_share_stay_unknown_with_their_candidates():
    score = score_of("without_any_source")
    assert score.right["dimension"] < 1.0 and score.wrong["dimension"] == 0.0
    assert score.candidates == 1.0


def test_a_trace_with_stacks_and_without_operators_gets_no_wrong_phase(tmp_path):
    """Each backward step begins with a kernel of compiled code, of which no row of its thread shows anything."""
    simulate(replace(PIPELINE, tp=2, pp=2, dp=1, ep=1, microbatches=4, seed=9), tmp_path / "run", workers=1)
    (inputs,) = inputs_below([tmp_path / "run"])
    entry = inputs.ranks[0]
    trace = events_of(Path(entry.path))
    kept = [event for event in trace["traceEvents"] if event.get("cat") != "cpu_op"]
    assert len(kept) < len(trace["traceEvents"])
    write_events(Path(entry.path), trace | {"traceEvents": kept})
    one = classify_trace(read_kineto(Path(entry.path)), entry.rank, read_topology(inputs), load_rules())
    truth = read_truth(truth_folder(tmp_path / "run"), entry.rank, inputs.iteration).to_pandas()
    told = shares(compared(one.kernels.to_pandas(), truth))
    assert told.wrong["phase"] == told.wrong["category"] == 0.0 and told.right["phase"] > 0.95
