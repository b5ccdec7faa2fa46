"""One rank of a capture, classified: what the evidence of its traces comes to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.matching.communication_groups import BY_SIZE, BY_WORLD, group_communications
from traceviz_dag.analyze.matching.communications import (
    communication_bytes,
    gather_communications,
    select_communications,
)
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.analyze.waits.shards import match_and_solve
from traceviz_dag.analyze.waits.unknown_waits import CONTRADICTS, uncertain_waits, unknown_waits
from traceviz_dag.classify.phases.steps import MicrobatchSteps
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs, RankInput
from traceviz_dag.pipeline.captures.capture import Compared, Sample
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.iteration import rank_traces
from traceviz_dag.pipeline.ranks import (
    classify_trace,
    clock_fault,
    microbatch_counts,
    read_events,
    rows_of_step,
    window_fault,
)
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import MICROBATCHES
from traceviz_dag.vocabulary import Dimension, Kind, Phase

_NO_MICROBATCHES = MICROBATCHES.schema.empty_table().append_column("rank", pa.array([], pa.int64()))
_IN_MICROBATCH = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.RECOMPUTE.value)


_MOST_COMPARED = 8
"""Ranks whose lists of communications are compared where only order can match them."""

_MOST_BYTES_COMPARED = 32 << 20
"""Size of their files together up to which they are compared where groups are named, too."""

_AS_LARGE = 0.97
"""Files of one stage differ by less than this in size where all ranks were recorded for equally long."""


class Sampler:
    """Classifies the first rank of a capture that can be read; a file that holds several iterations once.

    Whether other ranks were recorded for as long is looked up in the smallest file of each stage.

    Args:
        home: where profiles of Nsight Systems are kept once they were read; None keeps nothing.
    """

    def __init__(self, rules: Rules, home: Path | None = None) -> None:
        self._rules, self._home = rules, home
        self._known: dict[tuple[Path, str], tuple[Sample, MicrobatchSteps, pa.Table] | None] = {}

    def sample(self, inputs: IterationInputs, topology: Topology) -> Sample | None:
        """What one rank's file shows; None where no rank can be read."""
        for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}, self._home):
            known = self._classified(trace, topology)
            if known is not None:
                sample, steps, communications = known
                return replace(
                    sample,
                    fault=sample.fault or window_fault(steps.cuts, trace.step),
                    others=tuple(self._faults(_smallest(inputs, topology, trace), inputs, topology, trace, steps)),
                    unmet=_unmet(communications, inputs, topology),
                    compared=self._compared(inputs, topology, by_order=bool(sample.ordered)),
                )
        return None

    def _compared(self, inputs: IterationInputs, topology: Topology, *, by_order: bool) -> Compared | None:
        """The first ranks together; None where their groups are named and their files too large to be read for this."""
        entries = sorted(inputs.ranks, key=lambda entry: entry.rank)[:_MOST_COMPARED]
        if not by_order and sum(entry.size_bytes for entry in entries) > _MOST_BYTES_COMPARED:
            return None
        known: list[pa.Table] = []
        for trace in rank_traces(inputs, {entry.rank for entry in entries}, self._home):
            read = self._classified(trace, topology)
            known += [] if read is None else [rows_of_step(read[2], trace.step)]
        # What pipelines send is matched by the micro-batches of all ranks.
        sent = [
            pc.fill_null(pc.equal(each["dimension"].cast(pa.string()), Dimension.PP.value), False) for each in known
        ]
        compared = known if by_order else [each.filter(pc.invert(of)) for each, of in zip(known, sent, strict=True)]
        ranks = tuple(entry.rank for entry in entries)
        collectives = collectives_table(
            *match_and_solve(gather_communications(compared), topology, _NO_MICROBATCHES, ranks)
        )
        unknown = unknown_waits(collectives)
        contradicts = pc.is_in(collectives["fault"].cast(pa.string()), pa.array([each.value for each in CONTRADICTS]))
        if unknown is None or unknown.unread or not (by_order or pc.any(contradicts).as_py()):
            return Compared(None, partly=False)
        left = sum(each.num_rows for each in compared) < sum(each.num_rows for each in known)
        return Compared(unknown.reason, partly=left or uncertain_waits(collectives) < collectives.num_rows)

    def _faults(
        self,
        ranks: Collection[int],
        inputs: IterationInputs,
        topology: Topology,
        sampled: RankTrace,
        steps: MicrobatchSteps,
    ) -> Iterator[tuple[int, str]]:
        for trace in rank_traces(inputs, ranks, self._home):
            known = self._classified(trace, topology)
            if known is None:
                continue
            fault = known[0].fault or window_fault(known[1].cuts, trace.step)
            if fault is None and window_fault(steps.cuts, sampled.step) is None:
                fault = _other_counts(known[1], trace.step, steps, sampled.rank)
            if fault is not None:
                yield trace.rank, fault

    def _classified(self, trace: RankTrace, topology: Topology) -> tuple[Sample, MicrobatchSteps, pa.Table] | None:
        key = (trace.path, trace.part)
        if key not in self._known:
            self._known[key] = self._read(trace, topology)
        return self._known[key]

    def _read(self, trace: RankTrace, topology: Topology) -> tuple[Sample, MicrobatchSteps, pa.Table] | None:
        try:
            events = read_events(trace, topology, self._rules)
        except BadInputError:
            return None
        classified = classify_trace(events, trace.rank, topology, self._rules)
        communications = select_communications(classified.kernels, trace.rank)
        return _sample(trace.rank, classified.kernels, communications, topology), classified.steps, communications


