"""How many waits between streams are found, and whether what is found is true: simulated jobs against their truth.

Run: ``python -m benchmarks.edges`` (a few minutes on one core). It simulates jobs of every kind, reads each as
recorded, with its ``cuda_sync`` rows stripped, without rows and calls, and writes the table to ``docs/accuracy.md``.
``--only PATTERN`` runs part of it and writes nothing.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.accuracy_page import paragraph, write_waits
from traceviz_dag.analyze.causes.graph import graph_of
from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.analyze.causes.rank_work import EdgeKind, RankWork
from traceviz_dag.arrays import Int64
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import ContextExchange, Dispatcher, Era, Graphs, Offload, Recompute

Edge = tuple[int, int]
"""Places of the kernel that waits and of the one that it waits for."""

COMMAND = "python -m benchmarks.edges"

FOUND, TRUE = 0.95, 0.99
"""At least so many of the true waits are found, and of the graph's edges are true, over all jobs."""


@dataclass
class Score:
    """True edges found, and found edges that are true.

    Attributes:
        true, found: per kind, how many edges the truth has, and how many the graph has, itself or by others that imply
            them.
        claimed, right: per kind, how many edges the graph has, and how many of these the truth implies.
        missed, wrong: kind, and the names of the two kernels.
        open: communications and calls of which nothing shows what they are for.
    """

    true: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, int] = field(default_factory=dict)
    right: dict[str, int] = field(default_factory=dict)
    missed: list[tuple[str, str, str]] = field(default_factory=list)
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    open: int = 0

    @property
    def recall(self) -> float:
        """Share of the true edges that were found."""
        return sum(self.found.values()) / max(sum(self.true.values()), 1)

    @property
    def precision(self) -> float:
        """Share of the graph's edges that are true."""
        return sum(self.right.values()) / max(sum(self.claimed.values()), 1)


def last_of(work: RankWork) -> Int64:
    """Place of the last kernel of each segment."""
    return np.append(work.first[1:], len(work.kernels)) - 1


def reach_of_graph(work: RankWork) -> Int64:
    """Per kernel and stream, the last place on that stream for which the kernel waits; -1 for none."""
    graph = graph_of(work.nodes, work.waiting, work.waited_for)
    streams = int(work.kernels.stream.max(initial=0)) + 1
    reach = np.full((work.nodes, streams), -1, np.int64)
    last = last_of(work)
    own = work.kernels.stream[work.first]
    for waiting, source in zip(graph.waiting.tolist(), graph.waited_for.tolist(), strict=True):
        np.maximum(reach[waiting], reach[source], out=reach[waiting])
        if source < work.segments:
            reach[waiting, own[source]] = max(reach[waiting, own[source]], last[source])
    # A communication that is matched starts at its arrival.
    entry = np.arange(work.segments)
    entry[work.segment[work.joined]] = work.arrivals + np.arange(len(work.joined))
    return reach[entry][work.segment]


def reach_of_truth(work: RankWork, edges: Iterable[Edge]) -> Int64:
    """The same of the truth's edges."""
    kernels = work.kernels
    streams = int(kernels.stream.max(initial=0)) + 1
    reach = np.full((len(kernels), streams), -1, np.int64)
    sources: dict[int, list[int]] = {}
    for waiting, source in edges:
        sources.setdefault(waiting, []).append(source)
    for place in np.lexsort((kernels.end_ns, kernels.start_ns)).tolist():
        before = sources.get(place, [])
        if place and kernels.stream[place] == kernels.stream[place - 1]:
            before = [place - 1, *before]
        for source in before:
            np.maximum(reach[place], reach[source], out=reach[place])
            reach[place, kernels.stream[source]] = max(reach[place, kernels.stream[source]], source)
    return reach


def claimed_edges(work: RankWork) -> Iterator[Edge]:
    """The graph's edges between streams."""
    last = last_of(work)
    for edge in np.flatnonzero(work.kind == EdgeKind.EVENT).tolist():
        node = int(work.waiting[edge])
        waiting = work.joined[node - work.segments] if node >= work.segments else work.first[node]
        yield int(waiting), int(last[work.waited_for[edge]])


