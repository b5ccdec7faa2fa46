"""A simulated job from settings to a run folder: the model, then its files and its truth."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.simulate.bubbles import Spans
from traceviz_dag.simulate.files.driver_memory import write_driver_truth
from traceviz_dag.simulate.files.edges import EDGE_SCHEMA
from traceviz_dag.simulate.files.emit import RankWriter, Written
from traceviz_dag.simulate.files.identity import Clock
from traceviz_dag.simulate.files.nsys_export import write_exports
from traceviz_dag.simulate.files.spans import StageMeasures, pipeline_table, stage_steps
from traceviz_dag.simulate.files.truth import KERNEL_SCHEMA, MICROBATCH_SCHEMA, PIPELINE_SCHEMA
from traceviz_dag.simulate.layouts import text_file, trace_path
from traceviz_dag.simulate.memory.files import snapshots_of_ranks, write_snapshots
from traceviz_dag.simulate.rank_grids import RankGrids, dense_grid
from traceviz_dag.simulate.settings import Format, JobSettings, Layout
from traceviz_dag.simulate.templates import Library
from traceviz_dag.simulate.timing.contention import slower_kernels
from traceviz_dag.simulate.timing.model import Model
from traceviz_dag.simulate.timing.streams import StepTimes
from traceviz_dag.simulate.work.faults import culprits, refuse_idle_faults
from traceviz_dag.system.processes import (
    WorkerDiedError,
    end_with_parent,
    first_done,
    nothing_from_the_current_folder,
    without_main_script,
)
from traceviz_dag.system.semaphores import name_semaphores
from traceviz_dag.system.whole_files import (
    remove_all_stale_temporaries,
    remove_stale_scratch,
    remove_stale_temporaries,
    scratch_folder,
    unwritable,
    whole_file,
)

Progress = Callable[[str, int, int], None]
Steps = list[tuple[int, Path]]
"""Number of each step, and where its times are kept."""

Submit = Callable[[int, Path, Steps], Callable[[], Written]]
"""Has a rank's file of some steps written; what it gives waits for what was."""

_MARK = "culprits.parquet"
"""The file of the truth by which a folder is known as a simulation's."""

_OWN = re.compile(
    r"(?:rank_\d+_iter_\d+|rank-\d+|node\d+_\d+\.\d+)(?:\.pt\.trace)?\.json(?:\.gz)?"
    r"|rank_\d+_iter_\d+\.memory\.pickle|rank-\d+\.memory\.pickle|node\d+\.sqlite|unique_parallel_groups_\d+_\d+\.txt"
    r"|(?:rank_\d+|culprits|edges|microbatches|pipelines|clocks|memory|driver_memory)\.parquet"
)
"""Names of all files that a simulation writes."""


def simulate(settings: JobSettings, out: Path, *, workers: int = 2, progress: Progress | None = None) -> Path:
    """Simulate a training job and write its traces, or its exports, with their ground truth.

    Args:
        out: the run folder to make; what a former simulation left there is replaced.
        workers: processes that write files; 1 writes in this one.
        progress: called with (what, done, of).

    Returns:
        The run folder.

    Raises:
        UsageError: the settings contradict each other.
        BadInputError: the folder holds files that no simulation wrote.
        OutputError: a file cannot be written.
        WorkerDiedError: a process that writes was killed.
    """
    settings.validate()
    if settings.zero_bubble:
        raise UsageError("no files are written of zero-bubble schedules")
    refuse_idle_faults(settings)
    _clear(out)
    (out / "truth").mkdir(parents=True, exist_ok=True)
    grids = RankGrids.of(settings)
    # First of all, since it marks the folder as one that a simulation may replace.
    _write_culprits(settings, grids, out / "truth")
    text_file(settings, out)
    if settings.format is Format.KINETO:
        _write_traces(settings, out, out / "truth", workers, progress)
        if settings.memory:
            write_snapshots(settings, out, out / "truth")
        return out
    # In a folder that nobody searches for traces.
    with scratch_folder(out / "truth") as traces:
        recorded = replace(settings, layout=Layout.TORCH_PROFILE, gzip=False)
        _write_traces(recorded, traces, out / "truth", workers, progress)
        if settings.memory:
            write_snapshots(recorded, traces, out / "truth")
            write_driver_truth(snapshots_of_ranks(recorded, traces), out / "truth" / "driver_memory.parquet")
        write_exports(traces, out / "truth", settings.node_size, out, progress)
    return out


