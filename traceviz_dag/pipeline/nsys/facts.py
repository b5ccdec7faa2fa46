"""What the exports of an iteration hold and lack, for the question what they can answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.nsys.activity import name_codes, numbers
from traceviz_dag.classify.autograd_links import AUTOGRAD_NODE
from traceviz_dag.classify.nsys.calls import OPERATIONS
from traceviz_dag.classify.nsys.trace import NsysPart
from traceviz_dag.classify.rules import Rules
from traceviz_dag.lake.inputs import IterationInputs, RankInput
from traceviz_dag.pipeline.nsys.ranks import iterations_of_part
from traceviz_dag.read.events import KERNEL
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.read.nsys.profile import MARK, PROCESS_BITS, NsysProfile

INCLUDE_BLOBS = "export again with nsys export --include-blobs=true"


@dataclass(frozen=True, slots=True)
class ExportFacts:
    """What one export holds, over the ranks that were found in it.

    Attributes:
        name: of the file, relative to its run's folder.
        product_version, schema_version: of the nsys that wrote it, and of the export; None where not stated.
        ranks: numbers of the ranks in it.
        iteration_source: what the iterations were read from, in words.
        kernels: of these ranks. launched: those of them whose launch was recorded.
        ranges: NVTX ranges of the ranks' processes. operator_ranks: ranks for which PyTorch pushed ranges.
        backward_ranks: those of them with nodes of autograd, which show backward from forward and pair the two.
        nccl_calls: NVTX ranges of NCCL's calls. nccl_payloads: those that bear communicator and message size.
        payload_ranks: ranks whose process has a call with a communicator, and no other rank beside it.
        utc_start: whether the capture states when it began.
        idle_gpus: GPUs of the report that ran no kernel. shared_gpus: those whose process drives other GPUs too, so
            that its communicators show no rank.
        missing: what the export lacks, and what cannot be said for that.
    """

    name: str
    product_version: str | None
    schema_version: str | None
    ranks: tuple[int, ...]
    iteration_source: str
    kernels: int
    launched: int
    ranges: int
    operator_ranks: int
    backward_ranks: int
    nccl_calls: int
    nccl_payloads: int
    payload_ranks: int
    utc_start: bool
    idle_gpus: tuple[int, ...]
    shared_gpus: tuple[int, ...]
    missing: tuple[str, ...]


def export_facts(inputs: IterationInputs, home: Path | None, rules: Rules) -> list[ExportFacts]:
    """What each export of an iteration holds, by name; all of its ranks are of exports.

    Args:
        home: where profiles are kept once they were read; None keeps nothing.

    Raises:
        BadInputError: an export cannot be read.
    """
    by_path: dict[str, list[RankInput]] = {}
    for entry in inputs.ranks:
        by_path.setdefault(entry.path, []).append(entry)
    found = [_facts(open_profile(Path(path), home), entries, rules) for path, entries in by_path.items()]
    return sorted(found, key=lambda one: one.name)


def _facts(profile: NsysProfile, entries: Sequence[RankInput], rules: Rules) -> ExportFacts:
    parts = [NsysPart.of_key(entry.part) for entry in entries]
    per_process = Counter(part.process for part in parts)
    alone = {process for process, count in per_process.items() if count == 1}
    operations = profile.table("operations", "process", "device", "category", "launch")
    kernel = numbers(operations, "category") == KERNEL
    mine = kernel & np.isin(numbers(operations, "process"), list(per_process))
    process, is_range, operator, backward, call, payload = _ranges(profile)
    own = is_range & np.isin(process, list(per_process))
    pushed, node, paid = (set(process[own & marked].tolist()) for marked in (operator, backward, payload))
    busy = set(numbers(operations, "device")[kernel].tolist())
    return ExportFacts(
        name=entries[0].name,
        product_version=profile.facts.product_version,
        schema_version=profile.facts.schema_version,
        ranks=tuple(entry.rank for entry in entries),
        iteration_source=iterations_of_part(profile, parts[0], rules).source,
        kernels=int(mine.sum()),
        launched=int((numbers(operations, "launch")[mine] >= 0).sum()),
        ranges=int(own.sum()),
        operator_ranks=sum(part.process in pushed for part in parts),
        backward_ranks=sum(part.process in node for part in parts),
        nccl_calls=int((own & call).sum()),
        nccl_payloads=int((own & payload).sum()),
        payload_ranks=sum(part.process in paid & alone for part in parts),
        utc_start=profile.facts.utc_start_ns is not None,
        idle_gpus=tuple(gpu.device for gpu in profile.facts.gpus if gpu.device not in busy),
        shared_gpus=tuple(sorted(part.device for part in parts if part.process not in alone)),
        missing=profile.facts.missing,
    )


def _ranges(profile: NsysProfile) -> tuple[np.ndarray, ...]:
    """Of each row of ``ranges``: its process; whether it is a range; PyTorch's; a node of autograd; a call of NCCL; one
    with a payload."""
    table = profile.table("ranges", "name", "kind", "thread", "operator", "communicator")
    codes, names = name_codes(table, "name")
    of_nccl = np.array([name in OPERATIONS for name in names], dtype=bool)
    of_autograd = np.array([name.startswith(AUTOGRAD_NODE) for name in names], dtype=bool)
    return (
        numbers(table, "thread") >> PROCESS_BITS,
        numbers(table, "kind") != MARK,
        _flags(table["operator"]),
        of_autograd[codes],
        of_nccl[codes],
        _flags(pc.is_valid(table["communicator"])),
    )


def _flags(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.to_numpy(), dtype=bool)
