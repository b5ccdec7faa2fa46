"""Which iterations of a home are one night, which nights one series, and what was said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from traceviz_dag.analyze.nights.confirmed import Raised
from traceviz_dag.analyze.nights.verdicts import Metric
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.pipeline.baselines import SetBy, baselines
from traceviz_dag.pipeline.home_settings import NightlySettings, load_settings

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


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that ``nights`` has already, as far as later verdicts need it.

    Attributes:
        begins_anew: somebody accepted it although it was worse: what came before is no measure any more.
    """

    accepted: bool | None
    begins_anew: bool
    figures_digest: str


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


def judged(lake: Lake) -> dict[Partition, Judged]:
    """Iteration → what was said of it."""
    if not lake.partitions("nights"):
        return {}
    rows = lake.table("nights").arrow(["run", "iteration", "accepted", "worse", "figures_digest"]).to_pylist()
    return {
        Partition(row["run"], row["iteration"]): Judged(
            row["accepted"], bool(row["accepted"] and row["worse"]), row["figures_digest"]
        )
        for row in rows
    }


def raised_by(lake: Lake, places: Mapping[Partition, int]) -> dict[int, list[tuple[Raised, bool]]]:
    """Place of a night → the changes that it raised, each with whether it moved the baseline."""
    if not lake.partitions("night_changes"):
        return {}
    found: dict[int, list[tuple[Raised, bool]]] = {}
    for row in lake.table("night_changes").arrow().to_pylist():
        night, since = (
            places.get(Partition(row[run], row[iteration]))
            for run, iteration in (("run", "iteration"), ("since_run", "since_iteration"))
        )
        if night is not None and since is not None:
            one = Raised(Metric(row["metric"]), since, night, row["before_ns"], row["after_ns"], row["p"])
            found.setdefault(night, []).append((one, row["rebased"]))
    return found


def figures_digest(lake: Lake, night: NightIterations) -> str:
    """Of all that a verdict rests on, the scores of pairs included where there are any."""
    paths = [
        lake.path(name, run=one.run, iteration=one.iteration) for one in night for name in ("iterations", "periods")
    ]
    return "-".join(digest_of(path) for path in paths if path.is_file())


def needs_verdict(
    lake: Lake, night: NightIterations, known: Mapping[Partition, Judged], accept: Sequence[str] = ()
) -> bool:
    """Whether a night has no verdict, was computed again since, or is to be accepted by hand."""
    if any(lake.has_stale_measures(one.run, one.iteration) for one in night):
        return False
    rows = [known.get(one) for one in night]
    digest = figures_digest(lake, night)
    if any(row is None or row.figures_digest != digest for row in rows):
        return True
    return is_accepted(night, accept) and not all(row is not None and row.accepted for row in rows)


def is_accepted(night: NightIterations, accept: Sequence[str]) -> bool:
    """Whether one of a night's iterations, or its run, is among those accepted by hand."""
    return any(iteration_key(one.run, one.iteration) in accept or one.run in accept for one in night)


def accepted_by_hand(lake: Lake) -> list[str]:
    """Keys of nights that ``traceviz baseline accept`` named."""
    return [one.key for one in baselines(lake.home).values() if one.by is SetBy.ACCEPTED]


def unjudged(lake: Lake) -> list[Partition]:
    """Iterations that have measures and no verdict, were computed again since, or are to be accepted."""
    settings = load_settings(lake.home).nightly
    known, accept = judged(lake), accepted_by_hand(lake)
    return [
        one
        for series in series_of(lake, settings)
        for night in series.nights
        if needs_verdict(lake, night, known, accept)
        for one in night
    ]


def references(lake: Lake, settings: NightlySettings) -> set[str]:
    """Keys of the iterations that the next ones are compared with: the last accepted night of each series, and every
    baseline."""
    known, named = judged(lake), baselines(lake.home).values()
    kept = {one for one in lake.partitions("iterations") if any(each.holds(one.run, one.iteration) for each in named)}
    for series in series_of(lake, settings):
        accepted = [night for night in series.nights if night[0] in known and known[night[0]].accepted]
        kept |= set(accepted[-1]) if accepted else set()
    return {iteration_key(one.run, one.iteration) for one in kept}
