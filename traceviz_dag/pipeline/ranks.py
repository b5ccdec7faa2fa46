"""One rank's way from its trace file to its tables: read, classify, measure. Files come in, Arrow tables go out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.contention import contention_tables
from traceviz_dag.analyze.gaps.gpu_gaps import gpu_gaps_table
from traceviz_dag.analyze.kernel_intervals import codes, holds, integers, numbers
from traceviz_dag.analyze.microbatches import HostSteps, microbatches_table
from traceviz_dag.analyze.operations.table import operations_table
from traceviz_dag.analyze.overlap import WINDOW_COLUMNS, overlap_table
from traceviz_dag.analyze.peaks import BUILT_IN, Peaks
from traceviz_dag.analyze.step_windows import Step, windows_of_kernels
from traceviz_dag.analyze.waits.beside import with_beside
from traceviz_dag.classify.dimensions.communication import job_groups
from traceviz_dag.classify.framework import framework_of
from traceviz_dag.classify.kernels import Classification, classify
from traceviz_dag.classify.phases.passes import BEGINS_UNMARKED, ENDS_UNMARKED
from traceviz_dag.classify.phases.schedule_order import BACKWARD, FORWARD
from traceviz_dag.classify.phases.steps import MicrobatchSteps
from traceviz_dag.classify.phases.training_windows import BEGINS_UNSEEN, ENDS_UNSEEN
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.step_kind import step_kind
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.digests import digest_of, stamp_of
from traceviz_dag.pipeline.formats.registry import format_of_trace
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.read.events import CPU_OP, MISSING, PYTHON_FUNCTION, TraceEvents
from traceviz_dag.read.kineto.reader import EXPORT_AGAIN, told
from traceviz_dag.tables import TRACES
from traceviz_dag.vocabulary import Category, Dimension, Kind, Phase, StepEvidence, TraceStatus, WindowFrom

_UNSEEN = (BEGINS_UNSEEN, BEGINS_UNMARKED, ENDS_UNSEEN, ENDS_UNMARKED)
"""Reasons for which a training step may be recorded whole all the same."""

EARLY_NS, EARLY_SHARE = 1_000_000, 0.01
"""By how much an operation starts before its launch, and the share of operations that do, from which a trace counts as
read in part. Of 61 recorded traces none has a single one that starts earlier than its launch at all."""

EMPTY = "its mark ends where it starts"

_READINGS = 2
"""So often is a file read that changes meanwhile."""


def analyse_rank(trace: RankTrace, topology: Topology, rules: Rules, peaks: Peaks = BUILT_IN) -> Mapping[str, pa.Table]:
    """Read, classify and measure one rank: ``analyse_steps`` of its own step."""
    return analyse_steps([trace], topology, rules, peaks)[0]


def analyse_steps(
    traces: Sequence[RankTrace], topology: Topology, rules: Rules, peaks: Peaks
) -> list[Mapping[str, pa.Table]]:
    """Read and classify one rank once, and measure some of the steps in its file.

    Args:
        traces: the rank's trace, once for each step. peaks: of GPUs, for what a perfect kernel would take.

    Returns:
        For each step, table name → rows, for each of RANK_TABLES, and of the extra tables of the trace's format.

    Raises:
        BadInputError: nothing of the file can be used, or it changes whenever it is read.
    """
    trace = traces[0]
    for _ in range(_READINGS):
        before = _state_of(trace.path)
        events = read_events(trace, topology, rules)
        classified = classify_trace(events, trace.rank, topology, rules)
        tables = [_tables(one, events, classified, peaks) for one in traces]
        if _state_of(trace.path) == before:
            return tables
    raise BadInputError(trace.path, "changes while it is read", "analyse it again once it is written")


def _tables(trace: RankTrace, events: TraceEvents, classified: Classification, peaks: Peaks) -> Mapping[str, pa.Table]:
    kernels = rows_of_step(with_beside(classified.kernels), trace.step)
    operations, operation_of = operations_table(events, kernels, classified.operators, peaks)
    kernels = kernels.set_column(kernels.schema.get_field_index("operation_id"), "operation_id", operation_of)
    measured_in = gpu_step_windows(classified, trace.step)
    overlap = measured_overlap(classified, trace.step, measured_in)
    windows, _ = measured_in
    calls = classified.operators.call[kernels["kernel_id"].to_numpy()]
    contention, savings = contention_tables(kernels, operations, overlap, calls)
    return {
        **format_of_trace(trace).tables(trace, step_windows(classified, trace.step)),
        "traces": _traces_row(trace, events, classified, kernels),
        "kernels": kernels,
        "microbatches": microbatches_table(kernels, _host_steps(classified, trace.step)),
        "synchronizations": rows_of_step(classified.synchronizations, trace.step),
        "gpu_gaps": gpu_gaps_table(
            events, classified.stacked, classified.kernels if windows else kernels, windows, classified.synchronizations
        ),
        "operations": operations,
        "contention": contention,
        "overlap_savings": savings,
        "overlap": overlap,
    }


def read_events(trace: RankTrace, topology: Topology, rules: Rules, *, every_annotation: bool = False) -> TraceEvents:
    """Read one rank from its trace, whatever wrote it.

    Args:
        every_annotation: keep annotations of profiles that no rule gives a meaning, for what asks for them by name.

    Raises:
        BadInputError: nothing of the file can be used, or it is of another job.
    """
    if trace.refusal:
        raise BadInputError(trace.path, trace.refusal, "give each job a separate folder")
    return format_of_trace(trace).events(trace, topology, rules, every_annotation=every_annotation)


def trace_fault(events: TraceEvents, classified: Classification, step: int | None) -> str | None:
    """One line on what of a trace was not read, or not recorded, of a training step or (None) of all, and what to do;
    None where each training step is there whole."""
    marks = classified.profiler_steps
    cuts = [*classified.steps.cuts, *((int(each), EMPTY) for each in marks.number[marks.end_ns <= marks.start_ns])]
    faults = [read_fault(events), clock_fault(classified.kernels), window_fault(cuts, step)]
    return "; ".join(fault for fault in faults if fault) or None


def clock_fault(kernels: pa.Table) -> str | None:
    """How many kernels and memory operations start before the call that launches them, and what to do; None where it
    is under ``EARLY_SHARE`` of those whose launch is known.

    Args:
        kernels: the table ``kernels`` of a trace.
    """
    early_ns = pc.subtract(kernels["launch_start_ns"], kernels["start_ns"]).drop_null()
    early = pc.sum(pc.greater(early_ns, EARLY_NS), min_count=0).as_py()
    if not early or early < EARLY_SHARE * len(early_ns):
        return None
    return (
        f"{early:,} of {len(early_ns):,} operations on the GPU start before the calls that launch them, by up to "
        f"{wording.duration(pc.max(early_ns).as_py())}: the clocks of GPU and host do not agree; capture it again"
    )


def window_fault(cuts: Iterable[tuple[int, str]], step: int | None) -> str | None:
    """Which training steps the recorded window does not hold whole, and what to do; None where it holds all whole.

    Args:
        cuts: as ``MicrobatchSteps`` has them. step: the ProfilerStep that is asked for; None asks for all.
    """
    reasons: dict[int, list[str]] = {}
    for number, why in cuts:
        if step is None or number == step:
            reasons.setdefault(number, []).append(why)
    if not reasons:
        return None
    named = []
    for number, words in sorted(reasons.items()):
        seen = any(why not in _UNSEEN for why in words)
        step_in_words = f"training step {number}" if number != MISSING else "a training step"
        named.append(f"{step_in_words} is not {'' if seen else 'known to be '}recorded whole: {', '.join(words)}")
    return f"{'; '.join(named)}; start and stop the profiler between training steps"


def microbatch_counts(steps: MicrobatchSteps, number: int) -> tuple[int | None, int | None]:
    """How many micro-batches the forward and the backward steps of a ProfilerStep are of; None where one is unknown."""
    mine = steps.step == number
    found = [steps.microbatch[mine & (steps.direction == direction)] for direction in (FORWARD, BACKWARD)]
    if any((each == MISSING).any() for each in found):
        return None, None
    return len(np.unique(found[0])), len(np.unique(found[1]))


def read_fault(events: TraceEvents) -> str | None:
    """One line on what of a trace was not read, and what to do; None where all of it was."""
    report = events.report
    if not report.dropped or report.fault:
        return report.fault
    dropped = sum(report.dropped.values())
    return f"{dropped:,} of its {report.rows_read:,} events cannot be used: {told(report.dropped)}; {EXPORT_AGAIN}"


def classify_trace(events: TraceEvents, rank: int, topology: Topology, rules: Rules) -> Classification:
    """Classify one rank's events with what the topology knows of its groups and its stage."""
    stage, _ = topology.stage_of(rank)
    return classify(events, rules, job_groups(topology), stage, _microbatches_needed(events.header.settings, topology))


