"""One self-contained HTML file of an Nsight Systems profile: timeline, overlap, kernels, NVTX tree, what lacks."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from markupsafe import Markup

from traceviz_dag.analyze.measures import measure
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.nsys.lost import partial_mark
from traceviz_dag.analyze.nsys.overlap import MEASURES, GpuOverlap, gpu_overlap
from traceviz_dag.analyze.nsys.summary import NAME_COLUMNS, by_name
from traceviz_dag.analyze.nsys.tree import MEASURES as TREE_MEASURES
from traceviz_dag.analyze.nsys.tree import RangeNode, range_tree
from traceviz_dag.analyze.wording import duration
from traceviz_dag.classify.rules import Rules
from traceviz_dag.printable import printable
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.show.lanes.names import shortened as carried
from traceviz_dag.show.lanes.parts import HIDDEN, MEMORY_ALONE
from traceviz_dag.show.lanes.words import EXPOSED, word_of
from traceviz_dag.show.nsys.timeline import profile_timeline
from traceviz_dag.show.page import palette
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.limits import MOST_KERNELS
from traceviz_dag.show.report.parts.part import measured, paragraph, section, shortened, table
from traceviz_dag.show.report.parts.timeline import timeline_markup
from traceviz_dag.show.report.shell import Tab, page

MOST_SLICES = MOST_KERNELS
"""Operations, ranges and calls that a page holds at the most unless a caller says otherwise."""

_MEASURES = {
    "computation alone": palette.COMPUTATION_ONLY,
    **dict(word_of(kind) for kind in (HIDDEN, EXPOSED, MEMORY_ALONE)),
    "idle": palette.IDLE,
}
_TREE_ROWS, _TREE_DEPTH, _NAME_ROWS = 4000, 40, 300


def viewer_page(
    profile: NsysProfile, gpus: Sequence[Activity], rules: Rules, window: Clip | None = None, most: int = MOST_SLICES
) -> str:
    """The page.

    Args:
        gpus: what the GPUs did that are shown.
        window: only what runs inside it; None takes all.
        most: slices that the timeline holds at the most; the shortest are left out first, and the page says how many.
    """
    command = shlex.quote(printable(str(profile.path)))
    timeline = profile_timeline(profile, gpus, rules, command, window, most)
    options = "" if window is None else f" --trim {window.start_ns / 1e9:.9f} {window.end_ns / 1e9:.9f}"
    tabs = [
        Tab("timeline", "Timeline", timeline_markup(timeline, bare=True)),
        Tab("overlap", "Overlap", _overlap(gpus, window, f"traceviz nsys overlap {command}{options}")),
        Tab("kernels", "Kernels", _kernels(gpus, window, f"traceviz nsys summary {command}{options}")),
        Tab("tree", "NVTX tree", _tree(profile, gpus, window, f"traceviz nsys tree {command}{options}")),
        Tab("notes", "Notes", _notes(profile)),
    ]
    mark = partial_mark(profile, [gpu.device for gpu in gpus])
    return page(profile.path.name, tabs, timeline.columns.packed(timeline.document), mark=mark)


def _source(command: str) -> Markup:
    return Markup('<p class="quiet">The numbers are those of <code>{}</code></p>').format(command)


def _overlap(gpus: Sequence[Activity], window: Clip | None, command: str) -> Markup:
    found = [gpu_overlap(gpu, window) for gpu in gpus]
    bars = [
        Bar(
            f"GPU {one.device}",
            [Piece(name, ns, colour) for (name, colour), ns in zip(_MEASURES.items(), _pieces(one), strict=True)],
            duration(one.span_ns),
        )
        for one in found
    ]
    return section(
        "What each GPU's time was spent on",
        stacked_bars("What each GPU's time was spent on", bars),
        legend(_MEASURES),
        measured(
            None,
            [{**asdict(one), "hidden_share": one.hidden_share} for one in found],
            ["device", *MEASURES, "hidden_share"],
        ),
        paragraph("Times are unions, never sums of durations. Memory operations keep a GPU busy.", quiet=True),
        _source(command),
    )


def _pieces(one: GpuOverlap) -> tuple[int, ...]:
    return one.compute_ns - one.hidden_ns, one.hidden_ns, one.exposed_ns, one.memory_alone_ns, one.idle_ns


def _kernels(gpus: Sequence[Activity], window: Clip | None, command: str) -> Markup:
    sections = []
    for gpu in gpus:
        found = by_name(gpu, window)
        rows = [{**asdict(one), "name": _finder(one.name, gpu.device)} for one in found[:_NAME_ROWS]]
        left = f"The first {_NAME_ROWS} of {len(found):,} names. " if len(found) > _NAME_ROWS else ""
        told = f"{left}Totals are sums of durations: what runs side by side counts each. A click finds a name."
        shown = measured(None, rows, NAME_COLUMNS)
        sections.append(section(f"GPU {gpu.device}", shown, paragraph(told, quiet=True)))
    return Markup("").join([*sections, _source(command)])


def _finder(name: str, device: int) -> Markup:
    """A name that leads to its first slice on a GPU's timeline; the timeline knows it as far as it carries it."""
    return Markup('<button type="button" class="finder" data-find="{}" data-rank="{}">{}</button>').format(
        carried(printable(name)), device, shortened(name)
    )


