"""Who holds the peak, as a flame graph in one HTML file that needs no network."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from importlib import resources

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.roles import site_of
from traceviz_dag.analyze.wording import counted
from traceviz_dag.printable import printable
from traceviz_dag.show.memory.colours import COLOUR, label

NARROWEST = 0.0005
"""Bars below this share of the peak are left out; the page says how much that is."""

_MIB = 1 << 20


@dataclass
class _Node:
    """A frame below its callers, with all that was requested below it."""

    bytes: int = 0
    blocks: int = 0
    category: str = ""
    below: dict[str, _Node] = field(default_factory=dict)


def flame_graph_page(name: str, one: Examined) -> str:
    """The page: categories at the top, below them the Python frames from the outermost to who asked.

    Args:
        name: of the snapshot's file, for the title.
    """
    root = _tree(one)
    bars: list[str] = []
    lost = [0]
    depth = _draw(root, 0.0, 0, max(root.bytes, 1), bars, lost)
    when = "at the peak" if len(one.replay.action) else "at the end"
    peak = (
        f"GPU {one.device} {when}: {root.bytes / _MIB:,.2f} MiB requested in {counted(root.blocks, 'block', 'blocks')}"
    )
    note = f"{lost[0] / _MIB:,.2f} MiB are in bars too narrow to draw" if lost[0] else "every bar is drawn"
    page = resources.files("traceviz_dag.show.memory").joinpath("flame_graph.html").read_text(encoding="utf-8")
    legend = "".join(
        f'<span><i style="background:{COLOUR[category]}"></i>{label(category)}</span>' for category in root.below
    )
    for mark, text in (
        ("@@TITLE@@", escape(printable(name))),
        ("@@PEAK@@", escape(peak)),
        ("@@NOTE@@", escape(note)),
        ("@@HEIGHT@@", str(depth * 20)),
        ("@@LEGEND@@", legend),
        ("@@BARS@@", "\n".join(bars)),
    ):
        page = page.replace(mark, text)
    return page


def _tree(one: Examined) -> _Node:
    root = _Node()
    stacks = one.snapshot.stacks
    for stack, category, size, absent in one.rows(one.replay.lifetimes.alive(one.replay.peak_event)):
        frames = stacks.of(stack)
        python = [frame.text for frame in reversed(frames) if frame.is_python]
        ending = python or [absent or site_of(frames)]
        name = str(one.category_names[category])
        node = root
        node.bytes += size
        node.blocks += 1
        for text in (name, *ending):
            node = node.below.setdefault(text, _Node(category=name))
            node.bytes += size
            node.blocks += 1
    root.below = dict(sorted(root.below.items(), key=lambda entry: -entry[1].bytes))
    return root


def _draw(node: _Node, left: float, depth: int, whole: int, bars: list[str], lost: list[int]) -> int:
    """Draw what is below a node; Python stacks are some dozens of frames deep. Returns the rows that it takes."""
    deepest = depth
    for text, below in sorted(node.below.items(), key=lambda entry: -entry[1].bytes):
        width = below.bytes / whole
        if width < NARROWEST:
            lost[0] += below.bytes
            continue
        shown = escape(printable(text))
        count = counted(below.blocks, "block", "blocks")
        facts = f"{below.bytes / _MIB:,.2f} MiB, {wording.percent(width)} of the peak, {count}"
        bars.append(
            f'<div class="bar" data-x="{left:.6f}" data-w="{width:.6f}" data-d="{depth}" title="{shown}&#10;{facts}" '
            f'style="left:{left:.4%};width:{width:.4%};top:{depth * 20}px;background:{COLOUR[below.category]}">'
            f"{shown}</div>"
        )
        deepest = max(deepest, _draw(below, left, depth + 1, whole, bars, lost))
        left += width
    return max(deepest, depth + 1) if node.below else deepest
