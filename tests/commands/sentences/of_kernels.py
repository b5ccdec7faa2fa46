"""What ``traceviz kernels`` may print, with the SQL that its numbers are those of."""

from __future__ import annotations

from tests.commands.sentences.of_commands import MS, PERCENT, PLACE
from tests.commands.sentences.printed import PrintedTable, Sentence

_HERE = "FROM operations WHERE run = $run AND iteration = $iteration"
_OWN = f"{_HERE} AND operation_class <> 'communication'"

KERNELS = (
    Sentence(
        rf"{PLACE} · kernel time (?P<v_ns>{MS}) without communication"
        rf"(?:, (?P<v_known>{PERCENT}) of it with a roofline)?",
        f"""
        SELECT sum(duration_ns) AS ns,
            (SELECT coalesce(sum(kernel_ns), 0) {_OWN} AND roofline_ns IS NOT NULL) / ns AS known
        FROM kernels WHERE run = $run AND iteration = $iteration AND kind <> 'communication'""",
    ),
    Sentence(
        rf"Perfect kernels would save (?P<v_ns>{MS}) at most, all ranks together",
        f"SELECT sum(greatest(kernel_ns - roofline_ns, 0)) AS ns {_HERE}",
    ),
    Sentence(
        r"Peaks used: (?P<v_peaks>.+)",
        f"""
        SELECT gpu || format(' {{:.2f}} TB/s', any_value(memory_bytes_per_s) / 1e12) || coalesce(string_agg(
            DISTINCT format(', {{}} {{:.1f}} TFLOP/s', number_format, peak_flops_per_s / 1e12), ''
        ) FILTER (peak_flops_per_s IS NOT NULL), '') AS peaks
        {_HERE} AND roofline_ns IS NOT NULL GROUP BY gpu""",
    ),
)

_GROUPS = """
    sum(kernel_ns) / 1e6 AS ms, coalesce(sum(kernel_ns) FILTER (roofline_ns IS NULL), 0) / 1e6 AS unknown,
    if(count(roofline_ns) = count(*), sum(roofline_ns) / sum(kernel_ns), NULL) AS efficiency,
    sum(headroom_ns) / 1e6 AS headroom"""
_OF_GROUPS = {"ms": "ms", "without roofline ms": "unknown", "efficiency": "efficiency", "headroom ms": "headroom"}


def _short(column: str, most: int) -> str:
    return f"CASE WHEN length({column}) > {most} THEN {column}[:{most - 1}] || '…' ELSE {column} END"


def _operations(first: str, condition: str) -> PrintedTable:
    return PrintedTable(
        rf"Operations, the {first} first, all ranks together",
        f"""
        WITH told AS (
            SELECT {_short("coalesce(operation, kernel)", 90)} AS name, {_short("shapes", 48)} AS shapes, phase,
                number_format AS format, sum(count) AS calls, sum(kernel_ns) / sum(sum(kernel_ns)) OVER () AS share,
                if(count(flops) = count(*), sum(flops * count) / sum(kernel_ns) / 1e3, NULL) AS tflops,
                if(count(bytes) = count(*), sum(bytes * count) / sum(kernel_ns) / 1e3, NULL) AS tb, max(bound) AS bound,
                -- Long names of kernels differ in what is not printed, but in their times, too.
                printf('%.3f', sum(kernel_ns) / 1e6) AS text, {_GROUPS}
            {_OWN} GROUP BY coalesce(operation, kernel), operations.shapes, phase, number_format
        )
        FROM told {condition}""",
        {
            **{name: name for name in ("shapes", "phase", "format", "calls", "share", "efficiency", "bound")},
            **{"operation": "name", "ms": "text", "TFLOP/s": "tflops", "TB/s": "tb", "headroom ms": "headroom"},
        },
        ["operation", "shapes", "phase", "format", "calls", "ms"],
    )


KERNELS_TABLES = (
    _operations("longest", ""),
    _operations("most headroom", "WHERE headroom > 0"),
    PrintedTable(
        r"Modules, the longest first, all ranks together",
        f"SELECT module, {_GROUPS} {_OWN} GROUP BY module",
        {"module": "module", **_OF_GROUPS},
        ["module"],
    ),
    PrintedTable(
        r"Classes, the longest first, all ranks together",
        f"SELECT operation_class AS class, {_GROUPS} {_HERE} GROUP BY class",
        {"class": "class", **_OF_GROUPS},
        ["class"],
    ),
    PrintedTable(
        r"Kernel time without a roofline",
        f"SELECT reason, sum(kernel_ns) / 1e6 AS ms {_OWN} AND roofline_ns IS NULL GROUP BY reason HAVING ms > 0",
        {"reason": "reason", "ms": "ms"},
        ["reason"],
    ),
)
