"""Two profiles compared: what became slower or faster, what is new or gone, and where the time of the window went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.diff.comparable import LEAST_SHARED, MOSTLY_SHARED
from traceviz_dag.analyze.diff.words import LEAST_CHANGE, Outcome
from traceviz_dag.analyze.nsys.overlap import GpuOverlap
from traceviz_dag.analyze.nsys.summary import NameMeasures
from traceviz_dag.analyze.nsys.tree import RangeNode
from traceviz_dag.vocabulary import Kind

PARTS = ("compute_ns", "exposed_ns", "memory_alone_ns", "idle_ns")
"""What a window is made of: computation, exposed communication, memory operations alone, idle; together the window."""

_COMPARABLE = "comparable: the same kernels run equally often"


@dataclass(frozen=True, slots=True)
class NameChange:
    """One kernel or range name in both profiles; a count of 0 on one side: it is new or gone."""

    name: str
    count_a: int
    count_b: int
    total_a_ns: int
    total_b_ns: int

    @property
    def change_ns(self) -> int:
        """Total of B minus total of A."""
        return self.total_b_ns - self.total_a_ns


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Profile B against profile A, over all GPUs that were asked for.

    Attributes:
        window_a_ns, window_b_ns: windows, summed over the GPUs.
        parts: each of PARTS → (A, B), summed over the GPUs; the changes of the parts sum to the change of the window.
        kernels, ranges: by the size of the change, largest first.
        shared: share of the kernel time of both, memory operations aside, that is in kernels which both run.
        counts_equal: share of these kernels that run equally often.
        comparable: the same in words, with what speaks against it.
        is_comparable: whether nothing speaks against it.
        verdict: one sentence. outcome: the same in a word; None where they run different kernels.
        gpus: how many there are of A.
    """

    window_a_ns: int
    window_b_ns: int
    parts: Mapping[str, tuple[int, int]]
    kernels: Sequence[NameChange]
    ranges: Sequence[NameChange]
    shared: float
    counts_equal: float
    comparable: str
    is_comparable: bool
    verdict: str
    outcome: Outcome | None
    gpus: int


def compare(
    a: Sequence[GpuOverlap],
    b: Sequence[GpuOverlap],
    kernels: tuple[Sequence[NameMeasures], Sequence[NameMeasures]],
    ranges: tuple[Sequence[RangeNode], Sequence[RangeNode]],
) -> ProfileComparison:
    """Compare two profiles.

    Args:
        a, b: the measures of each GPU, in the same order.
        kernels: of A and B, all GPUs one after another; a name may occur more than once.
        ranges: the hierarchy of A and of B, likewise.
    """
    window_a, window_b = (sum(one.span_ns for one in side) for side in (a, b))
    parts = {part: (sum(getattr(one, part) for one in a), sum(getattr(one, part) for one in b)) for part in PARTS}
    by_kernel = _changes(*(_kernel_totals(side) for side in kernels))
    by_range = _changes(*(_range_totals(side) for side in ranges))
    memory = {one.name for side in kernels for one in side if one.kind == Kind.MEMORY}
    work = [one for one in by_kernel if one.name not in memory]
    everything = sum(one.total_a_ns + one.total_b_ns for one in work)
    both = [one for one in work if one.count_a and one.count_b]
    shared = sum(one.total_a_ns + one.total_b_ns for one in both) / everything if everything else 0.0
    equal = sum(one.count_a == one.count_b for one in both) / len(both) if both else 0.0
    against = _against(len(a), len(b), shared, equal)
    word = "hardly comparable" if shared < LEAST_SHARED else "comparable with care"
    return ProfileComparison(
        window_a,
        window_b,
        parts,
        by_kernel,
        by_range,
        shared,
        equal,
        _COMPARABLE if not against else f"{word}: {'; '.join(against)}",
        not against,
        *_verdict(window_a, window_b, parts, shared, len(a)),
        len(a),
    )


def _kernel_totals(measures: Sequence[NameMeasures]) -> dict[str, tuple[int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for one in measures:
        count, total = totals.get(one.name, (0, 0))
        totals[one.name] = (count + one.count, total + one.total_ns)
    return totals


def _range_totals(roots: Sequence[RangeNode]) -> dict[str, tuple[int, int]]:
    """Paths of ranges, joined by " / ", with their spans."""
    totals: dict[str, tuple[int, int]] = {}

    def add(node: RangeNode, above: str) -> None:
        path = f"{above} / {node.name}" if above else node.name
        count, total = totals.get(path, (0, 0))
        totals[path] = (count + node.count, total + node.span_ns)
        for child in node.children:
            add(child, path)

    for root in roots:
        add(root, "")
    return totals


def _changes(a: Mapping[str, tuple[int, int]], b: Mapping[str, tuple[int, int]]) -> list[NameChange]:
    rows = []
    for name in dict.fromkeys([*a, *b]):
        (count_a, total_a), (count_b, total_b) = a.get(name, (0, 0)), b.get(name, (0, 0))
        rows.append(NameChange(name, count_a, count_b, total_a, total_b))
    return sorted(rows, key=lambda row: (-abs(row.change_ns), row.name))


def _against(gpus_a: int, gpus_b: int, shared: float, equal: float) -> list[str]:
    """What speaks against comparing."""
    against = []
    if gpus_a != gpus_b:
        against.append(f"{gpus_a} GPUs against {gpus_b}")
    if shared < MOSTLY_SHARED:
        against.append(f"only {wording.share(shared)} of the kernel time is in kernels that both run")
    if equal < MOSTLY_SHARED:
        against.append(
            f"only {wording.share(equal)} of the common kernels run equally often, so the windows hold unequal work"
        )
    return against


def _verdict(
    window_a: int, window_b: int, parts: Mapping[str, tuple[int, int]], shared: float, gpus: int
) -> tuple[str, Outcome | None]:
    change = window_b - window_a
    if shared < LEAST_SHARED:
        return "No verdict: the two run different kernels.", None
    if abs(change) <= LEAST_CHANGE * window_a:
        window = f"the windows of {gpus} GPUs differ" if gpus > 1 else "the window differs"
        return f"No change: {window} by {wording.changed(change)} ms, under 1 %.", Outcome.NO_CHANGE
    words = {
        "compute_ns": "computation",
        "exposed_ns": "exposed communication",
        "memory_alone_ns": "memory operations",
        "idle_ns": "idle time",
    }
    # The part that changed most in the direction of the whole is what a reader should look at.
    part = max(parts, key=lambda name: (parts[name][1] - parts[name][0]) * (1 if change > 0 else -1))
    delta = parts[part][1] - parts[part][0]
    word = "slower" if change > 0 else "faster"
    how_much = "most of it" if 2 * abs(delta) > abs(change) else "the largest part of it"
    together = f" over {gpus} GPUs" if gpus > 1 else ""
    sentence = (
        f"B is {wording.percent(abs(change) / window_a)} {word} ({wording.changed(change)} ms{together}), "
        f"{how_much} in {words[part]} ({wording.changed(delta)} ms)."
    )
    return sentence, Outcome.LONGER if change > 0 else Outcome.SHORTER