_UNEVEN_BATCHES = ("sequence_packing", "sft", "variable_seq_lengths")
"""Settings with which a training step may have another number of micro-batches than batch sizes give."""


def _microbatches_needed(settings: Iterable[tuple[str, str]], topology: Topology) -> int | None:
    """How many micro-batches a pipeline runs in a training step: the batch over its size and the data-parallel ranks;
    None where settings or topology do not show."""
    given = dict(settings)
    if any(given.get(name, "False") not in ("False", "None", "0") for name in _UNEVEN_BATCHES):
        return None
    batch, each = (given.get(name, "") for name in ("global_batch_size", "micro_batch_size"))
    replicas = {place.dp for place in topology.coordinates.values()}
    if not (batch.isdecimal() and each.isdecimal() and topology.world_size == len(topology.coordinates)):
        return None
    together = int(each) * len(replicas)
    return int(batch) // together if together and int(batch) % together == 0 and None not in replicas else None


def rows_of_step(table: pa.Table, step: int | None) -> pa.Table:
    """The rows of a table that belong to one ProfilerStep; all of them where ``step`` is None."""
    return table if step is None else table.filter(pc.equal(table["step"], step))


def step_windows(classified: Classification, step: int | None) -> list[tuple[int, int, int]]:
    """(number, start_ns, end_ns) of the trace's ProfilerSteps on the host; of one of them where ``step`` is given."""
    steps = classified.profiler_steps
    rows = zip(steps.number.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)
    return [row for row in rows if step is None or row[0] == step]


