"""The pool that fans ranks out over processes: each worker takes one rank the whole way and writes its partitions."""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from traceviz_dag.analyze.invariants import microbatch_violations, overlap_violations
from traceviz_dag.analyze.peaks import BUILT_IN, Peaks
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import BadInputError, StoreError, file_system_line
from traceviz_dag.lake.digests import stamp_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key, rank_key
from traceviz_dag.pipeline.engines import IMPORTED_ONCE, Engine, default_workers
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.made import rank_word
from traceviz_dag.pipeline.ranks import analyse_steps, failed_trace
from traceviz_dag.system.memory_limit import numpys_memory
from traceviz_dag.system.processes import WorkerDiedError, spread, start_ahead
from traceviz_dag.system.whole_files import write_atomically
from traceviz_dag.tables import EXTRA_TABLES, RANK_TABLES

LOGS = "logs"
"""Folder of a home for what a fault of this program leaves: the traceback, for whoever fixes it."""

_FEW, _FEW_BYTES = 8, 4 << 20
"""So many ranks, and bytes of all their traces, this process reads before others have imported what they need."""
_MEMORY = "takes more memory than there is; run with fewer workers or more memory"
_HOME_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""What goes wrong with the home while a trace is read, since a profile is kept there: no fault of the trace."""


@dataclass(frozen=True, slots=True)
class IterationTask:
    """What all ranks of one iteration share; sent to each worker once.

    Attributes:
        home: folder of the lake to write to.
        topology_version: data version of the topology.
        peaks: of the GPUs.
    """

    home: Path
    run: str
    iteration: int
    topology: Topology
    rules: Rules
    topology_version: str = ""
    peaks: Peaks = BUILT_IN


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """One partition as it was written: its digest is its data version."""

    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """How one rank ended.

    Attributes:
        tables: table → what was written; empty for a rank that failed.
        facts: the rank's ``traces`` row.
        fault: one line; None for a rank that was read without loss.
        failed: whether nothing of the rank could be used.
        kept: whether it has tables of an earlier reading all the same.
        violations: table → names of the invariants that its rows break.
    """

    rank: int
    tables: Mapping[str, TableOutcome]
    facts: Mapping[str, object] = field(default_factory=dict)
    fault: str | None = None
    failed: bool = False
    kept: bool = False
    violations: Mapping[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0


Beside = Sequence[tuple[IterationTask, Mapping[int, RankTrace]]]
"""Other iterations, and their ranks that lie in the same files as those of one; of the same topology."""


def analyse_ranks(
    task: IterationTask,
    traces: Sequence[RankTrace],
    workers: int | None = None,
    beside: Beside = (),
    engine: Engine | None = None,
) -> Iterator[RankOutcome]:
    """Analyse ranks side by side; outcomes come as ranks finish, and each rank's partitions are written by then.

    A rank that fails, or whose worker dies, ends as a failed outcome; the others go on. Few small ones are analysed in
    this process, unless a number of workers is given.

    Args:
        beside: partitions of these are written, too, where all goes well; of what does not, nothing is said here.
        engine: where; None takes processes of this machine.
    """
    if engine is not None:
        outcomes = engine.spread(_analyse, traces, workers, (task, beside))
    elif _takes_one([trace.path for trace in traces], workers):
        for trace in traces:
            yield analyse_into_lake(task, trace, beside)
        return
    else:
        count = workers or default_workers()
        outcomes = spread(_analyse, traces, count, arguments=(task, beside), preload=IMPORTED_ONCE)
    for number, outcome in outcomes:
        if isinstance(outcome, WorkerDiedError):
            yield _record_failure(task, traces[number], f"{traces[number].name}: {outcome}")
        else:
            yield outcome


def prepare_workers(files: Sequence[Path], workers: int | None = None) -> None:
    """Have processes for these ranks' traces import what they need by the time that ``analyse_ranks`` wants them."""
    if files and not _takes_one(files, workers):
        start_ahead(IMPORTED_ONCE)


def _takes_one(files: Sequence[Path], workers: int | None) -> bool:
    """Whether this process analyses some traces itself."""
    try:
        few = workers is None and len(files) <= _FEW
        return len(files) == 1 or (few and sum(stamp_of(file)[0] for file in files) <= _FEW_BYTES)
    except OSError:
        return False  # Whoever reads it says why.


def analyse_into_lake(task: IterationTask, trace: RankTrace, beside: Beside = ()) -> RankOutcome:
    """Take one rank the whole way and write its partitions; see ``analyse_ranks``.

    Raises:
        OSError: the home cannot be written.
    """
    others = [(other, traces[trace.rank]) for other, traces in beside if trace.rank in traces]
    with numpys_memory():
        outcome = _analyse_into_lake(task, trace, others)
        # What is wrong with another step of the file is that one's matter.
        return _analyse_into_lake(task, trace, ()) if outcome.failed and others else outcome


