"""Packed sequences with a context of its own size for each micro-batch, as Megatron-core's ``data_schedule.py`` has it.

A step begins with the lengths of all sequences, gathered over data parallelism, and with the sequences on their way to
the ranks that will run them. Each micro-batch then splits the domain of data and context parallelism into groups of
neighbours; a group's size is a power of two, and a rank alone exchanges no keys.
"""

from __future__ import annotations

import numpy as np

from traceviz_dag.simulate.rank_grids import dense_grid
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.tree import Collective, Node, Row, builtin, op, py, synchronise
from traceviz_dag.simulate.work import kernels
from traceviz_dag.simulate.work.collectives import BYTES_OF, collective, communicate
from traceviz_dag.simulate.work.job import Job
from traceviz_dag.vocabulary import Dimension

SCHEDULE = "megatron/core/datasets/data_schedule.py"
UTILITIES = "megatron/core/datasets/data_schedule_utils.py"
_SAMPLES = 64
_KEYS = (("tokens", "Long"), ("labels", "Long"), ("loss_mask", "Float"), ("position_ids", "Long"))


def context_size(settings: JobSettings, rank: int, step: int, microbatch: int) -> int:
    """Over how many ranks the micro-batch of a rank is split; the first one of a step over the whole domain."""
    (domain,) = (ranks for ranks in dense_grid(settings).groups("dp", "cp") if rank in ranks)
    place, size = domain.index(rank), len(domain)
    while size > 1 and microbatch:
        generator = np.random.default_rng((settings.seed, 79, step, microbatch, size, place // size))
        if generator.random() < 0.5:
            break
        size //= 2
    return size


def loads(settings: JobSettings, rank: int) -> bool:
    """Whether a rank loads data: the first of its tensor-parallel group does."""
    return dense_grid(settings).place(rank)["tp"] == 0


def scheduled(job: Job, loading: bool) -> Row:
    """``wrap_data_iterator``: lengths, the plan of the micro-batches, and the sequences on their way."""
    settings, tokens = job.settings, job.shape.tokens
    rows: list[Node] = []
    if loading and settings.dp > 1:
        gathered = [
            communicate(
                settings,
                collective("dp", "allgather", elements, "Int", "batch", Dimension.DP, settings.dp),
                members=settings.dp,
            )
            for elements in (1, _SAMPLES)
        ]
        copied = op("aten::_to_copy", op("aten::copy_", kernels.copy("DtoH", 4 * _SAMPLES), synchronise("compute")))
        rows.append(py(UTILITIES, "get_batch_and_global_seqlens", *gathered, copied))
    if loading:
        moved = [_rerouted(job, dtype, tokens * settings.microbatches) for _, dtype in _KEYS]
        rows.append(py(UTILITIES, "reroute_samples_to_dcp_ranks", *moved))
        packed = op("aten::cat", kernels.custom("cat", 32 * tokens * settings.microbatches))
        rows.append(py(UTILITIES, "build_packed_microbatches", builtin("method cat of type object at 0x", packed)))
    if settings.tp > 1:
        what = collective("tp", "broadcast", 3, "Float", "batch", Dimension.TP, settings.tp)
        rows.append(py(UTILITIES, "broadcast_scalars", communicate(settings, what, members=settings.tp)))
    return py(SCHEDULE, "wrap_data_iterator", py(SCHEDULE, "run", *rows))


def _rerouted(job: Job, dtype: str, elements: int) -> Row:
    members = job.settings.dp * job.settings.cp
    nbytes = BYTES_OF[dtype] * elements
    what = Collective("dp_cp", "all_to_allv", elements, elements, dtype, nbytes, "batch", Dimension.DP)
    return communicate(job.settings, what, members=members)


def lengths(job: Job) -> Row:
    """``get_batch_on_this_rank_for_sequence_packing``: where the packed sequences of a micro-batch begin."""
    settings = job.settings
    copied = op("aten::to", op("aten::_to_copy", op("aten::copy_", kernels.copy("HtoD", 4 * _SAMPLES))))
    rows: list[Node] = [builtin("method cuda of Tensor object at 0x", copied)]
    if settings.tp > 1:
        what = collective("tp", "broadcast", _SAMPLES, "Int", "batch", Dimension.TP, settings.tp)
        rows.append(py(UTILITIES, "broadcast_tensor", communicate(settings, what, members=settings.tp)))
    return py(SCHEDULE, "get_batch_on_this_rank_for_sequence_packing", *rows)
