"""NVTX ranges and marks of an export: names, domains, and what NCCL says of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import Int32, Int64, distinct
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.limits import LAST_INSTANT_NS
from traceviz_dag.read.nsys.nesting import NestingColumns
from traceviz_dag.read.nsys.payload import payload_columns, payload_layouts
from traceviz_dag.read.nsys.profile import MARK, PROCESS_BITS, PUSH_POP, SCHEMAS, START_END
from traceviz_dag.read.nsys.rows import integers_of, order_by_key
from traceviz_dag.read.nsys.schema import Field, NsysSchema, number, required, text
from traceviz_dag.read.nsys.strings import TextCodes, range_names, strings_of

_KINDS = {59: PUSH_POP, 70: PUSH_POP, 60: START_END, 71: START_END, 34: MARK}
_DOMAIN_NAME = 75
_LISTED = ", ".join(map(str, _KINDS))
_TABLE = "NVTX_EVENTS"
_NUMBERS = ("start_ns", "end_ns", "thread", "end_thread", "domain")


_Piece = tuple[Mapping[str, pa.Array], npt.NDArray[np.bool_] | None]
"""As ``NsysSchema.batches`` gives them."""


@dataclass(slots=True)
class _Read:
    """Ranges as they come, piece by piece; texts are parted at once, so that they never are in memory together."""

    numbers: dict[str, list[Int64]] = field(default_factory=dict)
    kind: list[npt.NDArray[np.int8]] = field(default_factory=list)
    name: list[Int32] = field(default_factory=list)
    operator: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    names: TextCodes = field(default_factory=TextCodes)
    json: list[Int32] = field(default_factory=list)
    jsons: TextCodes = field(default_factory=TextCodes)
    count: int = 0
    kept: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def add(self, columns: Mapping[str, pa.Array], kept: npt.NDArray[np.bool_] | None) -> None:
        """Take one piece, made of the rows of the table that ``kept`` says; None: of all."""
        start = integers_of(columns["start_ns"])
        count = len(start)
        self.kept.append(np.ones(count, dtype=bool) if kept is None else kept)
        self.count += count
        self.kind.append(_kinds(integers_of(columns["type"])))
        for name in (*_NUMBERS, "text_id", "json_id"):
            if name in columns:
                self.numbers.setdefault(name, []).append(integers_of(columns[name]))
        parts = range_names(columns["text"] if "text" in columns else pa.array([""] * count, pa.string()))
        self.name.append(self.names.codes(parts.name))
        self.operator.append(parts.operator)
        self.numbers.setdefault("sequence", []).append(parts.sequence)
        self.numbers.setdefault("flops", []).append(parts.flops)
        if "json" in columns:
            self.json.append(self.jsons.codes(columns["json"]))

    def column(self, name: str) -> Int64 | None:
        """A column of numbers; None where the export does not have it."""
        parts = self.numbers.pop(name, None)
        return np.concatenate(parts) if parts else None


def read_ranges(schema: NsysSchema, last_ns: int) -> pa.Table:
    """NVTX ranges and marks by process and start, the longer one first; not yet nested: no parents and paths.

    Args:
        last_ns: when the capture ended; a range that was never closed ends there.
    """
    read = _Read()
    fields = {
        "start_ns": required("start"),
        "end_ns": number("end"),
        "type": required("eventType"),
        "text": text("text"),
        "text_id": number("textId"),
        "thread": number("globalTid", loss="ranges have no thread, so they hold no kernels"),
        "end_thread": number("endGlobalTid"),
        "domain": number("domainId"),
        "json": Field(("jsonText",), "''"),
        "json_id": number("jsonTextId"),
    }
    loss = "no NVTX ranges: iterations, phases and dimensions have little to go by"
    for columns, kept in _forwards(schema, schema.batches(_TABLE, fields, ("type", tuple(_KINDS)), loss)):
        read.add(columns, kept)
    if not read.count:
        return SCHEMAS["ranges"].empty_table()
    return _table(schema, read, last_ns)


def _forwards(schema: NsysSchema, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """The pieces without ranges that end before they start, or at no time, and without those of no thread, where the
    export has threads; the end of a mark is none."""
    for columns, kept in pieces:
        start = integers_of(columns["start_ns"])
        end = integers_of(columns["end_ns"]) if "end_ns" in columns else start
        ends = (end >= start) & (end < LAST_INSTANT_NS)
        known = integers_of(columns["thread"]) != MISSING if "thread" in columns else True
        good = known & (ends | (end == MISSING) | (_kinds(integers_of(columns["type"])) == MARK))
        if good.all():
            yield columns, kept
            continue
        schema.leave_out(_TABLE, columns, good)
        whole = good if kept is None else kept.copy()
        if kept is not None:
            whole[kept] = good
        yield {name: values.filter(pa.array(good)) for name, values in columns.items()}, whole


def nesting_columns(ranges: pa.Table) -> NestingColumns:
    """What nesting needs of the table ``ranges``."""
    if not ranges.num_rows:
        nothing = np.empty(0, dtype=np.int64)
        return NestingColumns(nothing.astype(np.int32), nothing, nothing, nothing, nothing.astype(bool))
    thread, ended, kind = (integers_of(ranges[name]) for name in ("thread", "end_thread", "kind"))
    holds = (kind != MARK) & ((ended < 0) | (ended == thread) | (ended == 0))
    name = ranges["name"].combine_chunks()
    codes = np.asarray(name.indices.fill_null(len(name.dictionary)), dtype=np.int32)
    return NestingColumns(codes, thread, integers_of(ranges["start_ns"]), integers_of(ranges["end_ns"]), holds)


def _table(schema: NsysSchema, read: _Read, last_ns: int) -> pa.Table:
    start, end, thread = read.column("start_ns"), read.column("end_ns"), read.column("thread")
    assert start is not None  # the column must exist, or the export was refused
    kind = np.concatenate(read.kind)
    end = np.full(read.count, MISSING, dtype=np.int64) if end is None else end
    lost = (end == MISSING) & (kind != MARK)
    end = np.where(kind == MARK, start, np.where(lost, np.maximum(last_ns, start), end))
    process = thread >> PROCESS_BITS if thread is not None else np.zeros(read.count, dtype=np.int64)
    order = order_by_key(process, start, end - start)
    del process
    columns: dict[str, pa.Array] = {
        "kind": pa.array(kind[order]),
        "start_ns": pa.array(start[order]),
        "end_ns": pa.array(end[order]),
        "open": pa.array(lost[order]),
        "operator": pa.array(np.concatenate(read.operator)[order]),
        "name": read.names.column(_codes(schema, read.name, read.names, read.column("text_id"), parted=True)[order]),
    }
    del kind, start, end, lost
    domain = read.column("domain")
    columns["domain_name"] = _domain_names(schema, domain, read.count).take(pa.array(order))
    columns |= _payload(schema, read, order)
    numbers = {"thread": thread, "domain": domain, "end_thread": read.column("end_thread")}
    nothing = _constant(MISSING, read.count)
    for name, values in (*numbers.items(), *((name, read.column(name)) for name in ("sequence", "flops"))):
        columns[name] = nothing if values is None else pa.array(values[order])
    columns |= dict.fromkeys(("parent", "path"), nothing)
    schema_of = SCHEMAS["ranges"]
    return pa.Table.from_arrays([columns[one.name] for one in schema_of], schema=schema_of)


def _kinds(types: Int64) -> npt.NDArray[np.int8]:
    kinds = np.zeros(len(types), dtype=np.int8)
    for event_type, kind in _KINDS.items():
        kinds[types == event_type] = kind
    return kinds


def _codes(schema: NsysSchema, own: list[Int32], texts: TextCodes, ids: Int64 | None, *, parted: bool) -> Int32:
    """The code of each row's own text, else of the registered string that it names."""
    codes = np.concatenate(own) if own else np.full(0 if ids is None else len(ids), -1, dtype=np.int32)
    named = np.flatnonzero(ids != MISSING) if ids is not None else np.empty(0, dtype=np.int64)
    if ids is None or not len(named):
        return codes
    known = distinct(ids[named])
    found = strings_of(schema, [known]).named(known).dictionary_decode().fill_null("")
    words = range_names(found).name if parted else found
    codes[named] = texts.codes(words)[np.searchsorted(known, ids[named])]
    return codes


