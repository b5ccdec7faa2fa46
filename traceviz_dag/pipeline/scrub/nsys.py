"""An export of Nsight Systems without names of its site: what traceviz reads of it stays, all else is left out."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from traceviz_dag.errors import BadInputError
from traceviz_dag.pipeline.scrub.names import PRODUCT, Names
from traceviz_dag.read.nsys.payload import numbers_of_binary, numbers_of_json, payload_layouts
from traceviz_dag.read.nsys.reader import schema_read
from traceviz_dag.read.nsys.schema import NsysSchema
from traceviz_dag.system.whole_files import temporary_of

_RANGES, _PAYLOADS = "NVTX_EVENTS", "binaryData"
_STRINGS, _THREADS = "StringIds", "ThreadNames"
_OF_THE_FORMAT = frozenset({"NVTX_PAYLOAD_SCHEMA_ENTRIES", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"})
"""Tables of which traceviz reads the texts that it knows: names of settings and of parts of payloads, versions."""

_APPENDED = re.compile(
    r"(.*?)((?:, seq = \d+)?(?:, op_id = \d+)?)(, (?:sizes|input_op_ids|concrete_inputs) = .*)?", re.DOTALL
)
"""What PyTorch appends to the name of an operator."""
_SIZES = re.compile(r", sizes = [\d\[\], ()]*", re.ASCII)
_VERSION = re.compile(r"\d[\dv.-]{0,40}", re.ASCII)
_BUS = re.compile(r"[0-9a-fA-F:.]{1,20}", re.ASCII)
_KNOWN = re.compile(
    r"EXPORT_(SCHEMA|PRODUCT)_VERSION|CudaDriverVersion|NvDriverVersion|NCCL communicator ID|Message size \[bytes\]"
    r"|Peer rank|No\. of ranks|Rank"
)
_NUMBER = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN {0} END"


def scrub_nsys(source: Path, target: Path, names: Names) -> None:
    """Write an export again as SQLite: of tables, columns and texts those that traceviz reads.

    Numbers are copied. Names of kernels and calls keep words of public code, those of ranges and threads words of the
    field; of payloads the numbers stay that NCCL states.

    Raises:
        BadInputError: it is no export in SQLite, or cannot be read.
    """
    if source.is_dir() or not _is_sqlite(source):
        raise BadInputError(source, "only exports in SQLite are scrubbed", "run nsys export --type sqlite")
    with schema_read(source) as schema, temporary_of(target) as place:
        layouts = payload_layouts(schema)
        with closing(sqlite3.connect(f"{place.absolute().as_uri()}", uri=True)) as written:
            ways: dict[str, Callable[[str], str]] = {
                "library": names.library,
                "range": partial(_range, names),
                "given": names.given,
                "json": numbers_of_json,
                "known": lambda text: text if _KNOWN.fullmatch(text) or _VERSION.fullmatch(text) else "",
                "product": lambda text: text if PRODUCT.fullmatch(text) else "",
                "bus": lambda text: text if _BUS.fullmatch(text) else "",
            }
            for name, way in ways.items():
                written.create_function(f"hide_{name}", 1, partial(_hidden, way), deterministic=True)
            written.create_function(
                "hide_binary", 1, lambda data: numbers_of_binary(data, layouts) if isinstance(data, bytes) else None
            )
            written.execute("ATTACH ? AS source", [f"{source.absolute().as_uri()}?mode=ro"])
            written.execute("PRAGMA journal_mode = OFF")
            # Last the strings: who refers to them says how they are hidden.
            for table in sorted(schema.asked, key=lambda table: table == schema.table(_STRINGS)):
                _copy(written, schema, table)
            written.commit()


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"SQLite"


def _hidden(way: Callable[[str], str], value: Any) -> str | None:
    """A text as a way of hiding has it; bytes, as which SQLite hands texts over, need not be UTF-8."""
    return None if value is None else way(bytes(value).decode(errors="replace"))


def _range(names: Names, text: str) -> str:
    """The name of a range; numbers and sizes that PyTorch appends stay."""
    found = _APPENDED.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        return names.range(text)
    sizes = _SIZES.match(found[3] or "")
    return names.library(found[1]) + found[2] + (sizes[0] if sizes else "")


def _copy(written: sqlite3.Connection, schema: NsysSchema, table: str) -> None:
    """The columns and rows of a table that were asked for."""
    asked = schema.asked[table]
    columns = {column: _kept(schema, table, column, is_text) for column, is_text in asked.texts.items()}
    if table.startswith(_RANGES) and _PAYLOADS in schema.tables[table]:
        columns[_PAYLOADS] = f"hide_binary({_quoted(_PAYLOADS)})"
    chosen = "" if "" in asked.rows or not asked.rows else f" WHERE {' OR '.join(f'({one})' for one in asked.rows)}"
    written.execute(f"CREATE TABLE {_quoted(table)} ({', '.join(map(_quoted, columns))})")
    written.execute(
        f"INSERT INTO {_quoted(table)} SELECT {', '.join(columns.values())} FROM source.{_quoted(table)}{chosen}"
    )


def _kept(schema: NsysSchema, table: str, column: str, is_text: bool) -> str:
    """SQL that gives what stays of a column."""
    quoted = _quoted(column)
    if not is_text:
        return _NUMBER.format(quoted)
    if table in _OF_THE_FORMAT:
        way = "known"
    elif table.startswith("TARGET_INFO_GPU"):
        way = "bus" if column == "busLocation" else "product"
    elif table.startswith(_RANGES):
        way = "json" if column == "jsonText" else "range"
    else:
        way = "library"
    text = f"CAST({quoted} AS BLOB)"
    return _hidden_string(schema, text) if table == schema.table(_STRINGS) else f"hide_{way}({text})"


def _hidden_string(schema: NsysSchema, text: str) -> str:
    """SQL that hides a string by who refers to it: kernels and calls, threads, payloads, else ranges."""
    of_code: list[tuple[str, str]] = [
        (table, column)
        for table, asked in schema.asked.items()
        for column in ("demangledName", "shortName", "mangledName", "nameId")
        if column in asked.texts and table != _THREADS
    ]
    ways: dict[str, list[tuple[str, str]]] = {
        "library": of_code,
        "given": [(_THREADS, "nameId")],
        "json": [(schema.table(_RANGES) or _RANGES, "jsonTextId")],
    }
    cases = ""
    for way, referring in ways.items():
        ids = [
            f"SELECT {_quoted(column)} FROM main.{_quoted(table)}"
            for table, column in referring
            if table in schema.asked and column in schema.asked[table].texts
        ]
        cases += f"WHEN id IN ({' UNION '.join(ids)}) THEN hide_{way}({text}) " if ids else ""
    return f"CASE {cases}ELSE hide_range({text}) END" if cases else f"hide_range({text})"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
