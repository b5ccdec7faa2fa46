"""What each communication kernel carries, over which process group, and which parallel dimension that serves."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from traceviz_dag.classify.host_tree import NONE, Bool, HostTree, nearest, take
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.rules import FrameRule, KernelRule, Rules
from traceviz_dag.classify.topology import group_dimension
from traceviz_dag.classify.topology_types import Topology
from traceviz_dag.read.events import CollectiveFacts, Int64, TraceEvents
from traceviz_dag.vocabulary import Dimension, Evidence


@dataclass(frozen=True, slots=True)
class JobGroups:
    """What the topology knows of a job's process groups.

    Attributes:
        dimension_of: (pg_name, pg_desc, ranks) → (dimension or unknown, candidates, rule).
        split: dimensions that the job is split over, with groups of two ranks or more; None where that is unknown.
    """

    dimension_of: Callable[[str | None, str | None, tuple[int, ...]], tuple[Dimension, tuple[Dimension, ...], str]]
    split: frozenset[Dimension] | None


def job_groups(topology: Topology) -> JobGroups:
    """The process groups of a job for the classification of its communication."""
    split = frozenset(group.dimension for group in topology.groups if group.size > 1)
    known = any(group.dimension not in (Dimension.WORLD, Dimension.UNKNOWN) for group in topology.groups)
    return JobGroups(partial(group_dimension, topology), split if known else None)


@dataclass(frozen=True, slots=True)
class DimensionDecision:
    """The dimension of a communication and why."""

    dimension: Dimension
    evidence: Evidence
    rule: str
    candidates: tuple[Dimension, ...] = ()
    role: str | None = None


def complete_facts(trace: TraceEvents, tree: HostTree, launches: Launches, communication: Bool) -> CollectiveFacts:
    """The facts of each kernel: its own, else those of the ``record_param_comms`` operator around its launch."""
    own = trace.device.collective
    bare = communication & (own.collective == 0) & (own.group_name == 0) & (own.group_description == 0)
    operator_of_row = np.full(len(trace.host), NONE, dtype=np.int64)
    operator_of_row[trace.communication_operators] = np.arange(len(trace.communication_operators))
    marked = operator_of_row[tree.rows] >= 0
    around = take(nearest(marked, tree.parent), np.where(bare, launches.position, NONE))
    operator = take(operator_of_row, take(tree.rows, around))
    borrowed = operator >= 0
    columns = {}
    for field in dataclasses.fields(CollectiveFacts):
        values = getattr(own, field.name).copy()
        values[borrowed] = getattr(trace.operator_facts, field.name)[operator[borrowed]]
        columns[field.name] = values
    return CollectiveFacts(**columns)


def decide_dimensions(
    trace: TraceEvents,
    facts: CollectiveFacts,
    frame_rule: Int64,
    kernel_rule: Int64,
    rows: Int64,
    rules: Rules,
    groups: JobGroups,
) -> tuple[list[DimensionDecision], Int64]:
    """Decide the dimension of each communication.

    In order: a frame that knows its group's dimension better; the process group; the frame; what else the stream
    carries; the kernel's own name.

    Args:
        frame_rule: per device row, index of the nearest frame rule with a dimension or a role, or NONE.
        kernel_rule: per device row, index of its kernel rule, or NONE.
        rows: the communication rows.

    Returns:
        The distinct decisions, and per entry of ``rows`` the index of its own.
    """
    keys = np.stack(
        [
            facts.group_name[rows],
            facts.group_description[rows],
            facts.group_ranks[rows],
            facts.collective[rows],
            frame_rule[rows],
            kernel_rule[rows],
            trace.device.name[rows],
        ]
    )
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    known: dict[tuple[int, ...], _Group] = {}
    decisions = []
    for name, description, ranks, collective, frame, kernel, kernel_name in distinct.T.tolist():
        key = (name, description, ranks)
        if key not in known:
            known[key] = _group(trace.strings, *key, groups)
        decisions.append(
            _Decider(
                rules,
                groups.split,
                rules.frames[frame] if frame >= 0 else None,
                rules.kernels[kernel] if kernel >= 0 else None,
                trace.strings[collective] or trace.strings[kernel_name],
            ).decide(known[key])
        )
    return _from_streams(trace, rows, decisions, which.reshape(-1))


@dataclass(frozen=True, slots=True)
class _Group:
    """What the topology says of one process group; ``given`` is False where the kernel names none."""

    dimension: Dimension
    candidates: tuple[Dimension, ...]
    rule: str
    given: bool


def _group(strings: tuple[str, ...], name: int, description: int, ranks: int, groups: JobGroups) -> _Group:
    if not (name or description or ranks):
        return _Group(Dimension.UNKNOWN, (), "no_group", given=False)
    members = tuple(int(number) for number in re.findall(r"\d+", strings[ranks]))
    return _Group(*groups.dimension_of(strings[name] or None, strings[description] or None, members), given=True)


@dataclass(frozen=True, slots=True)
class _Decider:
    """The evidence for one kind of communication besides its group."""

    rules: Rules
    split: frozenset[Dimension] | None
    frame: FrameRule | None
    kernel: KernelRule | None
    collective: str

    def decide(self, group: _Group) -> DimensionDecision:
        """Weigh frame, group and name, in this order of trust where they speak; see ``decide_dimensions``."""
        frame = self.frame
        told = frame.dimension_of(self.collective) if frame is not None else None
        role = frame.role if frame is not None and (told is not None or not frame.collectives) else None
        if frame is not None and told is not None:
            decision = self._by_frame(frame, told, group, role)
            if decision is not None:
                return decision
        if group.dimension is not Dimension.UNKNOWN:
            better = self.rules.of_group(group.dimension, self.collective)
            dimension, rule = better or (group.dimension, group.rule)
            return DimensionDecision(dimension, Evidence.PROCESS_GROUP, rule, role=role)
        if group.candidates:
            return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, group.rule, group.candidates, role)
        return self._by_name(group, role)

    def _by_name(self, group: _Group, role: str | None) -> DimensionDecision:
        frame, kernel = self.frame, self.kernel
        if frame is not None and frame.among and not group.given:
            return self._one_among(frame.among, Evidence.ANNOTATION, frame.name)
        if kernel is not None and kernel.dimension is not None:
            return DimensionDecision(kernel.dimension, Evidence.KERNEL_NAME, kernel.name, role=role)
        if kernel is not None and kernel.among and not group.given:
            return self._one_among(kernel.among, Evidence.KERNEL_NAME, kernel.name)
        return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, group.rule, role=role)

    def _by_frame(self, frame: FrameRule, told: Dimension, group: _Group, role: str | None) -> DimensionDecision | None:
        known = group.dimension is not Dimension.UNKNOWN
        overridden = "*" in frame.overrides or (known and group.dimension in frame.overrides)
        fits = not known and (not group.candidates or told in group.candidates)
        # A frame says dp for dense and expert gradients alike; with both possible only the category is known.
        if not overridden and fits and told is Dimension.DP and Dimension.EDP in group.candidates:
            both = (Dimension.DP, Dimension.EDP)
            return DimensionDecision(Dimension.UNKNOWN, Evidence.CALL_STACK, frame.name, both, role)
        if overridden or fits:
            return DimensionDecision(told, Evidence.CALL_STACK, frame.name, role=role)
        return None

    def _one_among(self, among: tuple[Dimension, ...], evidence: Evidence, rule: str) -> DimensionDecision:
        """The one of several dimensions that the job is split over; unknown where that is none, several or unknown."""
        possible = tuple(dimension for dimension in among if self.split is None or dimension in self.split)
        if self.split is not None and len(possible) == 1:
            return DimensionDecision(possible[0], evidence, rule)
        return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, rule, possible)


def _from_streams(
    trace: TraceEvents, rows: Int64, decisions: list[DimensionDecision], which: Int64
) -> tuple[list[DimensionDecision], Int64]:
    """Give an undecided communication the dimension of the process group that has its stream to itself.

    Only a known group tells, since a communicator keeps to its stream: a role read from the call stack does not (one
    default group can carry gradients and embeddings alike), and on the compute stream groups mix.
    """
    undecided = np.array([d.dimension is Dimension.UNKNOWN and not d.candidates for d in decisions], dtype=bool)
    if not undecided.any() or not len(rows):
        return decisions, which
    device = trace.device
    stream_key = device.device * 1_000_003 + device.stream
    mixed = np.unique(np.delete(stream_key, rows))
    open_rows = undecided[which]
    decisions, which = list(decisions), which.copy()
    for key in np.unique(stream_key[rows][open_rows]).tolist():
        on_stream = stream_key[rows] == key
        others = [decisions[index] for index in np.unique(which[on_stream & ~open_rows]).tolist()]
        known = {decision.dimension for decision in others}
        by_group = all(decision.evidence is Evidence.PROCESS_GROUP for decision in others)
        if len(known) != 1 or not by_group or Dimension.WORLD in known or np.isin(key, mixed):
            continue
        decisions.append(DimensionDecision(known.pop(), Evidence.STREAM_GROUP, "only_group_on_stream"))
        which[on_stream & open_rows] = len(decisions) - 1
    return decisions, which
