"""The parts that a report has, in the order of their tabs. A part is a file here and a line below."""

from __future__ import annotations

from traceviz_dag.show.report.parts import (
    advice,
    against,
    clocks,
    coverage,
    efficiencies,
    findings,
    kernels,
    memory,
    overlap,
    overview,
    path,
    pipelines,
    timeline,
    waits,
    what_if,
)
from traceviz_dag.show.report.parts.part import Part

PARTS: tuple[Part, ...] = (
    *(overview.PART, timeline.PART, findings.PART, overlap.PART, waits.PART, pipelines.PART),
    *(path.PART, efficiencies.PART, kernels.PART, memory.PART, clocks.PART, coverage.PART, against.PART),
    *(what_if.PART, advice.PART),
)
