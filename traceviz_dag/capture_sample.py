"""One rank of a capture, classified: what the evidence of its traces comes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology_types import Topology
from traceviz_dag.errors import BadInputError
from traceviz_dag.iteration_pipeline import rank_traces
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.rank_pipeline import RANK_TABLES, analyse_rank
from traceviz_dag.vocabulary import Dimension, Kind, Phase

_IN_MICROBATCH = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.RECOMPUTE.value)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the kernels of one rank tell.

    Attributes:
        phase_known: share of kernel time with a phase; None without kernels.
        microbatch_known: share of the forward and backward time that is in a micro-batch; 0 without any such time.
        dimension_known: share of communication time with a dimension; None without communication.
        communications: communication kernels; sized: those with elements; grouped: those whose group is known, because
            the trace names it or because the topology has one of their dimension.
        module_known: share of kernel time with a module; None without kernels.
    """

    rank: int
    kernels: int
    phase_known: float | None
    microbatch_known: float
    dimension_known: float | None
    communications: int
    grouped: int
    sized: int
    module_known: float | None


def sample(inputs: IterationInputs, topology: Topology, rules: Rules, home: Path | None = None) -> Sample | None:
    """Classify the first rank that can be read, None where none can.

    Args:
        home: where profiles of Nsight Systems are kept once they were read; None keeps nothing.
    """
    for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}, home):
        try:
            tables = analyse_rank(trace, topology, rules)
        except BadInputError:
            continue
        return _sample(trace.rank, tables[RANK_TABLES[1]], known=bool(topology.pipelines))
    return None


def _sample(rank: int, kernels: pa.Table, known: bool) -> Sample:
    duration = kernels["duration_ns"]
    phase, kind, dimension = (kernels[name].cast(pa.string()) for name in ("phase", "kind", "dimension"))
    communicates = pc.equal(kind, Kind.COMMUNICATION.value)
    in_step = pc.is_in(phase, value_set=pa.array(_IN_MICROBATCH))
    in_step = pc.and_(in_step, pc.equal(kind, Kind.COMPUTATION.value))
    everything = pc.is_valid(duration)
    communication = kernels.filter(communicates)
    grouped = pc.is_valid(communication["group_name"])
    if known:
        told = pc.not_equal(communication["dimension"].cast(pa.string()), Dimension.UNKNOWN.value)
        grouped = pc.or_(grouped, pc.fill_null(told, False))
    return Sample(
        rank=rank,
        kernels=kernels.num_rows,
        phase_known=_share(duration, everything, pc.not_equal(phase, Phase.UNKNOWN.value)),
        microbatch_known=_share(duration, in_step, pc.is_valid(kernels["microbatch"])) or 0.0,
        dimension_known=_share(duration, communicates, pc.not_equal(dimension, Dimension.UNKNOWN.value)),
        communications=communication.num_rows,
        grouped=pc.sum(grouped).as_py() or 0,
        sized=communication.num_rows - communication["in_elements"].null_count,
        module_known=_share(duration, everything, pc.is_valid(kernels["module"])),
    )


def _share(duration: pa.ChunkedArray, whole: pa.ChunkedArray, part: pa.ChunkedArray) -> float | None:
    total = pc.sum(duration.filter(whole)).as_py()
    known = pc.sum(duration.filter(pc.and_(whole, pc.fill_null(part, False)))).as_py()
    return (known or 0) / total if total else None
