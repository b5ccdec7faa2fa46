"""What each communication kernel carries, over which process group, and which parallel dimension that serves."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, Integers, distinct, lookup, number_groups, rows_at
from traceviz_dag.classify.dimensions.communicator_use import Carried, decide_by_use
from traceviz_dag.classify.dimensions.dimension_evidence import (
    MOST_COUNT_ELEMENTS,
    MOST_ELEMENTS_OF_ONE,
    MOST_MAXIMA_ELEMENTS,
    RANKS_AND_USE,
    DimensionDecision,
    DimensionEvidence,
    GroupFacts,
    Size,
)
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.operators import packs_sequences
from traceviz_dag.classify.rules import FrameRule, Rules
from traceviz_dag.classify.topology.group_dimensions import group_kind
from traceviz_dag.classify.topology.types import Group, Topology
from traceviz_dag.classify.topology.unite import group_dimension
from traceviz_dag.read.events import MISSING, USER_ANNOTATION, CollectiveFacts, TraceEvents
from traceviz_dag.read.host_tree import HostTree
from traceviz_dag.vocabulary import Dimension, Evidence, Phase, TopologySource

_PHASES = tuple(Phase)
_NO_PHASE = _PHASES.index(Phase.UNKNOWN)
_SIZES = tuple(Size)
_OF_GROUPS = frozenset({Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.PP})
"""Dimensions whose groups carry nothing else that a call stack would not show."""
_COMBINED_GROUPS = frozenset({"tp_cp", "tp_dp", "tp_dp_cp", "etp_ep"})
_EXPERT_DIMENSIONS = frozenset({Dimension.EP, Dimension.ETP, Dimension.EDP})
_EXPERT_OPERATORS = ("_AllToAll", "_AllToAllBackward")
_COLLECTIVE_CALL = re.compile(r"(?:c10d::|nccl:)\w*?(?:all_?to_?all|all_?gather|reduce_?scatter|all_?reduce|broadcast)")
_OPEN_NAME = re.compile("nccl.*(?:SendRecv|Generic)", re.I)
"""Names under which NCCL and RCCL run every operation."""
_GATHERS, _SCATTERS = re.compile(r"all_?gather", re.I), re.compile(r"reduce_?scatter", re.I)
_SHARDED = "parameters_gathered_and_gradients_scattered"
_OF_THE_MODEL = frozenset({Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.PP})
_EXPERT_FRAMES = ("expert_all_to_all", "expert_all_to_all_operator")
_STATE_SPACES = ("mamba", "gated_delta", "gateddelta", "causal_conv1d")
"""Words of layers that turn parts of a sequence into parts of the heads, by the function that also moves tokens."""
_EXPERT_WORDS = ("moe", "expert", "groupedgemm", "grouped_gemm", "groupedlinear", "deep_ep", "hybrid_ep", "hybridep")


@dataclass(frozen=True, slots=True)
class JobGroups:
    """What the topology knows of a job's process groups.

    Attributes:
        dimension_of: (pg_name, pg_desc, ranks) → (dimension or unknown, candidates, rule).
        split: dimensions that the job is known to be split over, with groups of two ranks or more.
        absent: dimensions that it is known not to be split over; of all others nothing is known.
        members: dimension → the members of its groups that are known, of two ranks or more.
    """

    dimension_of: Callable[[str | None, str | None, tuple[int, ...]], tuple[Dimension, tuple[Dimension, ...], str]]
    split: frozenset[Dimension]
    absent: frozenset[Dimension]
    members: Mapping[Dimension, tuple[frozenset[int], ...]] = field(default_factory=dict)


@lru_cache(maxsize=8)
def job_groups(topology: Topology) -> JobGroups:
    """The process groups of a job for the classification of its communication.

    Megatron describes the groups of all its dimensions; without descriptions only those are known that some source
    lists, be it with one member.
    """
    plain = [group for group in topology.groups if not _spans_dimensions(group)]
    split = frozenset(group.dimension for group in plain if group.size > 1)
    listed = frozenset(group.dimension for group in plain)
    described = any(
        group.source is TopologySource.DISTRIBUTED_INFO
        and group.description is not None
        and group.dimension not in (Dimension.WORLD, Dimension.UNKNOWN)
        for group in topology.groups
    )
    absent = (frozenset(Dimension) if described else listed) - split
    members = {
        dimension: tuple(frozenset(group.ranks) for group in plain if group.dimension is dimension and group.size > 1)
        for dimension in split
    }
    return JobGroups(partial(group_dimension, topology), split, absent, members)


def _spans_dimensions(group: Group) -> bool:
    """Whether a group has more than one rank as soon as one of several dimensions is split."""
    kind = group_kind(group.description)
    return kind is not None and kind.grid_group in _COMBINED_GROUPS


def complete_facts(trace: TraceEvents, tree: HostTree, launches: Launches, communication: Bool) -> CollectiveFacts:
    """The facts of each kernel: its own, else those of the ``record_param_comms`` operator around its launch.

    What neither states, an annotation inside the operator may, of a kernel whose name leaves its operation open.
    """
    own = trace.device.collective
    bare = communication & (own.collective == 0) & (own.group_name == 0) & (own.group_description == 0)
    is_annotation = trace.host.category[trace.communication_operators] == USER_ANNOTATION
    columns = {column.name: getattr(own, column.name).copy() for column in dataclasses.fields(CollectiveFacts)}
    open_ = np.zeros(len(trace.strings), dtype=bool)
    open_[[name for name in distinct(trace.device.name).tolist() if _OPEN_NAME.search(trace.strings[name])]] = True
    for among, wanted in ((~is_annotation, bare), (is_annotation, bare & open_[trace.device.name])):
        if not wanted.any():
            continue
        operator_of_row = np.full(len(trace.host), NONE, dtype=np.int64)
        operator_of_row[trace.communication_operators[among]] = np.flatnonzero(among)
        around = lookup(tree.nearest(operator_of_row[tree.rows] >= 0), np.where(wanted, launches.position, NONE))
        operator = lookup(operator_of_row, lookup(tree.rows, around))
        for name, values in columns.items():
            unknown = (operator >= 0) & (values == (0 if values.dtype == np.int32 else MISSING))
            values[unknown] = getattr(trace.operator_facts, name)[operator[unknown]]
    return CollectiveFacts(**columns)


def stated_operations(trace: TraceEvents, tree: HostTree, launches: Launches, facts: CollectiveFacts) -> Int64:
    """The code of each kernel's operation: what its facts state, else the nearest operator or annotation around its
    launch that names a collective, else 0.

    NCCL runs an all-to-all as SendRecv, and RCCL everything as Generic: their names alone say less.
    """
    names_one = np.array([_COLLECTIVE_CALL.match(name) is not None for name in trace.strings], dtype=bool)
    around = lookup(tree.nearest(names_one.take(trace.host.name[tree.rows])), launches.position)
    called = lookup(trace.host.name.astype(np.int64), lookup(tree.rows, around), 0)
    return np.where(facts.collective == 0, called, facts.collective)


def decide_dimensions(
    trace: TraceEvents,
    facts: CollectiveFacts,
    operation: Int64,
    frame_rule: Int64,
    kernel_rule: Int64,
    phase: Int64,
    rows: Int64,
    rules: Rules,
    groups: JobGroups,
) -> tuple[list[DimensionDecision], Int64]:
    """Decide the dimension of each communication.

    In order: a frame that knows its group's dimension better; the process group; the frame; what the same group carries
    elsewhere; the size of the message; what else the stream carries; the kernel's own name.

    Args:
        operation: per device row, as ``stated_operations`` has it.
        frame_rule: per device row, index of the nearest frame rule with a dimension or a role, or NONE.
        kernel_rule: per device row, index of its kernel rule, or NONE.
        phase: per device row, index into the phases of the vocabulary.
        rows: the communication rows.

    Returns:
        The distinct decisions, and per entry of ``rows`` the index of its own.
    """
    keys: list[Integers] = [
        facts.group_name[rows],
        facts.group_description[rows],
        facts.group_ranks[rows],
        operation[rows],
        frame_rule[rows],
        kernel_rule[rows],
        trace.device.name[rows],
        phase[rows],
        _sizes(facts, rows),
    ]
    first, which = number_groups(*keys)
    mixes = _mixes_sequences(trace)
    experts = _has_experts(trace, groups, mixes)
    # Attention splits sequences, and no group is for that alone: each micro-batch has a context of its own size.
    packs = packs_sequences(trace) or (
        Dimension.CP not in groups.split and any(name.startswith("AttnFuncWithC") for name in trace.strings)
    )
    frames = [_of_either(rule) if mixes and rule.name in _EXPERT_FRAMES else rule for rule in rules.frames]
    decisions = []
    of_groups = []

    @cache
    def group_of(name: int, description: int, ranks: int) -> GroupFacts:
        return _group(trace.strings, name, description, ranks, groups)

    for name, description, ranks, collective, frame, kernel, kernel_name, at, size in rows_at(first, keys):
        group = group_of(name, description, ranks)
        of_groups.append(group)
        decisions.append(
            DimensionEvidence(
                rules,
                groups.split,
                groups.absent if experts else groups.absent | _EXPERT_DIMENSIONS,
                frames[frame] if frame >= 0 else None,
                rules.kernels[kernel] if kernel >= 0 else None,
                trace.strings[collective] or trace.strings[kernel_name],
                _PHASES[at],
                _SIZES[size],
                packs,
            ).decide(group)
        )
    decisions = _from_same_groups(decisions, of_groups)
    decisions, which = _from_sizes(facts, rows, decisions, which)
    decisions, which = _from_streams(trace, rows, decisions, which)
    decisions, which = _sharded_data(trace, facts, operation, phase, rows, groups, decisions, which)
    alike = [*keys[:4], trace.device.name[rows]]
    which = _as_where_launches_are_known(alike, (frame_rule[rows] < 0) & (phase[rows] == _NO_PHASE), decisions, which)
    if all(decision.dimension is not Dimension.UNKNOWN for decision in decisions):
        return decisions, which
    carried, which = _carried(trace, facts, phase, rows, decisions, which, group_of)
    return decide_by_use(carried, rules, groups.members, experts=experts), which


def _sizes(facts: CollectiveFacts, rows: Int64) -> Int64:
    """How much each communication carries, as an index into ``_SIZES``."""
    elements = np.maximum(facts.in_elements[rows], facts.out_elements[rows])
    one = (elements > 0) & (elements <= MOST_ELEMENTS_OF_ONE)
    few = (elements > MOST_ELEMENTS_OF_ONE) & (elements <= MOST_MAXIMA_ELEMENTS)
    return np.where(one, _SIZES.index(Size.ONE), np.where(few, _SIZES.index(Size.FEW), _SIZES.index(Size.ANY)))


def _as_where_launches_are_known(
    alike: Sequence[Integers], lost: Bool, decisions: list[DimensionDecision], which: Int64
) -> Int64:
    """Of what the default group does without a known place, take what it serves wherever the same is launched.

    Args:
        alike: per communication what distinguishes it but for its place; equal columns are the same. lost: whether
            nothing shows where it was launched.
    """
    world = np.array([decision.dimension is Dimension.WORLD for decision in decisions], dtype=bool)[which]
    if not (lost & world).any() or lost.all():
        return which
    _, number = number_groups(*alike)
    result = which.copy()
    for one in np.unique(number[lost & world]).tolist():
        found = np.unique(which[(number == one) & ~lost]).tolist()
        if len({decisions[index].dimension for index in found}) == 1:
            result[(number == one) & lost & world] = found[0]
    return result


def _carried(
    trace: TraceEvents,
    facts: CollectiveFacts,
    phase: Int64,
    rows: Int64,
    decisions: list[DimensionDecision],
    which: Int64,
    group_of: Callable[[int, int, int], GroupFacts],
) -> tuple[list[Carried], Int64]:
    """What each process group carries, and per entry of ``rows`` the index of its own."""
    keys = [
        facts.group_name[rows],
        facts.group_description[rows],
        facts.group_ranks[rows],
        np.where(facts.collective[rows] == 0, trace.device.name[rows], facts.collective[rows]),
        phase[rows],
        which,
    ]
    first, place = number_groups(*keys)
    elements = np.full(len(first), MISSING, dtype=np.int64)
    np.maximum.at(elements, place, np.maximum(facts.in_elements[rows], facts.out_elements[rows]))
    carried = [
        Carried(
            group_of(name, description, ranks),
            trace.strings[collective],
            _PHASES[at],
            largest,
            decisions[index],
        )
        for (name, description, ranks, collective, at, index), largest in zip(
            rows_at(first, keys), elements.tolist(), strict=True
        )
    ]
    return carried, place


def _from_sizes(
    facts: CollectiveFacts, rows: Int64, decisions: list[DimensionDecision], which: Int64
) -> tuple[list[DimensionDecision], Int64]:
    """Take counts and barriers out of the candidates of what is too large to be one."""
    large = np.maximum(facts.in_elements[rows], facts.out_elements[rows]) > MOST_COUNT_ELEMENTS
    decisions, which = list(decisions), which.copy()
    for index in np.unique(which[large]).tolist():
        decision = decisions[index]
        left = tuple(candidate for candidate in decision.candidates if candidate is not Dimension.CONTROL)
        if decision.dimension is not Dimension.UNKNOWN or len(left) == len(decision.candidates):
            continue
        if len(left) == 1:
            decided = DimensionDecision(left[0], Evidence.PROCESS_GROUP, "too_large_for_a_count", role=decision.role)
        else:
            decided = dataclasses.replace(decision, candidates=left)
        decisions.append(decided)
        which[large & (which == index)] = len(decisions) - 1
    return decisions, which


def _mixes_sequences(trace: TraceEvents) -> bool:
    """Whether Megatron's all-to-all may also be that of state-space layers, which context parallelism splits."""
    if not any(name in _EXPERT_OPERATORS for name in trace.strings):
        return False
    names = "\n".join(trace.strings).lower()
    return any(word in names for word in _STATE_SPACES)


