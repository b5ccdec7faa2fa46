"""Ranks fan out over a job array of Slurm whose tasks listen nowhere: they take ranks from a folder of the home.

A file for each rank that nobody has begun lies there; whoever deletes it works on that rank, and leaves the outcome.
"""

from __future__ import annotations

import math
import os
import pickle
import shlex
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.cluster.fitness import requirements
from traceviz_dag.pipeline.cluster.settings import SlurmSettings
from traceviz_dag.pipeline.cluster.slurm import SlurmJob, private_folder, submitted
from traceviz_dag.pipeline.engines import IMPORTED_ONCE
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.workers import LOGS
from traceviz_dag.system.processes import WorkerDiedError, spread

_WORK, _FAULT, _OUTCOME = "work", "fault", ".outcome"
_LOOK_SECONDS = 1.0
_ASK_SECONDS = 10.0
"""Between questions to Slurm's controller, which all users share."""

_SEEN_SECONDS = 60.0
"""So long NFS may show a folder as it was: what a task that has ended left there is waited for."""

_FRUITLESS_ARRAYS = 2
"""After so many in a row without a finished rank, no further one is submitted."""

_LOST = "its tasks of Slurm ended before it, twice: for want of memory, or cancelled, or lost with their nodes"

_TASK = """export PYTHONSAFEPATH=1
for _ in $(seq {ranks}); do
    {python} -m {module} {folder} &
done
wait
"""

Ended = tuple[int, Any]


class ArrayEngine:
    """Job arrays of Slurm, one for each call.

    Args:
        home: absolute; tasks must see it. tell: is told the array's number, and why it waits.
    """

    keeps_workers = False

    def __init__(self, settings: SlurmSettings, home: Path, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._home = home
        self._tell = tell

    def spread(
        self, work: Callable[..., Any], items: Sequence[Any], workers: int | None, arguments: tuple[Any, ...]
    ) -> Iterator[Ended]:
        """As ``Engine.spread``; an item that was lost with its task is tried once more, alone in a task.

        Raises:
            ClusterError: there is no Slurm, a task may not work, or arrays end without a finished item.
        """
        left, losses, fruitless = dict(enumerate(items)), Counter[int](), 0
        while left and fruitless < _FRUITLESS_ARRAYS:
            ranks = 1 if losses else self._settings.ranks_per_worker
            # What may kill its task again comes last.
            left = dict(sorted(left.items(), key=lambda entry: losses[entry[0]]))
            before = len(left)
            lost = yield from self._array(left, ranks, workers, (work, arguments))
            losses.update(lost)
            fruitless = fruitless + 1 if len(left) == before else 0
            for number in [number for number in left if losses[number] > 1]:
                del left[number]
                yield number, WorkerDiedError(_LOST)
            if left and lost:
                self._tell(f"{len(lost)} of the ranks under way were lost with their tasks")
        if left:
            fault = "job arrays ended without a finished rank"
            raise ClusterError("Slurm", fault, f"see their logs in {self._home / LOGS}, and run this again")

    def _array(
        self, left: dict[int, Any], ranks: int, workers: int | None, shared: tuple[Any, ...]
    ) -> Generator[Ended, None, set[int]]:
        """Take what is finished out of ``left``; returns what was begun, and lost.

        Args:
            ranks: side by side in each task, at most.
        """
        ranks = min(ranks, workers or ranks, len(left))
        most = workers // ranks if workers else self._settings.workers
        tasks = min(self._settings.workers, most, math.ceil(len(left) / ranks))
        logs = self._home / LOGS
        options = [f"--array=0-{tasks - 1}", "--ntasks=1", f"--cpus-per-task={ranks}", "--open-mode=append"]
        files = {item.path.parent: item.path for item in left.values() if isinstance(item, RankTrace)}
        with requirements(self._home, list(files.values())) as needed, private_folder(self._home) as folder:
            _save(folder / _WORK, (needed, pickle.dumps((left, *shared))))
            for number in left:
                (folder / str(number)).touch()
            python, place = shlex.quote(sys.executable), shlex.quote(str(folder))
            commands = _TASK.format(ranks=ranks, python=python, module=__name__, folder=place)
            with submitted(self._settings, folder, options, commands, logs, self._tell, log_number="%A") as job:
                yield from _outcomes(folder, job, left)
            return {number for number in left if not (folder / str(number)).exists()}


def _outcomes(folder: Path, job: SlurmJob, left: dict[int, Any]) -> Iterator[Ended]:
    """Outcomes as they come, until all are there or the array has nothing left to do.

    After an error what others have under way is yielded, what waits is not begun, and the error is raised.
    """
    fault, states, asked, idle_since = None, {"UNKNOWN"}, time.monotonic(), None
    while left:
        names = {path.name for path in folder.iterdir()}
        for number in [number for number in left if f"{number}{_OUTCOME}" in names]:
            del left[number]
            outcome = _load(folder / f"{number}{_OUTCOME}")
            (folder / f"{number}{_OUTCOME}").unlink()
            yield number, outcome
        waiting = [number for number in left if str(number) in names]
        if fault is None and _FAULT in names:
            fault, asked = _load(folder / _FAULT), -math.inf
            for number in waiting:
                (folder / str(number)).unlink(missing_ok=True)
        now = time.monotonic()
        if now - asked > _ASK_SECONDS:
            states, asked = job.states(), now
        # Tasks that have not started, perhaps for hours, would find nothing to do.
        is_idle = not states or (not waiting and states == {"PENDING"})
        idle_since = (idle_since or now) if is_idle else None
        if idle_since is not None and (fault or now - idle_since > _SEEN_SECONDS):
            break
        time.sleep(_LOOK_SECONDS)
    if fault is not None:
        raise fault


def _save(path: Path, thing: object) -> None:
    """Write a file at once, into a folder that is not made anew once whoever waits for it has gone."""
    part = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    part.write_bytes(pickle.dumps(thing))
    part.replace(path)


def _load(path: Path) -> Any:
    """What a file of ours holds.

    Whoever may write to the home could put a folder of theirs there, and a pickle runs what its writer wants.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ClusterError(str(path.parent), "is not yours alone", "see who else may write to the home")
        with os.fdopen(os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
            return pickle.load(file)
    finally:
        os.close(folder)


def work_off(folder: Path) -> None:
    """Work on items, one after the other, until none waits or nobody waits for them: what a task of the array does."""
    needed, shared = _load(folder / _WORK)
    os.environ.update(needed.bounds)
    if fault := needed.fault():
        _save(folder / _FAULT, ClusterError(f"node {socket.gethostname()}", *fault))
        return
    items, work, arguments = pickle.loads(shared)
    for number, item in items.items():
        try:
            (folder / str(number)).unlink()
        except FileNotFoundError:
            continue  # another task has it
        # The token that it looks for is unlocked once the process that fans out is gone, also if it was killed.
        if needed.fault():
            return
        try:
            # In a process of its own, so that one that is killed for its memory costs this one nothing.
            ((_, outcome),) = spread(work, [item], 1, arguments=arguments, preload=IMPORTED_ONCE)
        except Exception as error:  # noqa: BLE001 - raised where the outcome is wanted
            _save(folder / _FAULT, error)
            return
        _save(folder / f"{number}{_OUTCOME}", outcome)


if __name__ == "__main__":
    work_off(Path(sys.argv[1]))