def score(iteration: StoredIteration, truth: Path, into: Score) -> None:
    """Hold one iteration's graph against the truth."""
    rows: dict[int, list[dict]] = {}
    for row in pq.read_table(truth).to_pylist():
        rows.setdefault(row["rank"], []).append(row)
    for ranked in ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages")):
        for place, work in enumerate(ranked.step.works):
            rank = ranked.step.ranks[place]
            number, names = _numbers(iteration, rank, work)
            true = [
                (number.get((row["waiting"], row["waiting_graph_node"])),
                 number.get((row["waited_for"], row["waited_for_graph_node"])))
                for row in rows.get(rank, ())
            ]  # fmt: skip
            known = [(a, b) for a, b in true if a is not None and b is not None]
            mine, theirs = reach_of_graph(work), reach_of_truth(work, known)
            stream, what = work.kernels.stream, _what(work.kernels)
            into.open += len(work.unknown) + len(work.untold)
            for waiting, source in known:
                kind = f"{what[waiting]} for {what[source]}"
                into.true[kind] = into.true.get(kind, 0) + 1
                if mine[waiting, stream[source]] >= source:
                    into.found[kind] = into.found.get(kind, 0) + 1
                else:
                    into.missed.append((kind, names[waiting], names[source]))
            for waiting, source in claimed_edges(work):
                kind = f"{what[waiting]} for {what[source]}"
                into.claimed[kind] = into.claimed.get(kind, 0) + 1
                if theirs[waiting, stream[source]] >= source:
                    into.right[kind] = into.right.get(kind, 0) + 1
                else:
                    into.wrong.append((kind, names[waiting], names[source]))


def _what(kernels: RankKernels) -> list[str]:
    """What each kernel does."""
    words = np.where(kernels.communicates, "communication", np.where(kernels.computes, "work", "copy"))
    return words.tolist()


def _numbers(iteration: StoredIteration, rank: int, work: RankWork) -> tuple[Mapping[tuple[int, int], int], list[str]]:
    """(correlation, node of a CUDA graph) → place of the kernel."""
    columns = ("kernel_id", "correlation", "graph_node_id", "name", "stream", "phase")
    rows = iteration.kernels(rank, columns).to_pylist()
    place = dict(zip(work.kernels.kernel_id.tolist(), range(len(work.kernels)), strict=True))
    found = {
        (row["correlation"], -1 if row["graph_node_id"] is None else row["graph_node_id"]): place[row["kernel_id"]]
        for row in rows
        if row["kernel_id"] in place
    }
    names = [""] * len(work.kernels)
    for row in rows:
        if row["kernel_id"] in place:
            names[place[row["kernel_id"]]] = f"{row['stream']}:{row['phase']}:{row['name'][:40]}"
    return found, names


SMALL = JobSettings(
    layers=4, microbatches=4, hidden=1024, heads=8, feed_forward=4096, sequence=1024, vocabulary=8192, node_size=4
)


