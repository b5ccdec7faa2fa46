"""What assets that show an iteration have in common: partitions, group, and the tables that they wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import dagster as dg

from assets.automation import FIGURES_GROUP, ITERATION_NEEDED
from assets.conventions import OWNERS
from assets.partitions import iteration_partitions, table_of_iteration
from assets.step_faults import told_in_a_line
from traceviz_dag.pipeline.made import CODE_VERSION
from traceviz_dag.pipeline.steps import with_leads


def shows_iteration(
    name: str,
    tables: Iterable[str],
    description: str,
    kinds: set[str],
    condition: dg.AutomationCondition[dg.AssetKey] = ITERATION_NEEDED,
) -> Callable[[Callable[..., dg.MaterializeResult]], dg.AssetsDefinition]:
    """Decorate the function that shows an iteration: the asset that runs it, its faults reported in a line.

    Args:
        tables: what is shown; the asset comes after these.
        kinds: labels of the asset.
    """
    asset = dg.asset(
        name=name,
        deps=[table_of_iteration(table) for table in with_leads(tables)],
        partitions_def=iteration_partitions,
        group_name=FIGURES_GROUP,
        automation_condition=condition,
        owners=OWNERS,
        kinds=kinds,
        code_version=CODE_VERSION,
        description=description,
    )
    return lambda show: asset(told_in_a_line(show))
