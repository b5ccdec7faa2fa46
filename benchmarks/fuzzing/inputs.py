"""One input of each kind from a seed: a small faithful file, changed where it hurts."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
import socket
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.fuzzing import odd
from benchmarks.fuzzing.trees import Document
from tests.nsys_file import Export, small_export
from tests.small_run import rank_file

_KEYS = (
    "ts",
    "dur",
    "cat",
    "name",
    "pid",
    "tid",
    "ph",
    "args",
    "External id",
    "correlation",
    "stream",
    "device",
    "grid",
)
_HEADER_KEYS = (
    "distributedInfo",
    "pg_config",
    "ranks",
    "pg_size",
    "world_size",
    "rank",
    "traceEvents",
    "schemaVersion",
)
_OF_GROUPS = (
    "Process Group Ranks",
    "Process Group Name",
    "Group size",
    "In msg nelems",
    "dtype",
    "Seq",
    "In split size",
)
_EPOCH_US = 1_779_000_000_000_000
"""Times of real traces are as long; they are read in another way than short ones."""

Make = Callable[[random.Random, Path], None]


@cache
def _trace() -> dict[str, Any]:
    file = rank_file(1, 4)
    events = [event for event in file.events if event["cat" if "cat" in event else "ph"] != "nothing"]
    return {**file.header, "deviceProperties": [{"id": 0, "name": "A"}], "with_stack": 1, "traceEvents": events[:24]}


def kineto(chance: random.Random, path: Path) -> None:
    """A Kineto trace."""
    document = Document(_trace())
    if chance.random() < 0.15:
        events = document.value.pop("traceEvents")
        document.value = {"traceEvents": events, **document.value}
    if chance.random() < 0.3:
        for event in document.value["traceEvents"]:
            event["ts"] = _EPOCH_US + int(event.get("ts", 0))
    for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
        document.mutate(chance, (*_KEYS, *_HEADER_KEYS, *_OF_GROUPS))
    if not isinstance(document.value, dict):
        document.value = {"traceEvents": document.value}
    text = document.dump()
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        text = odd.raw(text, chance)
    if chance.random() < 0.2:
        text = gzip.compress(text, 1)
        if chance.random() < 0.6:
            text = odd.raw(text, chance)
        if chance.random() < 0.1:
            text += chance.choice((text, b"\0" * 9, b"junk"))
    path.write_bytes(text)


_OF_SYNCHRONIZATIONS = (
    *("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id", "event_id", "stream", "device"),
    *("correlation", "cuda_sync_kind", "context"),
)


def synchronizations(chance: random.Random, path: Path) -> None:
    """A Kineto trace in which streams and the host wait; the waits are what is changed."""
    file = rank_file(1, 2)
    for at in (1_700, 3_700):
        recorded, waited, synchronized = at, at + 1, at + 2
        file.row("cuda_runtime", "cudaEventRecord", at, at + 5, correlation=recorded)
        file.row("cuda_runtime", "cudaStreamWaitEvent", at + 10, at + 15, correlation=waited)
        file.row("cuda_runtime", "cudaStreamSynchronize", at + 20, at + 80, correlation=synchronized)
        event = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": recorded, "wait_on_cuda_event_id": 3}
        file.row("cuda_sync", "Stream Wait Event", at + 11, at + 12, **event, stream=28, correlation=waited, device=0)
        file.row("cuda_sync", "Stream Sync", at + 21, at + 79, stream=7, correlation=synchronized, device=0)
    document = Document({**file.header, "traceEvents": file.events})
    rows = [event for event in document.value["traceEvents"] if event.get("cat") in ("cuda_sync", "kernel")]
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        for row in rows if chance.random() < 0.2 else [chance.choice(rows)]:
            if chance.random() < 0.8:
                row["args"][chance.choice(_OF_SYNCHRONIZATIONS)] = document.text(odd.json_value(chance))
            else:
                row[chance.choice(("ts", "dur", "name", "tid"))] = document.text(odd.json_value(chance))
    if chance.random() < 0.3:
        document.mutate(chance, (*_KEYS, *_OF_SYNCHRONIZATIONS))
    path.write_bytes(document.dump())


_GROUPS_TEXT = """Tensor Parallel (TP) Size: 2
Pipeline Parallel (PP) Size: 2
TP SIZE: 2
PP SIZE: 2
DP SIZE: 1
CP SIZE: 1
EP SIZE: 1
WORLD SIZE: 4