def jobs() -> Iterator[tuple[str, JobSettings]]:
    """Every parallel dimension and schedule."""

    def small(**changes: object) -> JobSettings:
        return replace(SMALL, **changes)  # type: ignore[arg-type]

    yield "one rank", small()
    yield "tp4", small(tp=4)
    yield "dp4", small(dp=4)
    yield "dp4 without overlap", small(dp=4, overlap_grad_reduce=False, overlap_param_gather=False)
    yield "pp4 recompute", small(pp=4, recompute=Recompute.FULL)
    yield "cp2 dp2 ring", small(cp=2, dp=2)
    yield "cp4 gathered", small(cp=4, context_exchange=ContextExchange.ALL_GATHER)
    yield "tp2 pp2 dp2 interleaved", small(tp=2, pp=2, dp=2, vpp=2, recompute=Recompute.FULL)
    yield "tp2 pp2 overlapped messages", small(pp=2, vpp=2, tp=2, overlap_p2p=True)
    yield "ep4 tp2 pp2 dp4", small(tp=2, pp=2, dp=4, ep=4, etp=1)
    yield "ep2 pp2 dp2 deepep", small(pp=2, dp=2, ep=2, dispatcher=Dispatcher.DEEPEP)
    yield "ep2 pp2 dp2 combined", small(pp=2, vpp=2, dp=2, ep=2, overlap_expert=True)
    yield "ep2 combined, overlapped messages", small(pp=2, vpp=2, dp=2, ep=2, overlap_expert=True, overlap_p2p=True)
    yield "ep2 dp2 combined, torch 2.4", small(dp=2, ep=2, overlap_expert=True, era=Era.TORCH_2_4)
    yield "tp2 pp2 userbuffers", small(tp=2, pp=2, overlap_tensor=True)
    yield "tp2 pp2 layer graphs", small(tp=2, pp=2, cuda_graphs=Graphs.LAYER)
    yield "tp2 pp2 whole graph", small(tp=2, pp=2, cuda_graphs=Graphs.ITERATION)
    yield "tp2 pp2 dp2 torch 2.3", small(tp=2, pp=2, dp=2, era=Era.TORCH_2_3)
    yield "tp2 pp2 dp2 without stacks", small(tp=2, pp=2, dp=2, vpp=2, stacks=False)
    yield "Megatron-FSDP, dp4", small(dp=4, fsdp=True)
    yield "Megatron-FSDP, tp2 dp2", small(tp=2, dp=2, fsdp=True)
    yield "Megatron-FSDP, dp4 full recompute", small(dp=4, fsdp=True, recompute=Recompute.FULL)
    yield "Megatron-FSDP, ep2 pp2 dp4 interleaved", small(pp=2, vpp=2, dp=4, ep=2, fsdp=True)
    yield "Megatron-FSDP, dp4 torch 2.4", small(dp=4, fsdp=True, era=Era.TORCH_2_4)
    yield "offloaded modules, tp2 pp2 interleaved", small(tp=2, pp=2, vpp=2, layers=8, offload=Offload.MODULES)
    yield "offloaded modules, tp2 dp2", small(tp=2, dp=2, offload=Offload.MODULES)
    yield "offloaded modules, cp2 dp2", small(cp=2, dp=2, offload=Offload.MODULES)
    yield "offloaded layers, dp2", small(dp=2, offload=Offload.LAYERS)
    yield "offloaded layers, dp2 torch 2.4", small(dp=2, offload=Offload.LAYERS, era=Era.TORCH_2_4)
    yield "Megatron-FSDP, offloaded modules, tp2 dp2", small(tp=2, dp=2, fsdp=True, offload=Offload.MODULES)


READINGS = {
    "recorded": "as recorded",
    "stripped": "`cuda_sync` rows stripped",
    "without calls": "rows and calls stripped",
}
"""How a job is read; without ``--cuda-sync`` only calls of asynchronous waits are in the traces."""

_ROW = re.compile(rb"[ \t]*\{[^{}]*\"cat\": \"cuda_sync\"[^{}]*\{[^{}]*\}[^{}]*\},?[ \t]*\n")


def strip(folder: Path) -> int:
    """Take the rows of synchronisation out of all traces of a folder; returns how many there were."""
    removed = 0
    for path in folder.rglob("*.pt.trace.json.gz"):
        text, count = _ROW.subn(b"", gzip.decompress(path.read_bytes()))
        path.write_bytes(gzip.compress(text, 1))
        removed += count
    return removed


def outcome(settings: JobSettings, reading: str, folder: Path) -> Score:
    """Simulate a job, read it in one way, and hold the graph against the truth."""
    simulate(replace(settings, cuda_sync=reading != "without calls"), folder / "job", workers=1)
    if reading == "stripped":
        strip(folder / "job")
    result = Score()
    with iterations_at(folder / "job", folder / "home") as iterations:
        for iteration in iterations:
            score(iteration, folder / "job" / "truth" / "edges.parquet", result)
    return result


