"""Turns a simulated run into Nsight Systems exports, one ``.sqlite`` a node, as nsys gives them of Megatron.

What nsys sees is less than what PyTorch's profiler sees: operators with sequence numbers (``emit_nvtx``), Megatron's
NVTX ranges of the schedule, runtime calls, kernels, and NCCL's own ranges with communicator and message size. Call
stacks, process groups and their names are gone. The truth of the run stays valid: kernels keep their times and
correlation ids.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec
import pyarrow.parquet as pq

from traceviz_dag.simulate.files.driver_memory import DriverEvent, driver_events_of
from traceviz_dag.simulate.files.identity import BASE_NS
from traceviz_dag.system.whole_files import temporary_of

_LEAD_NS = 1_000_000_000
"""The first event of a node is so long after its capture's start."""

_SCHEDULE = re.compile(
    r"(.*pipeline_parallel)/schedules\.py\(\d+\): "
    r"(forward_backward_(?:no_pipelining|pipelining_with(?:out)?_interleaving))$"
)
_STEP = re.compile(r".*pipeline_parallel/schedules\.py\(\d+\): (forward|backward)_step$")
_ELEMENT_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Long": 8, "Int": 4, "Byte": 1, "Double": 8}
_CALLS = {
    "allreduce": "ncclAllReduce",
    "allreduce_coalesced": "ncclAllReduce",
    "allgather": "ncclAllGather",
    "_allgather_base": "ncclAllGather",
    "allgather_into_tensor_coalesced": "ncclAllGather",
    "_reduce_scatter_base": "ncclReduceScatter",
    "reduce_scatter_tensor_coalesced": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "barrier": "ncclAllReduce",
}
_ALLOCATIONS = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER, blockX INTEGER, "
    "registersPerThread INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphId INTEGER, "
    "graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, "
    "copyKind INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, "
    "graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, "
    "textId INTEGER, domainId INTEGER, jsonText TEXT",
    _ALLOCATIONS: "start INTEGER NOT NULL, globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL, bytes INTEGER NOT NULL, "
    "memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER, "
    "streamId INTEGER, localMemoryPoolAddress INTEGER, localMemoryPoolReleaseThreshold INTEGER, "
    "localMemoryPoolSize INTEGER, localMemoryPoolUtilizedSize INTEGER, importedMemoryPoolAddress INTEGER, "
    "importedMemoryPoolProcessId INTEGER",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER",
    "ANALYSIS_DETAILS": "duration INTEGER NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
}
_EVENTS = b'  "traceEvents": [\n'
_EVENT_ENDS = (b"  },\n", b"  }\n")
_ROWS_AT_ONCE = 20_000
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}


class _Arguments(msgspec.Struct, gc=False, rename={"sequence": "Sequence number", "collective": "Collective name"}):
    correlation: int = 0
    device: int = 0
    stream: int = 0
    sequence: int | None = None
    collective: str | None = None
    elements: int | str = msgspec.field(default=0, name="In msg nelems")
    dtype: str = "Byte"
    group: str = msgspec.field(default="", name="Process Group Name")
    ranks: str = msgspec.field(default="", name="Process Group Ranks")
    graph: int | None = msgspec.field(default=None, name="graph id")
    node: int | None = msgspec.field(default=None, name="graph node id")
    bytes: int = 0
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0
    dur: float = 0
    args: _Arguments | None = None


class _Launch(NamedTuple):
    tid: int
    ts: float
    dur: float


class _Group(msgspec.Struct):
    name: str = msgspec.field(default="", name="pg_name")
    ranks: list[int] = []


class _DistributedInfo(msgspec.Struct):
    rank: int = 0
    groups: list[_Group] = msgspec.field(default_factory=list, name="pg_config")


class _Header(msgspec.Struct):
    info: _DistributedInfo = msgspec.field(default_factory=_DistributedInfo, name="distributedInfo")


@dataclass(frozen=True, slots=True)
class _Messages:
    """What one kernel sends and receives point to point.

    Attributes:
        communicator: the group's name and its ranks, as a trace writes them.
        calls: (NCCL's call, the peer's number within the communicator).
        sizes: bytes of each of them.
    """

    communicator: str
    calls: tuple[tuple[str, int], ...]
    sizes: tuple[int, ...] = ()


@dataclass(slots=True)
class _Export:
    """Collects the rows of one node."""

    connection: sqlite3.Connection
    zero_ns: int
    strings: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    last_ns: int = 0

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def add(self, table: str, *values: object) -> None:
        self.rows.setdefault(table, []).append(values)

    def flush(self) -> None:
        for table, rows in self.rows.items():
            columns = _TABLES[table].count(",") + 1
            self.connection.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * columns)})", rows)
        self.rows.clear()