UNIQUE TP GROUPS:
----------
TP Group 0: [0, 1]
TP Group 1: [2, 3]
Total TP groups: 2

UNIQUE PP GROUPS:
PP Group 0: [0, 2]
PP Group 1: [1, 3]
Total PP groups: 2

UNIQUE DP GROUPS:
DP Group 0: [0]
DP Group 1: [1]
DP Group 2: [2]
DP Group 3: [3]
Total DP groups: 4

FULL MODEL RANK GROUPS
Group 0: [0, 1, 2, 3]
Total model replicas: 1

STATISTICS
Total Ranks: 4
Valid Ranks: 4
Error Ranks: 0
"""
_GROUPS_JSON = {
    "format": "traceviz topology",
    "version": 1,
    "world_size": 4,
    "groups": [
        {"ranks": [0, 1], "name": "1", "description": "TENSOR_MODEL_PARALLEL_GROUP"},
        {"ranks": [2, 3], "name": "2", "description": "TENSOR_MODEL_PARALLEL_GROUP"},
        {"ranks": [0, 2], "name": "3", "description": "PIPELINE_MODEL_PARALLEL_GROUP"},
    ],
    "sizes": {"tp": 2, "pp": 2, "cp": 1, "ep": 1},
    "replicas": [[0, 1, 2, 3]],
    "complete": True,
}
_NUMBER = re.compile(r"\d+")
_TOPOLOGY_NUMBERS = (*odd.NUMBERS[:24], "1" * 9, "999999999", "-", "", "٣", "1,", "1]", "[1", "0, 1, 2, 3, 4, 5, 6, 7")


def topology(chance: random.Random, path: Path) -> None:
    """A topology file, text or JSON; the folder keeps the other kind's name out."""
    if path.suffix == ".json":
        document = Document(_GROUPS_JSON)
        for _ in range(chance.choice((1, 1, 2, 4))):
            document.mutate(chance, ("ranks", "name", "world_size", "groups", "sizes", "tp", "dp", "complete"))
        text = document.dump()
    else:
        text = _mutated_lines(_GROUPS_TEXT, chance, _topology_number).encode("utf-8", "surrogatepass")
    for _ in range(chance.choice((0, 0, 1, 2))):
        text = odd.raw(text, chance)
    path.write_bytes(text)


def _topology_number(line: str, chance: random.Random) -> str:
    return _replaced(_NUMBER, line, chance.choice(_TOPOLOGY_NUMBERS), chance)


_TOMLS = {
    "pairs": """[[pair]]
name = "decode beside transfer"
stage0 = {range = "decode*", rank = 0}
stage1 = {range = "transfer*", rank = 1}
threshold = 0.3
percentile = 50.0
warmup = 1

[[pair]]
name = "A and B"
timestamps = "stamps.jsonl"
stage0 = {stamp = "A"}
stage1 = {stamp = "B"}
time_unit = "us"

[[pair]]
name = "first stages"
stages = [0, 1]

[[pair]]
name = "gradients"
dimension = "dp"
""",
    "rules": """[[frame]]
name = "own"
patterns = ["*my_forward*"]
on = ["python_function"]
phase = "forward"
opens = "forward_step"
dimension = "tp"
overrides = ["x"]
among = ["tp", "cp"]
outermost = true
weak = false
role = "r"
outranks = ["y"]
collectives = {"all*" = "tp"}

[[kernel]]
name = "mine"
patterns = ["my_kernel*"]
kind = "computation"
phase = "optimizer"
opens = "optimizer"

[[group]]
name = "g"
dimension = "pp"
only = ["send*", "recv*"]
""",
    "settings": """automation_seconds = 15

[[watch]]
path = "/data/runs"
expected_ranks = 8

[sensor]
interval_seconds = 30
deadline_minutes = 15.0
rest_hours = 6.0
budget_seconds = 20.0
folders_per_run = 50

[nightly]
cron = "0 2 * * *"
time_zone = "UTC"
series = ["a*"]
wait_minutes = 120.0
history = 10

[nightly.tolerances]
step = 0.02

[retention]
keep_days = 30.0
keep_newest = 1

[notify]
webhook = "https://example.org"
file = "x.jsonl"
""",
    "capture": """use_pytorch_profiler = true
profile_step_start = 10
profile_step_end = 12

[job]
world_size = 8
node_size = 8
tp = 2
pp = 2
order = "tp-cp-ep-dp-pp"
layers = 32
""",
}
_VALUE = re.compile(r'(?<== )[^\n]+|"[^"\n]*"|\b\d[\d.]*\b|\b(?:true|false)\b')
_STAMPS = '{"rank": 0, "unit": 7, "tA0": 11, "tA1": 19.5, "tB0": 12, "tB1": 20, "tSend": 20}\n' * 2


