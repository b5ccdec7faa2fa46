"""Traces that a command was given, analysed rank by rank into a lake that is gone afterwards."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.analyze.peaks import BUILT_IN
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import topology_tables
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.home_settings import home_peaks
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.workers import IterationTask, analyse_ranks
from traceviz_dag.tables import (
    TOPOLOGY_TABLES,
)


def analysed_into(folder: Path, inputs: IterationInputs, rules: Path | None, home: Path | None) -> Lake:
    """An iteration's traces, analysed rank by rank into a lake of their own.

    Args:
        rules: TOML file of rules that are tried before the built-in ones. home: whose peaks of GPUs count.

    Raises:
        BadInputError: none of its ranks can be used.
    """
    lake = open_lake(folder)
    topology = read_topology(inputs, home=home)
    for name, table in zip(TOPOLOGY_TABLES, topology_tables(topology), strict=True):
        lake.write(name, table, run=inputs.run, iteration=inputs.iteration)
    peaks = home_peaks(home) if home is not None else BUILT_IN
    task = IterationTask(lake.home, inputs.run, inputs.iteration, topology, load_rules(rules), peaks=peaks)
    traces = rank_traces(inputs, {entry.rank for entry in inputs.ranks}, home)
    outcomes = list(analyse_ranks(task, traces))
    if all(outcome.failed for outcome in outcomes):
        fault = f"no rank of {inputs.key} can be used ({outcomes[0].fault})"
        raise BadInputError(inputs.folder, fault, "export them again")
    return lake
