"""Ranks fan out over the workers of a Dask cluster: one at a time in each, and one that dies costs at most its rank.

A worker gets a rank only when it is idle, so Dask's count of deaths blames no rank that merely waited for its turn.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import distributed
from distributed.scheduler import KilledWorker

from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.cluster.fitness import Requirements, requirements
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.system.processes import WorkerDiedError

_LOOK_SECONDS = 1.0
_NO_WORKERS_SECONDS = 120.0
"""A cluster without a worker for so long is given up."""

_STOP_SECONDS = 10.0
_PREPARED_SECONDS = 60.0
_GONE = (distributed.CancelledError, distributed.comm.CommClosedError, distributed.client.ClosedClientError)
_log = logging.getLogger(__name__)

Work = Callable[..., Any]
Ended = tuple[int, Any]


class Prepared(distributed.WorkerPlugin):  # type: ignore[misc]
    """What each worker has before its first rank, also one that joins later: what all ranks share, and a verdict on it.

    Attributes:
        fault: what the worker lacks; None where it may work.
    """

    def __init__(self, needed: Requirements, arguments: tuple[Any, ...]) -> None:
        self.needed = needed
        self.arguments = arguments
        self.fault: tuple[str, str] | None = None

    def setup(self, worker: distributed.Worker) -> None:
        """Called by Dask in the worker."""
        self.fault = self.needed.fault()


class _UnfitError(Exception):
    """A worker that joined later may not work."""


class DaskEngine:
    """The workers of a cluster.

    Args:
        home: absolute; workers must see it. name: of the cluster, for messages. open_client: called for the first rank;
            whoever gives it closes what it opens.
        is_shared: the cluster is not ours alone: it stays when this ends, and so must nothing that we began on it.
    """

    keeps_workers = True

    def __init__(
        self, home: Path, name: str, open_client: Callable[[], distributed.Client], *, is_shared: bool
    ) -> None:
        self._home = home
        self._name = name
        self._open_client = open_client
        self._is_shared = is_shared
        self._failure: ClusterError | None = None

    @cached_property
    def _client(self) -> distributed.Client:
        return self._open_client()

    def spread(
        self, work: Work, items: Sequence[Any], workers: int | None, arguments: tuple[Any, ...]
    ) -> Iterator[Ended]:
        """As ``Engine.spread``; an item whose worker died as often as Dask allows is tried once more, alone.

        Raises:
            ClusterError: no scheduler answers, there is no worker, or one may not work; from then on at once.
        """
        if not items:
            return
        if self._failure is not None:
            raise self._failure
        files = {item.path.parent: item.path for item in items if isinstance(item, RankTrace)}
        name = f"traceviz-{uuid4().hex}"
        try:
            with requirements(self._home, list(files.values())) as needed:
                self._check(needed)
                self._client.register_plugin(Prepared(needed, arguments), name=name)
                try:
                    left = dict(enumerate(items))
                    for number, outcome in self._rounds(name, work, dict(left), workers):
                        if not isinstance(outcome, WorkerDiedError):
                            del left[number]
                            yield number, outcome
                    for number, item in left.items():
                        yield from self._rounds(name, work, {number: item}, 1)
                finally:
                    with _left_anyway():
                        if self._client.status == "running":
                            # The client's own function waits for ever for a worker that hangs.
                            forget = self._client.scheduler.unregister_worker_plugin
                            self._client.sync(forget, name=name, callback_timeout=_STOP_SECONDS)
        except ClusterError as error:
            self._failure = error
            raise
        except _GONE as error:
            fault = "its scheduler is gone, or was started anew"
            self._failure = ClusterError(self._name, fault, "see its log, and run this again")
            raise self._failure from error

    def _check(self, needed: Requirements) -> None:
        """Ask each worker at once, and name the first one that may not work; those that die of it are none, if others
        are there."""
        with suppress(TimeoutError):
            self._client.wait_for_workers(1, timeout=_NO_WORKERS_SECONDS)
        answers = self._client.run(needed.fault, on_error="return")
        if not answers:
            raise self._no_workers()
        is_gone = {worker: isinstance(answer, _GONE) for worker, answer in answers.items()}
        if all(is_gone.values()):
            remedy = "give it more memory, and see its log"
            raise ClusterError(f"worker {min(answers)}", "died as it was asked whether it may work", remedy)
        for worker, answer in sorted(answers.items()):
            if is_gone[worker]:
                _log.warning("worker %s died as it was asked whether it may work", worker)
            elif isinstance(answer, Exception):
                said = " ".join(f"{type(answer).__name__}: {answer}".split())[:200]
                remedy = f"install {needed.program} on each worker"
                raise ClusterError(f"worker {worker}", f"cannot run traceviz ({said})", remedy) from answer
            elif answer is not None:
                raise ClusterError(f"worker {worker}", *answer)

    def _no_workers(self) -> ClusterError:
        return ClusterError(self._name, "has no workers", "start some and run it again")

    def _rounds(self, name: str, work: Work, items: dict[int, Any], most: int | None) -> Iterator[Ended]:
        """Outcomes as ranks end. After an error what is under way is waited for, and then the error is raised."""
        waiting, running, fault = deque(items), dict[distributed.Future, int](), None
        seen = time.monotonic()
        try:
            while waiting or running:
                there = self._workers()
                seen = time.monotonic() if there else seen
                if time.monotonic() - seen > _NO_WORKERS_SECONDS:
                    raise self._no_workers()
                while waiting and len(running) < min(there, most or there):
                    number = waiting.popleft()
                    future = self._client.submit(_work, name, work, items[number], key=f"{name}-{uuid4().hex}")
                    running[future] = number
                for future in self._ended(list(running)):
                    number, error = running.pop(future), future.exception()
                    if error is None:
                        yield number, future.result()
                    elif isinstance(error, KilledWorker):
                        yield number, WorkerDiedError()
                    elif isinstance(error, _UnfitError):
                        worker, lacks = error.args
                        _log.warning("worker %s is not used: it %s", worker, lacks)
                        self._client.retire_workers([worker])
                        waiting.append(number)
                    else:
                        fault = fault or error
                        waiting.clear()
        finally:
            if running:
                self._stop(list(running))
        if fault is not None:
            raise fault

    def _workers(self) -> int:
        try:
            return len(self._client.nthreads())
        except OSError as error:
            raise distributed.comm.CommClosedError from error

    def _ended(self, running: list[distributed.Future]) -> list[distributed.Future]:
        if not running:
            time.sleep(_LOOK_SECONDS)
            return []
        with suppress(TimeoutError):
            return list(distributed.wait(running, _LOOK_SECONDS, "FIRST_COMPLETED").done)
        return []

    def _stop(self, running: list[distributed.Future]) -> None:
        """Give up ranks; a thread cannot be stopped, so workers of a cluster that stays are started anew."""
        with _left_anyway():
            mine = {future.key for future in running}
            busy = [worker for worker, keys in self._client.processing().items() if mine & {*keys}]
            self._client.cancel(running)
            if self._is_shared and busy:
                self._client.restart_workers(busy, timeout=_STOP_SECONDS, raise_for_error=False)


def _left_anyway() -> AbstractContextManager[None]:
    """Whatever goes wrong with a cluster that is left does not hide why it is left."""
    return suppress(*_GONE, OSError, ValueError, TimeoutError)


def _work(name: str, work: Work, item: Any) -> Any:
    """One rank in a worker, with what it was prepared with; that may come a moment after the first rank."""
    worker = distributed.get_worker()
    until = time.monotonic() + _PREPARED_SECONDS
    while name not in worker.plugins and time.monotonic() < until:
        time.sleep(0.05)
    prepared = worker.plugins.get(name)
    if prepared is None or prepared.fault:
        raise _UnfitError(worker.address, prepared.fault[0] if prepared else "was not told what ranks share")
    os.environ.update(prepared.needed.bounds)
    return work(item, *prepared.arguments)
