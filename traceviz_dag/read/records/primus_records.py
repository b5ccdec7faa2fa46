"""Reads the pipeline dumps of Primus: a file a pipeline rank with the begin and end of every forward and backward step.

A folder holds ``config.json`` with the layout of the job, and ``pp_rank_N.json`` of each rank: iteration → milliseconds
on the rank's own clock. No message is on record, so the clocks are told by what messages must do: a forward step begins
after that of the stage before has ended, and a backward step after that of the next stage. Between the two limits that
all micro-batches of an iteration leave to the difference of two clocks its middle is taken, so that a message takes as
long in both directions where it is not waited for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Int64
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.limits import MOST_RANKS, MOST_ROWS
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation, PipelineRecords
from traceviz_dag.read.toml_file import read_text

_REMEDY = "name a folder of Primus' dumps: config.json and pp_rank_N.json of each pipeline rank"
_MOST_MS = 1e9

COLUMNS = (
    *("step", "dp_rank", "stage", "rank", "operation", "sequence", "chunk", "microbatch", "start_ns", "duration_ns"),
)


T = TypeVar("T")


class _Config(msgspec.Struct):
    pp_size: int
    num_mbs: int
    vp_size: int = 1


class _Iteration(msgspec.Struct):
    """Milliseconds, by micro-batch."""

    fwd_start: list[float]
    fwd_end: list[float]
    bwd_start: list[float]
    bwd_end: list[float]


def read_primus_records(folder: Path) -> PipelineRecords:
    """Read the dumps of one job.

    Raises:
        BadInputError: a file is missing or none of this kind, or they contradict each other.
    """
    if not (folder / "config.json").exists():
        raise BadInputError(folder, "is a folder, and no config.json is in it", _REMEDY)
    config = _decoded(folder / "config.json", _Config)
    stages, count = config.pp_size, config.num_mbs
    if not (1 <= stages <= MOST_RANKS and 1 <= count <= MOST_ROWS):
        raise BadInputError(folder / "config.json", f"states pp_size {stages} and num_mbs {count}", _REMEDY)
    if config.vp_size != 1:
        fault = f"states vp_size {config.vp_size}; dumps of several model chunks do not show the chunk"
        raise BadInputError(folder / "config.json", fault, "dump a job with one chunk")
    paths = [folder / f"pp_rank_{stage}.json" for stage in range(stages)]
    of_ranks = [_decoded(path, dict[str, _Iteration]) for path in paths]
    there = [name for name in of_ranks[0] if all(name in mine for mine in of_ranks)]
    numbers = sorted(int(name) for name in there if name.isdecimal() and len(name) < 10)
    parts, faults = [], []
    every = {name for mine in of_ranks for name in mine}
    if len(numbers) < len(every):
        faults.append(f"{folder}: {len(every) - len(numbers)} of {len(every)} iterations are not of every rank")
    for number in numbers:
        times = np.stack([_times(mine[str(number)], count, path) for mine, path in zip(of_ranks, paths, strict=True)])
        offsets, fits = _offsets(times)
        if not fits:
            faults.append(f"{folder}: iteration {number} was left out: its steps overlap those that they wait for")
            continue
        times += offsets[:, None, None, None]
        parts.append(_rows(number, times - times.min()))
    if not parts:
        raise BadInputError(folder, "no iteration of every rank can be used", _REMEDY)
    columns = np.concatenate(parts, axis=1)
    order = np.lexsort(columns[[COLUMNS.index(name) for name in ("start_ns", "stage", "step")]])
    rows = pa.table({name: column[order] for name, column in zip(COLUMNS, columns, strict=True)})
    return PipelineRecords(rows, 1, stages, 1, tuple(faults))


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_text(path), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInputError(path, f"no dump of Primus ({error})", _REMEDY) from error


def _times(one: _Iteration, count: int, path: Path) -> Int64:
    """Begin and end of the forward and the backward steps of a rank, ns: direction × (begin, end) × micro-batch."""
    lists = [one.fwd_start, one.fwd_end, one.bwd_start, one.bwd_end]
    if any(len(each) != count for each in lists):
        raise BadInputError(path, f"an iteration has not {count} micro-batches", _REMEDY)
    milliseconds = np.array(lists)
    if not (np.isfinite(milliseconds) & (milliseconds >= 0) & (milliseconds < _MOST_MS)).all():
        raise BadInputError(path, "a time is no number of milliseconds", _REMEDY)
    if (milliseconds[1::2] < milliseconds[::2]).any():
        raise BadInputError(path, "a step ends before it begins", _REMEDY)
    return np.asarray(np.rint(milliseconds * 1e6), dtype=np.int64).reshape(2, 2, count)


def _offsets(times: Int64) -> tuple[Int64, bool]:
    """What to add to each rank's clock, and whether each step then begins after what it waits for.

    Args:
        times: rank × direction × (begin, end) × micro-batch.
    """
    least = (times[:-1, 0, 1] - times[1:, 0, 0]).max(axis=1)
    most = (times[:-1, 1, 0] - times[1:, 1, 1]).min(axis=1)
    return np.concatenate([[0], np.cumsum((least + most) // 2)]), bool((least <= most).all())


def _rows(number: int, times: Int64) -> Int64:
    """The operations of an iteration, columns as ``COLUMNS``: steps, and the messages that must have been between them.

    A message is sent when the step that makes it ends. Its receiver waits from the end of its own step before to the
    begin of the step that needs it.
    """
    stages, _, _, count = times.shape
    batch = np.arange(count)
    parts = []

    def add(stage: int, kind: Operation, start: Int64, end: Int64) -> None:
        alike = [number, 0, stage, stage, OPERATIONS.index(kind)]
        parts.append(np.stack([*(np.full(count, each) for each in alike), batch, batch * 0, batch, start, end - start]))

    for stage in range(stages):
        (forward, forward_end), (backward, backward_end) = times[stage]
        add(stage, Operation.FORWARD, forward, forward_end)
        add(stage, Operation.BACKWARD, backward, backward_end)
        ends = np.sort(np.concatenate([[0], forward_end, backward_end]))
        if stage:
            add(stage, Operation.FORWARD_RECEIVE, ends[np.searchsorted(ends, forward, side="right") - 1], forward)
            add(stage, Operation.BACKWARD_SEND, backward_end, times[stage - 1, 1, 0])
        if stage < stages - 1:
            add(stage, Operation.FORWARD_SEND, forward_end, times[stage + 1, 0, 0])
            add(stage, Operation.BACKWARD_RECEIVE, ends[np.searchsorted(ends, backward, side="right") - 1], backward)
    return np.concatenate(parts, axis=1)