def markdown(found: Sequence[tuple[str, str, Score]], seconds: float) -> str:
    """The part of the page on waits between streams."""
    readings = {reading: together([one for _, each, one in found if each == reading]) for reading in READINGS}
    lines = [
        paragraph(
            "The graph of `critical-path` should have every wait between streams of a job, directly or implied by "
            "others (*found*), and only waits that follow from the truth (*true*). Waits inside CUDA "
            "graphs and waits for the order of a communicator count. Each job is read in three ways: "
            f"{'; '.join(f'*{name}* {words}' for name, words in zip(_SHORT, READINGS.values(), strict=True))}."
        ),
        "",
        paragraph(
            "What is inferred follows from the order of calls and from times alone. Two cases cannot be seen: inside "
            "CUDA graphs, a wait that the stream's communication before it hides; in combined steps on two streams "
            "(torch 2.4), calls of gradient reductions, which look like calls that hand work over."
        ),
        "",
        paragraph(
            f"`{COMMAND}` takes {seconds:.0f} processor seconds. Nothing shows what "
            f"{', '.join(f'{one.open:,} ({name})' for name, one in zip(_SHORT, readings.values(), strict=True))} "
            "of the communications and calls are for."
        ),
        "",
        f"| job | waits | {' | '.join(f'{what} {name}, %' for what in ('found', 'true') for name in _SHORT)} |",
        "| --- " + "| ---: " * (1 + 2 * len(READINGS)) + "|",
    ]
    lines += [_job(name, [one for _, _, one in same]) for name, same in groupby(found, itemgetter(0))]
    return "\n".join([*lines, _job("all jobs", list(readings.values()))])


_SHORT = ("A", "B", "C")
"""Names of the readings in the table's columns."""


def _job(name: str, by_reading: Sequence[Score]) -> str:
    """A job's row of the page, from its scores in the order of the readings."""
    true = sum(by_reading[0].true.values())
    found = [f"{100 * one.recall:.1f}" if true else "" for one in by_reading]
    right = [f"{100 * one.precision:.1f}" if sum(one.claimed.values()) else "" for one in by_reading]
    return _line([name, f"{true:,}", *found, *right])


def together(scores: Iterable[Score]) -> Score:
    """The sums of several scores."""
    result = Score()
    for one in scores:
        for name in ("true", "found", "claimed", "right"):
            mine = getattr(result, name)
            for key, count in getattr(one, name).items():
                mine[key] = mine.get(key, 0) + count
        result.open += one.open
        result.missed += one.missed
        result.wrong += one.wrong
    return result


def _row(name: str, reading: str, one: Score) -> str:
    return _line(_cells(name, reading, one))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(name: str, reading: str, one: Score) -> list[str]:
    true, claimed = sum(one.true.values()), sum(one.claimed.values())
    shares = _percent(one.recall, true), f"{claimed:,}", _percent(one.precision, claimed)
    return [name, reading, f"{true:,}", *shares, f"{one.open:,}"]


def _percent(share: float, of: int) -> str:
    return f"{100 * share:.1f} %" if of else ""


def main() -> int:
    """Run the benchmark; the exit code is 1 if too few waits are found, or too many are wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="run the jobs whose names match this pattern, and write nothing")
    parser.add_argument("--reading", choices=READINGS, help="read them in this way only, and write nothing")
    parser.add_argument("--seeds", type=int, default=1, help="run each job with so many seeds, and write nothing")
    parser.add_argument("--verbose", action="store_true", help="show what is missed and what is wrong")
    given = parser.parse_args()
    began, found = time.process_time(), []
    for name, settings in jobs():
        if given.only and not fnmatch(name, given.only):
            continue
        for reading in [given.reading] if given.reading else READINGS:
            by_seed = []
            for seed in range(settings.seed, settings.seed + given.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    by_seed.append(outcome(replace(settings, seed=seed), reading, Path(folder)))
            one = together(by_seed)
            found.append((name, reading, one))
            print(_row(name, reading, one), flush=True)
            for kind in sorted({*one.true, *one.claimed}) if given.verbose else ():
                counts = [getattr(one, name).get(kind, 0) for name in ("true", "found", "claimed", "right")]
                print(f"   {kind}: {counts[0]} true, {counts[1]} found; {counts[2]} claimed, {counts[3]} right")
            for what in ("missed", "wrong") if given.verbose else ():
                for words, count in Counter(getattr(one, what)).most_common(12):
                    print("  ", what, count, *words)
    if not given.only and not given.reading and given.seeds == 1:
        write_waits(markdown(found, time.process_time() - began))
    stripped = together([one for _, reading, one in found if reading != "without calls"])
    return 0 if stripped.recall >= FOUND and stripped.precision >= TRUE else 1


if __name__ == "__main__":
    sys.exit(main())
