"""Rows of a trace that are no events of the job: names of processes and threads, the profiler's own marks."""

from __future__ import annotations

import json
from collections.abc import Iterator

from traceviz_dag.simulate.files.identity import Identity
from traceviz_dag.simulate.files.row_text import NO_STREAM


def metadata_rows(identity: Identity, first_ns: int, streams: list[int]) -> Iterator[str]:
    """Names and order of processes and threads; Kineto repeats some and leaves a blank after a stream's name."""
    at = microseconds(first_ns)

    def row(name: str, process: int, thread: int, key: str, value: object) -> str:
        head = f'"name": "{name}", "ph": "M", "ts": {at}, "pid": {process}, "tid": {thread}'
        return f'  {{\n    {head},\n    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }},\n'

    processes = [(identity.process, "CPU", identity.process)]
    processes += [(device, f"GPU {device}", 16_777_216 + device) for device in range(identity.settings.node_size)]
    for process, label, order in processes:
        yield row("process_name", process, 0, "name", "python3.12")
        yield row("process_labels", process, 0, "labels", label)
        yield row("process_sort_index", process, 0, "sort_index", order)
    threads = [(identity.device, stream, f"stream {stream} ") for stream in streams]
    if identity.settings.cuda_sync:
        threads.insert(0, (identity.device, NO_STREAM, f"Device {identity.device}"))
    main, autograd = identity.main_thread, identity.autograd_thread
    threads += [(identity.process, main, f"thread {main} (python3.12)")]
    threads += [(identity.process, main, f"thread {main} (pt_main_thread)")]
    threads += [(identity.process, autograd, f"thread {autograd} (pt_autograd_0)")]
    for process, thread, name in threads:
        yield row("thread_name", process, thread, "name", name)
        yield row("thread_sort_index", process, thread, "sort_index", thread)


def closing(trace_name: str, first_ns: int, last_ns: int) -> str:
    """The profiler's span and the end of the file."""
    length = microseconds(last_ns - first_ns)
    place = f'"pid": "Spans", "tid": "PyTorch Profiler",\n    "ts": {microseconds(first_ns)}, "dur": {length}'
    span = '"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)"'
    started = '"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces"'
    ended = f'"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": {microseconds(last_ns)}'
    return (
        f'  {{\n    {span}, {place},\n    "args": {{\n      "Op count": 0\n    }}\n  }},\n'
        f'  {{\n    {started}, "tid": "Trace PyTorch Profiler", "ts": {microseconds(first_ns)}\n  }},\n'
        f'  {{\n    {ended}\n  }}\n  ],\n  "traceName": {json.dumps(trace_name)}\n}}'
    )


def microseconds(nanoseconds: int) -> str:
    """A time as Kineto writes it."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
