"""One self-contained HTML file of an Nsight Systems profile: timeline, NVTX tree, summary and overlap."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.overlap import gpu_overlap
from traceviz_dag.analyze.nsys.summary import by_name
from traceviz_dag.analyze.nsys.tree import RangeNode, nested_ranges, range_tree
from traceviz_dag.arrays import Int64
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.show.page import palette
from traceviz_dag.vocabulary import Kind

MOST_SLICES = 1_000_000
"""Slices that a page holds at the most unless a caller says otherwise; browsers stay quick up to there."""

_RANGE = len(KINDS)
_COLOURS = {
    Kind.COMPUTATION.value: palette.CATEGORY["fwd_computation"],
    Kind.COMMUNICATION.value: palette.ATTENTION,
    Kind.MEMORY.value: palette.MEMORY_ONLY,
    "range": "#C9D3C0",
}
_MEASURES = {
    "computation only": palette.COMPUTATION_ONLY,
    "hidden communication": palette.HIDDEN,
    "exposed communication": palette.EXPOSED,
    "memory operations only": palette.MEMORY_ONLY,
    "idle": palette.IDLE,
}
_TREE_ROWS, _NAME_ROWS = 4000, 300


@dataclass(slots=True)
class _Lane:
    """One lane of the timeline: its label, its slices by start, and how many rows they need."""

    group: str
    label: str
    start_ns: Int64
    end_ns: Int64
    name: Int64
    kind: Int64
    depth: Int64


@dataclass(slots=True)
class _Names:
    """Every name once."""

    codes: dict[str, int] = field(default_factory=dict)

    def of(self, words: Sequence[str], used: Int64) -> Int64:
        """Codes of the words that some indices use."""
        code = np.zeros(len(words), dtype=np.int64)
        for index in np.unique(used).tolist():
            code[index] = self.codes.setdefault(words[index], len(self.codes))
        return code[used]


def viewer_page(
    profile: NsysProfile, gpus: Sequence[Activity], window: Clip | None = None, most: int = MOST_SLICES
) -> str:
    """The page.

    Args:
        gpus: what the GPUs did that are shown.
        window: only what runs inside it; None takes all.
        most: slices that the page holds at the most; the shortest are left out first, and the page says how many.
    """
    names = _Names()
    lanes = [lane for gpu in gpus for lane in _streams(gpu, window, names)]
    lanes += _threads(profile, processes_of(gpus), window, names)
    shortest, left_out = _limit(lanes, most)
    base = min((int(lane.start_ns.min()) for lane in lanes if len(lane.start_ns)), default=0)
    last = max((int(lane.end_ns.max()) for lane in lanes if len(lane.end_ns)), default=1)
    notes = list(profile.facts.missing)
    if left_out:
        notes.insert(0, f"{left_out:,} slices shorter than {shortest / 1e3:,.3f} us are left out of the timeline")
    document: dict[str, Any] = {
        "title": profile.path.name,
        "version": profile.facts.product_version,
        "base_ns": base if window is None else window.start_ns,
        "length_ns": (last - base) if window is None else window.end_ns - window.start_ns,
        "names": list(names.codes),
        "kinds": [*KINDS, "range"],
        "colours": _COLOURS,
        "measures": _MEASURES,
        "notes": notes,
        "lanes": [
            {
                "group": lane.group,
                "label": lane.label,
                "count": len(lane.name),
                "rows": int(lane.depth.max(initial=0)) + 1,
            }
            for lane in lanes
        ],
        "overlap": [_overlap(gpu, window) for gpu in gpus],
        "summary": [
            {"device": gpu.device, "rows": [asdict(one) for one in by_name(gpu, window)[:_NAME_ROWS]]} for gpu in gpus
        ],
        "tree": [{"device": gpu.device, "rows": _tree_rows(range_tree(profile, gpu, window))} for gpu in gpus],
    }
    text = msgspec.json.encode(document).decode().replace("<", "\\u003c")
    template = resources.files(__package__).joinpath("viewer.html").read_text(encoding="utf-8")
    title = profile.path.name.replace("&", "&amp;").replace("<", "&lt;")
    packed = _packed(lanes, document["base_ns"])
    return template.replace("@@TITLE@@", title).replace("@@DATA@@", text).replace("@@SLICES@@", packed)


def _streams(gpu: Activity, window: Clip | None, names: _Names) -> list[_Lane]:
    kept = np.ones(len(gpu), dtype=bool)
    if window is not None:
        kept = (gpu.ends > window.start_ns) & (gpu.starts < window.end_ns)
    found = []
    for stream in np.unique(gpu.stream[kept]).tolist():
        part = gpu.take(kept & (gpu.stream == stream))
        code = names.of(part.names, part.name.astype(np.int64))
        depth = np.zeros(len(part), dtype=np.int64)
        kind = part.intervals.kind.astype(np.int64)
        found.append(_Lane(f"GPU {gpu.device}", f"stream {stream}", part.starts, part.ends, code, kind, depth))
    return found


def _threads(profile: NsysProfile, processes: Sequence[int] | None, window: Clip | None, names: _Names) -> list[_Lane]:
    nested = nested_ranges(profile, processes)
    depth = nested.depth
    words = dict(zip(*(profile.table("threads")[name].to_pylist() for name in ("thread", "name")), strict=True))
    kept = np.ones(len(nested), dtype=bool)
    if window is not None:
        kept = (nested.end_ns > window.start_ns) & (nested.start_ns < window.end_ns)
    found = []
    for thread in np.unique(nested.thread).tolist():
        rows = np.flatnonzero(kept & (nested.thread == thread))
        if len(rows):
            code = names.of(nested.names, nested.name[rows].astype(np.int64))
            label = f"{words.get(thread) or 'thread'} {thread & 0xFFFFFF}"
            kind = np.full(len(rows), _RANGE, dtype=np.int64)
            process = f"process {(thread >> 24) & 0xFFFFFF} · NVTX"
            found.append(_Lane(process, label, nested.start_ns[rows], nested.end_ns[rows], code, kind, depth[rows]))
    return found


def _limit(lanes: list[_Lane], most: int) -> tuple[int, int]:
    """Leave out the shortest slices until ``most`` are left; (shortest that stays, how many are left out)."""
    lengths = np.concatenate([np.empty(0, np.int64), *(lane.end_ns - lane.start_ns for lane in lanes)])
    if len(lengths) <= most:
        return 0, 0
    shortest = int(np.partition(lengths, len(lengths) - most)[len(lengths) - most])
    for lane in lanes:
        kept = lane.end_ns - lane.start_ns >= shortest
        for name in ("start_ns", "end_ns", "name", "kind", "depth"):
            setattr(lane, name, getattr(lane, name)[kept])
    return shortest, len(lengths) - sum(len(lane.name) for lane in lanes)


def _overlap(gpu: Activity, window: Clip | None) -> dict[str, Any]:
    measures = gpu_overlap(gpu, window)
    shown = (
        measures.compute_ns - measures.hidden_ns,
        measures.hidden_ns,
        measures.exposed_ns,
        measures.memory_alone_ns,
        measures.idle_ns,
    )
    return {**asdict(measures), "parts": dict(zip(_MEASURES, shown, strict=True))}


def _tree_rows(roots: Sequence[RangeNode]) -> list[list[object]]:
    """(depth, name, count, span, operations, busy, compute, communication) of the paths, those with most time kept."""
    rows: list[list[object]] = []
    weights = sorted((max(node.span_ns, node.busy_ns) for root in roots for _, node in root.walk()), reverse=True)
    least = weights[_TREE_ROWS - 1] if len(weights) > _TREE_ROWS else 0

    def add(node: RangeNode, depth: int) -> None:
        # Whoever is left out takes all below along: children never take more time than fits.
        if max(node.span_ns, node.busy_ns) < least:
            return
        measures = (node.span_ns, node.operations, node.busy_ns, node.compute_ns, node.communication_ns)
        rows.append([depth, node.name, node.count, *measures])
        for child in node.children:
            add(child, depth + 1)

    for root in roots:
        add(root, 0)
    return rows


def _packed(lanes: Sequence[_Lane], base: int) -> str:
    """Start and length (float64), name (uint32), kind and depth (uint8) of all lanes, deflated, as base64."""
    columns: list[bytes] = []
    made: tuple[tuple[Callable[[_Lane], npt.NDArray[Any]], npt.DTypeLike], ...] = (
        (lambda lane: lane.start_ns - base, np.float64),
        (lambda lane: lane.end_ns - lane.start_ns, np.float64),
        (lambda lane: lane.name, np.uint32),
        (lambda lane: lane.kind, np.uint8),
        (lambda lane: np.minimum(lane.depth, 255), np.uint8),
    )
    for make, kind in made:
        columns += [make(lane).astype(kind).tobytes() for lane in lanes]
    return base64.b64encode(isal_zlib.compress(b"".join(columns), 2)).decode()
