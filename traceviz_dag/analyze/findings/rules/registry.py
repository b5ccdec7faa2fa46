"""All rules, in the order in which people read them. A new rule is a file beside this one, and a name here."""

from __future__ import annotations

from traceviz_dag.analyze.findings.fragments import MEASURED
from traceviz_dag.analyze.findings.rule import Rule
from traceviz_dag.analyze.findings.rules import (
    congestion,
    copies,
    environment,
    expert_load,
    exposed_communication,
    hidden_sync,
    host_path,
    host_pauses,
    host_waits,
    idle,
    kernels,
    launch_bound,
    memory_fragmentation,
    memory_headroom,
    memory_imbalance,
    memory_leak,
    not_on_period,
    slow_group,
    slow_link,
    slow_rank,
    slow_stage,
    tail,
    unexplained,
)
from traceviz_dag.analyze.findings.windows import WINDOWS

RULES: tuple[Rule, ...] = (
    environment.RULE,
    *(slow_rank.RULE, slow_group.RULE, slow_stage.RULE, slow_link.RULE, congestion.RULE, expert_load.RULE),
    *host_pauses.RULES,
    *(hidden_sync.RULE, launch_bound.RULE, host_path.RULE, tail.RULE),
    *(exposed_communication.RULE, not_on_period.RULE, unexplained.RULE),
    *(copies.RULE, idle.RULE, host_waits.RULE, *kernels.RULES),
    *(memory_leak.RULE, memory_fragmentation.RULE, memory_imbalance.RULE, memory_headroom.RULE),
)

SHARED = (MEASURED, WINDOWS, environment.KNOWN_SQL, host_pauses.UNNAMED_SQL, launch_bound.SQL)
"""Parts that stand in queries of several rules, each behind those that stand in it."""

RULE_NAMES = tuple(rule.name for rule in RULES)


def rule_named(name: str) -> Rule:
    """The rule of that name.

    Raises:
        KeyError: there is none.
    """
    return {rule.name: rule for rule in RULES}[name]


def rule_if_known(name: str) -> Rule | None:
    """The rule of that name; None where a table names one that this version does not have."""
    return next((rule for rule in RULES if rule.name == name), None)
