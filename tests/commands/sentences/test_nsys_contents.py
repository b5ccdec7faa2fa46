"""What ``traceviz nsys info``, ``nccl``, ``tree`` and ``search`` print is what SQL over the export's tables says."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.commands.sentences.printed import PrintedTable, Reader, Sentence, assert_same
from tests.commands.sentences.test_nsys import export
from traceviz_dag.commands.main import app

_PROCESS = "~16777215"
"""A globalTid holds its process in all but its low 24 bits."""

_RAW = {
    "operations": """
        SELECT start, end, deviceId AS device, streamId AS stream, correlationId AS correlation, globalPid AS process,
            value AS name, value LIKE '%nccl%' AS communicates, 0 AS copies
        FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
        UNION ALL SELECT start, end, deviceId, streamId, correlationId, globalPid,
            CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy DtoD' END, 0, 1
        FROM CUPTI_ACTIVITY_KIND_MEMCPY
        UNION ALL SELECT start, end, deviceId, streamId, correlationId, globalPid, 'Memset', 0, 1
        FROM CUPTI_ACTIVITY_KIND_MEMSET""",
    "calls": f"""
        SELECT start, end, globalTid AS thread, globalTid & {_PROCESS} AS process, correlationId AS correlation,
            value AS name
        FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId""",
    "ranges": f"""
        SELECT start, end, globalTid AS thread, globalTid & {_PROCESS} AS process, coalesce(text, value) AS name,
            jsonText AS payload
        FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId""",
    "gpus": "SELECT id AS device, name FROM TARGET_INFO_GPU",
    "details": "SELECT duration, (SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION') AS schema "
    "FROM ANALYSIS_DETAILS",
    "lacking": """
        SELECT 'no table CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: nothing shows which stream waits for which' AS missing
        WHERE NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_SYNCHRONIZATION')""",
    "counts": " UNION ALL ".join(
        f"SELECT '{name}' AS name, count(*) AS count FROM {name}"
        for name in (
            *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
            *("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"),
        )
    ),
}

# PyTorch appends sequence and operator numbers to the name of a range, CUPTI a version to that of a call.
_APPENDED = {"ranges": "(, seq = [0-9]+)?(, op_id = [0-9]+)?$", "calls": "_v[0-9]+$"}

# What launched each operation: the call of its process with its correlation.
_LAUNCHED = """
    WITH launched AS (
        SELECT o.*, c.thread, c.start AS launch FROM operations AS o JOIN calls AS c USING (process, correlation)
    )
"""
_NCCL = f"""{_LAUNCHED},
    payloads AS (
        SELECT thread, start AS launch, json_extract(payload, '$."NCCL communicator ID"')::UBIGINT AS communicator,
            json_extract(payload, '$."Message size [bytes]"')::BIGINT AS bytes
        FROM ranges WHERE payload IS NOT NULL
    ),
    -- A kernel starts in its NCCL call, or at the end of the group whose last call it is.
    kernels AS (
        SELECT l.device, l.start, l.end, bytes, regexp_extract(l.name, 'Kernel_([A-Za-z]+)', 1) AS operation,
            printf('0x%016x', communicator) AS communicator
        FROM (FROM launched WHERE communicates) AS l ASOF LEFT JOIN payloads AS p
            ON l.thread = p.thread AND p.launch <= l.launch
    ),
    groups AS (SELECT DISTINCT device, operation, communicator FROM kernels),
    edges AS (
        SELECT device, operation, communicator, unnest([start, "end"]) AS instant, unnest([1, -1]) AS step, 0 AS other
        FROM kernels
        UNION ALL
        SELECT device, operation, communicator, unnest([start, "end"]), 0, unnest([1, -1])
        FROM groups JOIN operations USING (device) WHERE NOT communicates AND copies = 0
    ),
    parts AS (
        SELECT device, operation, communicator,
            lead(instant) OVER (PARTITION BY device, operation, communicator ORDER BY instant, step, other) - instant
                AS ns,
            sum(step) OVER sweep > 0 AS inside, sum(other) OVER sweep > 0 AS computes
        FROM edges WINDOW sweep AS (PARTITION BY device, operation, communicator ORDER BY instant, step, other
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ),
    unions AS (
        SELECT device, operation, communicator, sum(ns) FILTER (inside) / 1e6 AS busy,
            coalesce(sum(ns) FILTER (inside AND computes), 0) / 1e6 AS hidden
        FROM parts GROUP BY ALL
    )
    SELECT *, busy - hidden AS exposed FROM unions JOIN (
        SELECT device, operation, communicator, count(*) AS count, sum("end" - start) / 1e6 AS total,
            avg("end" - start) / 1e6 AS mean, max("end" - start) / 1e6 AS most, sum(bytes)::BIGINT AS bytes
        FROM kernels GROUP BY ALL
    ) USING (device, operation, communicator)
"""

