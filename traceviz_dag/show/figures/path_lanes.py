"""The critical path of one step as a figure draws it: pieces on one axis of time, their kinds, and their lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import integers
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.show.lanes.iteration import path_kinds
from traceviz_dag.show.lanes.words import Word, rank_label, word_of
from traceviz_dag.show.page import palette
from traceviz_dag.vocabulary import PathCause, Phase

MOST_LANES = 20
"""Lanes that a page can show; of more ranks, each stage is one lane, or the ranks with the most of the path are."""

SEGMENT_COLUMNS = (
    *("step", "segment", "rank", "stage", "cause", "category", "phase", "chunk", "microbatch", "duration_ns"),
)

_OTHERS, _ONE_COLOUR, _SPREAD = -2, 0.75, 0.2
_BACKWARD = pa.array([Phase.BACKWARD.value, Phase.RECOMPUTE.value])

_COMMUNICATES = pa.array([PathCause.TRANSFER.value, PathCause.UNMATCHED.value])


@dataclass(frozen=True, slots=True, eq=False)
class StepPath:
    """The path of one step; arrays have an entry a segment, in the order of time.

    Attributes:
        step: its number; None without one. steps: how many steps the iteration has a path of.
        edges_ns: where segments begin, and where the last one ends: time along the path.
        rank, stage: of each; the stage is ``MISSING`` where unknown.
        part: place in ``parts`` of what each is. transfers: whether it is a communication, as far as it is on the path.
        backward: whether it is of a backward step, recompute included. microbatch, chunk: ``MISSING`` where none.
    """

    step: int | None
    steps: int
    edges_ns: Int64
    rank: Int64
    stage: Int64
    part: Int64
    parts: tuple[Word, ...]
    transfers: Bool
    backward: Bool
    chunk: Int64
    microbatch: Int64

    @property
    def step_ns(self) -> int:
        """How long the step takes."""
        return int(self.edges_ns[-1])

    @property
    def duration_ns(self) -> Int64:
        """How long each segment is."""
        return np.diff(self.edges_ns)

    def sums(self, keys: Int64, chosen: Bool | None = None) -> dict[int, int]:
        """Key → time of its segments, or of the chosen ones, ns; the longest first."""
        found, inverse = np.unique(keys, return_inverse=True)
        total = np.zeros(len(found), np.int64)
        np.add.at(total, inverse, self.duration_ns if chosen is None else np.where(chosen, self.duration_ns, 0))
        pairs = zip(found.tolist(), total.tolist(), strict=True)
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: ranks, of which the path need not cross any."""

    label: str
    path_ns: int


def longest_path(segments: pa.Table) -> StepPath | None:
    """The path of the longest step of the table ``path_segments``; None where there is none."""
    if not segments.num_rows:
        return None
    number = optional_integers(segments, "step")
    found, inverse = np.unique(number, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, inverse, integers(segments, "duration_ns"))
    longest = int(total.argmax())
    mine = segments.filter(pa.array(inverse == longest)).sort_by("segment")
    part, parts = _parts(mine)
    return StepPath(
        step=None if found[longest] == MISSING else int(found[longest]),
        steps=len(found),
        edges_ns=np.concatenate([[0], np.cumsum(integers(mine, "duration_ns"))]),
        rank=integers(mine, "rank"),
        stage=optional_integers(mine, "stage"),
        part=part,
        parts=parts,
        transfers=np.asarray(pc.is_in(mine["cause"].cast(pa.string()), _COMMUNICATES), np.bool_),
        backward=np.asarray(pc.fill_null(pc.is_in(mine["phase"].cast(pa.string()), _BACKWARD), False), np.bool_),
        chunk=optional_integers(mine, "chunk"),
        microbatch=optional_integers(mine, "microbatch"),
    )


def _parts(segments: pa.Table) -> tuple[Int64, tuple[Word, ...]]:
    """What each segment is."""
    place, kinds = path_kinds(segments)
    return place, tuple(map(word_of, kinds))


def lanes_of_path(path: StepPath, stage_of: Mapping[int, int]) -> tuple[Int64, list[Lane]]:
    """The lane of each segment, and the lanes by stage and rank.

    Ranks that the path runs on have a lane each, and so has a stage that it does not cross. Of too many ranks, each
    stage is a lane; of too many stages, or without one, the ranks with the most of the path are, and the others share
    the last lane.

    Args:
        stage_of: stage of each rank of the step, ``MISSING`` where unknown.
    """
    ranks, stages = path.sums(path.rank), sorted({*stage_of.values(), *path.stage.tolist()} - {MISSING})
    several = len(stages) > 1
    missed = [stage for stage in stages if several and stage not in path.stage]
    stage_of_path = dict(zip(path.rank.tolist(), path.stage.tolist(), strict=True))
    if len(ranks) + len(missed) <= MOST_LANES or not several or len(stages) > MOST_LANES:
        own = list(ranks)[: MOST_LANES if len(ranks) <= MOST_LANES else MOST_LANES - 1]
        key = np.where(np.isin(path.rank, own), path.rank, _OTHERS)
        order = sorted(own, key=lambda rank: (stage_of_path[rank], rank))
        rows = [(stage_of_path[rank], rank, _rank_label(rank, stage_of_path[rank], several)) for rank in order]
        if len(own) + len(missed) <= MOST_LANES:
            rows += [(stage, -1, f"stage {stage}") for stage in missed]
        if len(own) < len(ranks):
            rows.append((np.iinfo(np.int64).max, _OTHERS, f"{len(ranks) - len(own)} other ranks"))
        rows.sort(key=lambda row: row[:1])
        keys, labels = [row[1] for row in rows], [row[2] for row in rows]
    else:
        key = path.stage
        counts = {stage: len(np.unique(path.rank[path.stage == stage])) for stage in stages}
        keys = [*([MISSING] if (path.stage == MISSING).any() else []), *stages]
        labels = [_stage_label(stage, counts) for stage in keys]
    sums = path.sums(key)
    lane = np.array([keys.index(each) for each in key.tolist()], np.int64)
    return lane, [Lane(label, sums.get(each, 0)) for each, label in zip(keys, labels, strict=True)]


