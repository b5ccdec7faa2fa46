"""All trace formats that the pipeline reads: those of this package and those of others, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.pipeline.formats.absent import AbsentFormat
from traceviz_dag.pipeline.formats.kineto import KinetoFormat
from traceviz_dag.pipeline.formats.nsys import NsysFormat
from traceviz_dag.pipeline.formats.trace_format import RankTrace, TraceFormat
from traceviz_dag.read.formats import FALLBACK, format_of, plugin_formats
from traceviz_dag.tables import EXTRA_TABLES


@cache
def trace_formats() -> dict[str, TraceFormat]:
    """Name → format, in the order in which they place their files in a run's folder.

    Raises:
        UsageError: a format of others cannot be loaded, or lacks what the pipeline needs.
    """
    formats: list[TraceFormat] = [KinetoFormat(), NsysFormat()]
    for brought in plugin_formats():
        one = brought.thing
        if not isinstance(one, TraceFormat):
            raise brought.refused("it recognises files and cannot read them", "make it a TraceFormat: docs/formats.md")
        if unknown := sorted(set(one.extra_tables) - set(EXTRA_TABLES)):
            fault = f"extra_tables names {', '.join(unknown)}"
            raise brought.refused(fault, f"it may name {', '.join(EXTRA_TABLES)}")
        formats.append(one)
    return {one.name: one for one in formats}


def trace_format(name: str) -> TraceFormat:
    """The format of a name; for one that no installed package brings, a format of which every file is refused."""
    return trace_formats().get(name) or AbsentFormat(name)


def format_of_file(path: Path) -> TraceFormat:
    """The format that recognises a file or folder; the fallback, which says what is wrong with it, where none does."""
    one = format_of(path)
    return trace_format(one.name if one is not None else FALLBACK)


def format_of_trace(trace: RankTrace) -> TraceFormat:
    """The format that a rank was registered with; where it was not, that of its file."""
    return trace_format(trace.format) if trace.format else format_of_file(trace.path)


def stated_ranks(inputs: IterationInputs) -> Collection[int]:
    """Ranks that should have a trace, as the traces themselves state them; none where they do not."""
    stated = (one.expected_ranks(part.ranks) for one, part in by_format(inputs))
    return next(filter(None, stated), ())


def by_format(inputs: IterationInputs) -> Iterator[tuple[TraceFormat, IterationInputs]]:
    """The iteration once for each format that it has ranks of, with these ranks; in the order of their first ranks."""
    for name in dict.fromkeys(entry.format for entry in inputs.ranks):
        yield trace_format(name), replace(inputs, ranks=tuple(one for one in inputs.ranks if one.format == name))
