"""All that a script needs to replay a step and to edit it as ``edits.py`` does: columns of integers, and few facts.

Nodes of the graph are numbered: segments of all ranks, arrivals, sections of all ranks, the end of each rank's step,
meetings. Most edges follow from the columns; the others are in ``waiting`` and ``waited_for``:

- stream: a segment that ``follows`` waits for the one before it; one that another follows, or that is the last of its
  rank, does not; every other one ends its stream, and the end of the rank's step waits for it;
- launch: a segment with a ``section`` waits for it; the end of the step and each section wait for the section before;
- arrival, transfer: each member of a meeting.

A segment waits by its arrival if its kernel is a member of a meeting, and then has no other kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.contended import PARTS
from traceviz_dag.analyze.causes.contraction import contracted
from traceviz_dag.analyze.causes.edits import step_items
from traceviz_dag.analyze.causes.measured_items import direction
from traceviz_dag.analyze.causes.rank_work import EVIDENCES, EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import StepWork
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.arrays import NONE, Int64, Integers, number_groups
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING

DIFFERENCES = frozenset(
    {"launch_ns", "member_kernel", "member_meeting", "waiting", "waited_for", "pause_kernel", "section_ns"}
    | {"same", "on_stage", "place", "unmet_kernel"}
)
"""Columns whose values differ little from the one before."""

_ORDER = EVIDENCES.index("order")
_OTHER_EDGES = (EdgeKind.EVENT, EdgeKind.SYNCHRONISATION)


@dataclass(frozen=True, slots=True)
class ReplayData:
    """One step for a script.

    Attributes:
        facts: of each rank ``ranks``, ``stages`` (None where unknown), ``kernels``, ``segments`` and ``sections`` (how
            many), ``late_begin_ns``, ``host_end_ns``; ``dimensions``: word for each code of column ``dimension`` from 1
            on (None where unknown); ``refusals``: edit → why the step shows nothing of it; ``layers``: None where not
            known, else as ``edits.Layers`` ``of_stage`` and ``group``, the distinct ``factors``, how many other
            ``sets``; ``expert_shares``: of each ``expert_member``.
        columns: numbers of kernels, segments, sections and items count on from rank to rank.
            Per kernel ``duration_ns`` (of a member of a meeting: the transfer), ``lag_ns``, ``launch_ns`` (-1: none),
            ``kind``, ``same``, ``place`` and, where there is one, ``on_stage`` (as ``usual_times.Instances``, the first
            numbered in order; the others of communication without a meaning), ``item`` (from 1; 0 outside),
            ``dimension`` (0: no communication), ``layer_factor`` (place in ``factors``), ``layer_set`` (a bit for each
            of ``sets``), ``expert_meeting`` (from 1; 0 outside).
            Per segment ``length`` (kernels), ``section`` (in its rank; -1: none), ``follows``.
            Per section ``section_ns``, ``section_lag_ns``, ``section_hidden`` (the call before it is a hidden wait).
            Per item ``chunk``, ``direction``. Per member ``member_kernel``, ``member_meeting``, ``member_role``.
            ``member_ahead`` (those that do not wait for the meeting), ``expert_member``: places of members.
            ``pause_kernel``, ``pause_ns``. ``extra_kernel``, ``extra_ns``: extra work, and what its launches took.
            ``beside_kernel``, ``beside_millionths``: computation beside waits, and ``StepEdits.without_waits`` of it.
            ``unmet_kernel``: communications that are not matched with all their members. ``waiting``, ``waited_for``:
            nodes.
    """

    facts: dict[str, Any]
    columns: dict[str, Int64]


def replay_data(what_if: WhatIf) -> ReplayData:
    """Everything for a script; the graph is contracted first.

    Raises:
        NoEvidenceError: gains depend on what is unknown, which a script does not replay.
    """
    if (unknown := what_if.open_question) is not None:
        raise NoEvidenceError(f"{unknown}; traceviz what-if gives the ranges that are left")
    step, edits, times = contracted(what_if.step), what_if.edits, what_if.times
    works = step.works
    kinds = np.concatenate(list(edits.instances.kind))
    base = np.cumsum([0, *(len(work.kernels) for work in works)])
    items, chunk, way = _items(works)
    dimensions = _dimensions(works)
    refusals = _refusals(what_if)
    columns = {
        "duration_ns": np.concatenate([mine.duration_ns for mine in times]),
        "lag_ns": np.concatenate([mine.lag_ns for mine in times]),
        "launch_ns": np.concatenate([np.where(mine.launch_ns == MISSING, -1, mine.launch_ns) for mine in times]),
        "kind": number_groups(kinds)[1],
        "same": np.concatenate([_carried(numbers) for numbers in edits.instances.same]),
        "place": np.concatenate([_carried(numbers) for numbers in edits.instances.place]),
        "item": items,
        "dimension": np.concatenate([_codes(work, dimensions) for work in works]),
        "length": np.concatenate([np.diff(np.append(work.first, len(work.kernels))) for work in works]),
        "section": np.concatenate([work.section for work in works]),
        "follows": np.concatenate([_follows(work) for work in works]),
        "section_ns": np.concatenate([mine.section_ns for mine in times]),
        "section_lag_ns": np.concatenate([mine.section_lag_ns for mine in times]),
        "section_hidden": np.concatenate([work.section_hidden for work in works]),
        "chunk": chunk,
        "direction": way,
        "member_kernel": base[step.members.rank] + step.members.kernel,
        "member_meeting": step.members.meeting,
        "member_role": step.members.roles,
        "member_ahead": np.empty(0, np.int64) if step.members.ahead is None else np.flatnonzero(step.members.ahead),
        "unmet_kernel": np.flatnonzero(
            np.concatenate([work.kernels.communicates & ~step.is_met(place) for place, work in enumerate(works)])
        ),
    }
    if edits.instances.on_stage is not None:
        columns["on_stage"] = np.concatenate([_carried(numbers) for numbers in edits.instances.on_stage])
    paused = np.concatenate(list(edits.pauses))
    launches = np.concatenate([edits.extra_launches(place) for place in range(len(works))])
    columns["pause_kernel"] = np.flatnonzero(paused)
    columns["pause_ns"] = paused[columns["pause_kernel"]]
    columns["extra_kernel"] = np.flatnonzero(np.concatenate(list(edits.extra)))
    columns["extra_ns"] = launches[columns["extra_kernel"]]
    factor = np.concatenate(list(edits.without_waits or [np.ones(len(kinds))]))
    columns["beside_kernel"] = np.flatnonzero(factor < 1)
    columns["beside_millionths"] = np.rint(factor[columns["beside_kernel"]] * PARTS).astype(np.int64)
    columns["waiting"], columns["waited_for"] = _other_edges(step)
    layers: dict[str, Any] | None = None
    if "even_layers" not in refusals:
        found = edits.layers
        factors, which = np.unique(np.concatenate(list(found.factor)), return_inverse=True)
        layers = {"of_stage": found.of_stage.tolist(), "group": found.group.tolist(), "factors": factors.tolist()}
        columns["layer_factor"] = which
        columns["layer_set"] = np.zeros(len(kinds), np.int64)
        for bit, masks in enumerate(found.others):
            columns["layer_set"] += np.concatenate(list(masks)).astype(np.int64) << bit
        layers["sets"] = len(found.others)
    shares: list[float] = []
    if "balanced_experts" not in refusals:
        experts = edits.experts
        shares = experts.share.tolist()
        columns["expert_member"] = experts.exchanges.astype(np.int64)
        columns["expert_meeting"] = np.concatenate(
            [np.where(meeting == NONE, 0, meeting + 1) for meeting in experts.meeting]
        )
    facts = {
        "ranks": list(step.ranks),
        "stages": [None if stage == MISSING else stage for stage in edits.stages],
        "kernels": [len(work.kernels) for work in works],
        "segments": [work.segments for work in works],
        "sections": [len(work.section_ns) for work in works],
        "dimensions": dimensions,
        "refusals": refusals,
        "late_begin_ns": edits.late_begin.tolist(),
        "host_end_ns": [mine.host_end_ns for mine in times],
        "layers": layers,
        "expert_shares": shares,
    }
    return ReplayData(facts, {name: np.asarray(column, np.int64) for name, column in columns.items()})


def _carried(numbers: Integers) -> Integers:
    """Numbers with that of the kernel before instead of none, so that few differ from the one before."""
    known = np.maximum.accumulate(np.where(numbers == NONE, 0, np.arange(len(numbers))))
    return np.maximum(numbers[known], 0) if len(numbers) else numbers


def _refusals(what_if: WhatIf) -> dict[str, str]:
    """Name of an edit that cannot be predicted → why: the step shows nothing of it, or it changes ranks not read."""
    result = {}
    first = what_if.dimensions()[:1]
    for edit in (*what_if.general(), *map(what_if.hide, first), *(what_if.faster(each, 2) for each in first)):
        if (why := what_if.unseen(edit)) is not None:
            result[edit.name] = why
            continue
        try:
            edit.apply(what_if.times)
        except NoEvidenceError as error:
            result[edit.name] = str(error)
    return result


def _items(works: tuple[RankWork, ...]) -> tuple[Int64, Int64, Int64]:
    """Per kernel its item, from 1; per item its chunk and direction."""
    numbers, chunks, ways = [], [], []
    before = 1
    for work in works:
        first, number = step_items(work)
        numbers.append(np.where(number >= 0, number + before, 0))
        chunks.append(work.kernels.chunk[first])
        ways.append(direction(work)[first])
        before += len(first)
    chunk = np.concatenate(chunks)
    return np.concatenate(numbers), np.where(chunk == MISSING, -1, chunk), np.concatenate(ways)


def _dimensions(works: tuple[RankWork, ...]) -> list[str | None]:
    """All dimensions of kernels that communicate; None last where some have no known one."""
    found: set[str] = set()
    unknown = False
    for work in works:
        used = np.unique(work.kernels.dimension[work.kernels.communicates]).tolist()
        found |= {work.kernels.dimensions[code] for code in used if code >= 0}
        unknown |= any(code < 0 for code in used)
    return [*sorted(found), *([None] if unknown else [])]


def _codes(work: RankWork, dimensions: list[str | None]) -> Int64:
    own = [dimensions.index(word) + 1 if word in dimensions else 0 for word in work.kernels.dimensions]
    table = np.array([*own, len(dimensions)], np.int64)
    return np.where(work.kernels.communicates, table[work.kernels.dimension], 0)


def _follows(work: RankWork) -> Int64:
    """Per segment, whether it waits for the one before it on its stream."""
    result = np.zeros(work.segments, np.int64)
    entered = work.waiting[work.kind == EdgeKind.STREAM]
    arrives = entered >= work.arrivals
    result[entered[~arrives]] = 1
    result[work.segment[work.joined[entered[arrives] - work.arrivals]]] = 1
    return result


def _other_edges(step: StepWork) -> tuple[Int64, Int64]:
    """The edges that follow from no column: events, synchronisations, and the step's begin where nothing else leads."""
    segments = np.cumsum([0, *(work.segments for work in step.works)])
    arrivals = segments[-1] + np.cumsum([0, *(len(work.joined) for work in step.works)])
    sections = arrivals[-1] + np.cumsum([0, *(len(work.section_ns) for work in step.works)])
    waiting, waited_for = [], []
    for place, work in enumerate(step.works):
        chosen = np.isin(work.kind, _OTHER_EDGES) | ((work.kind == EdgeKind.LAUNCH) & (work.evidence != _ORDER))
        number = np.concatenate(
            [
                segments[place] + np.arange(work.segments),
                arrivals[place] + np.arange(len(work.joined)),
                sections[place] + np.arange(len(work.section_ns)),
            ]
        )
        waiting.append(number[work.waiting[chosen]])
        waited_for.append(number[work.waited_for[chosen]])
    return np.concatenate(waiting), np.concatenate(waited_for)
