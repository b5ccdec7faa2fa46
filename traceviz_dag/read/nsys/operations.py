"""What ran on the GPUs of an export, and which runtime or driver call launched it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import KERNEL, MEMORY_COPY, MEMORY_SET, MISSING
from traceviz_dag.read.nsys.launching import NOT_LAUNCHED, join_launches, known_processes, processes_of_ids
from traceviz_dag.read.nsys.profile import PROCESS_BITS, SCHEMAS
from traceviz_dag.read.nsys.rows import numbers, order_by_key
from traceviz_dag.read.nsys.schema import NsysSchema, number, required
from traceviz_dag.read.nsys.strings import Strings, strings_of

_PLACE = {
    "start_ns": required("start"),
    "end_ns": required("end"),
    "device": required("deviceId"),
    "context": number("contextId"),
    "stream": number("streamId"),
    "process_id": number("globalPid", loss="launches are joined only where one process was profiled"),
    "correlation": number("correlationId", loss="operations on the GPU have no launches"),
    "graph_node_id": number("graphNodeId"),
}
_KERNEL = {
    **_PLACE,
    "long_id": number("demangledName", loss="kernels bear their short names"),
    "short_id": number("shortName"),
    "mangled_id": number("mangledName"),
    "graph_id": number("graphId"),
    "grid_x": number("gridX"),
    "grid_y": number("gridY"),
    "grid_z": number("gridZ"),
    "block_x": number("blockX"),
    "block_y": number("blockY"),
    "block_z": number("blockZ"),
    "registers_per_thread": number("registersPerThread"),
    "static_bytes": number("staticSharedMemory"),
    "dynamic_bytes": number("dynamicSharedMemory"),
}
_COPY = {
    **_PLACE,
    "bytes": number("bytes"),
    "copy_kind": number("copyKind"),
    "source_memory": number("srcKind"),
    "destination_memory": number("dstKind"),
}
_SET = {**_PLACE, "bytes": number("bytes")}
_GRAPH = {**{name: field for name, field in _PLACE.items() if name != "graph_node_id"}, "graph_id": number("graphId")}
_COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "unified HtoD",
    12: "unified DtoH",
    13: "unified DtoD",
}


def read_calls(schema: NsysSchema) -> pa.Table:
    """Runtime and driver calls by process and start."""
    rows = schema.select(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        {
            "start_ns": required("start"),
            "end_ns": required("end"),
            "thread": number("globalTid", loss="calls have no thread, so no range holds a kernel"),
            "correlation": number("correlationId"),
            "name_id": number("nameId"),
        },
        loss="operations on the GPU have no launches",
    )
    if rows is None:
        return SCHEMAS["calls"].empty_table()
    rows = _of_threads(schema, "CUPTI_ACTIVITY_KIND_RUNTIME", rows)
    ids, thread = numbers(rows, "name_id"), numbers(rows, "thread")
    names = _without_version(strings_of(schema, [ids]), ids)
    start = numbers(rows, "start_ns")
    order = order_by_key(thread >> PROCESS_BITS, start)
    return pa.Table.from_arrays(
        [
            names.take(pa.array(order)),
            pa.array(start[order]),
            pa.array((numbers(rows, "end_ns") - start)[order]),
            pa.array(thread[order]),
            pa.array(numbers(rows, "correlation")[order]),
        ],
        schema=SCHEMAS["calls"],
    )


def read_system_calls(schema: NsysSchema) -> pa.Table:
    """Calls of the operating system's libraries by process and start, without rows where none were traced."""
    rows = schema.select(
        "OSRT_API",
        {
            "start_ns": required("start"),
            "end_ns": required("end"),
            "thread": number("globalTid"),
            "name_id": number("nameId"),
        },
    )
    if rows is None or not rows.num_rows:
        return SCHEMAS["system_calls"].empty_table()
    rows = _of_threads(schema, "OSRT_API", rows)
    ids, thread, start = (numbers(rows, name) for name in ("name_id", "thread", "start_ns"))
    order = order_by_key(thread >> PROCESS_BITS, start)
    duration = numbers(rows, "end_ns") - start
    return pa.Table.from_arrays(
        [
            strings_of(schema, [ids]).named(ids[order]),
            *(pa.array(values[order]) for values in (start, duration, thread)),
        ],
        schema=SCHEMAS["system_calls"],
    )


def _of_threads(schema: NsysSchema, table: str, rows: pa.Table) -> pa.Table:
    """Calls without those that do not say whose they are, where the export can say it."""
    known = numbers(rows, "thread") != MISSING
    if known.all() or not schema.has(table, "globalTid"):
        return rows
    schema.leave_out(table, {"thread": rows["thread"]}, known)
    return rows.filter(pa.array(known))


def read_operations(schema: NsysSchema, calls: pa.Table, devices: Mapping[tuple[int, int], int]) -> pa.Table:
    """Kernels, CUDA graphs traced as a whole, memory copies and sets, by GPU and start, joined with their launches.

    Args:
        calls: as ``read_calls`` gives them.
        devices: (process id, the process's own number of a device) → the GPU's number in the report; numbers that are
            not in it represent themselves.
    """
    parts = [_kernels(schema), _graphs(schema), *_memory(schema)]
    there = [part for part in parts if part is not None]
    table = pa.concat_tables([SCHEMAS["operations"].empty_table(), *there]).unify_dictionaries()
    process = known_processes(numbers(table, "process"), numbers(calls, "thread"))
    device = renumbered(numbers(table, "device"), process, devices)
    launch = join_launches(
        process,
        numbers(table, "correlation"),
        processes_of_ids(numbers(calls, "thread")),
        numbers(calls, "correlation"),
    )
    table = _with(table, "process", process)
    table = _with(table, "device", device)
    table = _with(table, "launch", launch)
    order = pa.array(order_by_key(device, numbers(table, "start_ns")))
    # Column by column, so that the table is in memory once and not twice.
    for place, name in enumerate(table.column_names):
        table = table.set_column(place, name, table[name].combine_chunks().take(order))
    return table


