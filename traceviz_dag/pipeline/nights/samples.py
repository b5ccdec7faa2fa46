"""What a night measures: the steps of its iterations over the ranks that two nights share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.analyze.nights.verdicts import OTHER_RANKS, Coverage, Measures, Metric, Place
from traceviz_dag.analyze.step_parts import step_parts
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.queries import RankMeasures, step_measures, trace_files
from traceviz_dag.pipeline.certainty import capture_mode
from traceviz_dag.spans import spanned
from traceviz_dag.tables import NIGHT_COORDINATES, NIGHT_STEPS

SCORES_SQL = """
SELECT pair, median(overlap_score) AS score
FROM periods
WHERE run = $run AND iteration = $iteration AND kind = 'named' AND overlap_score IS NOT NULL
GROUP BY pair
"""
"""On named pairs only: what nobody expects to overlap cannot get worse."""


class StepMeasures(TypedDict):
    """What of a rank's step is compared, ns; as in ``RankMeasures``."""

    step_ns: int
    exposed_ns: float
    compute_ns: float


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of an iteration.

    Attributes:
        number: its place among the iteration's steps; None where the longest alone counts.
        ranks: rank → its measures in it.
    """

    partition: Partition
    number: int | None
    ranks: Mapping[int, StepMeasures]

    def value(self, metric: Metric, ranks: Collection[int]) -> int:
        """A metric of the step over some of its ranks, ns: the longest step, the mean exposed communication."""
        if metric is Metric.STEP:
            return max(self.ranks[rank]["step_ns"] for rank in ranks)
        return round(sum(self.ranks[rank]["exposed_ns"] for rank in ranks) / len(ranks))


@dataclass(frozen=True, slots=True)
class Iteration:
    """What an iteration of a night measures.

    Attributes:
        places, world, mode: as of ``Coverage``.
    """

    steps: Sequence[Step]
    places: Mapping[int, Place]
    world: int | None
    mode: str


@dataclass(frozen=True)
class Night:
    """The steps of one night.

    Attributes:
        partitions: its iterations, in order. steps: those of all of them; at least one.
        coverage: the ranks that all steps have. iterations: what each measures.
    """

    partitions: tuple[Partition, ...]
    steps: tuple[Step, ...]
    coverage: Coverage
    iterations: tuple[Iteration, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.coverage.name

    @cached_property
    def ranks(self) -> frozenset[int]:
        """Those that all steps have."""
        return frozenset(self.coverage.places)

    def values(self, metric: Metric, ranks: Collection[int]) -> list[int]:
        """A metric of each step, ns."""
        return [step.value(metric, ranks) for step in self.steps]

    def median_step(self, ranks: Collection[int]) -> Step:
        """The step whose time is the lower median."""
        return lower_median(self.steps, lambda step: step.value(Metric.STEP, ranks))


def named_night(partitions: Collection[Partition]) -> str:
    """What messages call a night: its run, and its iterations."""
    (run,) = {one.run for one in partitions}
    iterations = [one.iteration for one in partitions]
    return iteration_key(run, iterations[0]) if len(iterations) == 1 else f"{run}@{spanned(iterations)}"


def read_night(lake: Lake, partitions: tuple[Partition, ...]) -> Night | None:
    """What a night measures, of the ranks that its rows of ``iterations`` cover; None where no step is measured."""
    read = [one for one in (_stored(lake, each) or _measured(lake, each) for each in partitions) if one is not None]
    steps = tuple(step for one in read for step in one.steps)
    ranks = frozenset.intersection(*(frozenset(step.ranks) for step in steps)) if steps else frozenset()
    if not ranks:
        return None
    mode = " / ".join(sorted({one.mode for one in read}))
    places = {rank: read[0].places.get(rank, {}) for rank in sorted(ranks)}
    return Night(partitions, steps, Coverage(named_night(partitions), places, read[0].world, mode), tuple(read))


def steps_table(lake: Lake, night: Night, partition: Partition) -> pa.Table:
    """The rows of ``night_steps`` of one iteration of a night."""
    digest = _source_digest(lake, partition)
    rows = [
        {
            **{"step": step.number, "rank": rank, "world": one.world, "mode": one.mode},
            **measures,
            **{name: one.places.get(rank, {}).get(name) for name in NIGHT_COORDINATES},
            "source_digest": digest,
        }
        for one in night.iterations
        for step in one.steps
        if step.partition == partition
        for rank, measures in step.ranks.items()
    ]
    return pa.Table.from_pylist(rows, NIGHT_STEPS.schema)


def _stored(lake: Lake, partition: Partition) -> Iteration | None:
    """What an earlier night took from tables that are still the same: later ones read it in a hundredth of the time."""
    run, iteration = partition.run, partition.iteration
    if not lake.exists(NIGHT_STEPS.name, run=run, iteration=iteration):
        return None
    rows = lake.rows(NIGHT_STEPS.name, run, iteration).to_pylist()
    if not rows or rows[0]["source_digest"] != _source_digest(lake, partition):
        return None
    places = {row["rank"]: {name: row[name] for name in NIGHT_COORDINATES if row[name] is not None} for row in rows}
    of_step: dict[int | None, dict[int, StepMeasures]] = {}
    for row in rows:
        of_step.setdefault(row["step"], {})[row["rank"]] = StepMeasures(
            step_ns=row["step_ns"], exposed_ns=row["exposed_ns"], compute_ns=row["compute_ns"]
        )
    steps = [Step(partition, number, ranks) for number, ranks in of_step.items()]
    return Iteration(steps, places, rows[0]["world"], rows[0]["mode"])


def _measured(lake: Lake, partition: Partition) -> Iteration | None:
    run, iteration = partition.run, partition.iteration
    rows = lake.rows("iterations", run, iteration, ["covered_ranks", "step_ns"]).to_pylist()
    if not rows or rows[0]["step_ns"] is None:
        return None
    covered = set(rows[0]["covered_ranks"])
    each = [
        {one["rank"]: _compared(one) for one in step if one["rank"] in covered}
        for step in step_measures(lake, run, iteration)
    ]
    steps = [Step(partition, number if len(each) > 1 else None, ranks) for number, ranks in enumerate(each) if ranks]
    if not steps:
        return None
    topology = lake.rows("topology", run, iteration, ["rank", *NIGHT_COORDINATES]).to_pylist()
    places = {row["rank"]: {name: row[name] for name in NIGHT_COORDINATES if row[name] is not None} for row in topology}
    files = trace_files(lake, run, iteration)
    return Iteration(steps, places, files.expected, capture_mode(files))


def _compared(one: RankMeasures) -> StepMeasures:
    return StepMeasures(step_ns=one["step_ns"], exposed_ns=one["exposed_ns"], compute_ns=one["compute_ns"])


def _source_digest(lake: Lake, partition: Partition) -> str:
    paths = [lake.path(name, run=partition.run, iteration=partition.iteration) for name in ("iterations", "topology")]
    return "-".join(digest_of(path) for path in paths if path.is_file())


def measures_of(lake: Lake, night: Night, ranks: Collection[int], rank: int) -> Measures:
    """What of a night is judged, over some of its ranks: its median step, taken apart on one of them."""
    step = night.median_step(ranks)
    step_ns = step.value(Metric.STEP, ranks)
    exposed_ns = lower_median(night.values(Metric.EXPOSED, ranks))
    parts = _rank_parts(lake, step, rank)
    parts[OTHER_RANKS] = step_ns - sum(parts.values())
    scores: Mapping[str, float] = {}
    run, iteration = step.partition.run, step.partition.iteration
    if lake.exists("periods", run=run, iteration=iteration):
        found = lake.query_iteration(SCORES_SQL, run=run, iteration=iteration).to_pylist()
        scores = {score["pair"]: score["score"] for score in found}
    return Measures(night.name, step_ns, exposed_ns, parts, scores)


def _rank_parts(lake: Lake, step: Step, rank: int) -> dict[str, int]:
    """The window of a rank in a step by category, the longest of its devices; empty where it has none."""
    run, iteration = step.partition.run, step.partition.iteration
    reader = lake.table("overlap", run, iteration, rank)
    windows = reader.arrow(["device", "window_name", "dimension", "window_start_ns", "window_end_ns"]).to_pylist()
    whole = [row for row in windows if row["dimension"] == "all"]
    steps = [row for row in whole if row["window_name"] == "step"] or whole
    if not steps:
        return {}
    if step.number is not None:
        devices = sorted({row["device"] for row in steps})
        ordered = sorted(steps, key=lambda row: row["window_start_ns"])
        steps = [[row for row in ordered if row["device"] == device][step.number] for device in devices]
    longest = max(steps, key=lambda row: (row["window_end_ns"] - row["window_start_ns"], row["device"]))
    columns = ["device", "start_ns", "duration_ns", "kind", "category"]
    kernels = lake.table("kernels", run, iteration, rank).arrow(columns)
    of_device = pc.equal(kernels["device"].cast(pa.string()), longest["device"])
    return step_parts(kernels.filter(of_device), longest["window_start_ns"], longest["window_end_ns"])
