"""A model of CUDA's streams and events: it runs host calls, writes the trace of them, and knows who waited for whom."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.kineto_file import KinetoFile

THREADS, STREAMS, EVENTS = (100, 200, 300), (7, 20, 24), (1, 2)
DEVICE = 0


@dataclass
class Operation:
    """A kernel or copy on a stream; ``number`` is its place among all, by when it was put on its stream."""

    number: int
    stream: int
    correlation: int
    thread: int
    start: int = 0
    end: int = 0


@dataclass
class Wait:
    """A synchronisation and its truth: numbers of operations, None for none."""

    correlation: int
    kind: str
    waited_for: int | None
    waiting: int | None = None
    stream: int | None = None
    thread: int = 0
    moment: int = 0
    recorded: bool = True


@dataclass
class _Call:
    thread: int
    name: str
    start: int
    end: int
    moment: int
    correlation: int = 0


@dataclass
class Model:
    """Runs random host calls.

    Args:
        threads: how many call.
        apart: calls of different threads never overlap.
        named: what the profiler's rows name: the "right" record, the "last" one of the event in the file (what Kineto
            does that looks events up after all records), or nothing (-1).
        listed: the file lists all records (``cuda_event``).
        microseconds: times are whole microseconds.
        lost: share of launches without a row.
    """

    seed: int
    calls: int = 40
    threads: int = 2
    apart: bool = True
    named: str = "right"
    listed: bool = False
    microseconds: bool = False
    lost: float = 0.0
    operations: list[Operation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.file = KinetoFile()
        self._free = dict.fromkeys(STREAMS, 0)
        self._done: dict[int, int] = {}
        self._records: dict[int, tuple[int, int]] = {}
        self._last_record: dict[int, tuple[int, int]] = {}
        self._rows: list[tuple[Wait, dict[str, int], _Call]] = []
        self._run()
        self._write_rows()

    def _run(self) -> None:
        calls = self._host_calls()
        for correlation, call in enumerate(sorted(calls, key=lambda one: (one.start, one.thread)), 1000):
            call.correlation = correlation
        for call in calls:
            getattr(self, f"_{call.name}")(call)
        for wait in self.waits:
            later = [
                one for one in self.operations if one.correlation != wait.correlation and self._is_behind(one, wait)
            ]
            wait.waiting = min((one.number for one in later), default=None)

    def _is_behind(self, operation: Operation, wait: Wait) -> bool:
        if wait.kind == "stream_wait":
            return operation.stream == wait.stream and operation.number >= wait.moment
        return operation.thread == wait.thread and operation.correlation > wait.correlation

    def _host_calls(self) -> list[_Call]:
        """Calls in the order in which they take effect; those of one thread never overlap."""
        free = dict.fromkeys(THREADS[: self.threads], 0)
        found: list[_Call] = []
        names = ["launch"] * 5 + [
            "graph",
            "copy",
            "record",
            "record",
            "wait",
            "wait",
            "stream",
            "event",
            "device",
            "query",
        ]
        for _ in range(self.calls):
            thread = self.random.choice(list(free))
            begin = max(free.values()) if self.apart else free[thread]
            start = begin + self.random.randint(2, 3000 if self.microseconds else 40)
            moment = start + self.random.randint(0, 3000 if self.microseconds else 15)
            end = moment + self.random.randint(0, 3000 if self.microseconds else 15)
            free[thread] = end + 1
            found.append(_Call(thread, self.random.choice(names), start, end, moment))
        return sorted(found, key=lambda one: (one.moment, one.start))

    def _enqueue(self, call: _Call, stream: int, category: str, name: str) -> None:
        operation = Operation(len(self.operations), stream, call.correlation, call.thread)
        operation.start = max(self._free[stream], call.moment) + self.random.randint(1, 10)
        operation.end = operation.start + self.random.randint(1, 60_000 if self.microseconds else 60)
        self._free[stream] = operation.end
        self.operations.append(operation)
        self._row(category, f"{name} {operation.number}", operation.start, operation.end, stream, 0,
                  device=DEVICE, stream=stream, correlation=call.correlation)  # fmt: skip

    def _launch(self, call: _Call) -> None:
        if self.random.random() >= self.lost:
            self._call(call, "cudaLaunchKernel")
        self._enqueue(call, self.random.choice(STREAMS), "kernel", "gemm")

    def _graph(self, call: _Call) -> None:
        self._call(call, "cudaGraphLaunch")
        stream = self.random.choice(STREAMS)
        for _ in range(self.random.randint(2, 4)):
            self._enqueue(call, stream, "kernel", "node")

    def _copy(self, call: _Call) -> None:
        self._call(call, "cudaMemcpyAsync")
        self._enqueue(call, self.random.choice(STREAMS), "gpu_memcpy", "Memcpy DtoD (Device -> Device)")

    def _record(self, call: _Call) -> None:
        self._call(call, "cudaEventRecord")
        event, stream = self.random.choice(EVENTS), self.random.choice(STREAMS)
        self._records[event] = (stream, call.correlation)
        last = self._last_on([stream])
        self._done[call.correlation] = -1 if last is None else last
        if self.listed:
            self._row("cuda_event", "cudaEvent", call.start, call.end, stream, 0,
                      event_id=event, stream=stream, correlation=call.correlation, device=DEVICE)  # fmt: skip

    def _wait(self, call: _Call) -> None:
        self._call(call, "cudaStreamWaitEvent")
        stream = self.random.choice(STREAMS)
        self._sync(call, "stream_wait", "Stream Wait Event", self.random.choice(EVENTS), stream)

    def _event(self, call: _Call) -> None:
        self._call(call, "cudaEventSynchronize")
        self._sync(call, "event_synchronize", "Event Sync", self.random.choice(EVENTS), None)

    def _query(self, call: _Call) -> None:
        """Not a wait, though the profiler writes the same row."""
        self._call(call, "cudaEventQuery")
        event = self.random.choice(EVENTS)
        if event in self._records:
            stream, record = self._records[event]
            self._row("cuda_sync", "Event Sync", call.start, call.end, -1, 0,
                      **self._event_arguments(stream, record, event), stream=-1, correlation=call.correlation,
                      device=DEVICE)  # fmt: skip

    def _stream(self, call: _Call) -> None:
        self._call(call, "cudaStreamSynchronize")
        stream = self.random.choice(STREAMS)
        wait = Wait(call.correlation, "stream_synchronize", self._last_on([stream]), thread=call.thread)
        self.waits.append(wait)
        self._rows.append((wait, {"stream": stream}, call))

    def _device(self, call: _Call) -> None:
        self._call(call, "cudaDeviceSynchronize")
        wait = Wait(call.correlation, "device_synchronize", self._last_on(STREAMS), thread=call.thread)
        self.waits.append(wait)
        self._rows.append((wait, {"stream": -1}, call))

    def _sync(self, call: _Call, kind: str, name: str, event: int, stream: int | None) -> None:
        if event not in self._records:
            return
        source, record = self._records[event]
        done = self._done[record]
        wait = Wait(call.correlation, kind, None if done < 0 else done, None, stream, call.thread, len(self.operations))
        self.waits.append(wait)
        self._rows.append((wait, {"event": event, "source": source, "record": record, "stream": stream or -1}, call))

    def _last_on(self, streams: tuple[int, ...] | list[int]) -> int | None:
        """Of the last operations on some streams, the one that ends last."""
        there = [one for one in self.operations if one.stream in streams]
        return max(there, key=lambda one: (one.end, -one.number)).number if there else None

    def ends_together(self, one: int, other: int) -> bool:
        """Whether the file cannot show which of two operations ends last."""
        first, second = (self.operations[number] for number in (one, other))
        return abs(first.end - second.end) < (2000 if self.microseconds else 1)

    def _event_arguments(self, stream: int, record: int, event: int) -> dict[str, int]:
        if self.named == "last":
            stream, record = self._last_record.get(event, (stream, record))
        if self.named == "nothing":
            stream = record = -1
        return {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": event}

    def _write_rows(self) -> None:
        """The profiler's rows, once all records are known."""
        self._last_record = dict(self._records)
        names = {"stream_wait": "Stream Wait Event", "event_synchronize": "Event Sync"}
        names |= {"stream_synchronize": "Stream Sync", "device_synchronize": "Context Sync"}
        for wait, told, call in self._rows:
            arguments = {"stream": told["stream"], "correlation": wait.correlation, "device": DEVICE}
            if "event" in told:
                arguments |= self._event_arguments(told["source"], told["record"], told["event"])
            self._row("cuda_sync", names[wait.kind], call.start, call.end, told["stream"], 0, **arguments)

    def _call(self, call: _Call, name: str) -> None:
        self._row("cuda_runtime", name, call.start, call.end, call.thread, 1, correlation=call.correlation)

    def _row(self, category: str, name: str, start: int, end: int, thread: int, pid: int, **args: int) -> None:
        if self.microseconds:
            # Start and duration are each rounded down, as older versions of Kineto do.
            start, end = start // 1000 * 1000, start // 1000 * 1000 + (end - start) // 1000 * 1000
        self.file.row(category, name, start, end, thread, pid, **args)