def _kernels(schema: NsysSchema) -> pa.Table | None:
    rows = schema.select("CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL, loss="no kernels")
    if rows is None:
        return None
    long_id, short_id, mangled_id = (numbers(rows, name) for name in ("long_id", "short_id", "mangled_id"))
    names = strings_of(schema, [long_id, short_id, mangled_id])
    shown = np.where(long_id != MISSING, long_id, np.where(short_id != MISSING, short_id, mangled_id))
    static, dynamic = numbers(rows, "static_bytes"), numbers(rows, "dynamic_bytes")
    both = np.where(static == MISSING, dynamic, static + np.where(dynamic == MISSING, 0, dynamic))
    short = names.named(np.where(short_id == MISSING, shown, short_id))
    return _operations(rows, KERNEL, names.named(shown), short, {"shared_memory_bytes": both})


def _graphs(schema: NsysSchema) -> pa.Table | None:
    rows = schema.select("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GRAPH)
    if rows is None or not rows.num_rows:
        return None
    schema.note("CUDA graphs were traced as a whole: the kernels in them are not distinguished")
    graphs = numbers(rows, "graph_id")
    distinct, which = np.unique(graphs, return_inverse=True)
    texts = ["CUDA graph" if value == MISSING else f"CUDA graph {value}" for value in distinct.tolist()]
    names = pa.DictionaryArray.from_arrays(pa.array(which.astype(np.int32)), pa.array(texts, pa.string()))
    return _operations(rows, KERNEL, names, names, {})


def _memory(schema: NsysSchema) -> list[pa.Table | None]:
    copies = schema.select("CUPTI_ACTIVITY_KIND_MEMCPY", _COPY, loss="no memory copies; idle time counts them as idle")
    sets = schema.select("CUPTI_ACTIVITY_KIND_MEMSET", _SET)
    found: list[pa.Table | None] = []
    if copies is not None:
        kinds, which = np.unique(numbers(copies, "copy_kind"), return_inverse=True)
        labels = [f"Memcpy {_COPY_KINDS[kind]}" if kind in _COPY_KINDS else "Memcpy" for kind in kinds.tolist()]
        names = pa.array(labels, pa.string()).take(pa.array(which)).dictionary_encode()
        found.append(_operations(copies, MEMORY_COPY, names, names, {}))
    if sets is not None:
        names = pa.array(["Memset"] * sets.num_rows, pa.string()).dictionary_encode()
        found.append(_operations(sets, MEMORY_SET, names, names, {}))
    return found


def _operations(
    rows: pa.Table, category: int, name: pa.DictionaryArray, short: pa.DictionaryArray, own: Mapping[str, Int64]
) -> pa.Table:
    start, end = numbers(rows, "start_ns"), numbers(rows, "end_ns")
    count = rows.num_rows
    columns: dict[str, object] = {
        "name": name,
        "short_name": short,
        "category": np.full(count, category, dtype=np.int8),
        "start_ns": start,
        "duration_ns": end - start,
        "process": processes_of_ids(numbers(rows, "process_id")),
        "launch": np.full(count, NOT_LAUNCHED, dtype=np.int64),
        **own,
    }
    for field in SCHEMAS["operations"]:
        if field.name not in columns:
            there = field.name in rows.column_names
            columns[field.name] = numbers(rows, field.name) if there else np.full(count, MISSING, dtype=np.int64)
    # Zero is how exports say that a kernel belongs to no graph.
    for field_name in ("graph_id", "graph_node_id"):
        values = columns[field_name]
        columns[field_name] = np.where(np.asarray(values) == 0, MISSING, values)  # type: ignore[call-overload]
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMAS["operations"]]
    return pa.Table.from_arrays(arrays, schema=SCHEMAS["operations"])


def renumbered(device: Int64, process: Int64, devices: Mapping[tuple[int, int], int]) -> Int64:
    """The GPUs' numbers in the report, of numbers that processes have for them; see ``read_operations``."""
    result = device.copy()
    low_bits = (1 << PROCESS_BITS) - 1
    for (process_id, own), gpu in devices.items():
        result[(device == own) & ((process & low_bits) == process_id)] = gpu
    return result


def _without_version(names: Strings, ids: Int64) -> pa.DictionaryArray:
    """Names of calls without the version of the interface: cudaLaunchKernel_v7000 is cudaLaunchKernel."""
    values = tuple(
        value.rsplit("_v", 1)[0] if value[-1:].isdigit() and "_v" in value else value for value in names.values
    )
    distinct = list(dict.fromkeys(values))
    plain = np.array([distinct.index(value) for value in values], dtype=np.int32)
    of_id = Strings(names.ids, values).named(ids)
    codes = pa.array(plain).take(of_id.indices) if len(plain) else of_id.indices
    return pa.DictionaryArray.from_arrays(codes, pa.array(distinct, pa.string()))


def _with(table: pa.Table, name: str, values: Int64) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))
