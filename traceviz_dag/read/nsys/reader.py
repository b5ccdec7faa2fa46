"""Reads an Nsight Systems export, of any schema version and container, into the columns of an ``NsysProfile``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.arrays import Int64, distinct
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import KERNEL, MISSING
from traceviz_dag.read.limits import LAST_INSTANT_NS
from traceviz_dag.read.nsys.memory import TABLE as MEMORY_TABLE
from traceviz_dag.read.nsys.memory import read_memory_events
from traceviz_dag.read.nsys.nesting import DEEPEST, Launches, nest
from traceviz_dag.read.nsys.open import open_nsys
from traceviz_dag.read.nsys.operations import read_calls, read_operations, read_system_calls
from traceviz_dag.read.nsys.profile import PROCESS_BITS, SCHEMAS, Gpu, NsysFacts, NsysProfile, RowFault, Store
from traceviz_dag.read.nsys.ranges import nesting_columns, read_ranges
from traceviz_dag.read.nsys.rows import Runs, numbers
from traceviz_dag.read.nsys.schema import NsysSchema, number, required, text
from traceviz_dag.read.nsys.source import EXPORT_FACTS, SYSTEM_FACTS
from traceviz_dag.read.nsys.store import MemoryStore
from traceviz_dag.read.nsys.strings import strings_of
from traceviz_dag.read.nsys.synchronizations import contexts_of, read_synchronizations
from traceviz_dag.read.nsys.totals import totals_table
from traceviz_dag.read.versions import cuda_version

_CUDA_OF_DRIVER, _DRIVER = "CudaDriverVersion", "NvDriverVersion"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_RELEASE = re.compile(r"\d{1,9}(\.\d{1,9}){0,3}", re.ASCII)
_DAY_NS = 86_400_000_000_000
_LONGEST_NS = 12 * _DAY_NS
_KERNELS, _CALLS, _SYSTEM_CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API"
_TABLE_OF = {
    _CALLS: "calls",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "synchronizations",
    "NVTX_EVENTS": "ranges",
    _SYSTEM_CALLS: "system_calls",
    "ThreadNames": "threads",
    "COMPOSITE_EVENTS": "samples",
    "GPU_METRICS": "metrics",
    MEMORY_TABLE: "memory",
}
"""Table of the export → the table of a profile that it becomes, but for ``operations``."""

_COUNTED = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "GPU_METRICS", "OSRT_API", "COMPOSITE_EVENTS", MEMORY_TABLE)


def read_nsys(path: Path) -> NsysProfile:
    """Read a whole export into memory.

    Args:
        path: a ``.sqlite`` export or a folder of its Parquet files.

    Raises:
        BadInputError: it cannot be used: missing, empty, damaged, locked, still being written, without a column that
            must exist, or no export at all.
    """
    tables: dict[str, pa.Table] = {}
    facts = read_tables(path, tables.__setitem__)
    facts = read_range_tables(path, facts, MemoryStore(tables, facts), tables.__setitem__)
    return NsysProfile(path, MemoryStore(tables, facts))


def read_tables(path: Path, keep: Callable[[str, pa.Table], None]) -> NsysFacts:
    """Read an export but for its NVTX ranges, table by table, so that not all need to be in memory at once.

    Args:
        keep: takes each table of a profile, by name, as soon as it is read.

    Raises:
        BadInputError: as ``read_nsys``.
    """
    with closing(open_nsys(path)) as source:
        return _tables(NsysSchema.of(source), keep)


@contextmanager
def schema_read(path: Path) -> Iterator[NsysSchema]:
    """An open export of which everything was asked that reading asks of it.

    Raises:
        BadInputError: as ``read_nsys``.
    """
    with closing(open_nsys(path)) as source:
        schema = NsysSchema.of(source)
        facts = _tables(schema, lambda *_: None)
        read_ranges(schema, facts.last_ns or 0)
        yield schema


def _tables(schema: NsysSchema, keep: Callable[[str, pa.Table], None]) -> NsysFacts:
    own_numbers, gpus = _gpus(schema)
    span = _Span()
    calls = read_calls(schema)
    operations = read_operations(schema, calls, own_numbers)
    devices = set(numbers(operations, "device").tolist())
    for table in (operations, calls):
        span.add(numbers(table, "start_ns"), numbers(table, "start_ns") + numbers(table, "duration_ns"))
    contexts = contexts_of(operations)
    keep("operations", operations)
    keep("totals", totals_table(operations))
    owners = _Owners(_parts(operations), _processes(calls), own_numbers)
    nameless = [*_nameless("operations", _KERNELS, operations.filter(pc.equal(operations["category"], KERNEL)))]
    del operations
    keep("synchronizations", read_synchronizations(schema, calls, contexts))
    keep("memory", read_memory_events(schema, calls, own_numbers))
    keep("calls", calls)
    nameless += _nameless("calls", _CALLS, calls)
    del calls
    system_calls = read_system_calls(schema)
    keep("system_calls", system_calls)
    nameless += _nameless("system_calls", _SYSTEM_CALLS, system_calls)
    del system_calls
    span.check(schema)
    keep("threads", _threads(schema))
    keep("samples", _samples(schema))
    keep("metrics", _metrics(schema))
    facts = _facts(schema, devices, gpus, span)
    return msgspec.structs.replace(facts, faults=(*nameless, *owners.faults(schema)))


def read_range_tables(path: Path, facts: NsysFacts, store: Store, keep: Callable[[str, pa.Table], None]) -> NsysFacts:
    """Read the NVTX ranges of an export: ``RANGE_TABLES``, which most commands do without.

    Args:
        facts: what is known of the rest, as ``read_tables`` gives it; the answer knows the ranges too.
        store: the tables of the rest.
        keep: takes each table by name.

    Raises:
        BadInputError: as ``read_nsys``.
    """
    with closing(open_nsys(path)) as source:
        schema = NsysSchema.of(source)
        span = _Span(facts.first_ns, facts.last_ns)
        ranges = read_ranges(schema, span.last_ns or 0)
        span.add(numbers(ranges, "start_ns"), numbers(ranges, "end_ns"))
        span.check(schema)
        too_deep = _keep_ranges(ranges, _launches(store), keep)
        if too_deep:
            schema.note(f"{too_deep} NVTX ranges nest more than {DEEPEST} levels deep: they hold nothing")
        missing = tuple(dict.fromkeys((*facts.missing, *schema.missing)))
        found = {"first_ns": span.first_ns, "last_ns": span.last_ns, "missing": missing}
        faults = facts.faults
        if schema.dropped:
            owners = _Owners(_parts(store.table("operations", ["process", "device"])), _processes(ranges), {})
            faults = (*faults, *owners.faults(schema))
        return msgspec.structs.replace(facts, **found, faults=faults)


def _launches(store: Store) -> Launches:
    launch = numbers(store.table("operations", ["launch"]), "launch")
    calls = store.table("calls", ["thread", "start_ns"])
    known = launch >= 0
    of_launch = {}
    for name in ("thread", "start_ns"):
        values = np.full(len(launch), MISSING, dtype=np.int64)
        values[known] = numbers(calls, name)[launch[known]]
        of_launch[name] = values
    return Launches(of_launch["thread"] >> PROCESS_BITS, **of_launch)


def _keep_ranges(ranges: pa.Table, launches: Launches, keep: Callable[[str, pa.Table], None]) -> int:
    """Nest the ranges and keep them, their paths and the range around each launch; how many nest too deeply."""
    columns = nesting_columns(ranges)
    nesting = nest(columns, Runs.of(columns.thread >> PROCESS_BITS), launches)
    del columns
    for name, values in (("parent", nesting.parent), ("path", nesting.path)):
        ranges = ranges.set_column(ranges.column_names.index(name), name, pa.array(values))
    keep("ranges", ranges)
    paths = [nesting.path_name, nesting.path_parent, nesting.path_depth]
    keep("paths", pa.Table.from_arrays([pa.array(values) for values in paths], schema=SCHEMAS["paths"]))
    keep("launch_ranges", pa.Table.from_arrays([pa.array(nesting.launch_range)], schema=SCHEMAS["launch_ranges"]))
    return nesting.too_deep


@dataclass(frozen=True, slots=True)
class _Owners:
    """Who may own rows that cannot be used.

    Attributes:
        parts: (process, GPU) pairs that did something.
        processes: those with calls or ranges.
        own_numbers: (process id, its own device number) → GPU.
    """

    parts: Collection[tuple[int, int]]
    processes: Collection[int]
    own_numbers: Mapping[tuple[int, int], int]

    def faults(self, schema: NsysSchema) -> Iterator[RowFault]:
        """The rows that were left out, by who lacks them."""
        found: Counter[tuple[str, int | None, int | None]] = Counter()
        for (source, process, device), rows in schema.dropped.items():
            found[source, *self._owner(source, process, device)] += rows
        for (source, owner, gpu), rows in found.items():
            yield RowFault(_TABLE_OF.get(source, "operations"), source, rows, owner, gpu)

    def _owner(self, source: str, process: int, device: int) -> tuple[int | None, int | None]:
        gpu = self.own_numbers.get((process & (1 << PROCESS_BITS) - 1, device), device)
        mine = [
            (owner, of)
            for owner, of in self.parts
            if (owner == process or MISSING in (owner, process)) and gpu in (MISSING, of)
        ]
        if not mine and source in _TABLE_OF and process in self.processes:
            return process, None
        return _only({part[0] for part in mine}), _only({part[1] for part in mine})


def _only(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 and MISSING not in values else None


def _processes(table: pa.Table) -> set[int]:
    return set(distinct(numbers(table, "thread") >> PROCESS_BITS).tolist())


def _parts(operations: pa.Table) -> list[tuple[int, int]]:
    rows = operations.group_by(["process", "device"]).aggregate([])
    return list(zip(rows["process"].to_pylist(), rows["device"].to_pylist(), strict=True))


def _nameless(table: str, source: str, rows: pa.Table) -> Iterator[RowFault]:
    """Kernels or calls without a name."""
    if not rows["name"].null_count:
        return
    lost = rows.filter(pc.is_null(rows["name"]))
    of_kernels = "device" in lost.column_names
    owners = numbers(lost, "process") if of_kernels else numbers(lost, "thread") >> PROCESS_BITS
    devices = numbers(lost, "device") if of_kernels else np.full(len(owners), MISSING)
    for (process, device), count in Counter(zip(owners.tolist(), devices.tolist(), strict=True)).items():
        yield RowFault(table, source, count, process, device if of_kernels else None, nameless=True)


@dataclass(slots=True)
class _Span:
    """First start and last end of what was recorded; None where nothing was."""

    first_ns: int | None = None
    last_ns: int | None = None

    def add(self, start_ns: Int64, end_ns: Int64) -> None:
        """Take the times of one table."""
        if len(start_ns):
            first = int(start_ns.min())
            self.first_ns = first if self.first_ns is None else min(self.first_ns, first)
        if len(end_ns):
            last = int(end_ns.max())
            self.last_ns = last if self.last_ns is None else max(self.last_ns, last)

    def check(self, schema: NsysSchema) -> None:
        """Refuse times that no capture has: nothing could be added up over them."""
        if self.first_ns is not None and self.last_ns is not None and self.last_ns - self.first_ns > _LONGEST_NS:
            days = (self.last_ns - self.first_ns) // _DAY_NS
            fault = f"its times span {days:,} days, more than a capture lasts"
            raise BadInputError(schema.source.path, fault, "export the report again with a current version of nsys")


def _gpus(schema: NsysSchema) -> tuple[dict[tuple[int, int], int], list[Gpu]]:
    """(process id, its own device number) → GPU; and what is stated of the GPUs."""
    stated = schema.select(
        "TARGET_INFO_GPU",
        {
            "device": number("id"),
            "name": text("name"),
            "bus": text("busLocation"),
            "multiprocessors": number("smCount"),
            "memory_bytes": number("totalMemory"),
            "memory_bytes_per_s": number("memoryBandwidth"),
            "clock_hz": number("clockRate"),
            "major": number("computeMajor"),
            "minor": number("computeMinor"),
        },
        loss="the GPUs have no names",
    )
    own = schema.select(
        "TARGET_INFO_CUDA_DEVICE", {"gpu": number("gpuId"), "own": number("cudaId"), "process": number("pid")}
    )
    devices = {
        (row["process"], row["own"]): row["gpu"]
        for row in (own.to_pylist() if own is not None else ())
        if MISSING not in row.values()
    }
    return devices, [_gpu(row) for row in (stated.to_pylist() if stated is not None else ())]


def _gpu(row: Mapping[str, Any]) -> Gpu:
    """What one row says of a GPU; zero is how exports say that a number is not known."""
    known = {name: (value if isinstance(value, str) or value > 0 else None) or None for name, value in row.items()}
    major, minor = row["major"], row["minor"]
    numbers = ("multiprocessors", "memory_bytes", "memory_bytes_per_s", "clock_hz")
    return Gpu(
        row["device"],
        known["name"],
        bus=known["bus"],
        compute_capability=f"{major}.{minor}" if major > 0 and minor >= 0 else None,
        **{name: known[name] for name in numbers},
    )


def _threads(schema: NsysSchema) -> pa.Table:
    rows = schema.select("ThreadNames", {"thread": required("globalTid"), "name_id": number("nameId")})
    if rows is None:
        return SCHEMAS["threads"].empty_table()
    ids = numbers(rows, "name_id")
    names = strings_of(schema, [ids]).named(ids)
    return pa.Table.from_arrays([rows["thread"].combine_chunks(), names], schema=SCHEMAS["threads"])


def _metrics(schema: NsysSchema) -> pa.Table:
    """GPU metrics: samples with their names; the GPU is in the lowest byte of a sample's type."""
    samples = schema.select(
        "GPU_METRICS",
        {
            "time_ns": required("timestamp"),
            "type": number("typeId"),
            "metric": number("metricId"),
            "value": number("value"),
        },
    )
    if samples is None or not samples.num_rows:
        return SCHEMAS["metrics"].empty_table()
    named = schema.select(
        "TARGET_INFO_GPU_METRICS",
        {"type": number("typeId"), "metric": number("metricId"), "name": text("metricName")},
        loss="GPU metrics have no names",
    )
    names = {(row["type"], row["metric"]): row["name"] for row in (named.to_pylist() if named is not None else ())}
    types, metrics = numbers(samples, "type"), numbers(samples, "metric")
    keys, which = np.unique(np.stack([types, metrics]), axis=1, return_inverse=True)
    texts = [names.get((kind, metric)) or f"metric {metric}" for kind, metric in keys.T.tolist()]
    codes = pa.array(texts, pa.string()).take(pa.array(which.reshape(-1))).dictionary_encode()
    return pa.Table.from_arrays(
        [
            samples["time_ns"].combine_chunks(),
            pa.array(np.where(types == MISSING, MISSING, types & 0xFF)),
            codes,
            samples["value"].combine_chunks(),
        ],
        schema=SCHEMAS["metrics"],
    )