def _rank_label(rank: int, stage: int, several: bool) -> str:
    return rank_label(rank, stage if several and stage != MISSING else None)


def _stage_label(stage: int, counts: Mapping[int, int]) -> str:
    if stage == MISSING:
        return "no stage known"
    count = counts[stage]
    return f"stage {stage}" + (f" · {count} ranks" if count > 1 else " · 1 rank" if count else "")


def microbatch_runs(path: StepPath, lane: Int64) -> list[tuple[int, int, int, str, str]]:
    """Where the path stays on a micro-batch's step in one lane: lane, begin and end in ns, its number, and its colour.

    What has no micro-batch, such as the host between two kernels, ends no run. A run of many colours is left out: no
    number can be read on it.
    """
    inside = np.flatnonzero(path.microbatch != MISSING)
    if not len(inside):
        return []
    moved = np.concatenate([[0], np.cumsum(lane[1:] != lane[:-1])])
    keys = np.stack([moved, path.backward, path.chunk, path.microbatch])[:, inside]
    opens = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(inside)) - 1
    runs = []
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        rows = inside[begin : end + 1]
        time = np.bincount(path.part[rows], weights=path.duration_ns[rows], minlength=len(path.parts))
        if time.max() < _ONE_COLOUR * time.sum():
            continue
        colour = path.parts[int(time.argmax())].colour
        start, stop = int(path.edges_ns[rows[0]]), int(path.edges_ns[rows[-1] + 1])
        runs.append((int(lane[rows[0]]), start, stop, str(path.microbatch[rows[0]]), colour))
    return runs


def profile_of(path: StepPath, most: int) -> Sequence[tuple[Word, int]]:
    """What the path is made of, the longest first; the least parts of many are one. The times add up to the step."""
    rows = [(path.parts[part], length) for part, length in path.sums(path.part).items()]
    if len(rows) <= most:
        return rows
    rest = rows[most - 1 :]
    return [*rows[: most - 1], (Word(f"{len(rest)} others", palette.QUIET_INK), sum(length for _, length in rest))]


def path_finding(path: StepPath, stage_of: Mapping[int, int], profile: Sequence[tuple[Word, int]]) -> str:
    """What limits the step most, in a sentence.

    Args:
        stage_of: stage of each rank, ``MISSING`` where unknown. profile: as ``profile_of`` gives it.
    """
    part, length = profile[0]
    mostly = f"{share(length, path.step_ns)} of the path is {part.label}"
    whole = duration(path.step_ns)
    if len(stage_of) <= 1:
        return f"Of rank {path.rank[0]}'s step of {whole}, {share(length, path.step_ns)} is {part.label}"
    several = len({*stage_of.values()} - {MISSING}) > 1
    transferred = int(path.duration_ns[path.transfers].sum())
    if 2 * transferred > path.step_ns:
        # A transfer is of all that take part in it, wherever the path is drawn.
        who, own = _largest(path, path.stage if several else path.rank, ~path.transfers, "stage" if several else "rank")
        said = f"; of the rest most is on {who} ({share(own, path.step_ns)})" if own else ""
        mostly = f"mostly {_communication(path)}"
        return f"{share(transferred, path.step_ns)} of the step's {whole} is limited by communication, {mostly}{said}"
    if several:
        who, of_stage = _largest(path, path.stage, None, "stage")
        inside = path.stage == next(iter(path.sums(path.stage)))
        rank, of_rank = next(iter(path.sums(path.rank, inside).items()))
        if 2 * of_rank > of_stage:
            who += f" ({'' if of_rank == of_stage else 'mostly '}rank {rank})"
        return f"The step is limited by {who} for {share(of_stage, path.step_ns)} of its {whole}; {mostly}"
    who, of_rank = _largest(path, path.rank, None, "rank")
    if of_rank < _SPREAD * path.step_ns:
        ranks, most = len(np.unique(path.rank)), share(of_rank, path.step_ns)
        return f"The critical path spreads over {ranks} ranks, none with more than {most} of the {whole}; {mostly}"
    return f"The step is limited by {who} for {share(of_rank, path.step_ns)} of its {whole}; {mostly}"


def _largest(path: StepPath, keys: Int64, chosen: Bool | None, word: str) -> tuple[str, int]:
    """The stage or rank with the most of the path, in words, and its time, ns."""
    key, length = next(iter(path.sums(keys, chosen).items()))
    return ("ranks of no known stage" if key == MISSING else f"{word} {key}"), length


def _communication(path: StepPath) -> str:
    """The kind of communication that has the most of the path."""
    return path.parts[next(iter(path.sums(path.part, path.transfers)))].label
