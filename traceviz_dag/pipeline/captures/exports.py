"""What Nsight Systems exports hold and can answer, in their terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceviz_dag.analyze import wording
from traceviz_dag.pipeline.captures.answers import DIMENSION, MICROBATCH, PHASE, PLACE, SIZES, WAITS, Answer, degree
from traceviz_dag.pipeline.captures.capture import Capture, Examination, Listing, Sample
from traceviz_dag.pipeline.captures.traces import hidden_communication, no_communication
from traceviz_dag.pipeline.nsys.facts import INCLUDE_BLOBS, ExportFacts

_EMIT_NVTX = "capture with --trace=cuda,nvtx, and Megatron's --profile or torch.autograd.profiler.emit_nvtx"
_NO_NCCL = "no NVTX ranges of NCCL: capture with --trace=cuda,nvtx, and leave NCCL_NVTX_DISABLE unset"
_NEARLY_ALL = 0.99


def capture_of_exports(request: Examination, exports: Sequence[ExportFacts]) -> Capture:
    """What the exports of an iteration hold, and which questions they can answer."""
    inputs, topology, sample = request.inputs, request.topology, request.sample()
    described = inputs.topology_file is not None
    world_size = topology.world_size if described else None
    pipelines, ranks = len(topology.pipelines), len(inputs.ranks)
    return Capture(
        run=inputs.run,
        iteration=inputs.iteration,
        ranks=ranks,
        world_size=world_size,
        gpu=ranks,
        stacks=0,
        operators=sum(export.operator_ranks for export in exports),
        shapes=0,
        groups=sum(export.payload_ranks for export in exports),
        steps=0,
        pipelines=pipelines,
        problems=inputs.problems,
        warnings=inputs.warnings,
        described=described,
        exports=tuple(exports),
        sample=sample,
        answers=tuple(judge_exports(exports, ranks, world_size, pipelines, described, sample)),
        source=", ".join(sorted({export.iteration_source for export in exports})),
        listings=(_listing(exports),),
        notes=tuple(_notes(exports)),
    )


def judge_exports(
    exports: Sequence[ExportFacts],
    ranks: int,
    world_size: int | None,
    pipelines: int,
    described: bool,
    sample: Sample | None,
) -> list[Answer]:
    """Which questions the exports of an iteration can answer.

    Args:
        described: a topology text file is beside them.
        sample: what one rank's kernels show.
    """
    annotated = any(export.ranges for export in exports)
    payload = sum(export.payload_ranks for export in exports) == ranks
    some_payload = any(export.nccl_payloads for export in exports)
    communicates = sample is not None and sample.communications > 0
    launches = _launches(exports)
    phase_known = all(export.backward_ranks == len(export.ranks) for export in exports) and launches is None
    ranges = _why_ranges(exports, ranks) + (f"; {launches}" if launches else "")
    complete, on_one_clock = world_size == ranks, all(export.utc_start for export in exports) or len(exports) == 1
    return [
        Answer(PHASE, degree(phase_known, annotated), ranges),
        Answer(MICROBATCH, degree(phase_known, any(export.backward_ranks for export in exports)), ranges),
        Answer(
            DIMENSION,
            degree(payload and described, some_payload or described),
            _why_dimension(exports, payload, described),
        ),
        hidden_communication(sample, on_gpus=True),
        Answer(
            PLACE,
            degree(pipelines > 0, False),
            f"{pipelines} pipelines known" if pipelines else "no unique_parallel_groups_* text file beside the exports",
        ),
        Answer(
            WAITS,
            degree(complete and on_one_clock and communicates, ranks > 1 and communicates),
            no_communication(sample)
            if not communicates
            else ("all ranks are there" if complete else f"{ranks} of {world_size or 'an unknown number of'} ranks")
            + ("" if on_one_clock else "; captures do not state their start in UTC"),
        ),
        Answer(
            SIZES,
            degree(False, some_payload),
            "message sizes of NCCL's calls; exports hold no shapes" if some_payload else _why_no_payload(exports),
        ),
    ]


def _listing(exports: Sequence[ExportFacts]) -> Listing:
    """What each export holds."""
    return Listing(
        "Exports of these iterations",
        (
            *("export", "ranks", "kernels", "launches known", "NVTX ranges", "ranks with PyTorch's"),
            *("NCCL calls", "with payload"),
        ),
        tuple(
            (
                export.name,
                _numbers(export.ranks),
                export.kernels,
                f"{wording.percent(export.launched / export.kernels)}" if export.kernels else None,
                export.ranges,
                f"{export.operator_ranks} of {len(export.ranks)}",
                export.nccl_calls,
                export.nccl_payloads,
            )
            for export in exports
        ),
    )


def _notes(exports: Sequence[ExportFacts]) -> Iterator[str]:
    """What each export lacks."""
    for export in exports:
        for sentence in export.missing:
            yield f"{export.name}: {sentence}"
        if export.idle_gpus:
            yield f"{export.name}: no kernel ran on GPU {_numbers(export.idle_gpus)}, so it is no rank"
        if export.shared_gpus:
            gpus = _numbers(export.shared_gpus)
            yield f"{export.name}: one process drives GPUs {gpus}, so its communicators show no rank"


def _why_ranges(exports: Sequence[ExportFacts], ranks: int) -> str:
    operators = sum(export.operator_ranks for export in exports)
    nodes = sum(export.backward_ranks for export in exports)
    if nodes == ranks:
        return "PyTorch's NVTX ranges"
    if nodes:
        return f"PyTorch's NVTX ranges, with nodes of autograd for {nodes} of {ranks} ranks"
    if operators:
        return "PyTorch's NVTX ranges, but no node of autograd among them: no backward pass in the capture"
    annotated = any(export.ranges for export in exports)
    return f"no NVTX ranges of PyTorch{'' if annotated else ', nor any other'}: {_EMIT_NVTX}"


def _launches(exports: Sequence[ExportFacts]) -> str | None:
    """What must be said where launches of many kernels are not in the captures; None where nearly all are."""
    kernels, launched = sum(export.kernels for export in exports), sum(export.launched for export in exports)
    if not kernels or launched / kernels >= _NEARLY_ALL:
        return None
    return f"the launches of {wording.percent(1 - launched / kernels)} of the kernels are not in the capture"


def _why_dimension(exports: Sequence[ExportFacts], payload: bool, described: bool) -> str:
    if not any(export.nccl_payloads for export in exports):
        return _why_no_payload(exports)
    communicators = "NCCL's communicators" if payload else "communicators of some of the ranks"
    return communicators + (
        " and the topology text file"
        if described
        else ": most of Megatron's are known from what they carry; unique_parallel_groups_* beside them lists all"
    )


def _why_no_payload(exports: Sequence[ExportFacts]) -> str:
    calls = any(export.nccl_calls for export in exports)
    return f"NCCL's calls bear no payload: {INCLUDE_BLOBS}" if calls else _NO_NCCL


def _numbers(values: Sequence[int]) -> str:
    """Numbers as people write them: 0–3, 6."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
