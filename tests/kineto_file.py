"""A small writer of Kineto traces for tests: a few lines a trace, in the profiler's own form."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD, OTHER = 100, 200, 300


class KinetoFile:
    """Collects events and writes them as a Kineto trace. Times are nanoseconds."""

    def __init__(self, rank: int | None = 0, world_size: int = 1, groups: list[dict[str, Any]] | None = None) -> None:
        self.header: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": 0}
        if rank is not None:
            info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": world_size}
            if groups is not None:
                info |= {"pg_count": len(groups), "pg_config": groups}
            self.header["distributedInfo"] = info
        self.events: list[dict[str, Any]] = []
        self._correlations = itertools.count(1000)
        self.thread_name(MAIN, "pt_main_thread")
        self.thread_name(AUTOGRAD, "pt_autograd_0")

    def thread_name(self, thread: int, name: str) -> None:
        self.events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}})

    def row(
        self, category: str, name: str, start: int, end: int, thread: int = MAIN, pid: int = 1, **args: Any
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": thread,
                "ts": start / 1000,
                "dur": (end - start) / 1000,
                "args": args,
            }
        )

    def python(self, name: str, start: int, end: int, thread: int = MAIN) -> None:
        self.row("python_function", name, start, end, thread)

    def operator(self, name: str, start: int, end: int, thread: int = MAIN, **args: Any) -> None:
        self.row("cpu_op", name, start, end, thread, **args)

    def annotation(self, name: str, start: int, end: int, thread: int = MAIN, **args: Any) -> None:
        self.row("user_annotation", name, start, end, thread, **args)

    def memory(self, at: int, allocated: int, device: int = 0, device_type: int = 1) -> None:
        args = {"Total Allocated": allocated, "Total Reserved": 2 * allocated, "Bytes": 512, "Addr": 1}
        args |= {"Device Id": device, "Device Type": device_type}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": MAIN}
        self.events.append({**event, "ts": at / 1000, "args": args})

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        launched: int | None,
        thread: int = MAIN,
        stream: int = 7,
        correlation: int | None = None,
        launcher: str = "cudaLaunchKernel",
        category: str = "kernel",
        **args: Any,
    ) -> int:
        """A kernel and, unless ``launched`` is None or the correlation was launched before, its launch; returns the
        correlation."""
        given = correlation
        correlation = next(self._correlations) if given is None else given
        if launched is not None and given is None:
            self.row("cuda_runtime", launcher, launched, launched + 10, thread, correlation=correlation)
        self.row(category, name, start, end, stream, pid=0, device=0, stream=stream, correlation=correlation, **args)
        return correlation

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**self.header, "traceEvents": self.events}))
        return path
