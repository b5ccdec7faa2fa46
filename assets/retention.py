"""Keeping house: old iterations go with everything that was made of them, and the room for partitions is watched."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import dagster as dg

from assets import groups
from assets.conventions import DATA_VERSION_TAG, IN_FLIGHT, OWNERS, RANGE_END_TAG, RANGE_START_TAG
from assets.partitions import iteration_partitions, rank_partitions, rank_trace_key
from assets.raw_traces import memory_snapshots, raw_traces, topology_files
from assets.recorded_tables import RECORDED, lost_tables, recorded_check
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from traceviz_dag.lake.inputs import IterationInputs, all_registered, forget
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.lake.under_way import is_under_way
from traceviz_dag.pipeline.home_settings import RetentionSettings
from traceviz_dag.pipeline.made import CODE_VERSION
from traceviz_dag.pipeline.nights.judging import references
from traceviz_dag.system.whole_files import remove_all_stale_temporaries
from traceviz_dag.tables import all_tables
from traceviz_dag.vocabulary import FIGURE_FORMATS

ROOM = "room_for_partitions"
MOST_PARTITIONS = 100_000
"""Partitions of an asset up to which Dagster stays quick: iterations times ranks."""

WARN_SHARE = 0.8

_PRUNED = "pruned"
_FETCHED = "fetched"
_MADE = (*(f".{each}" for each in FIGURE_FORMATS), ".pftrace.gz", ".lanes")
"""How the names of files end that are made of an iteration: figures, Perfetto traces, tiles of screens."""

_DAY_NS = 86_400 * 1_000_000_000
_ACTIVE_BACKFILLS = {"REQUESTED", "CANCELING", "FAILING"}
_PARTITION_TAGS = (
    "dagster/partition",
    RANGE_START_TAG,
    RANGE_END_TAG,
)


@dg.asset(
    name="retention",
    group_name=groups.NIGHTLY,
    owners=OWNERS,
    kinds={"python"},
    code_version=CODE_VERSION,
    description="Old iterations pruned by the policy of traceviz.toml, and how much room for partitions is left.",
    check_specs=[
        dg.AssetCheckSpec(
            ROOM,
            asset="retention",
            blocking=True,
            description=f"Iterations times ranks stay below {MOST_PARTITIONS:,} partitions. A failure fails the run.",
        ),
        dg.AssetCheckSpec(
            RECORDED, asset="retention", description="Every table that Dagster shows as materialised is in the lake."
        ),
    ],
)
@told_in_a_line
def retention(
    context: dg.AssetExecutionContext, traceviz: TracevizHome
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Prune what is older than the policy says, unless a run may be working on it; traces themselves stay."""
    settings = traceviz.settings()
    lake = traceviz.lake()
    every = list(all_registered(traceviz.folder))
    old = expired(every, references(lake, settings.nightly), settings.retention, time.time_ns())
    pruned, in_use = [], []
    for inputs in old:
        if prune(context.instance, lake, inputs, own_run=context.run.run_id):
            pruned.append(inputs.key)
        else:
            in_use.append(inputs.key)
    if pruned:
        lake.refresh_catalogue()
    partitions = _partitions(context.instance)
    yield dg.MaterializeResult(
        metadata={
            "pruned": len(pruned),
            "iterations": len(every) - len(pruned),
            "partitions": partitions,
            "pruned_iterations": dg.MetadataValue.json(pruned),
            "left_since_runs_are_under_way": dg.MetadataValue.json(in_use),
        }
    )
    yield room_check(partitions)
    kept = [inputs for inputs in every if inputs.key not in pruned]
    yield recorded_check(lost_tables(context.instance, lake, kept))


def expired(
    every: Sequence[IterationInputs], protected: Collection[str], settings: RetentionSettings, now_ns: int
) -> list[IterationInputs]:
    """The iterations whose newest trace is older than the policy keeps, oldest first.

    Args:
        protected: keys of iterations that stay however old they are.
        now_ns: ns since the epoch.
    """
    if settings.keep_days <= 0:
        return []
    numbers: dict[str, list[int]] = {}
    for inputs in every:
        numbers.setdefault(inputs.run, []).append(inputs.iteration)
    newest = {run: set(sorted(found, reverse=True)[: settings.keep_newest]) for run, found in numbers.items()}
    oldest_kept = now_ns - settings.keep_days * _DAY_NS
    old = [
        inputs
        for inputs in every
        if _changed_ns(inputs) < oldest_kept
        and inputs.iteration not in newest[inputs.run]
        and inputs.key not in protected
    ]
    return sorted(old, key=_changed_ns)