def write_exports(
    run: Path, truth: Path, node_size: int, out: Path, progress: Callable[[str, int, int], None] | None = None
) -> None:
    """Write the exports of a simulated run: ``node0.sqlite`` …

    Args:
        run: its folder of traces, layout torch_profile, with call stacks and uncompressed.
        truth: its folder of true kernels.
        node_size: ranks of one node, whose processes share an export.
        out: the folder to write into.
        progress: called with (what, done, of).
    """
    traces = sorted((run / "torch_profile").glob("rank-*.json"), key=_rank_of)
    nodes = -(-len(traces) // node_size)
    for node in range(nodes):
        _write_node(traces[node * node_size : (node + 1) * node_size], truth, out / f"node{node}.sqlite")
        if progress:
            progress("exports", node + 1, nodes)


def _rank_of(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[1])


def _write_node(traces: Sequence[Path], truth: Path, path: Path) -> None:
    with temporary_of(path) as temporary, closing(sqlite3.connect(temporary)) as connection:
        _fill_node(connection, traces, truth)


def _fill_node(connection: sqlite3.Connection, traces: Sequence[Path], truth: Path) -> None:
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    for table, columns in _TABLES.items():
        if table != _ALLOCATIONS:
            connection.execute(f"CREATE TABLE {table} ({columns})")
    export: _Export | None = None
    for device, trace in enumerate(traces):
        info = _header(trace)
        # The trace is read twice, so that its events never are in memory together.
        noted = _noted(_events(trace))
        if export is None:
            export = _Export(connection, noted.first_ns - _LEAD_NS)
        _add_rank(export, _events(trace), noted, device, _messages(truth, info))
        snapshot = trace.parent / f"rank-{info.rank}.memory.pickle"
        if snapshot.is_file():
            _add_allocations(export, driver_events_of(snapshot), noted.process, device)
        export.add("TARGET_INFO_GPU", device, "NVIDIA H200")
        export.flush()
    assert export is not None
    export.add("TARGET_INFO_SESSION_START_TIME", BASE_NS + export.zero_ns)
    export.add("ANALYSIS_DETAILS", export.last_ns)
    export.add("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION", "3.24.0")
    for text, number in export.strings.items():
        export.add("StringIds", number, text)
    export.flush()
    connection.commit()


def _header(trace: Path) -> _DistributedInfo:
    with trace.open("rb") as lines:
        return msgspec.json.decode(b"".join(iter(lines.readline, _EVENTS)) + _EVENTS + b"]}", type=_Header).info


def _events(trace: Path) -> Iterator[_Event]:
    """The events of a trace that leave something in an export, one by one: most of a trace are call stacks."""
    texts: dict[str, str] = {}
    with trace.open("rb") as lines:
        for _ in iter(lines.readline, _EVENTS):
            pass
        text: list[bytes] = []
        for line in lines:
            text.append(line)
            if line not in _EVENT_ENDS:
                continue
            if len(text) > 1 and (b'"python_function"' not in text[1] or b"pipeline_parallel/schedules.py" in text[1]):
                # The simulator can put a raw control character into a name, as some real traces have it.
                whole = b"".join(text).rstrip(b",\n").replace(b"\x01", b"")
                event = msgspec.json.decode(whole, type=_Event)
                if event.ph == "X" and event.cat != "Trace":
                    event.name = texts.setdefault(event.name, event.name)
                    event.cat = texts.setdefault(event.cat, event.cat)
                    yield event
            text = []


@dataclass(slots=True)
class _Noted:
    """What events of a rank have to say of others.

    Attributes:
        first_ns: start of the first event. process: of the rank. main: its main thread.
        launches: correlation → thread, start and duration of the call.
        stated: thread → when it asked for each message, and how many bytes it has.
        schedules, steps: start, end and name of Megatron's schedules, and of their forward and backward steps.
    """

    first_ns: int
    process: int = 0
    main: int = 0
    launches: dict[int, _Launch] = field(default_factory=dict)
    stated: dict[int, tuple[list[float], list[int]]] = field(default_factory=dict)
    schedules: list[tuple[int, int, str]] = field(default_factory=list)
    steps: list[tuple[int, int, str]] = field(default_factory=list)


def _noted(events: Iterable[_Event]) -> _Noted:
    noted: _Noted | None = None
    for event in events:
        start = _nanoseconds(event.ts)
        noted = noted or _Noted(start)
        noted.first_ns = min(noted.first_ns, start)
        if event.cat == "cuda_runtime":
            noted.process = noted.process or int(event.pid)
        if event.cat == "user_annotation":
            noted.main = noted.main or int(event.tid)
        if event.cat == "python_function":
            end = start + _nanoseconds(event.dur)
            if match := _STEP.match(event.name):
                noted.steps.append((start, end, match[1]))
            elif match := _SCHEDULE.match(event.name):
                noted.schedules.append((start, end, f"{match[1].replace('/', '.')}.schedules.{match[2]}"))
        if event.args is None:
            continue
        if event.cat in _LAUNCHES:
            noted.launches[event.args.correlation] = _Launch(int(event.tid), event.ts, event.dur)
        if event.args.collective in ("send", "recv"):
            times, sizes = noted.stated.setdefault(int(event.tid), ([], []))
            times.append(event.ts)
            sizes.append(_bytes(event.args))
    assert noted is not None
    return noted


def _messages(truth: Path, info: _DistributedInfo) -> dict[int, _Messages]:
    """Correlation → what is sent and received point to point; of a batch of messages NCCL says more than PyTorch."""
    groups = {group.name: group.ranks for group in info.groups}
    table = pq.read_table(truth / f"rank_{info.rank:04d}.parquet", columns=["correlation", "match", "group_name"])
    found = {}
    for correlation, match, group in zip(*(column.to_pylist() for column in table.columns), strict=True):
        if not (match or "").startswith("p2p:") or group not in groups:
            continue
        ranks = groups[group]
        ends = [message.split(":")[2:4] for message in match.split("|")]
        calls = tuple(
            ("ncclSend", ranks.index(int(receiver)))
            if int(sender) == info.rank
            else ("ncclRecv", ranks.index(int(sender)))
            for sender, receiver in ends
        )
        found[correlation] = _Messages(f"{group}{ranks}", calls)
    return found


def _add_rank(
    export: _Export, events: Iterable[_Event], noted: _Noted, device: int, messages: Mapping[int, _Messages]
) -> None:
    process, main = noted.process, noted.main
    names = {main: "pt_main_thread"}
    for ordinal, event in enumerate(events):
        if ordinal % _ROWS_AT_ONCE == 0:
            export.flush()
        start = _nanoseconds(event.ts) - export.zero_ns
        end = start + _nanoseconds(event.dur)
        export.last_ns = max(export.last_ns, end)
        arguments = event.args or _Arguments()
        if event.cat in ("cpu_op", "user_annotation"):
            if not event.name.startswith("ProfilerStep#"):
                sequence = f", seq = {arguments.sequence}" if arguments.sequence is not None else ""
                _range(export, start, end, f"{event.name}{sequence}, op_id = {ordinal}", process, event)
                if event.name.startswith("autograd::engine"):
                    names[int(event.tid)] = "pt_autograd_0"
        elif event.cat in _LAUNCHES:
            name = export.string(f"{event.name}_v7000")
            thread = _thread(process, int(event.tid))
            export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start, end, 0, thread, arguments.correlation, name, 0)
        elif event.cat == "kernel":
            _kernel(export, start, end, event, arguments, process, device)
            launch = noted.launches.get(arguments.correlation)
            if launch is not None and arguments.node is None:
                exchanged = messages.get(arguments.correlation)
                if exchanged is not None:
                    exchanged = replace(exchanged, sizes=_sizes(noted.stated, launch, len(exchanged.calls)))
                _nccl(export, arguments, launch, process, exchanged)
        elif event.cat in ("gpu_memcpy", "gpu_memset"):
            _memory(export, start, end, event, arguments, process, device)
    for text, start, end in _schedule_ranges(noted):
        export.add(
            "NVTX_EVENTS", start - export.zero_ns, end - export.zero_ns, 59, text, _thread(process, main), None, 0, None
        )
    for thread, label in names.items():
        export.add("ThreadNames", export.string(label), 20, _thread(process, thread))