def _payload(schema: NsysSchema, read: _Read, order: Int64) -> dict[str, pa.Array]:
    codes = _codes(schema, read.json, read.jsons, read.column("json_id"), parted=False)
    none = read.jsons.codes(pa.array([""], pa.string()))[0]
    codes = np.where(codes < 0, none, codes)[order] if len(codes) else np.full(read.count, none, np.int32)
    texts = read.jsons.column(codes)
    layouts = payload_layouts(schema)
    table = schema.table(_TABLE)
    hexes = pa.array([""], pa.string()).dictionary_encode().take(_constant(0, read.count))
    if layouts and table is not None and "binaryData" in schema.tables[table]:
        answer = schema.source.query(
            f"SELECT coalesce(hex(binaryData), '') AS data FROM \"{table}\" WHERE +eventType IN ({_LISTED})"
        )
        kept = answer["data"].filter(pa.array(np.concatenate(read.kept))).combine_chunks()
        hexes = kept.dictionary_encode().take(pa.array(order))
    columns = payload_columns(texts, hexes, layouts)
    if layouts and columns["communicator"].null_count == read.count and _of_nccl(read.names):
        schema.note(
            "NCCL's ranges bear no payload, so communicators and message sizes are unknown: "
            "export with --include-blobs=true"
        )
    return columns


def _of_nccl(names: TextCodes) -> bool:
    return any(name is not None and name.startswith("nccl") for name in names.words)


def _domain_names(schema: NsysSchema, domains: Int64 | None, count: int) -> pa.DictionaryArray:
    rows = schema.select(
        _TABLE,
        {"domain": number("domainId"), "text": text("text"), "text_id": number("textId")},
        where=f"eventType = {_DOMAIN_NAME}",
    )
    names: dict[int, str] = {}
    if rows is not None and rows.num_rows:
        ids, own = integers_of(rows["text_id"]), rows["text"].to_pylist()
        registered = strings_of(schema, [ids]).named(ids).to_pylist()
        texts = [other or "" if id_ != MISSING else one for one, other, id_ in zip(own, registered, ids, strict=True)]
        names = dict(zip(integers_of(rows["domain"]).tolist(), texts, strict=True))
    distinct = np.unique(domains) if domains is not None else np.array([MISSING])
    which = np.searchsorted(distinct, domains) if domains is not None else np.zeros(count, dtype=np.int64)
    words = pa.array([names.get(domain) or None for domain in distinct.tolist()], pa.string()).dictionary_encode()
    return words.take(pa.array(which))


def _constant(value: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), count)
