"""Periods of the pairs that a user named, from tables, files of time stamps or annotations of the traces."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from traceviz_dag.analyze.pipelines.named_pairs import (
    RANGES,
    annotation_ranges,
    named_range_periods,
    named_table_periods,
    stamped_periods,
)
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.read.pairs_file import NamedPair, StageSelector, Stamp, read_stamps
from traceviz_dag.tables import PERIODS


def named_periods(iteration: StoredIteration, pairs: Sequence[NamedPair], periods: pa.Table | None = None) -> pa.Table:
    """The periods of the pairs that a user named.

    Args:
        periods: the iteration's table of that name; by default as it is in the lake, else computed.

    Raises:
        BadInputError: a file of time stamps or a trace with the annotations cannot be read.
    """
    parts, ranges = [PERIODS.schema.empty_table()], None
    for pair in pairs:
        if pair.stage0 is None or pair.stage1 is None:
            periods = iteration.table("periods") if periods is None else periods
            parts.append(named_table_periods(pair, periods.select(PERIODS.schema.names)))
        elif pair.timestamps is not None:
            parts.append(stamped_periods(pair, _stamps(pair, pair.stage0), _stamps(pair, pair.stage1)))
        else:
            ranges = _annotations(iteration) if ranges is None else ranges
            parts.append(named_range_periods(pair, ranges))
    return pa.concat_tables(parts)


def _stamps(pair: NamedPair, selector: StageSelector) -> list[Stamp]:
    assert pair.timestamps is not None
    stamps = read_stamps(pair.timestamps, selector.pattern, pair.time_unit_ns)
    return [stamp for stamp in stamps if selector.rank in (None, stamp.rank)]


def _annotations(iteration: StoredIteration) -> pa.Table:
    """The annotations of all ranks, from the traces themselves."""
    # What reads traces takes as long to import as all the rest of a command.
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.pipeline.iteration import rank_traces
    from traceviz_dag.pipeline.ranks import read_events

    if iteration.inputs is None:
        return RANGES.empty_table()
    traces = rank_traces(iteration.inputs, {entry.rank for entry in iteration.inputs.ranks}, iteration.lake.home)
    rules = load_rules()
    parts = [
        annotation_ranges(read_events(trace, iteration.topology, rules, every_annotation=True), trace.rank)
        for trace in traces
    ]
    return pa.concat_tables([RANGES.empty_table(), *parts])
