"""What programs allocate on GPUs by calls of the driver, from an export of a capture with --cuda-memory-usage."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.read.nsys.launching import known_processes, processes_of_ids
from traceviz_dag.read.nsys.operations import renumbered
from traceviz_dag.read.nsys.profile import SCHEMAS
from traceviz_dag.read.nsys.rows import numbers, order_by_key
from traceviz_dag.read.nsys.schema import NsysSchema, number, required

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
"""The export's table of it."""

_ON_DEVICE = (2, 3, 5)
"""Codes of ``ENUM_CUDA_MEM_KIND``: device, array, device static. Other kinds are the host's, or move."""

_ALLOCATED, _RELEASED = 0, 1
"""Codes of ``ENUM_CUDA_DEV_MEM_EVENT_OPER``."""


def read_memory_events(schema: NsysSchema, calls: pa.Table, devices: Mapping[tuple[int, int], int]) -> pa.Table:
    """Allocations and releases of memory on GPUs, by process and time; no rows where the export has none.

    Args:
        calls: as ``read_calls`` gives them. devices: as for ``read_operations``.
    """
    rows = schema.select(
        TABLE,
        {
            "time_ns": required("start"),
            "process": number("globalPid"),
            "device": number("deviceId"),
            "address": number("address"),
            "bytes": required("bytes"),
            "stream": number("streamId"),
            "released": required("memoryOperationType"),
            "kind": number("memKind"),
        },
    )
    wanted = SCHEMAS["memory"]
    if rows is None or not rows.num_rows:
        return wanted.empty_table()
    known = pc.is_in(rows["released"], pa.array((_ALLOCATED, _RELEASED)))
    if not pc.all(known).as_py():
        schema.note(f"table {TABLE} has operations that are neither an allocation nor a release: they are left out")
        rows = rows.filter(known)
    # Older exports do not show the kind, and have memory of GPUs alone.
    if "memKind" in schema.tables.get(schema.table(TABLE) or "", ()):
        rows = rows.filter(pc.is_in(rows["kind"], pa.array(_ON_DEVICE)))
    columns = {name: numbers(rows, name) for name in rows.column_names}
    process = known_processes(processes_of_ids(columns["process"]), numbers(calls, "thread"))
    columns["process"] = process
    columns["device"] = renumbered(columns["device"], process, devices)
    columns["released"] = columns["released"] == _RELEASED
    order = order_by_key(process, columns["time_ns"])
    return pa.Table.from_arrays(
        [pa.array(columns[field.name][order]).cast(field.type) for field in wanted], schema=wanted
    )
