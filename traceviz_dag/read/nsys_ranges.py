"""NVTX ranges and marks of an export: names, nesting, domains, and what NCCL says of its calls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.read.events import MISSING, Int64
from traceviz_dag.read.nsys_payload import NUMBERS, payload_columns, payload_layouts
from traceviz_dag.read.nsys_profile import MARK, PUSH_POP, SCHEMAS, START_END
from traceviz_dag.read.nsys_schema import Field, NsysSchema, number, required, text
from traceviz_dag.read.nsys_strings import range_names, strings_of

_KINDS = {59: PUSH_POP, 70: PUSH_POP, 60: START_END, 71: START_END, 34: MARK}
_DOMAIN_NAME = 75
_TABLE = "NVTX_EVENTS"


def read_ranges(schema: NsysSchema, last_ns: int) -> pa.Table:
    """NVTX ranges and marks by start, the longer one first.

    Args:
        last_ns: when the capture ended; a range that was never closed ends there.
    """
    listed = ", ".join(map(str, _KINDS))
    payload = Field(("jsonText",), "''")
    rows = schema.select(
        _TABLE,
        {
            "start_ns": required("start"),
            "end_ns": number("end"),
            "type": required("eventType"),
            "text": text("text"),
            "text_id": number("textId"),
            "thread": number("globalTid", loss="ranges have no thread, so they hold no kernels"),
            "end_thread": number("endGlobalTid"),
            "domain": number("domainId"),
            "json": payload,
            "json_id": number("jsonTextId"),
        },
        where=f"eventType IN ({listed})",
        loss="no NVTX ranges: iterations, phases and dimensions have little to go by",
    )
    if rows is None:
        return SCHEMAS["ranges"].empty_table()
    kind, start, end = _kinds(rows), _numbers(rows, "start_ns"), _numbers(rows, "end_ns")
    names = range_names(_texts(schema, rows, "text", "text_id"))
    lost = (end == MISSING) & (kind != MARK)
    end = np.where(kind == MARK, start, np.where(lost, np.maximum(last_ns, start), end))
    columns = {
        "name": names.name,
        "kind": pa.array(kind),
        "start_ns": pa.array(start),
        "end_ns": pa.array(np.maximum(end, start)),
        "thread": rows["thread"],
        "end_thread": rows["end_thread"],
        "domain": rows["domain"],
        "domain_name": _domain_names(schema, _numbers(rows, "domain")),
        "open": pa.array(lost),
        "operator": pa.array(names.operator),
        "sequence": pa.array(names.sequence),
        **_payload(schema, rows, of_nccl=any(name.startswith("nccl") for name in names.name.dictionary.to_pylist())),
    }
    table = pa.Table.from_arrays([_one(columns[field.name]) for field in SCHEMAS["ranges"]], schema=SCHEMAS["ranges"])
    return table.take(pa.array(np.lexsort((-end, start))))


def _kinds(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    types = _numbers(rows, "type")
    kinds = np.zeros(len(types), dtype=np.int8)
    for event_type, kind in _KINDS.items():
        kinds[types == event_type] = kind
    return kinds


def _texts(schema: NsysSchema, rows: pa.Table, own: str, by_id: str) -> pa.Array:
    """The text of each row, else the registered string that it names."""
    texts, ids = _one(rows[own]), _numbers(rows, by_id)
    named = ids != MISSING
    if not named.any():
        return texts
    registered = strings_of(schema, [ids[named]]).named(ids).dictionary_decode()
    return pc.if_else(pa.array(named), pc.fill_null(registered, ""), texts)


def _payload(schema: NsysSchema, rows: pa.Table, *, of_nccl: bool) -> dict[str, pa.Array]:
    json_texts = _texts(schema, rows, "json", "json_id")
    layouts = payload_layouts(schema)
    table = schema.table(_TABLE)
    hexes = pa.array([""] * rows.num_rows, pa.string())
    if layouts and table is not None and "binaryData" in schema.tables[table]:
        listed = ", ".join(map(str, _KINDS))
        answer = schema.source.query(
            f"SELECT coalesce(hex(binaryData), '') AS data FROM \"{table}\" WHERE eventType IN ({listed})"
        )
        hexes = _one(answer["data"])
    columns = payload_columns(json_texts, hexes, layouts)
    nccl = bool(pc.any(pc.is_valid(columns["communicator"])).as_py())
    if not nccl and layouts and of_nccl:
        schema.note(
            "NCCL's ranges bear no payload, so communicators and message sizes are unknown: "
            "export with --include-blobs=true"
        )
    return {name: columns[name] for name in ("communicator", *NUMBERS)}


def _domain_names(schema: NsysSchema, domains: Int64) -> pa.Array:
    rows = schema.select(
        _TABLE,
        {"domain": number("domainId"), "text": text("text"), "text_id": number("textId")},
        where=f"eventType = {_DOMAIN_NAME}",
    )
    names: dict[int, str] = {}
    if rows is not None:
        texts = _texts(schema, rows, "text", "text_id").to_pylist()
        names = dict(zip(_numbers(rows, "domain").tolist(), texts, strict=True))
    distinct, which = np.unique(domains, return_inverse=True)
    values = [names.get(domain) or None for domain in distinct.tolist()]
    return pa.array(values, pa.string()).take(pa.array(which)).dictionary_encode()


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _numbers(table: pa.Table, name: str) -> Int64:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)