def _write_traces(
    settings: JobSettings, out: Path, truth_folder: Path, workers: int, progress: Progress | None
) -> None:
    """Simulate step by step, and write the traces and the truth of each as soon as it is known.

    Memory holds one step: the times of the others that share its file are kept in a folder until it is written.
    """
    ranks = settings.ranks_with_files
    with (
        scratch_folder(truth_folder) as kept,
        _Truth(settings, truth_folder, ranks) as truth,
        _writers(settings, workers) as submit,
    ):
        total = len(ranks) * (settings.iterations if settings.layout is Layout.ITERATION else 1)
        outstanding: deque[tuple[int, Callable[[], Written]]] = deque()
        done = itertools.count(1)

        def add_outstanding() -> None:
            while outstanding:
                # What a file wrote is let go before the next one's is taken.
                rank, written = outstanding.popleft()
                truth.add(rank, written())
                if progress:
                    progress("traces", next(done), total)
            truth.finish()

        for numbers in _file_steps(settings, kept, progress):
            add_outstanding()
            for rank in ranks:
                path = out / trace_path(settings, rank, numbers[0])
                steps = [(number, _kept_at(kept, number, rank)) for number in numbers]
                outstanding.append((rank, submit(rank, path, steps)))
        add_outstanding()


def _clear(out: Path) -> None:
    """Remove a former simulation; traces that may be real, and files of others among its own, are never touched.

    The file that marks it as one goes last, so that what a killed process left can still be removed.
    """
    truth = out / "truth"
    # The mark is the first file: a process that was killed while it wrote it has left nothing else.
    remove_stale_temporaries(truth / _MARK)
    if not out.exists() or all(path == truth and not any(truth.iterdir()) for path in out.iterdir()):
        return
    if not (truth / _MARK).is_file():
        raise BadInputError(out, "it holds files that no simulation wrote", "name an empty or a new folder")
    remove_stale_scratch(truth)
    remove_all_stale_temporaries(out)
    below = (*out.glob("iteration_*"), out / "torch_profile")
    for folder in (*(path for path in below if path.is_dir() and not path.is_symlink()), out, truth):
        for path in folder.glob("*"):
            if _OWN.fullmatch(path.name) and path != truth / _MARK and path.is_file():
                path.unlink()
        if folder not in (out, truth):
            # Where somebody put files of their own, these stay, and so does the folder.
            with suppress(OSError):
                folder.rmdir()
    (truth / _MARK).unlink()


def _file_steps(settings: JobSettings, kept: Path, progress: Progress | None) -> Iterator[list[int]]:
    """Numbers of the steps that share a file, as soon as they are simulated; their times are kept in a folder."""
    numbers = range(settings.first_iteration, settings.first_iteration + settings.iterations)
    steps = [(number, settings.layout is Layout.ITERATION or number == numbers[-1]) for number in numbers]
    model = Model(settings, slower_kernels(settings, steps))
    gathered: list[int] = []
    for index, (number, ends_file) in enumerate(steps):
        for rank, times in enumerate(model.step(number, synchronised=ends_file)):
            _keep(_kept_at(kept, number, rank), times)
        gathered.append(number)
        if progress:
            progress("steps", index + 1, settings.iterations)
        if ends_file:
            yield gathered
            gathered = []


def _kept_at(kept: Path, number: int, rank: int) -> Path:
    return kept / f"step_{number}_rank_{rank}"


def _keep(path: Path, times: StepTimes) -> None:
    try:
        path.write_bytes(pickle.dumps(times))
    except OSError as error:
        raise unwritable(path, error) from error


def _taken(steps: Steps) -> Iterator[tuple[int, StepTimes]]:
    """The times that are kept, one step after the other; their files are removed."""
    for number, path in steps:
        yield number, pickle.loads(path.read_bytes())
        path.unlink()


_WRITERS: dict[str, object] = {}
"""What a worker process keeps between files."""


def _prepare(settings: JobSettings) -> None:
    end_with_parent()
    _WRITERS["settings"] = settings
    _WRITERS["grids"] = RankGrids.of(settings)
    _WRITERS["library"] = Library(settings)
    _WRITERS["ranks"] = {}