def cut_steps(classified: Classification, step: int | None) -> list[int]:
    """Training steps without a mark of which there are kernels; those beside one of several where ``step`` is given."""
    marks, kernels = classified.profiler_steps, classified.kernels
    cut = holds(kernels, "step_evidence", StepEvidence.CUT.value)
    if not cut.any():
        return []
    times = numbers(kernels["launch_start_ns"], int(marks.start_ns.min()) - 1)[cut]
    first, last = int(marks.number[marks.start_ns.argmin()]), int(marks.number[marks.end_ns.argmax()])
    found = [first - 1] * bool((times < marks.start_ns.min()).any())
    found += [last + 1] * bool((times >= marks.end_ns.max()).any())
    return [number for number in found if step is None or abs(number - step) == 1]


def gpu_step_windows(classified: Classification, step: int | None) -> tuple[list[Step], WindowFrom]:
    """The windows of the trace's ProfilerSteps on the GPU, and what they are; of one where ``step`` is given."""
    windows, source = windows_of_kernels(classified.kernels, step_windows(classified, None))
    return [row for row in windows if step is None or row[0] == step], source


def measured_overlap(
    classified: Classification, step: int | None, windows: tuple[Sequence[Step], WindowFrom]
) -> pa.Table:
    """The table ``overlap`` of all steps, or of one; kernels of a cut step belong to none, but may run beside one.

    Args:
        windows: as ``gpu_step_windows`` gives them.
    """
    every = classified.kernels.select((*WINDOW_COLUMNS, "step", "step_evidence"))
    own = rows_of_step(every, step)
    cut = holds(own, "step_evidence", StepEvidence.CUT.value)
    own = own.filter(pa.array(~cut)) if cut.any() else own
    return overlap_table(own, windows[0], every if own.num_rows < every.num_rows else None, windows[1])


def failed_trace(trace: RankTrace, fault: str) -> pa.Table:
    """The ``traces`` row of a file of which nothing could be used."""
    size: int | None = None
    digest: str | None = None
    # A file that is gone, or cannot be read at all, has neither.
    with suppress(OSError):
        size = stamp_of(trace.path)[0]
        digest = digest_of(trace.path)
    columns: dict[str, object] = {column.name: [None] for column in TRACES.columns}
    columns |= {
        "file": [trace.name],
        "bytes": [size],
        "digest": [digest],
        "status": [TraceStatus.FAILED.value],
        "fault": [fault],
    }
    return TRACES.from_columns(columns)