def _range(export: _Export, start: int, end: int, text: str, process: int, event: _Event) -> None:
    export.add("NVTX_EVENTS", start, end, 59, text, _thread(process, int(event.tid)), None, 0, None)


def _add_allocations(export: _Export, allocations: Sequence[DriverEvent], process_id: int, device: int) -> None:
    """What the driver allocates and gets back; calls that are of no stream show none."""
    export.connection.execute(f"CREATE TABLE IF NOT EXISTS {_ALLOCATIONS} ({_TABLES[_ALLOCATIONS]})")
    process = _process(process_id)
    for one in allocations:
        place = (one.time_ns - BASE_NS - export.zero_ns, process, device, 1, one.address, 0, one.bytes)
        export.add(_ALLOCATIONS, *place, one.kind, int(one.released), *(None,) * 9)


def _kernel(
    export: _Export, start: int, end: int, event: _Event, arguments: _Arguments, process: int, device: int
) -> None:
    name = export.string(event.name)
    short = export.string(event.name.split("(")[0].split("<")[0].removeprefix("void "))
    grid, block = (arguments.grid or (1,))[0], (arguments.block or (1,))[0]
    place = (start, end, device, 1, arguments.stream, arguments.correlation, _process(process))
    graph = (arguments.graph, arguments.node)
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", *place, name, short, grid, block, 32, 0, 0, *graph)


