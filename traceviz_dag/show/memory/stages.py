"""Activations in flight of every stage as a picture, against what the schedule and the formula imply."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from traceviz_dag.analyze.memory.schedule import StageMemory
from traceviz_dag.analyze.wording import counted
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes.words import rank_label
from traceviz_dag.show.memory.colours import COLOUR
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.page import Caption, LegendEntry, LegendGroup, open_page, rule_across
from traceviz_dag.show.page.typography import typography
from traceviz_dag.vocabulary import MemoryCategory

MOST_ROWS = 64
"""Ranks that the picture shows; of more, those that hold most."""

_MIB = 1 << 20
_ROW = 0.24


def draw_stage_memory(
    title: str, ranks: Sequence[tuple[int, int | None, StageMemory]], formula_bytes: int | None
) -> Figure | None:
    """Draw the most bytes of activations that each rank keeps at once.

    A mark shows what the schedule implies: chunks in flight by the schedule times what one chunk holds here; with the
    formula, times what it says.

    Args:
        title: run and iteration.
        ranks: rank, its stage, its memory; in the order of the rows.
        formula_bytes: what a layer keeps of a micro-batch; it is drawn for ranks whose layers are known.

    Returns:
        The figure; None without ranks.
    """
    if not ranks:
        return None
    kept = sorted(sorted(ranks, key=lambda row: -row[2].in_flight_bytes)[:MOST_ROWS], key=ranks.index)
    most = max(kept, key=lambda row: row[2].in_flight_bytes)
    agreeing = sum(memory.in_flight == memory.expected_in_flight for _, _, memory in ranks)
    beyond = counted(len(ranks) - len(kept), "rank that holds less is", "ranks that hold less are")
    left = [f"{beyond} left out"] if len(kept) < len(ranks) else []
    schedule = "keeps as many as its schedule implies" if agreeing == 1 else "keep as many as their schedule implies"
    formula = formula_bytes is not None and any(memory.layer_bytes for _, _, memory in kept)
    legend = [
        LegendEntry("activations, most at once", COLOUR[MemoryCategory.ACTIVATION]),
        LegendEntry("by schedule, and a chunk as it is here", palette.INK),
        *([LegendEntry("by schedule and formula", palette.ATTENTION)] if formula else []),
    ]
    held = f"{most[2].in_flight_bytes / _MIB:,.2f} MiB"
    chunks = counted(most[2].in_flight, "chunk", "chunks")
    caption = Caption(
        f"Rank {most[0]} keeps most activations at once: {held} in {chunks} of micro-batches",
        [printable(title), f"{agreeing} of {counted(len(ranks), 'rank', 'ranks')} {schedule}", *left],
        [],
        [LegendGroup("", legend)],
        "tables memory_blocks, microbatches",
    )
    marks = [(memory, _expected(memory, memory.chunk_bytes)) for _, _, memory in kept]
    by_formula = [_by_formula(memory, formula_bytes) if formula else None for _, _, memory in kept]
    longest = max(
        *(memory.in_flight_bytes for memory, _ in marks),
        *(value or 0 for _, value in marks),
        *(each or 0 for each in by_formula),
    )
    with typography():
        page = open_page(caption, _ROW * len(kept))
        axes = page.axes(0.0, _ROW * len(kept))
        axes.set(xlim=(0, 1.04 * max(longest, 1) / _MIB), ylim=(_ROW * len(kept), 0), yticks=[])
        page.text(page.right, page.top - 0.08, "in flight · by schedule", 7, palette.QUIET_INK)
        for place, (rank, stage, memory) in enumerate(kept):
            top = place * _ROW
            colour = COLOUR[MemoryCategory.ACTIVATION]
            axes.barh(top + _ROW / 2, memory.in_flight_bytes / _MIB, 0.7 * _ROW, color=colour, zorder=2)
            # One above the other: where both agree, both are seen.
            for value, ink, low in ((marks[place][1], palette.INK, 0.04), (by_formula[place], palette.ATTENTION, 0.5)):
                if value is not None:
                    ends = (top + low * _ROW, top + (low + 0.46) * _ROW)
                    axes.vlines(value / _MIB, *ends, colors=ink, linewidths=1.8, zorder=3)
            expected = "–" if memory.expected_in_flight is None else memory.expected_in_flight
            name = rank_label(rank, stage)
            page.row_label(top + _ROW / 2, name, f"{memory.in_flight} · {expected}")
        rule_across(axes, "MiB")
    return page.figure


def _expected(memory: StageMemory, chunk_bytes: int | None) -> int | None:
    if memory.expected_in_flight is None or chunk_bytes is None:
        return None
    return memory.expected_in_flight * chunk_bytes


def _by_formula(memory: StageMemory, formula_bytes: int | None) -> int | None:
    if formula_bytes is None or not memory.layer_bytes or memory.chunk_bytes is None:
        return None
    layers = round(memory.chunk_bytes / memory.layer_bytes)
    return _expected(memory, layers * formula_bytes)
