"""What speaks against comparing two sides: what they ran on, what they ran, and how they were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceviz_dag.analyze.findings.rules.environment import COMPARED, STATED
from traceviz_dag.analyze.wording import counted, share

Facts = Mapping[str, frozenset[str]]
"""What a side states of each thing, over its ranks and iterations; nothing where it does not state it."""

_OTHER_WORK = "the ranks do other work"
_RECORDING = "recording takes time, so that a change may be the profiler's"

REFUSED = {
    "world_size": ("number of ranks of the job", f"{_OTHER_WORK}; compare jobs of one size"),
    "layout": ("parallel sizes", f"{_OTHER_WORK}; compare jobs of one layout"),
    "microbatches": ("micro-batches per rank and step", "the steps hold unequal work; train with as many"),
    "ranks": ("ranks that were read", "sums and paths are of other ranks; record the same ones"),
    "step_kind": ("kind of steps", "they do not do the same; compare steps of one kind"),
    "device_name": (COMPARED["device_name"], "its kernels differ; record both on one model"),
    "recorder": ("profiler", f"{_RECORDING}; record both with one"),
    "has_stacks": (COMPARED["has_stacks"], f"{_RECORDING}; record both with or without them"),
    "has_shapes": (COMPARED["has_shapes"], f"{_RECORDING}; record both with or without them"),
    "has_memory_events": (COMPARED["has_memory_events"], f"{_RECORDING}; record both with or without it"),
    "has_host_rows": (COMPARED["has_host_rows"], f"{_RECORDING}; record both with or without it"),
}
"""Fact → what it is, and why sides that differ in it are not compared unless somebody asks; what to do instead."""

FLAGGED = {
    "layers": "most layers of a model chunk",
    "framework": "training framework",
    **{fact: words for fact, words in STATED.items() if fact not in REFUSED},
}
"""Fact → what it is: a difference in it may be the cause of a change, so that it is reported, and nothing refused."""

SETTING = "setting "
"""Facts whose names start so are settings of the job, flagged likewise."""

LEAST_SHARED, MOSTLY_SHARED = 0.5, 0.9
"""Sides that share less than the first part of their computation, by operations or sizes of inputs, are not compared;
with less than the second part, the difference of operations is reported."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two sides differ.

    Attributes:
        fact: its name. what: the same in words. a, b: what each side states, in words.
        refused: whether the sides are not compared for it unless somebody asks. why: what it does to a comparison.
    """

    fact: str
    what: str
    a: str
    b: str
    refused: bool
    why: str

    @property
    def sentence(self) -> str:
        """It in words."""
        return f"{self.what}: {self.a} in A, {self.b} in B ({self.why})"


@dataclass(frozen=True, slots=True)
class Inputs:
    """On what inputs a side computes, and what its messages hold.

    Attributes:
        times: operation of computation → time, ns.
        computed: operation and sizes of its inputs → time, ns; without operations whose sizes are not recorded.
        messages: operation of a communication → element types.
    """

    times: Mapping[str, int]
    computed: Mapping[tuple[str, str], int]
    messages: Mapping[str, frozenset[str]]


def differences(a: Facts, b: Facts, inputs: tuple[Inputs, Inputs]) -> list[Difference]:
    """In what two sides differ; what only one of them states is not compared. What refuses comes first."""
    found = []
    for fact in [*REFUSED, *FLAGGED, *sorted(name for name in {*a, *b} if name.startswith(SETTING))]:
        one, other = a.get(fact, frozenset()), b.get(fact, frozenset())
        if fact == "layout":
            one, other = _sizes_beside(one, other), _sizes_beside(other, one)
            one, other = one - other or one, other - one or other
        if not one or not other or one == other:
            continue
        what, why = REFUSED.get(fact) or (FLAGGED.get(fact, fact), "it may be the cause")
        found.append(Difference(fact, what, _words(one), _words(other), fact in REFUSED, why))
    found += [*_operations(*inputs), *_shapes(*inputs), *_types(*inputs)]
    return sorted(found, key=lambda one: not one.refused)


def unstated(a: Facts, b: Facts) -> list[str]:
    """What could not be compared, because one side alone states it, in words."""
    words = {fact: words for fact, (words, _) in REFUSED.items()} | FLAGGED
    return [words[fact] for fact in words if bool(a.get(fact)) != bool(b.get(fact))]


def _sizes_beside(sizes: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """The parallel sizes, such as ``tp 2``, of dimensions of which the others state one, too."""
    stated = {size.split()[0] for size in others}
    return frozenset(size for size in sizes if size.split()[0] in stated)


def _operations(a: Inputs, b: Inputs) -> list[Difference]:
    """Whether they run other operations."""
    whole = sum(a.times.values()) + sum(b.times.values())
    both = sum(one.times[name] for one in (a, b) for name in one.times if name in a.times and name in b.times)
    if not whole or both >= MOSTLY_SHARED * whole:
        return []
    refused = both < LEAST_SHARED * whole
    why = f"{share(both, whole)} of the time of computation is of operations that both run"
    why += "; compare runs of one model" if refused else "; others may be the cause"
    alone_a, alone_b = (
        counted(len(set(one.times) - set(other.times)), "operation of its own", "operations of its own")
        for one, other in ((a, b), (b, a))
    )
    return [Difference("operations", "operations", alone_a, alone_b, refused=refused, why=why)]


def _shapes(a: Inputs, b: Inputs) -> list[Difference]:
    """Whether operations that both run have inputs of other sizes."""
    both = {operation for operation, _ in a.computed} & {operation for operation, _ in b.computed}
    whole, same = 0, 0
    for one, other in ((a, b), (b, a)):
        whole += sum(ns for (operation, _), ns in one.computed.items() if operation in both)
        same += sum(ns for key, ns in one.computed.items() if key in other.computed)
    if not whole or same == whole:
        return []
    refused = same < LEAST_SHARED * whole
    alike = f"{share(same, whole)} of the time of operations that both run is on inputs of sizes that both have"
    why = f"{alike}; {'compare models of one size' if refused else 'other work may be the cause'}"
    return [Difference("shapes", "sizes of inputs", *_sizes(a, b), refused=refused, why=why)]


def _sizes(a: Inputs, b: Inputs) -> tuple[str, str]:
    """How many pairs of operation and sizes a side alone has."""
    first, second = (
        f"{counted(len(set(one.computed) - set(other.computed)), 'operation', 'operations')} with sizes of its own"
        for one, other in ((a, b), (b, a))
    )
    return first, second


def _types(a: Inputs, b: Inputs) -> list[Difference]:
    """Whether messages that both send hold other types."""
    moved = [name for name in a.messages if name in b.messages and a.messages[name] != b.messages[name]]
    if not moved:
        return []
    types_a, types_b = (_words(frozenset[str]().union(*(one.messages[name] for name in moved))) for one in (a, b))
    why = f"messages of {', '.join(sorted(moved)[:3])} differ in length; compare runs of one precision"
    return [Difference("types", "element types of messages", types_a, types_b, refused=True, why=why)]


def _words(said: frozenset[str]) -> str:
    return ", ".join(sorted(said)[:4]) + (f" and {len(said) - 4} more" if len(said) > 4 else "")


def refusals(found: Sequence[Difference]) -> list[Difference]:
    """Those for which the sides are not compared."""
    return [one for one in found if one.refused]