# Each range with the names of the ranges around it on its thread, outermost first, and its own.
_TREE = f"""{_LAUNCHED},
    mine AS (
        SELECT row_number() OVER (ORDER BY start, "end" DESC) AS id, * FROM ranges
        WHERE process IN (SELECT process FROM operations WHERE device = $device)
    ),
    paths AS (
        SELECT own.id, any_value(own.start) AS start, any_value(own.end) AS "end", any_value(own.thread) AS thread,
            string_agg(around.name, ' > ' ORDER BY around.id) AS path
        FROM mine AS own JOIN mine AS around ON around.thread = own.thread AND around.id <= own.id
            AND around.end >= own.end AND around.start <= own.start
        GROUP BY own.id
    ),
    within AS (
        SELECT path, o.start, o.end, communicates, copies FROM paths AS p JOIN launched AS o
            ON o.thread = p.thread AND o.launch >= p.start AND o.launch < p.end
        WHERE o.device = $device
    ),
    edges AS (
        SELECT path, unnest([start, "end"]) AS instant, unnest([1, -1]) AS step, communicates, copies FROM within
    ),
    parts AS (
        SELECT path, lead(instant) OVER (PARTITION BY path ORDER BY instant, step, communicates, copies) - instant
                AS ns, sum(step) OVER sweep > 0 AS busy,
            sum(step * (communicates = 0 AND copies = 0)::INTEGER) OVER sweep > 0 AS computes,
            sum(step * communicates) OVER sweep > 0 AS communicating
        FROM edges WINDOW sweep AS (PARTITION BY path ORDER BY instant, step, communicates, copies
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ),
    spans AS (SELECT path, count(*) AS count, sum("end" - start) / 1e6 AS span FROM paths GROUP BY path)
    SELECT path, count, span,
        coalesce((SELECT count(*) FROM within WHERE within.path = spans.path), 0) AS operations,
        coalesce((SELECT sum(ns) FILTER (busy) FROM parts WHERE parts.path = spans.path), 0) / 1e6 AS busy,
        coalesce((SELECT sum(ns) FILTER (computes) FROM parts WHERE parts.path = spans.path), 0) / 1e6 AS compute,
        coalesce((SELECT sum(ns) FILTER (communicating) FROM parts WHERE parts.path = spans.path), 0) / 1e6
            AS communication
    FROM spans
"""
_FOUND = """
    WITH named AS (
        SELECT 'GPU' AS place, name, start, "end" FROM operations UNION ALL SELECT 'call', name, start, "end" FROM calls
        UNION ALL SELECT 'NVTX range', name, start, "end" FROM ranges
    )
    SELECT place, if(length(name) > 90, left(name, 89) || '…', name) AS name, count(*) AS count,
        sum("end" - start) / 1e6 AS total, min(start) / 1e9 AS first
    FROM named WHERE contains(lower(named.name), lower($word)) GROUP BY place, named.name
"""

SENTENCES: tuple[Sentence, ...] = ()
TABLES = (
    PrintedTable(
        r"node0\.sqlite: exported by an unknown version of nsys, schema (?P<v_schema>[\d.]+)",
        """
        SELECT device, any_value(gpus.name) AS gpu, count(*) FILTER (copies = 0) AS kernels,
            count(*) FILTER (copies = 0 AND (process, correlation) IN (SELECT (process, correlation) FROM calls))
                AS launched,
            count(*) FILTER (copies = 1) AS memory, count(DISTINCT process) AS processes,
            count(DISTINCT stream) AS streams, min(start) / 1e9 AS first, max("end") / 1e9 AS last
        FROM operations JOIN gpus USING (device) GROUP BY device""",
        {
            **{"GPU": "device", "name": "gpu", "kernels": "kernels", "of them launched": "launched"},
            **{"memory operations": "memory", "processes": "processes", "streams": "streams", "first s": "first"},
            "last s": "last",
        },
        ["GPU"],
        said="SELECT schema FROM details",
    ),
    PrintedTable("Tables", "SELECT * FROM counts", {"table": "name", "rows": "count"}, ["table"]),
    PrintedTable(
        "Capture",
        "SELECT duration / 1e6 AS length, (SELECT count(*) FROM calls) AS calls, (SELECT count(*) FROM ranges) AS "
        "ranges FROM details",
        {"length ms": "length", "calls": "calls", "ranges": "ranges"},
        [],
    ),
    PrintedTable("What it lacks", "SELECT missing FROM lacking", {"missing": "missing"}, ["missing"]),
    PrintedTable(
        "Communication, ms",
        _NCCL,
        {
            **{"GPU": "device", "operation": "operation", "communicator": "communicator", "count": "count"},
            **{name: name for name in ("total", "busy", "hidden", "exposed", "mean", "most")},
            "bytes": "bytes",
        },
        ["GPU", "operation", "communicator"],
    ),
    PrintedTable(
        r"(?P<v_names>\d+) names? holds? (?P<k_word>\S+)",
        _FOUND,
        {"where": "place", "name": "name", "count": "count", "total ms": "total", "first s": "first"},
        ["where", "name"],
        said=f"SELECT count(*) AS names FROM ({_FOUND})",
    ),
)