def _write(rank: int, path: Path, steps: Steps) -> Written:
    ranks = _WRITERS["ranks"]
    assert isinstance(ranks, dict)
    if rank not in ranks:
        ranks[rank] = RankWriter(_WRITERS["settings"], _WRITERS["grids"], rank, _WRITERS["library"])  # type: ignore[arg-type]
    written: Written = ranks[rank].write(path, _taken(steps))
    return written


@contextmanager
def _writers(settings: JobSettings, workers: int) -> Iterator[Submit]:
    if workers <= 1:
        _prepare(settings)

        def here(rank: int, path: Path, steps: Steps) -> Callable[[], Written]:
            written = _write(rank, path, steps)
            return lambda: written

        yield here
        _WRITERS.clear()
        return
    context = multiprocessing.get_context("spawn")
    name_semaphores()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(settings,))

    def there(rank: int, path: Path, steps: Steps) -> Callable[[], Written]:
        return partial(_result, pool, pool.submit(_write, rank, path, steps))

    try:
        with nothing_from_the_current_folder(), without_main_script(_write), pool:
            yield there
    except BrokenProcessPool as error:
        raise WorkerDiedError from error


def _result(pool: ProcessPoolExecutor, future: Future[Written]) -> Written:
    while not future.done():
        first_done(pool, [future])
    return future.result()


class _Truth:
    """Writes the truth tables, a row group per file; they appear when all is written."""

    def __init__(self, settings: JobSettings, folder: Path, ranks: list[int]) -> None:
        self.settings, self.folder = settings, folder
        self._files = ExitStack()
        self.kernels = {rank: self._writer(f"rank_{rank:04d}", KERNEL_SCHEMA) for rank in ranks}
        self.edges = self._writer("edges", EDGE_SCHEMA)
        self.spans = self._writer("microbatches", MICROBATCH_SCHEMA)
        self.pipelines = self._writer("pipelines", PIPELINE_SCHEMA)
        self.measures: dict[int, dict[int, StageMeasures]] = {}
        self.steps: dict[int, dict[int, Spans]] = {}

    def __enter__(self) -> _Truth:
        self._write_clocks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in (*self.kernels.values(), self.edges, self.spans, self.pipelines):
            writer.close()
        self._files.__exit__(kind, error, trace)

    def _writer(self, name: str, schema: pa.Schema) -> pq.ParquetWriter:
        return pq.ParquetWriter(self._files.enter_context(whole_file(self.folder / f"{name}.parquet")), schema)

    def add(self, rank: int, written: Written) -> None:
        """Add what one file holds."""
        self.kernels[rank].write_table(written.written_kernels)
        self.edges.write_table(written.edges)
        self.spans.write_table(written.spans)
        for step, measures in written.measures.items():
            self.measures.setdefault(step, {})[rank] = measures
            self.steps.setdefault(step, {})[rank] = stage_steps(written.spans, step)

    def finish(self) -> None:
        """Write the pipelines of the steps that are complete."""
        pipelines = dense_grid(self.settings).groups("pp")
        for step, measures in self.measures.items():
            table = pipeline_table(self.settings, step, pipelines, measures, self.steps[step])
            self.pipelines.write_table(table)
        self.measures.clear()
        self.steps.clear()

    def _write_clocks(self) -> None:
        rows = [{"rank": rank, **asdict(Clock.of(self.settings, rank))} for rank in range(self.settings.world)]
        for row in rows:
            row["drift_ppm"] = row.pop("drift_ppb") / 1000
        with whole_file(self.folder / "clocks.parquet") as file:
            pq.write_table(pa.Table.from_pylist(rows), file)


def _write_culprits(settings: JobSettings, grids: RankGrids, folder: Path) -> None:
    stages = {rank: grids.coordinates(rank)["pp"] for rank in range(settings.world)}
    rows = [asdict(culprit) for culprit in culprits(settings, stages)]
    schema = pa.schema(
        [
            ("fault", pa.string()),
            ("rank", pa.int64()),
            ("stage", pa.int64()),
            ("magnitude", pa.float64()),
            ("unit", pa.string()),
            ("ranks", pa.list_(pa.int64())),
        ]
    )
    with whole_file(folder / _MARK) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
