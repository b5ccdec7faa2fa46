"""What GPUs really computed in each training step, against their peak and against what the model needs.

Hardware FLOPs are those of all products, attention and convolutions that ran, recompute included; the other classes
are limited by memory and are left out, as in the model's count. Hardware FLOP utilisation (HFU) is hardware FLOPs per
GPU / (step time × peak); model FLOP utilisation (MFU) takes what the model needs instead. Both are of A. Chowdhery et
al., "PaLM" (2022), appendix B.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.operations.formulas import NO_FORMULA
from traceviz_dag.analyze.peaks import BUILT_IN, Peaks
from traceviz_dag.analyze.utilization import LARGEST, NS_PER_SECOND, Stated, step_tokens, utilization
from traceviz_dag.analyze.wording import percent
from traceviz_dag.analyze.work_evidence import bound_by_memory
from traceviz_dag.arrays import Bool
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import UTILIZATION
from traceviz_dag.vocabulary import ALL_DIMENSIONS, MATRIX, OperationClass, Phase

LEAST_COVERED = 0.99
"""Share of the kernel time of products, attention and convolutions whose FLOPs must be known for an HFU: what is not
counted can make it that much too low."""

_SCAN = re.compile(r"chunk_(?:scan|state|cumsum)|bmm_chunk|ssd_", re.IGNORECASE)
"""Kernels of Mamba's scans, which compute products, too."""

_FEWER = (
    "the operations that ran are fewer than the settings state: sequences are shorter than seq_length, or a setting is "
    "not of this step"
)

JOB, REPLICA, STAGE, RANK = "job", "replica", "stage", "rank"


class StepWindow(NamedTuple):
    """One training step of a rank, means and sums over its devices.

    Attributes:
        step: None where no step is marked: it is then from the first kernel to the last.
        compute_ns: union of its computation.
    """

    rank: int
    step: int | None
    step_ns: int
    compute_ns: int
    marked: bool


@dataclass(slots=True)
class _Counted:
    """What ranks computed in a step: FLOPs, those of recompute and by number format, and kernel time by whether its
    FLOPs are known, and why not."""

    flops: int = 0
    recompute: int = 0
    known_ns: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    unknown_ns: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Counted) -> None:
        self.flops += other.flops
        self.recompute += other.recompute
        self.known_ns += other.known_ns
        self.formats.update(other.formats)
        self.unknown_ns.update(other.unknown_ns)

    @property
    def coverage(self) -> float | None:
        """Share of the kernel time whose FLOPs are known; None without such kernels."""
        both = self.known_ns + self.unknown_ns.total()
        return self.known_ns / both if both else None

    @property
    def refusal(self) -> str | None:
        """Why the FLOPs do not show how much was computed; None where they do."""
        if self.coverage is None:
            return "no kernel is a product, attention or convolution"
        if self.coverage >= LEAST_COVERED:
            return None
        longest = _largest(self.unknown_ns)
        return (
            f"FLOPs are known of {percent(self.coverage)} of the time of products, attention and convolutions, less "
            f"than {LEAST_COVERED * 100:.0f} %; mostly: {longest}"
        )


@dataclass(frozen=True, slots=True)
class _Peak:
    """The peak that FLOPs are held against, which setting or operation named its format, and why there is none."""

    gpu: str | None = None
    number_format: str | None = None
    named_by: str | None = None
    flops_per_s: int | None = None
    refusal: str | None = None


def step_utilization(
    work: pa.Table,
    windows: Sequence[StepWindow],
    stated: Stated,
    places: Mapping[int, Mapping[str, int | None]],
    peaks: Peaks = BUILT_IN,
) -> pa.Table:
    """The table ``utilization``: of each training step the job, its model replicas, stages and ranks.

    Args:
        work: as ``lake.operation_summaries.step_flops`` has it.
        windows: of the ranks that are counted.
        stated: of the job; its ``step_ns`` is not read.
        places: rank → its ``stage`` and ``model_replica``.
    """
    counted = _by_rank(work)
    rows: list[dict[str, object]] = []
    for step in sorted({each.step for each in windows}, key=lambda step: -1 if step is None else step):
        mine = [each for each in windows if each.step == step]
        rows += _rows_of_step(step, mine, counted, stated, places, peaks)
    names = [column.name for column in UTILIZATION.columns]
    return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], UTILIZATION.schema)


