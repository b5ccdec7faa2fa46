"""GPU memory where it was recorded: what holds the peak of each rank, and what of the GPU is never taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.wording import share
from traceviz_dag.printable import printable
from traceviz_dag.show.memory.colours import COLOUR, FREE, label
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.parts.part import Page, Part, paragraph, section, table, top
from traceviz_dag.vocabulary import MemoryCategory

PEAKS_SQL = """
SELECT rank, device, category, sum(requested_bytes)::BIGINT AS requested_bytes, sum(blocks)::BIGINT AS blocks,
    max(reserved_bytes) AS reserved_bytes, list(DISTINCT evidence ORDER BY evidence) AS evidence
FROM memory_peaks WHERE run = $run AND iteration = $iteration AND moment = 'peak'
GROUP BY rank, device, category ORDER BY rank, device, requested_bytes DESC, category
"""

OUT_SQL = """
SELECT rank, device, count(*) AS times, max(bytes) AS asked_bytes, min(device_free_bytes) AS device_free_bytes
FROM memory_events WHERE run = $run AND iteration = $iteration AND action = 'oom'
GROUP BY rank, device ORDER BY rank, device
"""

HEADROOM_SQL = """
WITH taken AS (
    SELECT rank, source, count(*) AS events, max(coalesce(requested_bytes, allocated_bytes)) AS held_bytes,
        max(reserved_bytes) AS reserved_bytes
    FROM memory_events WHERE run = $run AND iteration = $iteration GROUP BY rank, source
), gpus AS (
    SELECT rank, device_memory_bytes FROM traces WHERE run = $run AND iteration = $iteration
)
SELECT rank, source, events, held_bytes, reserved_bytes, device_memory_bytes,
    device_memory_bytes - reserved_bytes AS unused_bytes
FROM taken LEFT JOIN gpus USING (rank)
ORDER BY unused_bytes NULLS LAST, reserved_bytes DESC NULLS LAST, rank, source
"""

_FREE = "reserved beyond it"


def memory(page: Page) -> Markup | None:
    """The part."""
    parts = [_peaks(page), _headroom(page)]
    return Markup("").join(parts) if any(parts) else None


def _peaks(page: Page) -> Markup:
    asked = page.book.ask("What holds the memory when most is requested", PEAKS_SQL)
    if not asked.rows:
        return Markup("")
    devices: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in asked.rows:
        devices.setdefault((row["rank"], row["device"]), []).append(row)
    peaks = {at: sum(row["requested_bytes"] for row in rows) for at, rows in devices.items()}
    reserved = {at: max(row["reserved_bytes"] for row in rows) for at, rows in devices.items()}
    several = len({at[0] for at in devices}) < len(devices)
    order = sorted(devices, key=lambda at: (-peaks[at], at))
    shown, left = top(order, "GPUs with snapshots")
    bars = []
    for at in shown:
        held = {row["category"]: row["requested_bytes"] for row in devices[at]}
        pieces = [Piece(label(name), held.get(name, 0), COLOUR[name]) for name in MemoryCategory]
        beside = max(reserved[at] - peaks[at], 0)
        bars.append(Bar(_place(at, several), [*pieces, Piece(_FREE, beside, FREE)], size(reserved[at])))
    rows = [
        [
            _place(at, several),
            asked.fact(size(peaks[at])),
            asked.fact(size(reserved[at])),
            asked.fact(f"{size(reserved[at] - peaks[at])} ({share(reserved[at] - peaks[at], reserved[at])})"),
            Markup(", ").join(
                Markup("{} {}").format(label(row["category"]), asked.fact(size(row["requested_bytes"])))
                for row in devices[at][:3]
            ),
        ]
        for at in shown
    ]
    unknown = sum(row["requested_bytes"] for row in asked.rows if row["category"] == MemoryCategory.UNKNOWN)
    total = sum(peaks.values())
    present = [name for name in MemoryCategory if any(row["category"] == name for row in asked.rows)]
    return section(
        "Peak of each rank, the highest first",
        stacked_bars("What holds the memory when most is requested", bars, words=size),
        legend({**{label(name): COLOUR[name] for name in present}, _FREE: FREE}),
        table(
            ["of", "requested at the peak", "reserved then", "headroom within it", "most of it"],
            rows,
            "Bytes that programs asked for and hold when that is most; reserved: what the allocator took from the "
            "driver by then.",
        ),
        left,
        paragraph("Of the peaks, ", asked.fact(share(unknown, total)), " is of no known category.", quiet=True),
        _out(page, several),
    )


def _headroom(page: Page) -> Markup:
    """What of each GPU's memory is never reserved, as far as allocations were recorded."""
    asked = page.book.ask("What of each GPU's memory was never reserved", HEADROOM_SQL)
    if not asked.rows:
        return Markup("")
    shown, left = top(asked.rows, "ranks")
    rows = [
        [
            f"rank {row['rank']}",
            printable(row["source"] or "not known"),
            asked.fact(f"{row['events']:,}"),
            *(
                "not known" if row[name] is None else asked.fact(size(row[name]))
                for name in ("held_bytes", "reserved_bytes", "device_memory_bytes", "unused_bytes")
            ),
        ]
        for row in shown
    ]
    return section(
        "Headroom, the least first",
        table(
            ["of", "known from", "events", "most held", "most reserved", "memory of the GPU", "never reserved"],
            rows,
            "While allocations were recorded. Held: bytes requested, of traces bytes of live blocks. What CUDA and "
            "NCCL take beside PyTorch is in none of these.",
        ),
        left,
    )


def _out(page: Page, several: bool) -> Markup:
    asked = page.book.ask("Where memory ran out", OUT_SQL)
    if not asked.rows:
        return Markup("")
    rows = [
        [
            _place((row["rank"], row["device"]), several),
            asked.fact(f"{row['times']:,}"),
            asked.fact(size(row["asked_bytes"])),
            asked.fact(size(row["device_free_bytes"])) if row["device_free_bytes"] is not None else "not known",
        ]
        for row in asked.rows
    ]
    return table(["of", "times", "asked for", "free on the GPU"], rows, "Out of memory")


def _place(at: tuple[int, int], several: bool) -> str:
    return f"rank {at[0]}" + (f", GPU {at[1]}" if several else "")


def size(count: float) -> str:
    """Bytes for people."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(count) >= 1 << power:
            return f"{count / (1 << power):,.2f} {unit}"
    return f"{count:,.0f} B"


PART = Part("memory", "Memory", ("memory_peaks", "memory_events"), memory, expected=False)
