"""Megatron-FSDP, offloaded activations and products of few bits: what is reported of them, and by which evidence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.accuracy import OLD, SMALL, Configuration, compared_job, run, take_groups_out
from tests.made_once import made_once
from traceviz_dag.analyze.accuracy import ASPECTS, told_and_right
from traceviz_dag.analyze.overlap import overlap_table
from traceviz_dag.classify.framework import framework_of
from traceviz_dag.classify.kernels import Classification
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import read_topology
from traceviz_dag.pipeline.ranks import classify_trace
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import JobSettings, Offload, Precision
from traceviz_dag.vocabulary import TrainingFramework

TINY = replace(SMALL, layers=3, microbatches=2, hidden=512, heads=4, feed_forward=2048)
SHARDED = replace(TINY, tp=2, dp=2, fsdp=True, offload=Offload.MODULES, precision=Precision.FP8)
JOBS = {
    "stacks": SHARDED,
    "no stacks": replace(SHARDED, stacks=False),
    "current scaling": replace(TINY, tp=2, dp=2, precision=Precision.FP8_CURRENT, stacks=False),
    "layers": replace(TINY, dp=2, offload=Offload.LAYERS, stacks=False),
}


def folder_of(settings: JobSettings, name: str) -> Path:
    return (
        made_once(f"today_{name.replace(' ', '_')}", lambda folder: simulate(settings, folder / "job", workers=1))
        / "job"
    )


@cache
def compared(name: str) -> pd.DataFrame:
    folder = folder_of(JOBS[name], name)
    return with_roles(compared_job(JOBS[name], folder)[0], folder)


def with_roles(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The comparison with what the truth says besides."""
    names = {"role": "role_true", "launching_microbatch": "launching_microbatch_true"}
    files = sorted((folder / "truth").glob("rank_*.parquet"))
    truths = [pd.read_parquet(file, columns=["rank", "correlation", *names]) for file in files]
    truth = pd.concat([one.astype({"role": str}) for one in truths]).rename(columns=names)
    return table.merge(truth, on=["rank", "correlation"], how="left", validate="1:1")


@cache
def classified(name: str) -> Classification:
    """Rank 0 of a job."""
    (inputs,) = inputs_below([folder_of(JOBS[name], name)])
    (entry,) = (entry for entry in inputs.ranks if entry.rank == 0)
    return classify_trace(read_kineto(Path(entry.path)), 0, read_topology(inputs), load_rules())


def test_with_stacks_all_is_told_and_right():
    table = compared("stacks")
    for aspect in ASPECTS:
        assert told_and_right(table, aspect)[1].all(), aspect


def test_without_stacks_only_what_a_number_of_the_shards_is_stays_unknown():
    table = compared("no stacks")
    for aspect in ASPECTS:
        right = told_and_right(table, aspect)[1]
        assert right.all() or aspect == "dimension", aspect
    unknown = table[table.dimension == "unknown"]
    assert len(unknown) == 4 and set(unknown.role_true) == {"grad_norm"}
    assert set(unknown.dimension_candidates) == {"grad_norm,control"}
    assert set(unknown.category) == {"other_communication"}, "either way it is the same category"


@pytest.mark.parametrize("name", ["stacks", "no stacks"])
def test_parameters_and_gradients_are_of_dp_and_of_no_micro_batch_by_their_group(name: str):
    table = compared(name)
    sharded = table[table.role_true.isin(["param_sync", "grad_sync"])]
    assert set(sharded.dimension) == {"dp"} and set(sharded.dimension_evidence) == {"process_group"}
    assert sharded.microbatch.isna().all()
    assert (sharded.launching_microbatch == sharded.launching_microbatch_true).all()
    assert set(sharded.phase) == {"forward", "backward"}


def test_the_last_reductions_run_in_a_callback_of_the_engine_after_its_last_node():
    table = compared("no stacks")
    last = table[table.phase_rule == "after_the_nodes_of_a_backward_step"]
    assert len(last) == 4 * 2 * 3, "of each rank and micro-batch: scaled, sent, added"
    assert set(last.kind) == {"computation", "communication"} and set(last.phase_true) == {"backward"}