def step_windows(overlap: pa.Table) -> list[StepWindow]:
    """Each rank's training steps, or its kernels' span where none is marked.

    Args:
        overlap: the table of that name: rank, device, window_name, step, dimension, window_start_ns, window_end_ns,
            compute_ns.
    """
    of_rank: dict[int, dict[str, list[dict[str, int]]]] = {}
    for row in overlap.filter(pc.equal(overlap["dimension"].cast(pa.string()), ALL_DIMENSIONS)).to_pylist():
        of_rank.setdefault(row["rank"], {}).setdefault(row["window_name"], []).append(row)
    found = []
    for rank, windows in sorted(of_rank.items()):
        marked = "step" in windows
        of_step: dict[int | None, list[dict[str, int]]] = {}
        for row in windows.get("step") or windows.get("kernels") or ():
            of_step.setdefault(row["step"], []).append(row)
        for step, rows in of_step.items():
            longest = max(row["window_end_ns"] - row["window_start_ns"] for row in rows)
            found.append(StepWindow(rank, step, longest, sum(row["compute_ns"] for row in rows) // len(rows), marked))
    return found


def _rows_of_step(
    step: int | None,
    windows: Sequence[StepWindow],
    counted: Mapping[tuple[int, int | None], _Counted],
    stated: Stated,
    places: Mapping[int, Mapping[str, int | None]],
    peaks: Peaks,
) -> Iterator[dict[str, object]]:
    step_ns = max(each.step_ns for each in windows)
    marked = all(each.marked for each in windows)
    whole = _together(windows, counted)
    of_model = utilization(replace(stated, step_ns=step_ns if marked else None), peaks)
    peak = _peak(stated, of_model.peak_format, of_model.peak_flops_per_s, whole, peaks)
    tokens = step_tokens(stated.settings)
    for part, number, ranks in _parts(windows, places):
        of_part = _together(ranks, counted)
        flops, recompute = (_each(count, len(ranks)) for count in (of_part.flops, of_part.recompute))
        compute_ns = round(sum(each.compute_ns for each in ranks) / len(ranks))
        share = None
        if peak.flops_per_s and step_ns:
            share = of_part.flops * NS_PER_SECOND / (len(ranks) * peak.flops_per_s * step_ns)
        refusals = (
            (of_part.refusal is not None, of_part.refusal),
            (peak.refusal is not None, peak.refusal),
            (not marked, "not every rank has a training step marked"),
            (stated.in_part, "the training step of some rank is recorded or read only in part"),
            (share is not None and (share > 1 or flops is None), "more was computed than the GPUs can in this time"),
        )
        refusal = next((words for applies, words in refusals if applies), None)
        known = of_part.refusal is None
        needed = of_model.model_flops_per_gpu
        fewer = part == JOB and known and flops is not None and needed is not None and flops < LEAST_COVERED * needed
        row: dict[str, object] = {
            **{"step": step, "part": part, "number": number, "ranks": len(ranks), "step_ns": step_ns},
            "compute_ns": compute_ns,
            "flops_per_gpu": flops if known else None,
            "recompute_flops_per_gpu": recompute if known else None,
            "coverage": of_part.coverage,
            **{"gpu": peak.gpu, "peak_format": peak.number_format, "peak_named_by": peak.named_by},
            "peak_flops_per_s": peak.flops_per_s,
            "hfu": share if refusal is None else None,
            "hfu_refusal": refusal,
        }
        if refusal is None and compute_ns and peak.flops_per_s:
            row["compute_utilization"] = of_part.flops * NS_PER_SECOND / (len(ranks) * peak.flops_per_s * compute_ns)
        if part == JOB:
            row |= {"gpus": stated.gpus, "model_flops_per_gpu": of_model.model_flops_per_gpu}
            row |= {"mfu": of_model.mfu, "mfu_refusal": of_model.mfu_refusal, "tokens": tokens}
            if fewer:
                # What is computed cannot be less than what is needed.
                row |= {"mfu": None, "mfu_refusal": of_model.mfu_refusal or _FEWER, "tokens": None}
            elif tokens is not None and marked and not stated.in_part and step_ns:
                row["tokens_per_s"] = tokens * NS_PER_SECOND / step_ns
        yield row


def _parts(
    windows: Sequence[StepWindow], places: Mapping[int, Mapping[str, int | None]]
) -> Iterator[tuple[str, int | None, Sequence[StepWindow]]]:
    """The job, its replicas and stages as far as they are known, and its ranks; each with its ranks."""
    yield JOB, None, windows
    for part, column in ((REPLICA, "model_replica"), (STAGE, "stage")):
        of: dict[int, list[StepWindow]] = {}
        for each in windows:
            number = places.get(each.rank, {}).get(column)
            if number is not None:
                of.setdefault(number, []).append(each)
        yield from ((part, number, ranks) for number, ranks in sorted(of.items()))
    yield from ((RANK, each.rank, [each]) for each in sorted(windows))


def _peak(stated: Stated, number_format: str | None, flops_per_s: int | None, counted: _Counted, peaks: Peaks) -> _Peak:
    """The peak of MFU where the settings name a number format, else that of the format with the most FLOPs."""
    if len(stated.devices) != 1:
        different = f"the ranks have different GPUs: {', '.join(stated.devices)}"
        return _Peak(refusal=different if stated.devices else "no trace names a GPU")
    device = stated.devices[0]
    found, named_by = peaks.of(device), "settings"
    if number_format is None:
        named_by, number_format = "operations", _largest(counted.formats)
        flops_per_s = None if found is None or number_format is None else found.flops_per_s.get(number_format)
    if number_format is None:
        return _Peak(found.gpu if found else None, refusal="nothing shows the number format of the products")
    refusal = f"no {number_format} peak of {device} is known" if flops_per_s is None else None
    return _Peak(found.gpu if found else None, number_format, named_by, flops_per_s, refusal)


def _by_rank(work: pa.Table) -> dict[tuple[int, int | None], _Counted]:
    """(Rank, step) → what it computed."""
    found: dict[tuple[int, int | None], _Counted] = {}
    for row in work.filter(pa.array(_of_matrix_units(work))).to_pylist():
        one, flops = _Counted(), row["flops"]
        if flops is None:
            why = row["reason"] or "their FLOPs are too many for a column"
            why = f"there is no formula for {row['operation']}" if why == NO_FORMULA and row["operation"] else why
            one.unknown_ns[why] = row["kernel_ns"]
        else:
            one.flops, one.known_ns = flops, row["kernel_ns"]
            one.recompute = flops if row["phase"] == Phase.RECOMPUTE else 0
            one.formats.update({row["number_format"]: flops} if row["number_format"] is not None else {})
        found.setdefault((row["rank"], row["step"]), _Counted()).add(one)
    return found


def _of_matrix_units(work: pa.Table) -> Bool:
    """Mark products, attention and convolutions: by their operation, and where none is known by the kernel's name."""
    name, names = codes(work, "operation_class")
    matrix = np.array([*(each in MATRIX for each in names), False])[name]
    other = np.array([*(each == OperationClass.OTHER for each in names), False])[name]
    unknown = optional_integers(work, "flops") == MISSING
    kernel, kernels = codes(work, "kernel")
    scans = np.array([*(bool(_SCAN.search(each)) for each in kernels), False])[kernel]
    return np.asarray(matrix | (other & unknown & (scans | ~bound_by_memory(kernel, kernels))))


def _together(windows: Iterable[StepWindow], counted: Mapping[tuple[int, int | None], _Counted]) -> _Counted:
    total = _Counted()
    for each in windows:
        total.add(counted.get((each.rank, each.step), _Counted()))
    return total


def _each(count: int, ranks: int) -> int | None:
    """The mean of so many ranks, halves up; None where no column holds it."""
    mean = (count + ranks // 2) // ranks
    return mean if mean <= LARGEST else None


def _largest(counts: Counter[str]) -> str | None:
    return max(counts, key=lambda name: (counts[name], name), default=None)