def toml(kind: str) -> Make:
    """A maker of one kind of TOML file."""

    def make(chance: random.Random, path: Path) -> None:
        text = _mutated_lines(_TOMLS[kind], chance, _toml_value).encode("utf-8", "surrogatepass")
        for _ in range(chance.choice((0, 0, 0, 1))):
            text = odd.raw(text, chance)
        path.write_bytes(text)

    return make


def stamps(chance: random.Random, path: Path) -> None:
    """A file of time stamps, a JSON object a line."""
    document = Document(json.loads(_STAMPS.splitlines()[0]))
    for _ in range(chance.choice((1, 1, 2))):
        document.mutate(chance, ("rank", "unit", "tA0", "tB1"))
    text = document.dump() + b"\n" + _STAMPS.encode()
    path.write_bytes(odd.raw(text, chance) if chance.random() < 0.3 else text)


def _toml_value(line: str, chance: random.Random) -> str:
    return _replaced(_VALUE, line, odd.toml_value(chance), chance)


def _replaced(pattern: re.Pattern[str], line: str, new: str, chance: random.Random) -> str:
    found = list(pattern.finditer(line))
    if not found:
        return line + new
    match = chance.choice(found)
    return line[: match.start()] + new + line[match.end() :]


def _mutated_lines(text: str, chance: random.Random, change: Callable[[str, random.Random], str]) -> str:
    lines = text.splitlines()
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(lines))
        kind = chance.random()
        if kind < 0.55:
            lines[at] = change(lines[at], chance)
        elif kind < 0.65:
            lines.insert(chance.randrange(len(lines)), lines[at])
        elif kind < 0.75 and len(lines) > 1:
            del lines[at]
        elif kind < 0.85:
            words = lines[at].split(" ")
            words[chance.randrange(len(words))] = chance.choice(odd.TEXTS)
            lines[at] = " ".join(words)
        else:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines) + "\n"


def nsys(chance: random.Random, path: Path) -> None:
    """An export of Nsight Systems."""
    export = faithful_export()
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        _change_export(export, chance)
    statements = [] if chance.random() < 0.8 else [_statement(export, chance)]
    data = _database(export, statements, chance)
    for _ in range(chance.choice((0, 0, 0, 0, 1, 2))):
        data = odd.raw(data, chance)
    path.write_bytes(data)


def faithful_export() -> Export:
    """A small export with a row of most that nsys writes."""
    export = small_export()
    _more_tables(export)
    return export