def _of_either(rule: FrameRule) -> FrameRule:
    """The rule of the all-to-all where it may move tokens to experts, or parts of sequences."""
    return dataclasses.replace(rule, dimension=None, collectives=(), among=(Dimension.CP, Dimension.EP), role=None)


def _has_experts(trace: TraceEvents, groups: JobGroups, mixes: bool) -> bool:
    """Whether the job may be a mixture of experts: Megatron creates groups for experts in every job."""
    if Dimension.EP in groups.split:
        return True
    if not mixes and any(name in _EXPERT_OPERATORS for name in trace.strings):
        return True
    names = "\n".join(trace.strings).lower()
    return any(word in names for word in _EXPERT_WORDS)


def _group(strings: tuple[str, ...], name: int, description: int, ranks: int, groups: JobGroups) -> GroupFacts:
    if not (name or description or ranks):
        return GroupFacts(None, Dimension.UNKNOWN, (), "no_group", given=False, members=())
    members = _members(strings[ranks])
    given = strings[name] or None
    facts = groups.dimension_of(given, strings[description] or None, members)
    return GroupFacts(given, *facts, given=True, members=members)


@lru_cache(maxsize=64)  # The ranks of a job have groups in common, above all that of all ranks.
def _members(ranks: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", ranks)))


def _sharded_data(
    trace: TraceEvents,
    facts: CollectiveFacts,
    operation: Int64,
    phase: Int64,
    rows: Int64,
    groups: JobGroups,
    decisions: list[DimensionDecision],
    which: Int64,
) -> tuple[list[DimensionDecision], Int64]:
    """Find data parallelism that is sharded over a group which nothing describes.

    It gathers parameters before a layer in both passes, and scatters gradients in the backward pass alone; sequences
    that are split over a tensor-parallel group are scattered in the forward pass, too. Nothing is said of a job that is
    known to split its model otherwise.
    """
    if groups.split & _OF_THE_MODEL or any(decision.dimension in _OF_THE_MODEL for decision in decisions):
        return decisions, which
    gathers, scatters = (
        np.array([pattern.search(name) is not None for name in trace.strings], dtype=bool)
        for pattern in (_GATHERS, _SCATTERS)
    )
    code = np.where(operation[rows] == 0, trace.device.name[rows], operation[rows])
    at = phase[rows]
    forward, backward = (at == _PHASES.index(one) for one in (Phase.FORWARD, Phase.BACKWARD))
    open_ = np.array([each.dimension in (Dimension.UNKNOWN, Dimension.WORLD) for each in decisions], dtype=bool)[which]
    keys = np.stack([facts.group_name[rows], facts.group_description[rows], facts.group_ranks[rows]])
    which, decisions = which.copy(), list(decisions)
    for key in np.unique(keys, axis=1).T:
        mine = (keys == key[:, None]).all(axis=0)
        known = key.any() and (mine & scatters[code] & backward).any() and (mine & gathers[code] & forward).any()
        if known and not (mine & scatters[code] & forward).any():
            told = mine & open_ & (gathers[code] | scatters[code])
            for index in np.unique(which[told]).tolist():
                role = decisions[index].role
                decisions.append(DimensionDecision(Dimension.DP, Evidence.PROCESS_GROUP, _SHARDED, role=role))
                which[told & (which == index)] = len(decisions) - 1
    return decisions, which


def _from_same_groups(decisions: list[DimensionDecision], of_groups: list[GroupFacts]) -> list[DimensionDecision]:
    """Give a communication of an undescribed group the dimension that call stacks, or collectives which only groups of
    one dimension have, show the group elsewhere."""
    told: dict[str, set[Dimension]] = {}
    for decision, group in zip(decisions, of_groups, strict=True):
        tells = decision.evidence is Evidence.CALL_STACK or decision.rule == RANKS_AND_USE
        if group.name is not None and tells:
            told.setdefault(group.name, set()).add(decision.dimension)
    result = []
    for decision, group in zip(decisions, of_groups, strict=True):
        dimensions = told.get(group.name or "", set())
        open_ = decision.dimension is Dimension.UNKNOWN and decision.evidence is Evidence.NONE
        if open_ and len(dimensions) == 1 and dimensions <= (_OF_GROUPS & set(decision.candidates or _OF_GROUPS)):
            (dimension,) = dimensions
            result.append(
                DimensionDecision(dimension, Evidence.PROCESS_GROUP, "same_group_elsewhere", (), decision.role)
            )
        else:
            result.append(decision)
    return result


def _from_streams(
    trace: TraceEvents, rows: Int64, decisions: list[DimensionDecision], which: Int64
) -> tuple[list[DimensionDecision], Int64]:
    """Give an undecided communication the dimension of what has its stream to itself.

    Only a known group shows it, since a communicator keeps to its stream: a role read from the call stack does not (one
    default group can carry both gradients and embeddings), unless the kernel's own name leaves few dimensions and this
    is one of them. On the compute stream groups mix.
    """
    undecided = np.array([d.dimension is Dimension.UNKNOWN and d.evidence is Evidence.NONE for d in decisions])
    if not len(rows) or not undecided.any():
        return decisions, which
    device = trace.device
    stream_key = device.device * 1_000_003 + device.stream
    mixed = np.unique(np.delete(stream_key, rows))
    open_rows = undecided[which]
    decisions, which = list(decisions), which.copy()
    for key in np.setdiff1d(stream_key[rows][open_rows], mixed).tolist():
        on_stream = stream_key[rows] == key
        others = [decisions[index] for index in np.unique(which[on_stream & ~open_rows]).tolist()]
        known = {decision.dimension for decision in others}
        if len(known) != 1 or not known.isdisjoint({Dimension.WORLD, Dimension.UNKNOWN}):
            continue
        by_group = all(decision.evidence is Evidence.PROCESS_GROUP for decision in others)
        for index in np.unique(which[on_stream & open_rows]).tolist():
            candidates = decisions[index].candidates
            fitting = known.intersection(candidates) if candidates else known if by_group else set()
            if len(fitting) == 1:
                decisions.append(DimensionDecision(fitting.pop(), Evidence.STREAM_GROUP, "only_group_on_stream"))
                which[on_stream & (which == index)] = len(decisions) - 1
    return decisions, which
