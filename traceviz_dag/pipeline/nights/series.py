"""Which iterations of a home are one night, and which nights one series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.pipeline.home_settings import NightlySettings

NIGHT_TABLES = ("nights", "night_deltas", "night_steps", "night_changes")

STEPS, WARM_UP = "", "warm-up"
"""Kinds of iterations; those that nothing numbers are of the kind of what counts them."""

NightIterations = tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Nights that are compared with one another.

    Attributes:
        name: a glob over run ids, or a run's own id. kind: of its iterations.
        nights: the iterations of each, in the order in which they were captured.
        began_ns: when the oldest trace of each was written, ns since 1970; 0 where unknown.
    """

    name: str
    kind: str
    nights: Sequence[NightIterations]
    began_ns: Sequence[int]

    @property
    def is_steady(self) -> bool:
        """Whether its iterations are numbered steps after the warm-up."""
        return self.kind == STEPS


def series_of(lake: Lake, settings: NightlySettings) -> list[Series]:
    """The series of a home.

    Where ``series`` joins runs, a night is a run, with all its steps; else each iteration is one. Runs come in the
    order of their oldest trace, as it was registered; the iterations of a run by number. Warm-up steps are a kind. So
    are iterations that nothing numbers, by what counts them: the first of a capture is no step 0, and a whole capture
    no single step.
    """
    partitions = lake.partitions("iterations")
    began: dict[Partition, int] = {}
    run_began: dict[str, int] = {}
    counted_by: dict[Partition, str] = {}
    for partition in partitions:
        inputs = registered_if_any(lake.home, iteration_key(partition.run, partition.iteration))
        ranks = inputs.ranks if inputs is not None else ()
        oldest = began[partition] = min((entry.changed_ns for entry in ranks), default=0)
        counted_by[partition] = ", ".join(sorted({entry.counted_by for entry in ranks} - {""}))
        run_began[partition.run] = min(run_began.get(partition.run, oldest), oldest)
    found: dict[tuple[str, str], dict[tuple[str, int | None], list[Partition]]] = {}
    for partition in sorted(partitions, key=lambda one: (run_began[one.run], one.run, one.iteration)):
        glob = next((glob for glob in settings.series if fnmatchcase(partition.run, glob)), None)
        kind = counted_by[partition] or (WARM_UP if partition.iteration < settings.warmup_steps else STEPS)
        nights = found.setdefault((glob or partition.run, kind), {})
        nights.setdefault((partition.run, None if glob else partition.iteration), []).append(partition)
    return [
        Series(name, kind, [tuple(one) for one in nights.values()], [began[one[0]] for one in nights.values()])
        for (name, kind), nights in found.items()
    ]


def night_key(night: NightIterations) -> str:
    """One key for a night: that of its first iteration."""
    return iteration_key(night[0].run, night[0].iteration)