def _more_tables(export: Export) -> None:
    export.add("META_DATA_EXPORT", {"name": "EXPORT_SCHEMA_VERSION", "value": "3.24.0"})
    export.add("TARGET_INFO_GPU", {"id": 0, "name": "H100"})
    export.add("TARGET_INFO_CUDA_DEVICE", {"gpuId": 0, "cudaId": 0, "pid": 7001})
    export.add("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 1_779_000_000_000_000_000})
    export.add("ANALYSIS_DETAILS", {"duration": 1000})
    export.add("ThreadNames", {"globalTid": (1 << 48) | (7001 << 24) | 7002, "nameId": export.string("main")})
    export.add("GPU_METRICS", {"timestamp": 10, "typeId": 1, "metricId": 2, "value": 30})
    export.add("TARGET_INFO_GPU_METRICS", {"typeId": 1, "metricId": 2, "metricName": "SMs"})
    payload = '{"NCCL communicator ID": 7, "Message size [bytes]": 8, "Peer rank": 1, "Rank": 0, "No. of ranks": 2}'
    export.range(30, 40, "ncclAllReduce", domain=1, payload=payload)
    export.range(40, None, None, registered="aten::add, seq = 3, op_id = 7")
    export.range(0, None, "NCCL", kind=75, domain=1)
    export.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", {"domainId": 1, "schemaId": 2, "type": 18, "name": "Rank", "offset": 0})


def _change_export(export: Export, chance: random.Random) -> None:
    name = chance.choice(list(export.tables))
    columns, rows = export.tables[name]
    kind = chance.random()
    if kind < 0.5 and rows and columns:
        row = list(rows[at := chance.randrange(len(rows))])
        row[chance.randrange(len(row))] = odd.sql_value(chance)
        rows[at] = row
    elif kind < 0.58 and columns:
        at = chance.randrange(len(columns))
        export.tables[name] = (columns[:at] + columns[at + 1 :], [[*row[:at], *row[at + 1 :]] for row in rows])
    elif kind < 0.64 and columns:
        value, at = odd.sql_value(chance), chance.randrange(len(columns))
        export.tables[name] = (columns, [[*row[:at], value, *row[at + 1 :]] for row in rows])
    elif kind < 0.70:
        export.tables.pop(name)
    elif kind < 0.75:
        export.tables[name] = (columns, [])
    elif kind < 0.80 and len(columns) > 1:
        a, b = chance.sample(range(len(columns)), 2)
        columns[a], columns[b] = columns[b], columns[a]
    elif kind < 0.85:
        export.tables[chance.choice((f"{name}_V2", f"{name}_V{'9' * 30}", chance.choice(odd.TEXTS[1:30])))] = (
            export.tables.pop(name)
        )
    elif kind < 0.92 and rows:
        rows.extend(rows[chance.randrange(len(rows))] for _ in range(chance.choice((1, 2, 50))))
    else:
        export.string(chance.choice(odd.TEXTS))
        text = chance.choice(list(export.strings))
        export.strings[chance.choice(odd.TEXTS)] = export.strings.pop(text)


_TYPES = ("", "", "INTEGER", "TEXT", "BLOB", "REAL", "NUMERIC", "BOOLEAN", "DATE", "nonsense(3)")


def _statement(export: Export, chance: random.Random) -> str:
    """SQL that makes of the database what nsys never makes."""
    name = chance.choice([*export.tables, "StringIds"])
    columns = export.tables[name][0] if name in export.tables else ["id", "value"]
    column = chance.choice(columns or ["x"])
    listed = ", ".join(f'"{one}"' for one in columns)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    return chance.choice(
        (
            f'ALTER TABLE "{name}" RENAME TO "old"; CREATE VIEW "{name}" AS SELECT * FROM "old"',
            f'DROP TABLE "{name}"; CREATE VIEW "{name}" AS {endless} SELECT x AS "{column}" FROM n',
            f'DROP TABLE "{name}"; CREATE VIEW "{name}" AS SELECT * FROM "{name}"',
            f'UPDATE "{name}" SET "{column}" = CAST(x\'ff80\' AS TEXT)',
            f'UPDATE "{name}" SET "{column}" = zeroblob(30)',
            f'ALTER TABLE "{name}" ADD COLUMN "{odd.ESCAPE}"',
            f'CREATE VIEW "{odd.ESCAPE}" AS SELECT 1',
            f'CREATE TABLE "t_{chance.randint(0, 9)}" ({listed or "x"}, UNIQUE({listed or "x"}))',
            f"PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = 'CREATE TABLE x(' WHERE name = '{name}'",
            f"PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = CAST(x'ff80' AS TEXT) WHERE name = '{name}'",
            f"PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 999 WHERE name = '{name}'",
            f"PRAGMA writable_schema = 1; UPDATE sqlite_master SET name = 'x' WHERE name = '{name}'",
            f"PRAGMA writable_schema = 1; UPDATE sqlite_master SET type = 'index' WHERE name = '{name}'",
            'CREATE VIRTUAL TABLE "NVTX_MORE" USING fts5(x)',
        )
    )


def _database(export: Export, statements: list[str], chance: random.Random) -> bytes:
    tables = {**export.tables, "StringIds": (["id", "value"], [(at, text) for text, at in export.strings.items()])}
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA page_size = 1024")
    connection.execute("BEGIN")
    for name, (columns, rows) in tables.items():
        kinds = [chance.choice(_TYPES) if chance.random() < 0.1 else "" for _ in columns]
        listed = ", ".join(f'"{_sql_name(column)}" {kind}' for column, kind in zip(columns, kinds, strict=True))
        try:
            connection.execute(f'CREATE TABLE "{_sql_name(name)}" ({listed or "nothing"})')
            if columns:
                marks = ", ".join("?" * len(columns))
                connection.executemany(f'INSERT INTO "{_sql_name(name)}" VALUES ({marks})', rows)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError):
            continue
    connection.execute("COMMIT")
    for statement in statements:
        try:
            connection.executescript(statement)
        except sqlite3.Error:
            continue
    data = connection.serialize()
    connection.close()
    return data


