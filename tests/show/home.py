"""A home whose lake is filled without Dagster: every step of the way, called by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import topology_tables
from traceviz_dag.lake.inputs import IterationInputs, register
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.queries import runs
from traceviz_dag.pipeline.across_ranks import StoredIteration, analyse_across_ranks
from traceviz_dag.pipeline.aggregates import measured_iteration
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.workers import IterationTask, analyse_into_lake


def fill_home(home: Path, paths: Sequence[Path]) -> list[IterationInputs]:
    """Analyse traces into a home and register them."""
    rules, lake = load_rules(None), open_lake(home)
    found = inputs_below(paths)
    for inputs in found:
        register(home, inputs)
        topology = read_topology(inputs)
        place = {"run": inputs.run, "iteration": inputs.iteration}
        for name, table in zip(("topology", "process_groups"), topology_tables(topology), strict=True):
            lake.write(name, table, **place)
        task = IterationTask(home, inputs.run, inputs.iteration, topology, rules)
        for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}):
            analyse_into_lake(task, trace)
        for name, query in (("iterations", measured_iteration), ("runs", runs)):
            lake.write(name, query(lake, inputs.run, inputs.iteration), **place)
        stored = StoredIteration(lake, inputs.run, inputs.iteration, inputs)
        for name, table in analyse_across_ranks(stored).items():
            lake.write(name, table, **place)
    lake.refresh_catalogue()
    return found
