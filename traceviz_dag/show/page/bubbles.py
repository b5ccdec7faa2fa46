"""The bubble of pipeline stages as a figure and a page show it: its parts, the stages that are shown, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from traceviz_dag.analyze.findings.verdict import Lead
from traceviz_dag.analyze.stage_times import StageTime
from traceviz_dag.analyze.wording import share
from traceviz_dag.show.page import palette
from traceviz_dag.tables.rows import PartedPipelineRow

MOST_ROWS = 32
"""Stages that a page can show; of more, similar pipelines fold, and then those with the longest span are drawn."""

ALIKE = 0.02
"""Pipelines are similar where no part of a stage differs by more than this share of what the stage takes."""

_Part = Literal["fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns"]
_Length = Literal["ideal_ns", "fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns"]
_LENGTHS: tuple[_Length, ...] = get_args(_Length)

PARTS: tuple[tuple[_Part, str, str], ...] = (
    ("fill_drain_ns", "fill and drain", palette.FILL_DRAIN),
    ("imbalance_ns", "imbalance", palette.IMBALANCE),
    ("jitter_ns", "jitter", palette.JITTER),
    ("stall_ns", "stall and transfer", palette.STALL),
)
"""Column of each part, its name and its colour, in the order of the replays that distinguish them."""


@dataclass(frozen=True, slots=True)
class DrawnPipeline:
    """A pipeline that is drawn, its stages in order; ``alike`` are those that it is drawn for, with itself."""

    stages: Sequence[PartedPipelineRow]
    alike: Sequence[int]

    @property
    def number(self) -> int:
        """Its ordinal."""
        return self.stages[0]["pipeline"]

    @property
    def heading(self) -> str:
        """It and those like it, in words."""
        others = len(self.alike) - 1
        return f"pipeline {self.number}" + (f" + {others} similar" if others else "")

    def is_like(self, stages: Sequence[PartedPipelineRow]) -> bool:
        """Whether another pipeline's stages are similar, part by part."""
        return [row["stage"] for row in self.stages] == [row["stage"] for row in stages] and all(
            abs(own[part] - other[part]) <= ALIKE * own["span_ns"]
            for own, other in zip(self.stages, stages, strict=True)
            for part in _LENGTHS
        )


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One stage: the pieces from 0 to its span.

    Attributes:
        row: its row of the table ``pipelines``.
        edges_ns: 0, the ideal, and the sum after each part; the last one is the span.
    """

    row: PartedPipelineRow
    edges_ns: Sequence[int]

    @classmethod
    def of(cls, row: PartedPipelineRow) -> Waterfall:
        """The pieces of a row whose bubble is known."""
        edges = np.cumsum([0, row["ideal_ns"], *(row[name] for name, _, _ in PARTS)]).tolist()
        return cls(row, edges)


def chosen_pipelines(known: Sequence[PartedPipelineRow], lead: Lead) -> list[DrawnPipeline]:
    """The pipelines to draw: of too many, the longest of those that are similar, and of too many such, the longest.

    Those of ranks at fault come first, and represent those that are similar.
    """

    def turn(stages: Sequence[PartedPipelineRow]) -> int:
        return min(lead.place(row["rank"]) for row in stages)

    groups: dict[int, list[PartedPipelineRow]] = {}
    for row in sorted(known, key=lambda row: row["stage"]):
        groups.setdefault(row["pipeline"], []).append(row)
    longest = sorted(groups.items(), key=lambda item: (turn(item[1]), -max(row["span_ns"] for row in item[1]), item[0]))
    folded: list[DrawnPipeline] = []
    for number, stages in longest:
        place = next((at for at, one in enumerate(folded) if len(known) > MOST_ROWS and one.is_like(stages)), None)
        if place is None:
            folded.append(DrawnPipeline(stages, [number]))
        else:
            folded[place] = DrawnPipeline(folded[place].stages, [*folded[place].alike, number])
    chosen: list[DrawnPipeline] = []
    for pipeline in folded:
        if not chosen or sum(len(one.stages) for one in chosen) + len(pipeline.stages) <= MOST_ROWS:
            chosen.append(pipeline)
    return sorted(chosen, key=lambda pipeline: (turn(pipeline.stages), pipeline.number))


def bubble_finding(known: Sequence[PartedPipelineRow], slowest: StageTime | None) -> str:
    """The bubble of the pipelines of a step in a sentence, and the stage that computes longest."""
    span = sum(row["span_ns"] for row in known)
    totals = {word: sum(row[name] for row in known) for name, word, _ in PARTS}
    largest = max(totals, key=lambda word: totals[word])
    bubble = sum(row["bubble_ns"] for row in known)
    if bubble <= 0:
        text = "The pipelines' time is no longer than their mean stages need: no bubble"
    else:
        most = "most of it" if 2 * totals[largest] > bubble else "its largest part"
        text = f"{share(bubble, span)} of the pipelines' time is bubble, {most} {largest}"
        text += f" ({share(totals[largest], span)})"
    if slowest is not None:
        who = (
            f"stage {slowest.stage}"
            if slowest.rank is None
            else f"rank {slowest.rank}, the only one measured of stage {slowest.stage},"
        )
        excess = share(round(slowest.excess * 1e6), 1_000_000)
        text += f"; {who} computes {excess} longer than the mean stage"
    return text