def _analyse_into_lake(
    task: IterationTask, trace: RankTrace, others: Sequence[tuple[IterationTask, RankTrace]]
) -> RankOutcome:
    """Take one rank, and those of other iterations in the same file, the whole way.

    Whatever its trace provokes becomes a failed row of ``traces`` and costs no other rank; the traceback of a fault of
    this program is in a file under ``LOGS``.
    """
    started = time.monotonic()
    lake = Lake(task.home)
    trace = replace(trace, home=trace.home or task.home)
    log = fault_log(trace.home or task.home, task.run, task.iteration, trace.rank)
    try:
        steps = [trace, *(replace(one, home=trace.home) for _, one in others)]
        tables, *further = analyse_steps(steps, task.topology, task.rules, task.peaks)
    except (BadInputError, StoreError) as error:
        return _record_failure(task, trace, str(error))
    except MemoryError:
        return _record_failure(task, trace, f"{trace.name}: {_MEMORY}")
    except OSError as error:
        if error.errno in _HOME_FAULTS:
            raise
        return _record_failure(task, trace, f"{trace.name}: {file_system_line(error)}")
    except Exception as error:  # noqa: BLE001 - the one place where a fault of any rule for reading or classifying ends
        keep_traceback(log, error)
        return _record_failure(task, trace, f"{trace.name}: {_in_a_line(error)}; report it with {log}")
    log.unlink(missing_ok=True)
    facts, written = tables["traces"].to_pylist()[0], _write(lake, task, trace, tables)
    for (other, one), of_step in zip(others, further, strict=True):
        _write(lake, other, one, of_step)
    violations = {
        "overlap": _names(overlap_violations(tables["overlap"])),
        "microbatches": _names(microbatch_violations(tables["microbatches"])),
    }
    seconds = time.monotonic() - started
    return RankOutcome(trace.rank, written, facts, facts["fault"], violations=violations, seconds=seconds)


def _write(
    lake: Lake, task: IterationTask, trace: RankTrace, tables: Mapping[str, pa.Table]
) -> dict[str, TableOutcome]:
    """Write the partitions of a rank, those that its format does not have left out."""
    digest = tables["traces"]["digest"][0].as_py()
    version = str(digest or trace.version) if trace.is_digest else trace.version
    made = rank_word(version, task.topology_version, task.rules.digest, task.peaks.digest)
    names = (*RANK_TABLES, *EXTRA_TABLES)
    there = {name: tables[name] for name in names if name in tables}
    parts = lake.write_together(there, run=task.run, iteration=task.iteration, rank=trace.rank, made=made)
    gone = [name for name in names if name not in tables]
    lake.delete(*gone, run=task.run, iteration=task.iteration, rank=trace.rank)
    return {name: TableOutcome(part.rows, part.bytes, part.digest) for name, part in parts.items()}


def fault_log(home: Path, run: str, iteration: int, rank: int) -> Path:
    """The file of the last fault of this program on a rank."""
    return home / LOGS / f"{iteration_key(run, iteration)}_rank_{rank_key(rank)}.log"


def keep_traceback(log: Path, error: Exception) -> None:
    """Write the traceback of a fault of this program where whoever fixes it finds it."""
    write_atomically(log, "".join(traceback.format_exception(error)).encode(errors="replace"))


def _in_a_line(error: Exception) -> str:
    message = " ".join(str(error).split())
    name = type(error).__name__
    return f"cannot be analysed ({name}: {message[:200]})" if message else f"cannot be analysed ({name})"


def _names(violations: pa.Table) -> list[str]:
    return sorted(set(violations["invariant"].to_pylist()))


def _record_failure(task: IterationTask, trace: RankTrace, fault: str) -> RankOutcome:
    """Leave the tables of an earlier reading, whose mark is the caller's matter; without any, ``traces`` says what is
    wrong."""
    lake, run, iteration, rank = Lake(task.home), task.run, task.iteration, trace.rank
    names = (*RANK_TABLES, *EXTRA_TABLES)
    there = [name for name in names if lake.exists(name, run=run, iteration=iteration, rank=rank)]
    is_readable = all(lake.is_readable(name, run=run, iteration=iteration, rank=rank) for name in there)
    if RANK_TABLES[-1] in there and is_readable:
        return RankOutcome(rank, {}, {}, fault, failed=True, kept=True)
    row = failed_trace(trace, fault)
    lake.write("traces", row, run=run, iteration=iteration, rank=rank)
    lake.delete(*names[1:], run=run, iteration=iteration, rank=rank)
    return RankOutcome(rank, {}, row.to_pylist()[0], fault, failed=True)


def _analyse(trace: RankTrace, task: IterationTask, beside: Beside) -> RankOutcome:
    return analyse_into_lake(task, trace, beside)
