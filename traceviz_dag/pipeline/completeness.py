"""What of an iteration was not read: ranks that failed, that were read in part, and that have no trace at all.

One rule holds everywhere. A rank that was read in part has its own measures, marked; measures across ranks leave it out
unless they are asked to count it. Whatever leaves a rank out, or counts a part of one, is partial and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traceviz_dag.analyze.wording import numbered
from traceviz_dag.lake.inputs import IterationInputs, registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import ANALYSE_AGAIN
from traceviz_dag.lake.queries import FileRow, TraceFiles, trace_files
from traceviz_dag.lake.recorded import gone_parts, is_pack_lost
from traceviz_dag.lake.stale import Stale
from traceviz_dag.system.paths import real_path
from traceviz_dag.tables import RANK_TABLES, TABLES
from traceviz_dag.vocabulary import StaleStage, TraceStatus


@dataclass(frozen=True, slots=True)
class RankFault:
    """A rank of which not all was read.

    Attributes:
        file: its trace, relative to the run's folder.
        fault: one line on what is wrong with it and what to do.
        failed: nothing of it could be used; else a part was read.
    """

    rank: int
    file: str
    fault: str
    failed: bool


@dataclass(frozen=True, slots=True)
class MicrobatchCount:
    """Ranks that hold as many micro-batches of a training step, where others hold more or fewer.

    Attributes:
        forward, backward: micro-batches of their forward and backward steps.
    """

    step: int
    forward: int
    backward: int
    ranks: tuple[int, ...]

    @property
    def in_words(self) -> str:
        """Them in a few words."""
        return f"{self.forward} forward and {self.backward} backward on {ranks_in_words(self.ranks)}"


@dataclass(frozen=True, slots=True)
class Completeness:
    """What of one iteration was not read.

    Attributes:
        expected: world size, where headers or the topology state it.
        chosen: what of the job the capture meant to record, in words ("8 of 64 ranks: stages 0–3 of pipelines 0–1");
            empty where that is all of it.
        faults: ranks that failed or were read in part.
        missing: ranks without a trace of those that the capture meant to record, by default the world.
        unread: ranks of these whose trace is there, and that the analysis did not come to.
        problems: one line a file that could not be placed.
        stale: what is kept of the iteration although something newer exists that could not be computed.
        steps: (ProfilerSteps, ranks whose files hold them), where ranks hold different training steps; else empty.
        microbatches: of training steps of which ranks of one pipeline, or one stage, hold different numbers of
            micro-batches.
    """

    run: str
    iteration: int
    expected: int | None
    chosen: str = ""
    faults: tuple[RankFault, ...] = ()
    missing: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    steps: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    stale: tuple[Stale, ...] = ()
    microbatches: tuple[MicrobatchCount, ...] = ()
    unread: tuple[int, ...] = ()

    @property
    def failed(self) -> list[int]:
        """Ranks of which nothing could be used: what their trace is now could not be computed."""
        stale = set(self.stale_ranks) - set(self.missing)
        return sorted({*(each.rank for each in self.faults if each.failed), *stale, *self.unread})

    @property
    def stale_ranks(self) -> list[int]:
        """Ranks whose tables are kept although what their trace is now could not be computed; counted nowhere."""
        return sorted({row.rank for row in self.stale if row.stage == StaleStage.RANKS and row.rank is not None})

    @property
    def in_part(self) -> list[int]:
        """Ranks of which a part was read."""
        return [each.rank for each in self.faults if not each.failed]

    @property
    def is_lossy(self) -> bool:
        """Whether something that is there was not read, or not wholly."""
        return bool(self.faults or self.problems or self.steps or self.stale or self.microbatches or self.unread)

    @property
    def is_stale_alone(self) -> bool:
        """Whether all of it was read, and tables across ranks alone are older than that."""
        others = (self.faults, self.problems, self.steps, self.microbatches, self.missing, self.unread)
        return bool(self.stale and not self.stale_ranks) and not any(others)

    @property
    def partial(self) -> bool | None:
        """Whether something was not read; None where all that is there was, and nothing states how much there is."""
        if self.is_lossy or self.missing:
            return True
        return None if self.expected is None else False

    @property
    def mark(self) -> str:
        """What a title or a line says of it; empty where nothing is known to be missing."""
        elsewhere = {*self.stale_ranks, *self.unread}
        words = [
            f"{ranks_in_words(ranks)} {what}"
            for ranks, what in (
                ([rank for rank in self.failed if rank not in elsewhere], "unusable"),
                (self.unread, "not read"),
                (self.stale_ranks, "stale"),
                (self.in_part, "read in part"),
                (self.missing, f"of {self.expected} without a trace"),
            )
            if ranks
        ]
        if self.problems:
            words.append(f"{len(self.problems)} file{'s' if len(self.problems) > 1 else ''} not placed")
        if self.steps:
            words.append("ranks hold different training steps")
        if self.microbatches:
            words.append("ranks hold different numbers of micro-batches")
        partial = f"PARTIAL: {', '.join(words)}" if words else ""
        kept = [row.words for row in self.stale if row.rank is None or row.stage != StaleStage.RANKS]
        stale = f"STALE: {', '.join(kept)}" if kept else ""
        return "; ".join(filter(None, [stale, partial, self.chosen]))

    @property
    def lines(self) -> list[str]:
        """One line a fault, that names iteration, rank and file."""
        key = iteration_key(self.run, self.iteration)
        found = [
            f"{key}: rank {each.rank}: {each.fault}"
            if each.failed
            else f"{key}: rank {each.rank} is read in part, {each.file}: {each.fault}"
            for each in self.faults
        ]
        if self.unread:
            found.append(f"{key}: {ranks_in_words(self.unread)} not read: the analysis ended before; run it again")
        if self.missing:
            found.append(f"{key}: {without_trace(self.missing, self.expected, self.chosen)}")
        if self.steps:
            held = "; ".join(f"{_steps_in_words(steps)} on {ranks_in_words(ranks)}" for steps, ranks in self.steps)
            found.append(f"{key}: its ranks hold different training steps ({held}): give each step a separate folder")
        for step in dict.fromkeys(each.step for each in self.microbatches):
            held = "; ".join(each.in_words for each in self.microbatches if each.step == step)
            found.append(
                f"{key}: its ranks hold different numbers of micro-batches of training step {step} ({held}): a file "
                "lost rows or is of another job, so micro-batch numbers do not match; capture it again"
            )
        found += [f"{key}: {row.line}" for row in self.stale]
        return [*self.problems, *found]

    def as_json(self) -> dict[str, Any]:
        """The same as keys of a JSON answer."""
        return {
            "partial": self.partial,
            "failed_ranks": self.failed,
            "partial_ranks": self.in_part,
            "missing_ranks": list(self.missing),
            "expected_ranks": self.expected,
            "chosen": self.chosen or None,
            "stale": [asdict(row) for row in self.stale],
            "different_steps": [{"steps": list(steps), "ranks": list(ranks)} for steps, ranks in self.steps],
            "different_microbatches": [asdict(each) | {"ranks": list(each.ranks)} for each in self.microbatches],
        }


def stored_completeness(
    lake: Lake,
    run: str,
    iteration: int,
    inputs: IterationInputs | None = None,
    files: TraceFiles | None = None,
) -> Completeness:
    """What of an iteration in the lake was not read, or is not there any more.

    Args:
        inputs: its trace files, where they are known; by default those that are registered. files: how they were read,
            where that was asked already.
    """
    files = files or trace_files(lake, run, iteration)
    if inputs is None:
        inputs = registered_if_any(lake.home, iteration_key(run, iteration))
    lost = [
        part.rank for part in gone_parts(lake.tables_folder, TABLES["traces"], run, iteration) if part.rank is not None
    ]
    missing = set(files.missing).difference(lost)
    listed = {entry.rank: entry.path for entry in inputs.ranks} if inputs is not None and missing else {}
    unread = tuple(sorted(rank for rank in missing if rank in listed and Path(listed[rank]).exists()))
    return Completeness(
        run,
        iteration,
        files.expected,
        _chosen(files),
        tuple(_faults(lake, run, iteration, files.rows, lost)),
        tuple(sorted(missing.difference(unread))),
        inputs.problems if inputs is not None else (),
        _different_steps(files.rows),
        tuple(row for row in lake.stale(run, iteration) if not row.is_counted),
        _different_microbatches(files.rows),
        unread,
    )


def chosen_in_words(wanted: Collection[int], world: int | None, which: str = "") -> str:
    """What of a job its capture meant to record; empty where that is all of it.

    Args:
        which: these ranks in other words.
    """
    is_sample = 0 < len(wanted) < (world or 0)
    return f"{len(wanted)} of {world} ranks: {which or ranks_in_words(wanted)}" if is_sample else ""


def without_trace(missing: Collection[int], world: int | None, chosen: str) -> str:
    """Which ranks have no trace, of those that should."""
    of = f"the capture chose {chosen}" if chosen else f"the world has {world} ranks"
    return f"no trace of {ranks_in_words(missing)}; {of}"


def _chosen(files: TraceFiles) -> str:
    """See Completeness.chosen."""
    wanted = files.wanted
    rows = [row for row in files.rows if row["rank"] in wanted]
    # A rank is one stage of one pipeline.
    stages = {row["stage"] for row in rows if row["stage"] is not None}
    pipelines = {row["pipeline"] for row in rows if row["pipeline"] is not None}
    placed = {
        (row["stage"], row["pipeline"]) for row in rows if row["stage"] in stages and row["pipeline"] in pipelines
    }
    which = ""
    if len(placed) == len(wanted) == len(stages) * len(pipelines):
        which = f"{numbered('stage', stages)} of {numbered('pipeline', pipelines)}"
    return chosen_in_words(wanted, files.expected, which)


def _different_steps(traces: Iterable[FileRow]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """See Completeness.steps; ranks without a ProfilerStep show nothing."""
    held: dict[tuple[int, ...], list[int]] = {}
    for row in traces:
        if row["taken_steps"] and row["status"] != TraceStatus.FAILED.value:
            held.setdefault(tuple(row["taken_steps"]), []).append(row["rank"])
    return tuple((steps, tuple(ranks)) for steps, ranks in sorted(held.items())) if len(held) > 1 else ()


def _different_microbatches(traces: Iterable[FileRow]) -> tuple[MicrobatchCount, ...]:
    """See Completeness.microbatches; ranks that are not read whole, or of which a number is unknown, show nothing.

    All ranks of a job run as many micro-batches in a step; where replicas may differ, those of a pipeline do.
    """
    held: dict[tuple[int, int], dict[tuple[int, int], list[int]]] = {}
    for row in traces:
        if row["status"] != TraceStatus.READ.value:
            continue
        counts = zip(row["forward_microbatches"] or (), row["backward_microbatches"] or (), strict=True)
        for step, (forward, backward) in zip(row["steps"] or (), counts, strict=False):
            if forward is None or backward is None or not forward + backward:
                # Where no host was recorded, there are none at all.
                continue
            if step in (row["taken_steps"] or ()):
                pipeline = row["pipeline"] if row["uneven"] and row["pipeline"] is not None else -1
                held.setdefault((step, pipeline), {}).setdefault((forward, backward), []).append(row["rank"])
    return tuple(
        MicrobatchCount(step, *counts, tuple(ranks))
        for (step, _), found in sorted(held.items())
        if len(found) > 1
        for counts, ranks in sorted(found.items(), reverse=True)
    )


def _steps_in_words(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {', '.join(map(str, steps))}"


def _faults(
    lake: Lake, run: str, iteration: int, traces: Iterable[FileRow], lost: Iterable[int]
) -> Iterator[RankFault]:
    """Ranks that were not read whole, and those of which a table is gone.

    Args:
        lost: ranks of which nobody knows how they were read, as that table is gone.
    """
    there: dict[str, set[int | None]] = {}
    for name in (name for name in RANK_TABLES if name != "traces"):
        ranks, place = {part.rank for part in lake.partitions(name, run, iteration)}, (run, iteration)
        if not ranks or is_pack_lost(lake.tables_folder, name, *place):
            deleted = gone_parts(lake.tables_folder, TABLES[name], *place)
            # What no rank has and none ever had is not gone: an older version wrote the home.
            there |= {name: ranks.difference(part.rank for part in deleted)} if deleted else {}
        else:
            there[name] = ranks
    for rank in lost:
        gone = [name for name, ranks in there.items() if rank not in ranks]
        yield RankFault(rank, "", _gone_in_words(lake, ["traces", *gone]), failed=True)
    for row in traces:
        gone = [name for name, ranks in there.items() if row["rank"] not in ranks]
        if row["status"] == TraceStatus.FAILED.value:
            yield RankFault(row["rank"], row["file"], row["fault"] or "", failed=True)
        elif gone:
            yield RankFault(row["rank"], row["file"], _gone_in_words(lake, gone), failed=True)
        elif row["status"] != TraceStatus.READ.value:
            yield RankFault(row["rank"], row["file"], row["fault"] or "", failed=False)


def _gone_in_words(lake: Lake, tables: Sequence[str]) -> str:
    what = f"its table {tables[0]} is" if len(tables) == 1 else f"its tables {', '.join(tables)} are"
    return f"{what} gone from {lake.home}; {ANALYSE_AGAIN}"


def read_completeness(inputs: IterationInputs, expected: int | None, faults: Iterable[RankFault]) -> Completeness:
    """What of an iteration was not read, for what reads traces without a lake."""
    found = {entry.rank for entry in inputs.ranks}
    # All formats and their readers: commands that show what lies in the lake do without.
    from traceviz_dag.pipeline.formats.registry import stated_ranks

    wanted = set(stated_ranks(inputs) or range(expected)) if expected else set()
    return Completeness(
        inputs.run,
        inputs.iteration,
        expected,
        chosen_in_words(wanted, expected),
        tuple(sorted(faults, key=lambda each: each.rank)),
        tuple(sorted(wanted - found)),
        inputs.problems,
    )


def ranks_chosen_by_name(inputs: IterationInputs, paths: Sequence[Path]) -> bool:
    """Whether files were named, and no folder that holds them, so that the other ranks are left out on purpose.

    Ranks that the home knew already may be among the inputs without being named.
    """
    named = [real_path(path) for path in paths]
    files = {entry.path for entry in inputs.ranks}
    # An export of Nsight Systems may be a folder. What is named beside it may hold other iterations.
    folders = [path for path in named if str(path) not in files and path.is_dir()]
    within = any(Path(file).is_relative_to(folder) for file in files for folder in folders)
    return any(str(path) in files for path in named) and not within


def ranks_in_words(ranks: Collection[int]) -> str:
    """Ranks as people write them, each of them said: ``rank 3``, ``ranks 0–3, 6``."""
    return numbered("rank", ranks)
