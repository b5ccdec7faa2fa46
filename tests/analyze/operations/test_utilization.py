"""Hardware FLOPs, HFU and MFU of simulated jobs against the count that follows from their settings, and unknowns."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.analyze.across_ranks import analysed_here, simulated
from traceviz_dag.analyze.operations.formulas import NO_FORMULA
from traceviz_dag.analyze.peaks import GpuRates, Peaks
from traceviz_dag.analyze.step_utilization import StepWindow, step_utilization
from traceviz_dag.analyze.utilization import Stated
from traceviz_dag.pipeline.across_ranks import utilization_table
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults, Recompute

MODEL = {"layers": 4, "hidden": 1024, "heads": 8, "feed_forward": 2048, "sequence": 512, "vocabulary": 4096}
PEAK = 989 * 10**12


def _expected(job: JobSettings) -> tuple[int, int]:
    """FLOPs of the model, and of all products and attention that run."""
    tokens, width = job.sequence * job.microbatches * job.dp, job.hidden
    layer = 8 * width * width + 4 * width * job.feed_forward
    scores = 2 * job.sequence * width
    model = 3 * tokens * (job.layers * (layer + scores) + 2 * width * job.vocabulary)
    # Flash attention multiplies 5 times backward, where the model's count has 4 products.
    again = tokens * job.layers * scores // 2
    if job.recompute is Recompute.FULL:
        again += tokens * job.layers * (layer + scores)
    return model, model + again


@pytest.mark.parametrize(
    "job",
    [
        JobSettings(**MODEL, tp=2, pp=2, microbatches=4, shapes=True),
        pytest.param(
            JobSettings(**MODEL, pp=2, dp=2, microbatches=2, shapes=True, recompute=Recompute.FULL),
            marks=pytest.mark.long,
        ),
        JobSettings(**MODEL, tp=2, dp=2, microbatches=2, shapes=True, recompute=Recompute.FULL),
    ],
    ids=["tp2 pp2", "pp2 dp2 recompute", "tp2 dp2 recompute"],
)
def test_flops_are_those_of_the_settings_and_mfu_is_that_of_the_truth(job):
    iteration, truth = simulated(job)
    rows = utilization_table(iteration).to_pylist()
    model, hardware = _expected(job)
    assert sum(row["flops_per_gpu"] for row in rows if row["part"] == "rank") == hardware
    whole = rows[0]
    assert (whole["part"], whole["hfu_refusal"], whole["mfu_refusal"]) == ("job", None, None)
    assert (whole["peak_format"], whole["peak_named_by"], whole["peak_flops_per_s"]) == ("bf16", "settings", PEAK)
    step_ns = max(_marks(truth.parent))
    assert whole["mfu"] == pytest.approx(model / (step_ns / 1e9 * job.world * PEAK), rel=1e-3)
    assert whole["hfu"] == pytest.approx(hardware / (step_ns / 1e9 * job.world * PEAK), rel=1e-3)
    assert whole["tokens"] == job.sequence * job.microbatches * job.dp
    stages = [row for row in rows if row["part"] == "stage"]
    assert sum(row["hfu"] * row["ranks"] for row in stages) == pytest.approx(whole["hfu"] * job.world)
    # The logits are those of the last stage.
    assert stages[-1]["flops_per_gpu"] == max(row["flops_per_gpu"] for row in stages)


def test_a_model_that_needs_more_than_was_computed_has_no_utilisation(tmp_path):
    job = replace(JobSettings(**MODEL, pp=2, microbatches=2, shapes=True), faults=Faults(varying_sequences=0.5))
    simulate(job, tmp_path / "job", workers=1)
    for path in (tmp_path / "job").rglob("*.json.gz"):
        text = gzip.decompress(path.read_bytes())
        assert b"variable_seq_lengths" in text
        path.write_bytes(gzip.compress(text.replace(b"variable_seq_lengths", b"variable_seq_length_"), 1))
    whole = utilization_table(analysed_here(tmp_path / "job", tmp_path / "home")).to_pylist()[0]
    assert whole["mfu"] is None and "fewer than the settings state" in whole["mfu_refusal"]
    assert (whole["tokens"], whole["tokens_per_s"]) == (None, None)
    assert whole["hfu"] is not None and whole["flops_per_gpu"] < whole["model_flops_per_gpu"]


def _marks(folder):
    """How long each rank's profiler says that the step took, ns."""
    for path in folder.rglob("*.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        (mark,) = (each for each in events if each.get("cat") == "user_annotation" and "ProfilerStep" in each["name"])
        yield round(mark["dur"] * 1000)


WINDOWS = [StepWindow(0, 7, 2_000_000, 1_000_000, marked=True), StepWindow(1, 7, 1_900_000, 500_000, marked=True)]
PLACES = {0: {"stage": 0, "model_replica": 0}, 1: {"stage": 1, "model_replica": 0}}
BARE = Stated([], ["NVIDIA H100 80GB HBM3"], 2, None)


def _work(*rows):
    """Operations of rank 0 and 1 in step 7: (rank, class, flops, ns, kernel)."""
    columns = ("rank", "operation_class", "flops", "kernel_ns", "kernel")
    told = {"step": 7, "phase": "forward", "number_format": "fp8", "reason": "the sizes of its inputs are not recorded"}
    schema = {**dict.fromkeys(("rank", "step", "flops", "kernel_ns"), pa.int64())}
    names = ("rank", "step", "operation_class", "phase", "number_format", "reason", "operation", "kernel")
    names = (*names, "flops", "kernel_ns")
    fields = [(name, schema.get(name, pa.string())) for name in names]
    return pa.Table.from_pylist([told | dict(zip(columns, row, strict=True)) for row in rows], pa.schema(fields))


KNOWN = [(0, "gemm", 10**12, 900_000, None), (1, "attention", 10**11, 400_000, None)]


def test_without_settings_the_peak_is_that_of_the_operations():
    whole, _, *stages = step_utilization(_work(*KNOWN), WINDOWS, BARE, PLACES).to_pylist()[:4]
    assert (whole["peak_format"], whole["peak_named_by"], whole["tokens"]) == ("fp8", "operations", None)
    assert whole["mfu"] is None and whole["mfu_refusal"].startswith("no trace keeps the settings of the job")
    assert whole["hfu"] == pytest.approx(1.1e12 / (2e-3 * 2 * 1979e12))
    assert [row["compute_utilization"] for row in stages] == [
        pytest.approx(1e12 / (1e-3 * 1979e12)),
        pytest.approx(1e11 / (0.5e-3 * 1979e12)),
    ]


@pytest.mark.parametrize(
    ("work", "stated", "why"),
    [
        ([], BARE, "no kernel is a product, attention or convolution"),
        ([*KNOWN, (1, "gemm", None, 100_000, None)], BARE, "the sizes of its inputs are not recorded"),
        (
            [*KNOWN, (1, "other", None, 100_000, "Cijk_Ailk_Bjlk_BBS_BH_MT128x128x32")],
            BARE,
            "FLOPs are known of 92.9 %",
        ),
        (KNOWN, Stated([], ["NVIDIA Z999"], 2, None), "no fp8 peak of NVIDIA Z999 is known"),
        (KNOWN, Stated([], [], 2, None), "no trace names a GPU"),
        (KNOWN, Stated([], ["A", "B"], 2, None), "the ranks have different GPUs: A, B"),
        ([(0, "gemm", 10**16, 900_000, None)], BARE, "more was computed than the GPUs can in this time"),
        ([(0, "gemm", None, 900_000, None)], BARE, "FLOPs are known of 0.0 %"),
    ],
)
def test_what_does_not_show_the_utilization_is_said(work, stated, why):
    whole = step_utilization(_work(*work), WINDOWS, stated, PLACES).to_pylist()[0]
    assert whole["hfu"] is None and why in whole["hfu_refusal"]


def test_an_operation_without_a_formula_is_named_and_scans_count_as_products():
    work = _work((0, "gemm", 10**12, 900_000, None), (0, "other", None, 300_000, "_chunk_scan_bwd_dstates_kernel"))
    work = work.set_column(5, "reason", pa.array([None, NO_FORMULA]))
    work = work.set_column(6, "operation", pa.array([None, "MambaScan"]))
    whole = step_utilization(work, WINDOWS, BARE, PLACES).to_pylist()[0]
    assert whole["coverage"] == 0.75 and whole["hfu_refusal"].endswith("mostly: there is no formula for MambaScan")


def test_kernels_that_memory_bounds_need_no_flops_and_a_home_states_its_own_peaks():
    work = _work(*KNOWN, (1, "other", None, 900_000, "vectorized_elementwise_kernel"))
    peaks = Peaks({"H100": GpuRates(fp8=1000.0)})
    whole = step_utilization(work, WINDOWS, BARE, PLACES, peaks).to_pylist()[0]
    assert (whole["coverage"], whole["peak_flops_per_s"]) == (1.0, 10**15)
    unmarked = [window._replace(step=None, marked=False) for window in WINDOWS]
    rows = step_utilization(work.set_column(1, "step", pa.nulls(3, pa.int64())), unmarked, BARE, PLACES).to_pylist()
    assert rows[0]["hfu_refusal"] == "not every rank has a training step marked" and rows[0]["flops_per_gpu"] > 0