def _host_steps(classified: Classification, step: int | None) -> HostSteps:
    steps = classified.steps
    chosen = np.arange(len(steps)) if step is None else np.flatnonzero(steps.step == step)
    return HostSteps(
        phase=steps.direction[chosen].astype(np.int8),
        chunk=steps.chunk[chosen],
        microbatch=steps.microbatch[chosen],
        step=steps.step[chosen],
        host_start_ns=steps.start_ns[chosen],
        host_end_ns=steps.end_ns[chosen],
        order=np.arange(len(chosen), dtype=np.int64),
    )


def _traces_row(trace: RankTrace, events: TraceEvents, classified: Classification, kernels: pa.Table) -> pa.Table:
    header, report, host = events.header, events.report, events.host
    fault = trace_fault(events, classified, trace.step)
    timed = [rows for rows in (host, events.launches, events.device) if len(rows)]
    duration = integers(kernels, "duration_ns")
    steps = sorted(classified.profiler_steps.number.tolist())

    def time_of(column: str, *without: str) -> int:
        """Of the kernels of which it is known, and none of these words."""
        known = kernels[column].is_valid().to_numpy()
        return int(duration[np.logical_and.reduce([known, *(~holds(kernels, column, one) for one in without)])].sum())

    values: dict[str, object] = {
        "file": trace.name,
        "format": format_of_trace(trace).word(trace.path),
        "bytes": stamp_of(trace.path)[0],
        "digest": report.digest or digest_of(trace.path),
        "status": (TraceStatus.READ if fault is None else TraceStatus.PARTIAL).value,
        "fault": fault,
        "rows_read": report.rows_read,
        "rows_dropped": sum(report.dropped.values()),
        "drop_reasons": json.dumps(dict(sorted(report.dropped.items()))),
        "first_ns": min((int(rows.start_ns.min()) for rows in timed), default=None),
        "last_ns": max((int((rows.start_ns + rows.duration_ns).max()) for rows in timed), default=None),
        "steps": steps,
        "cut_steps": cut_steps(classified, trace.step),
        "forward_microbatches": [microbatch_counts(classified.steps, each)[0] for each in steps],
        "backward_microbatches": [microbatch_counts(classified.steps, each)[1] for each in steps],
        "world_size": header.world_size,
        "captured_ranks": header.captured_ranks,
        "host_clock_ns": header.host_clock_ns,
        "backend": header.backend,
        "nccl_version": header.nccl_version,
        "runtime_version": header.runtime_version,
        "driver_version": header.driver_version,
        "driver_release": header.driver_release,
        "profiler_version": header.profiler_version,
        "settings": json.dumps(dict(header.settings)) if header.settings else None,
        "devices": codes(kernels, "device")[1],
        "device_name": header.device_name,
        "device_memory_bytes": header.device_memory_bytes,
        "has_stacks": bool((host.category == PYTHON_FUNCTION).any()),
        "has_shapes": header.record_shapes,
        "has_groups": any(group.description for group in header.process_groups),
        "has_host_rows": bool((host.category == CPU_OP).any()),
        "has_memory_events": bool(header.profile_memory),
        "kernels": kernels.num_rows,
        "kernel_ns": int(duration.sum()),
        "launched_kernels": kernels.num_rows - kernels["launch_start_ns"].null_count,
        "classified_ns": time_of("category", Category.UNCLASSIFIED),
        "phase_known_ns": time_of("phase", Phase.UNKNOWN),
        "dimension_known_ns": time_of("dimension", Dimension.UNKNOWN),
        "communication_ns": int(duration[holds(kernels, "kind", Kind.COMMUNICATION)].sum()),
        "microbatch_known_ns": time_of("microbatch"),
        "step_kind": step_kind(events, kernels, step_windows(classified, trace.step), whole=fault is None),
        "framework": framework_of(events, kernels),
    }
    return TRACES.from_columns({name: [value] for name, value in values.items()})


def _state_of(path: Path) -> tuple[int, ...]:
    """What differs once a file is written to or replaced, also where its time of change was set back."""
    try:
        status = path.stat()
    except OSError:
        # Reading it says what is wrong.
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
