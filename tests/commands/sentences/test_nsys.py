"""What ``traceviz nsys`` prints of an export is what SQL over the export's own tables says."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.commands.jobs import _PLAIN
from tests.commands.sentences.of_commands import MS, PERCENT
from tests.commands.sentences.printed import PrintedTable, Reader, Sentence
from tests.made_once import made_once
from tests.sets import fast
from traceviz_dag.commands.main import app
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Faults, Format

_SQLITE = {
    "KERNEL": "SELECT deviceId, streamId, start, end, value FROM "
    "CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName",
    "MEMCPY": "SELECT deviceId, streamId, start, end, CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN "
    "'Memcpy DtoH' ELSE 'Memcpy DtoD' END FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "MEMSET": "SELECT deviceId, streamId, start, end, 'Memset' FROM CUPTI_ACTIVITY_KIND_MEMSET",
}


@dataclass(frozen=True)
class WithExports:
    """Queries over ``operations``: every kernel, copy and memset of one export or two (``side`` a and b)."""

    exports: tuple[Path, ...]

    def query(self, sql: str, parameters: Mapping[str, object]) -> pa.Table:
        rows = []
        for side, path in zip("ab", self.exports, strict=False):
            connection = sqlite3.connect(path)
            for table, wanted in _SQLITE.items():
                for device, stream, start, end, name in connection.execute(wanted):
                    communicates = table == "KERNEL" and "nccl" in name
                    kind = "memory" if table != "KERNEL" else "communication" if communicates else "computation"
                    rows.append((side, device, stream, start, end, name, kind))
            connection.close()
        names = ("side", "device", "stream", "start_ns", "end_ns", "name", "kind")
        table = pa.table({name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
        with duckdb.connect() as connection:
            connection.register("operations", table)
            return connection.sql(sql, params=dict(parameters)).to_arrow_table()


# Unions by the instants at which something begins or ends: between two of them everything stays as it is.
_WITHIN = """
    WITH windows AS (
        SELECT side, device, min(start_ns) AS a, max(end_ns) AS b, count(*) AS operations FROM operations
        GROUP BY side, device
    ),
    cut AS (
        SELECT o.side, o.device, kind, greatest(start_ns, a) AS a, least(end_ns, b) AS b
        FROM operations AS o JOIN windows USING (side, device) WHERE end_ns > a AND start_ns < b
    ),
    edges AS (
        SELECT side, device, unnest([a, b]) AS instant, kind, unnest([1, -1]) AS step FROM cut
    ),
    parts AS (
        SELECT side, device,
            lead(instant) OVER (PARTITION BY side, device ORDER BY instant, step, kind) - instant AS ns,
            sum(step * CAST(kind = 'computation' AS INTEGER)) OVER sweep > 0 AS computes,
            sum(step * CAST(kind = 'communication' AS INTEGER)) OVER sweep > 0 AS communicates,
            sum(step * CAST(kind = 'memory' AS INTEGER)) OVER sweep > 0 AS copies
        FROM edges WINDOW sweep AS (PARTITION BY side, device ORDER BY instant, step, kind
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ),
    gpus AS (
        SELECT side, device, any_value(operations) AS operations, any_value(a) / 1e9 AS from_s,
            any_value(b) / 1e9 AS to_s, any_value(b) - any_value(a) AS span,
            coalesce(sum(ns) FILTER (computes), 0) AS compute,
            coalesce(sum(ns) FILTER (communicates), 0) AS communication,
            coalesce(sum(ns) FILTER (computes AND communicates), 0) AS hidden, communication - hidden AS exposed,
            coalesce(sum(ns) FILTER (copies), 0) AS memory,
            coalesce(sum(ns) FILTER (copies AND NOT computes AND NOT communicates), 0) AS memory_alone,
            coalesce(sum(ns) FILTER (computes OR communicates OR copies), 0) AS busy, span - busy AS idle
        FROM parts JOIN windows USING (side, device) GROUP BY side, device
    )
"""
_CUT = "greatest(0, least(end_ns, b) - greatest(start_ns, a))"
_SHORT = "if(length(name) > 90, left(name, 89) || '…', name)"
_PARTS = f"""{_WITHIN},
    long AS (
        SELECT side, unnest(['computation', 'exposed communication', 'memory operations alone', 'idle', 'window'])
            AS part, unnest([compute, exposed, memory_alone, idle, span]) AS ns
        FROM gpus
    ),
    parts_of AS (
        SELECT part, sum(ns) FILTER (side = 'a') AS a, sum(ns) FILTER (side = 'b') AS b, b - a AS change
        FROM long GROUP BY part
    )
"""
_COMMON = f"""{_WITHIN},
    names AS (
        SELECT name, any_value(kind) AS kind, count(*) FILTER (side = 'a') AS count_a,
            count(*) FILTER (side = 'b') AS count_b,
            coalesce(sum({_CUT}) FILTER (side = 'a'), 0) AS a, coalesce(sum({_CUT}) FILTER (side = 'b'), 0) AS b
        FROM (
            SELECT o.*, w.a, w.b FROM operations AS o JOIN windows AS w USING (side, device)
            WHERE end_ns > w.a AND start_ns < w.b
        )
        GROUP BY name
    )
"""

SENTENCES = (
    Sentence(
        rf"GPU (?P<k_device>\d+): idle (?P<v_idle>{MS}), (?P<v_share>{PERCENT}) of it in (?P<v_gaps>\d+) gaps of 10 us "
        "or more, ms",
        f"""{_WITHIN},
        reached AS (
            SELECT a, b, coalesce(a - max(b) OVER (ORDER BY a, b ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
                AS gap
            FROM cut WHERE device = $device
        )
        SELECT any_value(idle) AS idle, count(*) AS gaps, sum(gap) / any_value(idle) AS share
        FROM reached, (FROM gpus WHERE device = $device) WHERE gap >= 10000""",
    ),
    Sentence(
        r"(?P<v_names>\d+) names? holds? nccl",
    ),
    Sentence(
        r"Comparable: the same kernels run equally often\.",
        f"""{_COMMON} SELECT sum(a + b) FILTER (count_a > 0 AND count_b > 0) / sum(a + b) AS shared,
            count(*) FILTER (count_a = count_b) / count(*) FILTER (count_a > 0 AND count_b > 0) AS equal
        FROM names WHERE kind <> 'memory' HAVING shared >= 0.9 AND equal >= 0.9""",
    ),
    Sentence(
        rf"B is (?P<v_share>{PERCENT}) ((?P<b_slower>slower)|faster) "
        rf"\((?P<v_change>[+-]{MS}) over (?P<v_gpus>\d+) GPUs\), "
        rf"((?P<b_most>most of it)|the largest part of it) in (?P<v_part>[a-z ]+) \((?P<v_delta>[+-]{MS})\)\.",
        f"""{_PARTS}
        SELECT (SELECT count(DISTINCT device) FROM gpus) AS gpus, w.change, w.change > 0 AS slower,
            abs(w.change) / w.a AS share, p.change AS delta,
            2 * abs(p.change) > abs(w.change) AS most,
            CASE part WHEN 'idle' THEN 'idle time' WHEN 'memory operations alone' THEN 'memory operations' ELSE part END
                AS part
        FROM (FROM parts_of WHERE part <> 'window') AS p, (SELECT a, change FROM parts_of WHERE part = 'window') AS w
        ORDER BY p.change * sign(w.change) DESC LIMIT 1""",
    ),
)

TABLES = (
    PrintedTable(
        rf"GPU (?P<k_device>\d+): busy (?P<v_busy>[\d.,]+) of (?P<v_span>{MS}) \((?P<v_share>{PERCENT})\), "
        r"(?P<v_operations>\d+) operations, ms",
        f"""{_WITHIN}
        SELECT {_SHORT} AS name, kind, count(*) FILTER (start_ns >= a AND start_ns < b) AS count,
            sum({_CUT}) / 1e6 AS total, sum({_CUT}) / (SELECT sum(b - a) FROM cut WHERE device = $device) AS share,
            avg(end_ns - start_ns) FILTER (start_ns >= a AND start_ns < b) / 1e6 AS mean,
            min(end_ns - start_ns) FILTER (start_ns >= a AND start_ns < b) / 1e6 AS least,
            max(end_ns - start_ns) FILTER (start_ns >= a AND start_ns < b) / 1e6 AS most
        FROM operations AS o JOIN windows USING (side, device) WHERE o.device = $device GROUP BY o.name, kind
        HAVING total > 0 """,
        {
            **{"operation": "name", "kind": "kind", "count": "count", "total": "total", "share of totals": "share"},
            **{"mean": "mean", "least": "least", "most": "most"},
        },
        ["operation"],
        said=f"{_WITHIN} SELECT busy / 1e6 AS busy, span, gpus.busy / span AS share, operations FROM gpus "
        "WHERE device = $device",
    ),
    PrintedTable(
        r"Streams of GPU (?P<k_device>\d+)",
        """
        WITH begun AS (
            SELECT stream, start_ns, end_ns, end_ns - greatest(start_ns, least(end_ns, coalesce(max(end_ns) OVER (
                PARTITION BY stream ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)))
                AS more, min(start_ns) OVER () AS a
            FROM operations WHERE device = $device
        )
        SELECT stream, count(*) AS operations, sum(more) / 1e6 AS busy FROM begun WHERE start_ns >= a
        GROUP BY stream""",
        {"stream": "stream", "operations": "operations", "busy ms": "busy"},
        ["stream"],
    ),
    PrintedTable(
        "Overlap; idle time counts memory operations as busy, ms",
        f"""{_WITHIN}
        SELECT device, from_s, to_s, operations, hidden / communication AS share,
            hidden / least(communication, compute) AS over_min,
            span / 1e6 AS span, compute / 1e6 AS compute, communication / 1e6 AS communication, hidden / 1e6 AS hidden,
            exposed / 1e6 AS exposed, memory / 1e6 AS memory, busy / 1e6 AS busy, idle / 1e6 AS idle
        FROM gpus""",
        {
            **{"GPU": "device", "from s": "from_s", "to s": "to_s", "operations": "operations"},
            **{"hidden share": "share", "hidden / min": "over_min"},
            **{"window": "span", "computation": "compute", "memory": "memory"},
            **{"communication": "communication", "hidden": "hidden", "exposed": "exposed", "busy": "busy"},
            "idle": "idle",
        },
        ["GPU"],
    ),
    PrintedTable(
        "Where the time went, 2 GPUs together, ms",
        f"{_PARTS} SELECT part, a / 1e6 AS a, b / 1e6 AS b, change / 1e6 AS change FROM parts_of",
        {"part": "part", "A": "a", "B": "b", "change": "change"},
        ["part"],
    ),
    *(
        PrintedTable(
            f"Kernels and memory operations: {word}, ms",
            f"""{_COMMON}
            SELECT {_SHORT} AS name, count_a, count_b, a / 1e6 AS a, b / 1e6 AS b, (b - a) / 1e6 AS change FROM names
            WHERE count_a > 0 AND count_b > 0 AND sign(b - a) = {sign}""",
            {
                "name": "name",
                "count A": "count_a",
                "count B": "count_b",
                "A": "a",
                "B": "b",
                "change": "change",
            },
            ["name"],
        )
        for word, sign in (("slower", 1), ("faster", -1))
    ),
)


@cache
def export(name: str) -> Path:
    """The export of one node of a small job; b has a slow GPU, c another schedule of the same work."""
    faults = Faults(slow_gpu=1) if name == "b" else Faults(data_stall=0) if name == "c" else Faults()
    settings = replace(_PLAIN, iterations=2, format=Format.NSYS, node_size=2, faults=faults)
    folder = made_once(f"export_{name}", lambda place: simulate(settings, place, workers=1) and None)
    return folder / "node0.sqlite"


def said(home: Path, *words: object) -> str:
    result = CliRunner().invoke(app, ["nsys", *map(str, words), "--all", "--home", str(home)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def reader(*exports: Path) -> Reader:
    return Reader(WithExports(exports), SENTENCES, TABLES)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def check(home: Path, command: str, output: str) -> Reader:
    exports = [export("a"), *([export(command[-1])] if command.startswith("diff") else [])]
    reading = reader(*exports)
    if command == "gaps":
        titles = [line for line in output.splitlines() if line.startswith("GPU ") and "idle" in line]
        assert len(titles) == 2
        for line in titles:
            reading.sentence(line.strip())
    elif command.startswith("diff"):
        # What NVTX ranges became is left to the tests of ranges.
        reading.check(re.sub(r"NVTX ranges: .*?\n\n(?=\S)", "", output, flags=re.DOTALL))
    else:
        reading.check(output)
    return reading


def output_of(home: Path, command: str) -> str:
    if command.startswith("diff"):
        return said(home, "diff", export("a"), export(command[-1]))
    return said(home, command, export("a"))


COMMANDS = ("summary", "overlap", "gaps", "diff b", "diff c")


@pytest.mark.parametrize("command", fast(COMMANDS, "summary", "overlap", "gaps", "diff b"))
def test_what_a_command_prints_of_an_export_is_what_its_tables_say(command, home):
    assert len(check(home, command, output_of(home, command)).read) >= 1 + command.startswith("diff")


@pytest.mark.parametrize(
    ("command", "true", "false"),
    [
        ("summary", r"busy (\d)", r"busy 1\1"),
        ("summary", r"(\d+) operations", r"1\1 operations"),
        ("summary", r"(\n +32 +)(\d)", r"\g<1>1\2"),
        ("overlap", r"(\n +0 .*) (\d\.\d+%)", r"\1 8\2"),
        ("gaps", r"in (\d+) gaps", r"in 1\1 gaps"),
        ("diff b", r"most of it", "the largest part of it"),
        ("diff b", r"in computation", "in idle time"),
        ("diff b", r"slower \(\+(\d)", r"slower (+1\1"),
    ],
)
def test_a_false_number_does_not_pass(command, true, false, home):
    output = output_of(home, command)
    wrong = re.sub(true, false, output, count=1)
    assert wrong != output
    with pytest.raises(AssertionError):
        check(home, command, wrong)
