"""Small Nsight Systems exports written by hand, in the schema of nsys unless a test bends it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PROCESS, THREAD = 7001, 7002
SECOND = 1_000_000_000
UTC = 1_779_000_000 * SECOND
SECRET = "hf_secretTokenOfTheProfiledProcess"


def global_pid(process: int = PROCESS) -> int:
    return (1 << 48) | (process << 24)


def global_tid(process: int = PROCESS, thread: int = THREAD) -> int:
    return global_pid(process) | thread


class Export:
    """Collects rows and writes them as one ``.sqlite`` export."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.tables: dict[str, tuple[list[str], list[Sequence[object]]]] = {}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, 100 + len(self.strings))

    def table(self, name: str, columns: Iterable[str], rows: Iterable[Sequence[object]] = ()) -> None:
        self.tables[name] = (list(columns), list(rows))

    def add(self, name: str, row: Mapping[str, object]) -> None:
        columns, rows = self.tables.setdefault(name, (list(row), []))
        rows.append([row.get(column) for column in columns])

    def kernel(
        self,
        start: int,
        end: int,
        name: str = "gemm",
        device: int = 0,
        stream: int = 7,
        correlation: int | None = None,
        process: int = PROCESS,
        **more: object,
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            {
                "start": start,
                "end": end,
                "deviceId": device,
                "contextId": 1,
                "streamId": stream,
                "correlationId": correlation,
                "globalPid": global_pid(process),
                "demangledName": self.string(name),
                "shortName": self.string(name.split("(")[0]),
                "gridX": 1,
                "graphNodeId": None,
                **more,
            },
        )

    def copy(
        self,
        start: int,
        end: int,
        device: int = 0,
        kind: int = 1,
        size: int = 1024,
        stream: int = 7,
        **more: object,
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {
                "start": start,
                "end": end,
                "deviceId": device,
                "streamId": stream,
                "correlationId": None,
                "globalPid": global_pid(),
                "bytes": size,
                "copyKind": kind,
                **more,
            },
        )

    def call(
        self,
        start: int,
        end: int,
        correlation: int,
        process: int = PROCESS,
        thread: int = THREAD,
        name: str = "cudaLaunchKernel_v7000",
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            {
                "start": start,
                "end": end,
                "globalTid": global_tid(process, thread),
                "correlationId": correlation,
                "nameId": self.string(name),
            },
        )

    def allocation(self, at: int, size: int, device: int = 0, process: int = PROCESS, **more: object) -> None:
        """The driver gives memory of a GPU; with ``memoryOperationType=1`` it gets that back."""
        place = {"start": at, "globalPid": global_pid(process), "deviceId": device, "address": 4096, "bytes": size}
        kind = {"memKind": 2, "memoryOperationType": 0, "streamId": None}
        self.add("CUDA_GPU_MEMORY_USAGE_EVENTS", {**place, **kind, **more})

    def system_call(
        self, start: int, end: int, name: str = "poll", process: int = PROCESS, thread: int = THREAD
    ) -> None:
        values = {"start": start, "end": end, "globalTid": global_tid(process, thread), "nameId": self.string(name)}
        self.add("OSRT_API", values)

    def synchronization(
        self,
        start: int,
        end: int,
        correlation: int,
        kind: int = 2,
        stream: int = 20,
        sync_id: int = 0,
        context: int = 1,
        process: int = PROCESS,
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            {
                "start": start,
                "end": end,
                "deviceId": 0,
                "contextId": context,
                "streamId": stream,
                "correlationId": correlation,
                "globalPid": global_pid(process),
                "syncType": kind,
                "eventId": 5,
                "eventSyncId": sync_id,
            },
        )

    def record(self, correlation: int, sync_id: int, stream: int = 7, context: int = 1, process: int = PROCESS) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            {
                "timestamp": 0,
                "deviceId": 0,
                "contextId": context,
                "streamId": stream,
                "correlationId": correlation,
                "globalPid": global_pid(process),
                "eventId": 5,
                "eventSyncId": sync_id,
            },
        )

    def range(
        self,
        start: int,
        end: int | None,
        text: str | None,
        registered: str | None = None,
        kind: int = 59,
        domain: int = 0,
        process: int = PROCESS,
        thread: int = THREAD,
        payload: str | None = None,
    ) -> None:
        self.add(
            "NVTX_EVENTS",
            {
                "start": start,
                "end": end,
                "eventType": kind,
                "text": text,
                "textId": None if registered is None else self.string(registered),
                "globalTid": global_tid(process, thread),
                "domainId": domain,
                "jsonText": payload,
            },
        )

    def secrets(self) -> None:
        """Rows as a real export has them, with a token in each place that can hold one."""
        self.add("TARGET_INFO_SYSTEM_ENV", {"name": "ProcessEnvironment", "value": f"HF_TOKEN={SECRET}"})
        self.add("TARGET_INFO_SYSTEM_ENV", {"name": "CudaDriverVersion", "value": "13000"})
        self.add("TARGET_INFO_SYSTEM_ENV", {"name": "NvDriverVersion", "value": "580.95.05"})
        self.add("META_DATA_CAPTURE", {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f"HF_TOKEN={SECRET}"})
        self.add("META_DATA_EXPORT", {"name": "EXPORT_SCHEMA_VERSION", "value": "3.24.0"})
        self.add("META_DATA_EXPORT", {"name": "EXPORT_COMMAND", "value": f"nsys --token {SECRET}"})
        self.add("ProcessStreams", {"globalPid": global_pid(), "contentId": self.string(f"printed {SECRET}")})
        self.add("PROCESSES", {"globalPid": global_pid(), "pid": PROCESS, "name": f"python --token={SECRET}"})

    def write(self, path: Path) -> Path:
        self.table("StringIds", ["id", "value"], [(number, text) for text, number in self.strings.items()])
        connection = sqlite3.connect(path)
        for name, (columns, rows) in self.tables.items():
            listed = ", ".join(f'"{column}"' for column in columns)
            connection.execute(f'CREATE TABLE "{name}" ({listed})')
            connection.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', rows)
        connection.commit()
        connection.close()
        return path


def small_export(last_ns: int = 700) -> Export:
    """Two kernels beside each other, a copy after them, a gap, an all-reduce: all launched inside ranges.

    Args:
        last_ns: when the last kernel ends.
    """
    export = Export()
    export.range(0, 1000, "Iteration 5")
    export.range(10, 400, "forward")
    for place, (start, end, name, stream) in enumerate(
        [(100, 300, "gemm", 7), (200, 350, "ncclDevKernel_AllReduce_Sum", 20), (600, last_ns, "gemm", 7)]
    ):
        export.call(20 + place * 10, 25 + place * 10, correlation=place + 1)
        export.kernel(start, end, name, stream=stream, correlation=place + 1)
    export.copy(350, 450)
    return export


def node_export(path: Path, utc: int | None = UTC, communicator: int | None = None, scale: int = 1) -> Path:
    """Two processes with a GPU each; kernels run from 1 s and some ns of the name to ``1 + scale`` s of the capture."""
    export = Export()
    for device in (0, 1):
        export.kernel(SECOND + sum(path.name.encode()), (1 + scale) * SECOND, device=device, process=100 + device)
    if utc is not None:
        export.add("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": utc})
    if communicator is not None:
        payload = f'{{"NCCL communicator ID": {communicator}, "Message size [bytes]": 8}}'
        export.range(SECOND, SECOND + 10, "ncclAllReduce", domain=1, process=100, payload=payload)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return export.write(path)