def _remove_made(folder: Path) -> None:
    """Remove what was made of an iteration, and the folders that are empty then; files of others stay."""
    if folder.is_symlink():
        # It leads to what is not below the home.
        return
    remove_all_stale_temporaries(folder)
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            if name.endswith(_MADE):
                Path(place, name).unlink(missing_ok=True)
        with suppress(OSError):
            Path(place).rmdir()


def prune(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, own_run: str = "") -> bool:
    """Remove an iteration: partition, lake files, figures, report, Perfetto traces, tiles; last its list of inputs.

    The partition goes first, so that nothing new is asked for, and comes back where a run was quicker. A crash in the
    middle leaves the list of inputs, and the next night goes on. The watched folder counts as done still: the
    iteration comes back, whole, only when its traces change.

    Args:
        own_run: a run that does not count as one under way.

    Returns:
        False, with nothing removed, where a command works on it, or a run that does, or does not say on what it works.
    """
    if is_under_way(lake.home, inputs.key) or is_in_use(instance, inputs.key, own_run):
        return False
    instance.delete_dynamic_partition("iteration", inputs.key)
    if is_in_use(instance, inputs.key, own_run):
        instance.add_dynamic_partitions("iteration", [inputs.key])
        return False
    # Imported here: matplotlib takes a second, and every run of every other asset would pay for it.
    from traceviz_dag.pipeline.figures import figures_folder
    from traceviz_dag.pipeline.perfetto_export import export_folder
    from traceviz_dag.pipeline.report import report_path
    from traceviz_dag.pipeline.screens import screens_folder

    lake.delete(*all_tables(), run=inputs.run, iteration=inputs.iteration)
    for made_of_it in (figures_folder, export_folder, screens_folder):
        _remove_made(made_of_it(lake.home, inputs.run, inputs.iteration))
    report_path(lake.home, inputs.run, inputs.iteration).unlink(missing_ok=True)
    for entry in inputs.files:
        path = Path(entry.path)
        if path.is_relative_to(lake.home / _FETCHED):
            path.unlink(missing_ok=True)
    # Dagster keeps the events of what is gone. With another data version last, the same traces are news again.
    tags = {DATA_VERSION_TAG: _PRUNED}
    partitions = [str(rank_trace_key(inputs.key, rank_key(entry.rank))) for entry in inputs.ranks]
    gone = [dg.AssetObservation(raw_traces.key, partition=partition, tags=tags) for partition in partitions]
    gone.append(dg.AssetObservation(topology_files.key, partition=inputs.key, tags=tags))
    if inputs.snapshots:
        gone.append(dg.AssetObservation(memory_snapshots.key, partition=inputs.key, tags=tags))
    for event in gone:
        instance.report_runless_asset_event(event)
    forget(lake.home, inputs.key)
    return True


def is_in_use(instance: dg.DagsterInstance, key: str, own_run: str = "") -> bool:
    """Whether a run or a backfill is under way that works on the iteration, or may."""
    return uses_of(instance, own_run)(key)


def uses_of(instance: dg.DagsterInstance, own_run: str = "") -> Callable[[str], bool]:
    """The same for keys of many iterations, of the runs and backfills of now."""
    if any(backfill.status.value in _ACTIVE_BACKFILLS for backfill in instance.get_backfills()):
        return lambda _: True
    runs = [run for run in instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT)) if run.run_id != own_run]
    return lambda key: any(_may_work_on(run, key) for run in runs)


def room_check(partitions: int) -> dg.AssetCheckResult:
    """How the number of partitions compares with what Dagster takes; a warning from four fifths on."""
    enough = partitions < WARN_SHARE * MOST_PARTITIONS
    remedy = "set or lower retention.keep_days in traceviz.toml, or give finished jobs a separate home"
    told = f"{partitions:,} partitions of {MOST_PARTITIONS:,}"
    full = partitions >= MOST_PARTITIONS
    return dg.AssetCheckResult(
        passed=enough,
        check_name=ROOM,
        severity=dg.AssetCheckSeverity.ERROR if full else dg.AssetCheckSeverity.WARN,
        description=told if enough else f"{told}; {remedy}",
        metadata={"partitions": partitions, "most": MOST_PARTITIONS},
    )


def _may_work_on(run: dg.DagsterRun, key: str) -> bool:
    """A run names one iteration, alone or as both ends of a range of its ranks; any other may work on every one."""
    named = {run.tags[tag].partition("|")[0] for tag in _PARTITION_TAGS if tag in run.tags}
    return len(named) != 1 or key in named


def _changed_ns(inputs: IterationInputs) -> int:
    return max((entry.changed_ns for entry in inputs.ranks), default=0)


def _partitions(instance: dg.DagsterInstance) -> int:
    iterations = instance.get_dynamic_partitions(str(iteration_partitions.name))
    return len(iterations) * len(instance.get_dynamic_partitions(str(rank_partitions.name)))
