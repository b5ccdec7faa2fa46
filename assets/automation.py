"""When automation computes what: one named condition a stage, each clause with its reason.

The conditions judge by data versions, not by time: a trace with a new time of change and the old content, or a
topology that came out as before, sets nothing in motion.

Of every step that automation runs, the lead bears one of the conditions; see ``traceviz_dag/pipeline/steps.py``. A
condition asks of the leads that it depends on whether they are still to come, since Dagster remembers requests only of
assets that bear a condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import dagster as dg

from assets import groups
from assets.conventions import AT_ONCE_TAG, ONLY_STALE_TAG
from traceviz_dag.pipeline.home_settings import HomeSettings
from traceviz_dag.pipeline.steps import LEADS, STEPS, lead_of

_Condition = dg.AutomationCondition

_SOURCES = dg.AssetSelection.groups(groups.SOURCES, include_sources=True)
_RULES = dg.AssetSelection.assets("classification_rules")
_TRACES = dg.AssetSelection.assets("raw_traces")
_RANK_TABLES = dg.AssetSelection.groups(groups.RANKS)
_RANKS = dg.AssetSelection.assets(lead_of("kernels"))
_MEMORY = dg.AssetSelection.assets(lead_of("memory_peaks"))
_OTHER_TABLES = dg.AssetSelection.assets(*(name for tables in STEPS.values() for name in tables if name not in LEADS))
"""Those that bear no condition, since a lead speaks for them."""

INPUT_CHANGED = (
    _Condition.any_deps_match(_Condition.data_version_changed()).ignore(_RULES).with_label("an input has other content")
)
"""Something that the partition is made of has another data version than at the last look. A trace that is seen for the
first time counts: a late rank changes its iteration."""

RULES_CHANGED = (
    _Condition.any_deps_match(_Condition.data_version_changed() & ~(~_Condition.missing()).newly_true())
    .allow(_RULES)
    .with_label("the rules are others")
)
"""The rule table changed. The first observation of it is no change: every rank records the rules that it was made with,
and whoever starts automation on a home that the command line filled must not have all of it computed again."""

NEEDED = (
    _Condition.missing().newly_true() | INPUT_CHANGED | RULES_CHANGED | _Condition.code_version_changed()
).with_label("needed")
"""What sets a partition in motion, on the tick on which it happens: it appeared without having been computed (at the
first tick, that is every partition that was there already, so a cold start needs no hand), an input or the rules
changed, or this code did."""

COMPUTED_AT_ONCE = _Condition.all_new_updates_have_run_tags(tag_values={AT_ONCE_TAG: "true"}).with_label(
    "computed when it was registered"
)
"""The run that registered a new iteration recorded it, after what it is made of. No other run registers anything
before a look has seen that, so that a change of it comes to a later look, and is a need again. A change that does not
wait takes the tag away before it becomes known."""

PENDING = NEEDED.since((_Condition.newly_requested() & ~NEEDED) | COMPUTED_AT_ONCE).with_label(
    "needed and not yet requested"
)
"""Remembers the need until it is answered. Only a request answers it, and not one of the tick before a further change:
were any materialization an answer, a change during a run would be lost with the end of that run, and were any request
one, a change on the tick after it would be."""

IDLE = (~_Condition.in_progress() & ~_Condition.any_deps_in_progress()).with_label("nothing under way")
"""Neither the partition nor what it is made of is being computed: two writers of a partition waste work, and a result
made of half-renewed inputs would be computed again at once."""

_INPUTS_EXIST = (~_Condition.any_deps_missing().ignore(_RULES)).with_label("inputs exist")


def _once_settled(there: _Condition, nothing_to_come: _Condition | None, label: str) -> _Condition:
    """A need that is answered when nothing is in its way, on the tick after the one that saw the last of it.

    A tick sees events only up to its beginning, but runs and partitions as they are when it comes to them. What made a
    partition ready may thus bring changes that only the next tick sees, and a request before it would be made twice.

    Args:
        there: what the partition is made of is there, and nothing under way.
        nothing_to_come: none of that is about to be computed.
    """
    condition = PENDING & ~NEEDED & there & ~there.newly_true()
    return (condition if nothing_to_come is None else condition & nothing_to_come).with_label(label)


TOPOLOGY_NEEDED = _once_settled(
    # Keys of ranks reach from 0 to the highest of all iterations, so most iterations lack some: one trace is enough.
    _Condition.any_deps_match(~_Condition.missing()).allow(_TRACES) & IDLE,
    None,
    "topology: traces are registered, and they or the text file changed",
)

RANKS_NEEDED = _once_settled(
    # Leaves out the pairs of iteration and rank that have no trace, and waits for the first topology.
    _INPUTS_EXIST & IDLE,
    # A changed trace may change the topology: what depends on it comes after, and once.
    ~_Condition.any_deps_match(PENDING).ignore(_SOURCES | _OTHER_TABLES),
    "by rank: the trace, the topology, the rules or the code changed",
)
"""For everything with a partition for each iteration and rank."""

ITERATION_NEEDED = _once_settled(
    _Condition.any_deps_match(~_Condition.missing()).allow(_RANKS) & IDLE,
    # A rank that has a trace and no tables is still to come, or failed: aggregates without it would mislead.
    ~_Condition.any_deps_match(_INPUTS_EXIST & (_Condition.missing() | PENDING)).allow(_RANKS)
    # The same for what else it is made of, one partition an iteration.
    & ~_Condition.any_deps_match(_Condition.missing() | PENDING).ignore(
        _RANK_TABLES | _SOURCES | _OTHER_TABLES | _MEMORY
    )
    # Most iterations have no snapshots of GPU memory.
    & ~_Condition.any_deps_match(_INPUTS_EXIST & (_Condition.missing() | PENDING)).allow(_MEMORY),
    "by iteration: a rank or the topology changed, and none is still to come",
)
"""For everything with a partition for each iteration that is made from tables of its ranks, whatever else it needs."""

PICTURES_NEEDED = _once_settled(
    (~_Condition.any_deps_missing()).with_label("inputs exist") & IDLE,
    ~_Condition.any_deps_match(PENDING).ignore(_OTHER_TABLES),
    "across ranks: one of the tables changed, and none is still to come",
)
"""For what is made from tables of the iteration alone."""

SNAPSHOTS_NEEDED = _once_settled(
    (~_Condition.any_deps_missing()).with_label("inputs exist") & IDLE,
    None,
    "by iteration: a snapshot of GPU memory appeared or changed",
)
"""For what is made from snapshots alone."""

FIGURES_GROUP = groups.FIGURES

AUTOMATION = "automation"
"""Name of the sensor."""


def automation_sensor(settings: HomeSettings) -> dg.AutomationConditionSensorDefinition:
    """The sensor that evaluates the conditions; it runs unless switched off, where there is a root to watch."""
    return dg.AutomationConditionSensorDefinition(
        AUTOMATION,
        target=dg.AssetSelection.all(),
        description="Requests what changed traces, topology, rules or code make necessary.",
        minimum_interval_seconds=settings.automation_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.watch else dg.DefaultSensorStatus.STOPPED,
        # What the command line computed meanwhile, or what was there before a crash, is not computed again.
        run_tags={ONLY_STALE_TAG: "true"},
    )


def with_freshness(assets: Iterable[dg.AssetsDefinition], settings: HomeSettings) -> list[dg.AssetsDefinition]:
    """The assets, with what is expected of a place where jobs deliver every night; without roots nothing is."""
    return [asset.map_asset_specs(_with_policy) for asset in assets] if settings.watch else list(assets)


def without_pictures(assets: Iterable[dg.AssetsDefinition], settings: HomeSettings) -> list[dg.AssetsDefinition]:
    """The assets, whose figures nothing draws by itself where ``figures.automatic`` is off."""
    return list(assets) if settings.figures.automatic else [asset.map_asset_specs(_by_hand) for asset in assets]


def _by_hand(spec: dg.AssetSpec) -> dg.AssetSpec:
    return spec.replace_attributes(automation_condition=None) if spec.group_name == FIGURES_GROUP else spec


_POLICIES = {
    # A verdict a night, at most as much later as the night may wait for its last iteration.
    "nights": dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=25), fail_window=timedelta(hours=28)),
    # The training jobs delivered: one night without traces is worth a look, two are a fault.
    "iterations": dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50)),
}


def _with_policy(spec: dg.AssetSpec) -> dg.AssetSpec:
    policy = _POLICIES.get(spec.key.to_user_string())
    return spec if policy is None else dg.apply_freshness_policy(spec, policy)