def _sql_name(name: str) -> str:
    return name.replace('"', '""').replace("\0", "")


def folder(chance: random.Random, path: Path) -> None:
    """A run folder with one sound rank, a mutated one, and what does not belong there."""
    inside = path / "iteration_7"
    inside.mkdir(parents=True)
    rank_file(0, 2).write(inside / SOUND)
    kineto(chance, inside / "rank_0001_iter_7.pt.trace.json")
    for _ in range(chance.choice((1, 2, 4))):
        _odd_entry(chance, chance.choice((path, inside)))


SOUND = "rank_0000_iter_7.pt.trace.json"
_ODD_NAMES = (
    *("rank_0002_iter_7.pt.trace.json", "rank_" + "9" * 30 + "_iter_7.json", "rank_1.json", "trace.json.gz"),
    *("unique_parallel_groups_1.txt", "unique_parallel_groups_2.json", "rank_٣.json", "a\x1b[2J_rank_5.json"),
    *("rank_6\n.json", "node0.sqlite", "job_node1.nsys-rep", "x.sqlite-wal", "iteration_" + "9" * 30, "iteration_8"),
    *("iteration_-1", "x.pt.trace.json", "iter_9223372036854775808", "rank_4_iter_99999999999999999999.json"),
)


def _odd_entry(chance: random.Random, where: Path) -> None:
    """A file, folder, FIFO, socket or link under a name of chance; one whose name is taken is left out."""
    name: str | bytes = chance.choice(_ODD_NAMES)
    if chance.random() < 0.15:
        name = chance.choice((b"rank_7_\xff\xfe.json", b"iteration_\xff", b"rank_8_\xc3.trace.json"))
    target = os.path.join(os.fsencode(where), os.fsencode(name))  # noqa: PTH118 names that are no text
    if os.path.lexists(target):
        return  # Writing to a FIFO waits for its reader, and a link may lead to a device.
    kind = chance.random()
    with contextlib.suppress(OSError):
        if kind < 0.3:
            with open(target, "xb") as file:  # noqa: PTH123
                file.write(odd.raw(json.dumps(_trace()).encode(), chance))
        elif kind < 0.4:
            os.mkfifo(target)
        elif kind < 0.5:
            os.symlink(chance.choice((b"nothing", target, b"..", b"/dev/zero", b"/dev/null", b".")), target)  # noqa: PTH211
        elif kind < 0.6:
            os.mkdir(target)  # noqa: PTH102
        elif kind < 0.65:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(target)
        elif kind < 0.75:
            os.mkdir(target)  # noqa: PTH102
            rank_file(0, 2).write(Path(os.fsdecode(target)) / SOUND)
        elif kind < 0.85:
            nsys(chance, Path(os.fsdecode(target)))
        elif kind < 0.95:
            text = _mutated_lines(_GROUPS_TEXT, chance, _topology_number)
            Path(os.fsdecode(target)).write_text(text, encoding="utf-8", errors="surrogatepass")
        else:
            os.chmod(where / SOUND, 0o644)  # noqa: PTH101