def _tree(profile: NsysProfile, gpus: Sequence[Activity], window: Clip | None, command: str) -> Markup:
    sections = []
    for gpu in gpus:
        rows = _tree_rows(range_tree(profile, gpu, window))
        if not rows:
            sections.append(section(f"GPU {gpu.device}", paragraph("No NVTX range ran on its processes.")))
            continue
        sections.append(section(f"GPU {gpu.device}", _TREE_HEAD, *_nested(rows, gpu.device)))
    told = (
        f"At most {_TREE_DEPTH} levels of the paths with most time. Span is on the host; busy is the GPU, with what "
        "calls inside a range launched."
    )
    return Markup("").join([*sections, paragraph(told, quiet=True), _source(command)])


def _cells(texts: Iterable[str]) -> Markup:
    return Markup("").join(Markup("<span>{}</span>").format(text) for text in texts)


_TREE_HEAD = Markup('<p class="tree-row head">{}</p>').format(
    _cells(["range", *(measure(name).header for name in TREE_MEASURES)])
)


def _tree_rows(roots: Sequence[RangeNode]) -> list[tuple[int, RangeNode]]:
    """Depth and node of the paths with most time, parents before children."""
    weights = sorted((_weight(node) for root in roots for _, node in _walk(root)), reverse=True)
    least = weights[_TREE_ROWS - 1] if len(weights) > _TREE_ROWS else 0
    # Whoever is left out takes all below along: children never take more time than fits.
    return [(depth, node) for root in roots for depth, node in _walk(root, least)]


def _weight(node: RangeNode) -> int:
    return max(node.span_ns, node.busy_ns)


def _walk(root: RangeNode, least: int = 0) -> Iterator[tuple[int, RangeNode]]:
    waiting = [(0, root)]
    while waiting:
        depth, node = waiting.pop()
        if _weight(node) < least:
            continue
        yield depth, node
        if depth + 1 < _TREE_DEPTH:
            waiting.extend((depth + 1, child) for child in reversed(node.children))


def _nested(rows: Sequence[tuple[int, RangeNode]], device: int) -> Iterator[Markup]:
    """Rows that fold: those that hold others are open where they are outermost."""
    open_depths: list[int] = []
    for place, (depth, node) in enumerate(rows):
        while open_depths and open_depths[-1] >= depth:
            open_depths.pop()
            yield Markup("</details>")
        holds = place + 1 < len(rows) and rows[place + 1][0] > depth
        words = _cells(measure(name).unit.said(getattr(node, name)) for name in TREE_MEASURES)
        name = Markup('<span class="at{}">{}</span>').format(min(depth, 12), _finder(node.name, device))
        if holds:
            open_depths.append(depth)
            yield Markup('<details{}><summary class="tree-row">{}{}</summary>').format(
                Markup(" open") if depth == 0 else "", name, words
            )
        else:
            yield Markup('<p class="tree-row">{}{}</p>').format(name, words)
    for _ in open_depths:
        yield Markup("</details>")


def _notes(profile: NsysProfile) -> Markup:
    facts = profile.facts
    rows = [["nsys", facts.product_version or "not stated"], ["schema", facts.schema_version or "not stated"]]
    rows += [[f"GPU {gpu.device}", printable(gpu.name or "not stated")] for gpu in facts.gpus]
    lacking = facts.missing or ("The export lacks nothing that was looked for.",)
    missing = [paragraph(note) for note in lacking]
    return Markup("").join([section("Recorded with", table(["what", "which"], rows)), section("What lacks", *missing)])