@dataclass(frozen=True)
class Contents:
    """Queries over what one export holds, each of ``_RAW`` a table."""

    export: Path

    def query(self, sql: str, parameters: Mapping[str, object]) -> pa.Table:
        with duckdb.connect() as connection:
            for name, table in _contents(self.export).items():
                connection.register(f"raw_{name}", table)
                bare = f"REPLACE (regexp_replace(name, '{_APPENDED[name]}', '') AS name)" if name in _APPENDED else ""
                connection.execute(f"CREATE VIEW {name} AS SELECT * {bare} FROM raw_{name}")
            return connection.sql(sql, params=dict(parameters)).to_arrow_table()


@cache
def _contents(path: Path) -> dict[str, pa.Table]:
    connection = sqlite3.connect(path)
    found = {}
    for name, sql in _RAW.items():
        cursor = connection.execute(sql)
        names, rows = [column[0] for column in cursor.description], cursor.fetchall()
        found[name] = pa.table({column: [row[at] for row in rows] for at, column in enumerate(names)})
    connection.close()
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def said(home: Path, *words: str) -> str:
    command, *rest = words
    given = ["nsys", command, str(export("a")), *rest, "--all", "--home", str(home)]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def check(command: str, output: str) -> None:
    reading = Reader(Contents(export("a")), SENTENCES, TABLES)
    if command == "tree":
        assert _check_tree(reading, output) == 2
        return
    reading.check(output)
    assert len(reading.read) == (4 if command == "info" else 1)


_NUMBERS = ("count", "span", "operations", "busy", "compute", "communication")


def _check_tree(reading: Reader, output: str) -> int:
    """Hold each row against the ranges of its path; returns for how many GPUs."""
    titles = re.split(r"NVTX ranges of GPU (\d+)", output)[1:]
    for device, text in zip(titles[::2], titles[1::2], strict=True):
        reading.place["device"] = int(device)
        # Long names may be the same up to their ellipsis: both are taken in the order of their numbers.
        known: dict[str, list[dict[str, object]]] = {}
        for row in sorted(reading.query(_TREE), key=lambda row: [round(row[name], 3) for name in _NUMBERS]):
            if row["path"].count(" > ") < 4:
                known.setdefault(_cut(row["path"]), []).append(row)
        printed: dict[str, list[dict[str, str]]] = {}
        for path, cells in _rows_of_tree(text):
            printed.setdefault(path, []).append(cells)
        assert set(printed) == set(known) and len(known) > 20
        for path, rows in printed.items():
            rows.sort(key=lambda cells: [float(cells[name].replace(",", "")) for name in _NUMBERS])
            for cells, same in zip(rows, known[path], strict=True):
                for name, cell in cells.items():
                    assert_same(cell, same[name], f"{name} of {path}")
    return len(titles) // 2


def _rows_of_tree(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    above: list[str] = []
    for line in text.splitlines():
        match = re.fullmatch(r" ((?:  )*)(\S.*?)((?: {2,}[\d.,]+){6}) *", line)
        if match is not None:
            above = [*above[: len(match[1]) // 2], match[2].strip()]
            yield " > ".join(above), dict(zip(_NUMBERS, match[3].split(), strict=True))


def _cut(path: str) -> str:
    """A path as the tree shows it: a long name ends in an ellipsis."""
    return " > ".join(name if len(name) <= 80 else f"{name[:79]}…" for name in path.split(" > "))


COMMANDS = (("info",), ("nccl",), ("tree",), ("search", "gemm"), ("search", "NCCL"), ("search", "launch"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_a_command_prints_of_an_export_is_what_its_tables_say(words, home):
    check(words[0], said(home, *words))


@pytest.mark.parametrize(
    ("words", "true", "false"),
    [
        (("info",), r"(H200 +)(\d)", r"\g<1>1\2"),
        (("info",), r"(CUPTI_ACTIVITY_KIND_RUNTIME +)(\d)", r"\g<1>1\2"),
        (("nccl",), r"(SendRecv +0x\w+ +)(\d)", r"\g<1>1\2"),
        (("nccl",), r"(\d) \n", r"1\1 \n"),
        (("tree",), r"(c10d::allreduce_ +)(\d)", r"\g<1>1\2"),
        (("search", "gemm"), r"1 name holds", "2 names hold"),
    ],
)
def test_a_false_number_does_not_pass(words, true, false, home):
    output = said(home, *words)
    wrong = re.sub(true, false, output, count=1)
    assert wrong != output
    with pytest.raises(AssertionError):
        check(words[0], wrong)
