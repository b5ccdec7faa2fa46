"""GPU memory where it was recorded: what holds the peak of each rank, and what of the GPU is never taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.wording import binary, share
from traceviz_dag.show.memory.colours import COLOUR, FREE, label
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section, top
from traceviz_dag.vocabulary import MemoryCategory

PEAKS_SQL = """
SELECT rank, device, category, sum(requested_bytes)::BIGINT AS requested_bytes, sum(blocks)::BIGINT AS blocks,
    max(reserved_bytes) AS reserved_bytes, list(DISTINCT evidence ORDER BY evidence) AS evidence
FROM memory_peaks WHERE run = $run AND iteration = $iteration AND moment = 'peak'
GROUP BY rank, device, category ORDER BY rank, device, requested_bytes DESC, category
"""

OUT_SQL = """
SELECT rank, device, count(*) AS events, max(bytes) AS asked_bytes, min(device_free_bytes) AS device_free_bytes
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
        bars.append(Bar(_place(at, several), [*pieces, Piece(_FREE, beside, FREE)], binary(reserved[at])))
    rows = [
        {
            "of": _place(at, several),
            "requested_bytes": peaks[at],
            "reserved_bytes": reserved[at],
            "headroom": asked.fact(
                f"{binary(reserved[at] - peaks[at])} ({share(reserved[at] - peaks[at], reserved[at])})"
            ),
            "most": Markup(", ").join(
                Markup("{} {}").format(label(row["category"]), asked.fact(binary(row["requested_bytes"])))
                for row in devices[at][:3]
            ),
        }
        for at in shown
    ]
    unknown = sum(row["requested_bytes"] for row in asked.rows if row["category"] == MemoryCategory.UNKNOWN)
    total = sum(peaks.values())
    present = [name for name in MemoryCategory if any(row["category"] == name for row in asked.rows)]
    return section(
        "Peak of each rank, the highest first",
        stacked_bars("What holds the memory when most is requested", bars, words=lambda held: binary(round(held))),
        legend({**{label(name): COLOUR[name] for name in present}, _FREE: FREE}),
        measured(
            asked,
            rows,
            [
                *("of", ("requested_bytes", "requested at the peak"), ("reserved_bytes", "reserved then")),
                *(("headroom", "headroom within it"), ("most", "most of it")),
            ],
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
    rows = [{**row, "of": f"rank {row['rank']}", "source": row["source"] or "not known"} for row in shown]
    return section(
        "Headroom, the least first",
        measured(
            asked,
            rows,
            [
                *("of", ("source", "known from"), "events", ("held_bytes", "most held")),
                *(("reserved_bytes", "most reserved"), ("device_memory_bytes", "memory of the GPU")),
                ("unused_bytes", "never reserved"),
            ],
            "While allocations were recorded. Held: bytes requested, of traces bytes of live blocks. What CUDA and "
            "NCCL take beside PyTorch is in none of these.",
        ),
        left,
    )


def _out(page: Page, several: bool) -> Markup:
    asked = page.book.ask("Where memory ran out", OUT_SQL)
    if not asked.rows:
        return Markup("")
    rows = [{**row, "of": _place((row["rank"], row["device"]), several)} for row in asked.rows]
    columns = ["of", ("events", "times"), ("asked_bytes", "asked for"), ("device_free_bytes", "free on the GPU")]
    return measured(asked, rows, columns, "Out of memory")


def _place(at: tuple[int, int], several: bool) -> str:
    return f"rank {at[0]}" + (f", GPU {at[1]}" if several else "")


PART = Part("memory", "Memory", ("memory_peaks", "memory_events"), memory, expected=False)
