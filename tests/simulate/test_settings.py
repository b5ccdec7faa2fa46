"""JobSettings refuse what no Megatron job could be, in one line that says what would be right."""

from __future__ import annotations

import pytest

from tests.simulate.conftest import CONFIGURATIONS, small
from traceviz_dag.errors import UsageError
from traceviz_dag.simulate.settings import (
    Edges,
    Era,
    Faults,
    Graphs,
    JobSettings,
    Layout,
    Offload,
    Precision,
    Recompute,
    Transformer,
)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_are_valid(name):
    CONFIGURATIONS[name].validate()


def test_stages_have_the_layers_that_are_named_in_equal_chunks():
    assert small(pp=2, stage_layers="3,1").layers_of_stages == (3, 1)
    settings = small(pp=2, vpp=2, microbatches=2, layers=8, stage_layers="6,2")
    settings.validate()
    assert settings.layers_of_stages == (3, 1, 3, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (small(tp=0), "--tp is 0"),
        (small(order="tp-pp"), "--order tp-pp"),
        (small(ep=4, dp=2), "no multiple of etp x ep x pp = 4"),
        (small(tp=2, pp=2, dp=2, ep=2, order="tp-cp-ep-pp-dp"), "does not end in pp"),
        (small(pp=8), "--layers 4 must be a multiple of pp x vpp = 8"),
        (small(pp=2, stage_layers="3,2"), "--stage-layers 3,2: name 2 multiples of 1 that add up to --layers 4"),
        (small(pp=2, vpp=2, microbatches=2, stage_layers="3,1"), "--stage-layers 3,1: name 2 multiples of 2"),
        (small(pp=2, stage_layers="4,x"), "--stage-layers 4,x: write the layers of each stage"),
        (small(pp=2, stage_layers="3,1", faults=Faults(bad_stage_split=1)), "runs without --bad-stage-split"),
        (small(pp=4, vpp=3, layers=15), "--layers 15 must be a multiple of pp x vpp = 12"),
        (small(tp=3), "heads and --hidden must be multiples of tp"),
        (small(hidden=1000, heads=7), "--hidden 1000 must be a multiple of its 7 attention heads"),
        (small(tp=2, cp=2, sequence=1028), "--sequence 1028 must be a multiple of 8"),
        (small(ep=2, dp=2, experts=3), "3 experts cannot be spread over ep = 2"),
        (small(experts=1), "1 experts are fewer than the 2"),
        (small(pp=2, faults=Faults(bad_stage_split=2)), "--bad-stage-split 2 leaves a stage without layers"),
        (small(seed=-1), "--seed -1"),
        (small(edges=Edges(missing_launches=1.5)), "--missing-launches is a share"),
        (small(vpp=2), "--vpp needs --pp"),
        (small(fsdp=True, overlap_grad_reduce=False), "--fsdp always overlaps"),
        (small(fsdp=True, era=Era.TORCH_2_3), "--fsdp needs PyTorch 2.4"),
        (small(fsdp=True, memory=True), "snapshots know no --fsdp"),
        (small(offload=Offload.MODULES, transformer=Transformer.LOCAL), "--offload needs --transformer"),
        (small(offload=Offload.MODULES, recompute=Recompute.FULL), "keeps nothing to offload"),
        (small(offload=Offload.LAYERS, pp=2), "runs without pipelining"),
        (small(precision=Precision.FP8, transformer=Transformer.LOCAL), "--precision of less than 16 bits needs"),
        (small(precision=Precision.NVFP4, era=Era.TORCH_2_4), "--precision nvfp4 needs PyTorch 2.7"),
        (small(pp=2, vpp=2, microbatches=3), "--microbatches as a multiple of pp = 2"),
        (small(overlap_expert=True), "--overlap-expert needs --ep"),
        (small(overlap_p2p=True, pp=2), "--overlap-p2p needs the interleaved"),
        (small(cuda_graphs=Graphs.LAYER, recompute=Recompute.FULL), "without recompute"),
        (small(faults=Faults(slow_gpu=4)), "slow GPU: rank 4 is outside"),
        (small(faults=Faults(expert_imbalance=0.5)), "needs experts"),
        (small(edges=Edges(missing_rank=9)), "missing rank: rank 9"),
        *((small(clock_skew_ms=skew), "--clock-skew") for skew in (float("nan"), float("inf"), 1e300, -1.0)),
        *((small(clock_drift_ppm=drift), "--clock-drift") for drift in (float("nan"), float("-inf"), 1e300)),
        (small(edges=Edges(missing_rank=1, truncated_rank=1), dp=2), "rank 1 cannot be both missing and truncated"),
        (JobSettings(edges=Edges(missing_rank=0)), "leaves a job of one rank without any file"),
        (small(layers=1_000_000_000), "runs of layers; simulate up to 500,000"),
        (small(microbatches=1_000_000_000), "runs of layers; simulate up to 500,000"),
        (small(iterations=100_000, layout=Layout.TENSORBOARD), "steps of one file is"),
        (small(dp=20_000), "20,000 ranks; simulate up to 16,384"),
        (small(iterations=1_000_000_000), "ranks x --iterations"),
    ],
)
def test_contradictions_are_refused(settings: JobSettings, words: str):
    with pytest.raises(UsageError) as caught:
        settings.validate()
    assert words in str(caught.value)


def test_layers_fill_all_virtual_stages():
    assert small(pp=2, vpp=2, layers=12).layers_of_stages == (3, 3, 3, 3)


def test_bad_stage_split_moves_layers_to_the_first_stage():
    settings = small(pp=4, layers=8, faults=Faults(bad_stage_split=2))
    assert settings.layers_of_stages == (4, 2, 1, 1)
    assert sum(settings.layers_of_stages) == 8