def _memory(
    export: _Export, start: int, end: int, event: _Event, arguments: _Arguments, process: int, device: int
) -> None:
    place = (start, end, device, 1, arguments.stream, arguments.correlation, _process(process), arguments.bytes)
    if event.cat == "gpu_memset":
        export.add("CUPTI_ACTIVITY_KIND_MEMSET", *place, arguments.node)
        return
    kind = next((number for word, number in _COPIES.items() if word in event.name), 0)
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", *place, kind, arguments.node)


def _sizes(stated: Mapping[int, tuple[list[float], list[int]]], launch: _Launch, count: int) -> tuple[int, ...]:
    """Sizes of the messages of one launch: those that its thread asked for last."""
    times, sizes = stated.get(launch.tid, ([], []))
    last = bisect_right(times, launch.ts)
    if last < count:
        raise ValueError(f"{count} messages are launched and {last} were asked for")
    return tuple(sizes[last - count : last])


def _bytes(arguments: _Arguments) -> int:
    elements = arguments.elements if isinstance(arguments.elements, int) else 0
    return elements * _ELEMENT_BYTES.get(arguments.dtype, 1)


def _nccl(export: _Export, arguments: _Arguments, launch: _Launch, process: int, messages: _Messages | None) -> None:
    """NCCL's own ranges around the launch of a communication kernel, in its domain."""
    if not arguments.collective and messages is None:
        return
    start = _nanoseconds(launch.ts) - export.zero_ns
    end = start + _nanoseconds(launch.dur)
    size = _bytes(arguments)
    name = messages.communicator if messages is not None else f"{arguments.group}{arguments.ranks}"
    communicator = f'"NCCL communicator ID": {crc32(name.encode()) << 20 | 0x4E43}'
    thread = _thread(process, launch.tid)

    def nccl(call: str, begin: int, finish: int, facts: str | None) -> None:
        text = f"{{{facts}}}" if facts is not None else None
        export.add("NVTX_EVENTS", begin, finish, 59, None, thread, export.string(call), 1, text)

    call = _CALLS.get(arguments.collective or "")
    if call is not None:
        nccl(call, start - 4, end + 4, f'{communicator}, "Message size [bytes]": {size}')
        return
    # An all-to-all is a message to and from every rank, itself included.
    peers = len(arguments.ranks.split(","))
    everybody = tuple((call, peer) for peer in range(peers) for call in ("ncclSend", "ncclRecv"))
    inside = messages.calls if messages is not None else everybody
    sizes = messages.sizes if messages is not None else (size // peers,) * len(everybody)
    before = 2 * len(inside) + 3
    nccl("ncclGroupStart", start - before - 2, start - before - 1, None)
    for place, (call, peer) in enumerate(inside):
        begin = start - before + 2 * place
        facts = f'{communicator}, "Message size [bytes]": {sizes[place]}, "Peer rank": {peer}'
        nccl(call, begin, begin + 1, facts)
    nccl("ncclGroupEnd", start - 2, end + 2, None)


def _schedule_ranges(noted: _Noted) -> Iterator[tuple[str, int, int]]:
    """Megatron's ranges around the parts of its schedule: warm-up to the first backward step, then to the last forward
    step's end, then to the end."""
    for start, end, prefix in noted.schedules:
        inside = [step for step in noted.steps if start <= step[0] < end]
        first = min((begin for begin, _, direction in inside if direction == "backward"), default=end)
        last = max((finish for _, finish, direction in inside if direction == "forward"), default=first)
        for word, begin, finish in (
            ("warmup", start, first),
            ("steady", first, max(last, first)),
            ("cooldown", max(last, first), end),
        ):
            yield f"{prefix}.{word}", begin, finish


def _process(process: int) -> int:
    return (1 << 48) | (process << 24)


def _thread(process: int, thread: int) -> int:
    return _process(process) | (thread & 0xFFFFFF)


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)