def _samples(schema: NsysSchema) -> pa.Table:
    """What ran on processors when they were sampled (nsys profile --sample); no rows where they were not."""
    wanted = SCHEMAS["samples"]
    rows = schema.select(
        "COMPOSITE_EVENTS",
        {"time_ns": required("start"), "thread": required("globalTid"), "cycles": required("cpuCycles")},
    )
    return wanted.empty_table() if rows is None else rows.select(wanted.names).cast(wanted).combine_chunks()


def _facts(schema: NsysSchema, active: set[int], stated_gpus: list[Gpu], span: _Span) -> NsysFacts:
    stated = _stated(schema, EXPORT_FACTS, ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION"))
    system = _stated(schema, SYSTEM_FACTS, (_CUDA_OF_DRIVER, _DRIVER))
    cuda, driver = system.get(_CUDA_OF_DRIVER, ""), system.get(_DRIVER, "")
    session = schema.select(
        "TARGET_INFO_SESSION_START_TIME",
        {"utc": number("utcEpochNs")},
        loss="the capture cannot be aligned with others by UTC",
    )
    utc = _first(session, "utc")
    if utc is not None and not 0 <= utc < LAST_INSTANT_NS // 2:
        schema.note(f"the capture cannot be aligned with others by UTC: its start, {utc} ns, is no date")
        utc = None
    analysis = schema.select("ANALYSIS_DETAILS", {"duration": number("duration")})
    gpus = {device: Gpu(device, None) for device in active} | {gpu.device: gpu for gpu in stated_gpus}
    return NsysFacts(
        schema_version=stated.get("EXPORT_SCHEMA_VERSION"),
        product_version=stated.get("EXPORT_PRODUCT_VERSION"),
        driver_version=cuda_version(int(cuda)) if _NUMBER.fullmatch(cuda) else None,
        driver_release=driver if _RELEASE.fullmatch(driver) else None,
        utc_start_ns=utc,
        duration_ns=_first(analysis, "duration"),
        first_ns=span.first_ns,
        last_ns=span.last_ns,
        gpus=tuple(gpus[device] for device in sorted(gpus)),
        tables={name: schema.count(name) for name in sorted(schema.tables) if name.startswith(_COUNTED)},
        columns={
            name: tuple(filter(str.isidentifier, schema.tables[name]))
            for name in sorted(schema.tables)
            if name.isidentifier()
        },
        missing=tuple(schema.missing),
    )


def _stated(schema: NsysSchema, table: str, names: tuple[str, ...]) -> dict[str, str]:
    """What a table states once, asked for by name: its other rows hold paths and environments."""
    if not {"name", "value"} <= set(schema.tables.get(table, ())):
        return {}
    wanted = ", ".join(f"'{name}'" for name in names)
    rows = schema.select(table, {"name": text("name"), "value": text("value")}, where=f"name IN ({wanted})")
    stated: dict[str, set[str]] = {}
    for row in rows.to_pylist() if rows is not None else ():
        stated.setdefault(row["name"], set()).add(row["value"])
    return {name: values.pop() for name, values in stated.items() if len(values) == 1}


def _first(rows: pa.Table | None, column: str) -> int | None:
    if rows is None or not rows.num_rows:
        return None
    value = rows[column][0].as_py()
    return None if value == MISSING else int(value)