def _other_counts(mine: MicrobatchSteps, step: int | None, others: MicrobatchSteps, other: int) -> str | None:
    """In which training step a file holds another number of micro-batches than that of another rank."""
    for number in np.intersect1d(mine.step, others.step).tolist() if step is None else [step]:
        own, theirs = microbatch_counts(mine, number), microbatch_counts(others, number)
        if own != theirs and None not in (*own, *theirs):
            return (
                f"its forward and backward steps of training step {number} are of {own[0]} and {own[1]} micro-batches, "
                f"those of rank {other} of {theirs[0]} and {theirs[1]}: a file lost rows or is of another job; "
                "capture it again"
            )
    return None


def _smallest(inputs: IterationInputs, topology: Topology, sampled: RankTrace) -> set[int]:
    """The rank with the smallest file of each stage; none of the sampled rank's stage if its own file is as large."""
    if sampled.part:
        return set()
    stages: dict[int | None, RankInput] = {}
    mine = next(entry for entry in inputs.ranks if entry.rank == sampled.rank)
    for entry in inputs.ranks:
        stage, _ = topology.stage_of(entry.rank)
        stages[stage] = min(stages.get(stage, entry), entry, key=lambda one: one.size_bytes)
    stage, _ = topology.stage_of(sampled.rank)
    if stages[stage].size_bytes > _AS_LARGE * mine.size_bytes:
        del stages[stage]
    return {entry.rank for entry in stages.values()}


def _unmet(communications: pa.Table, inputs: IterationInputs, topology: Topology) -> int:
    """How many communications are of groups of which some member is known to have no trace."""
    grouped = group_communications(gather_communications([communications]), topology)
    present = {entry.rank for entry in inputs.ranks}
    lacking = [not present.issuperset(group.members or ()) for group in grouped.groups]
    return int(np.array([*lacking, False])[grouped.group].sum())


def _sample(rank: int, kernels: pa.Table, communications: pa.Table, topology: Topology) -> Sample:
    duration = kernels["duration_ns"]
    phase, kind, dimension = (kernels[name].cast(pa.string()) for name in ("phase", "kind", "dimension"))
    communicates = pc.equal(kind, Kind.COMMUNICATION.value)
    in_step = pc.is_in(phase, value_set=pa.array(_IN_MICROBATCH))
    in_step = pc.and_(in_step, pc.equal(kind, Kind.COMPUTATION.value))
    everything = pc.is_valid(duration)
    communication = kernels.filter(communicates)
    grouped = pc.is_valid(communication["group_name"])
    if topology.pipelines:
        told = pc.not_equal(communication["dimension"].cast(pa.string()), Dimension.UNKNOWN.value)
        grouped = pc.or_(grouped, pc.fill_null(told, False))
    rows = gather_communications([communications])
    groups = group_communications(rows, topology)
    by_order = np.array([group.evidence in (BY_SIZE, BY_WORLD) for group in groups.groups] + [False])[groups.group]
    return Sample(
        rank=rank,
        kernels=kernels.num_rows,
        phase_known=_share(duration, everything, pc.not_equal(phase, Phase.UNKNOWN.value)),
        microbatch_known=_share(duration, in_step, pc.is_valid(kernels["microbatch"])) or 0.0,
        dimension_known=_share(duration, communicates, pc.not_equal(dimension, Dimension.UNKNOWN.value)),
        communications=communication.num_rows,
        grouped=pc.sum(grouped).as_py() or 0,
        sized=int((communication_bytes(rows) != MISSING).sum()),
        ordered=int((by_order & ~np.isin(rows.table["kernel_id"], communication["kernel_id"].filter(grouped))).sum()),
        module_known=_share(duration, everything, pc.is_valid(kernels["module"])),
        fault=clock_fault(kernels),
    )


def _share(duration: pa.ChunkedArray, whole: pa.ChunkedArray, part: pa.ChunkedArray) -> float | None:
    total = pc.sum(duration.filter(whole)).as_py()
    known = pc.sum(duration.filter(pc.and_(whole, pc.fill_null(part, False)))).as_py()
    return (known or 0) / total if total else None