@pytest.mark.parametrize("name", ["stacks", "no stacks"])
def test_it_is_told_from_megatrons_ddp(name: str):
    (inputs,) = inputs_below([folder_of(JOBS[name], name)])
    events = read_kineto(Path(inputs.ranks[0].path))
    assert framework_of(events, classified(name).kernels) is TrainingFramework.MEGATRON_FSDP
    (plain,) = inputs_below([folder_of(JOBS["layers"], "layers")])
    other = read_kineto(Path(plain.ranks[0].path))
    assert framework_of(other, classified("layers").kernels) is TrainingFramework.MEGATRON


@pytest.mark.parametrize("name", ["stacks", "no stacks", "layers"])
def test_offloaded_activations_are_copies_and_no_computation_whatever_they_hide_behind(name: str):
    kernels = classified(name).kernels.to_pandas()
    compute = kernels[kernels.kind == "computation"].stream.mode().iloc[0]
    copies = kernels[(kernels.kind == "memory") & (kernels.stream != compute)]
    assert len(copies) > 0 and set(copies.category) == {"memory"} and copies.microbatch.notna().all()
    assert set(copies[copies.name.str.contains("DtoH")].phase) == {"forward"}
    assert set(copies[copies.name.str.contains("HtoD")].phase) == {"backward"}
    own = kernels[kernels.kind == "computation"]
    marks = np.zeros(int((kernels.start_ns + kernels.duration_ns).max() - kernels.start_ns.min()), bool)
    begin = kernels.start_ns.min()
    for start, duration in zip(own.start_ns, own.duration_ns, strict=True):
        marks[start - begin : start - begin + duration] = True
    measured = overlap_of(classified(name))
    assert measured["compute_ns"] == int(marks.sum())


def overlap_of(result: Classification) -> dict:
    table = overlap_table(result.kernels)
    rows = [row for row in table.to_pylist() if row["dimension"] == "all" and row["window_name"] == "kernels"]
    return rows[0]


def test_exposed_gathers_and_reductions_are_those_of_the_truth():
    table = overlap_table(classified("no stacks").kernels)
    measured = {row["dimension"]: row["exposed_ns"] for row in table.to_pylist()}
    truth = pd.read_parquet(folder_of(JOBS["no stacks"], "no stacks") / "truth" / "rank_0000.parquet")
    assert measured["dp"] == truth.exposed_ns[truth.dimension == "dp"].sum() > 0


def test_one_number_within_a_layer_is_a_maximum_over_its_tensor_parallel_ranks():
    maxima = compared("current scaling")
    maxima = maxima[maxima.role_true == "amax"]
    assert len(maxima) > 0 and set(maxima.dimension) == {"tp"}
    assert (maxima.microbatch == maxima.microbatch_true).all() and set(maxima.phase) == {"forward", "backward"}


@pytest.mark.parametrize("stacks", [True, False])
def test_without_descriptions_maxima_are_told_from_activations_or_stay_open(stacks: bool):
    job = replace(TINY, layers=4, tp=2, dp=2, precision=Precision.FP8, era=OLD, stacks=stacks)
    score = run(Configuration("no descriptions", "no topology file", job))
    assert set(score.wrong.values()) == {0.0}, score.findings
    assert score.candidates == 1.0


@pytest.mark.parametrize("fsdp", [True, False])
def test_without_groups_and_stacks_nothing_untrue_is_said_of_them(fsdp: bool, tmp_path_factory: pytest.TempPathFactory):
    job = replace(TINY, tp=2, dp=2, precision=Precision.FP8, fsdp=fsdp, stacks=False)
    folder = simulate(job, tmp_path_factory.mktemp("nameless") / "job", workers=1)
    take_groups_out(folder)
    table = compared_job(job, folder)[0]
    for aspect in ASPECTS:
        told, right = told_and_right(table, aspect)
        assert not (told & ~right).any(), aspect
    computing = table[table.kind_true != "communication"]
    assert (computing.category == computing.category_true).all()
