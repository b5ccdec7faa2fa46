"""How certain what an iteration's findings rest on is, and how it was captured, as its tables say.

Commands start with it, so it imports no rule.
"""

from __future__ import annotations

from typing import cast

from traceviz_dag.analyze.clocks.clock_summary import clock_facts
from traceviz_dag.analyze.findings.notes import may_be_finding
from traceviz_dag.analyze.findings.rules.environment import SETTINGS, STATED
from traceviz_dag.analyze.findings.verdict import NOTABLE, Evidence, Verdict, verdict
from traceviz_dag.analyze.waits.unknown_waits import (
    UNKNOWN_COLUMNS,
    UnknownWaits,
    lost_kernels,
    uncertain_waits,
    unknown_waits,
)
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.queries import TraceFiles, trace_files
from traceviz_dag.tables import FINDINGS
from traceviz_dag.vocabulary import StepKind, TraceStatus, TrainingFramework

_JUDGED = {
    FINDINGS.name: None,
    "iterations": ("ranks", "unclassified_share"),
    "rank_clocks": None,
    "collectives": UNKNOWN_COLUMNS,
}
"""What a verdict rests on: tables, and the columns that it reads; None: all."""

_DOUBTS_SQL = f"""
SELECT (
    SELECT count(*) FROM traces
    WHERE run = $run AND iteration = $iteration AND status <> 'failed' AND launched_kernels <= (1 - {NOTABLE}) * kernels
        AND kernels > 0
) AS launchless, (
    SELECT count(*) FROM process_groups WHERE run = $run AND iteration = $iteration AND disagreement IS NOT NULL
) AS contradicted
"""


def stored_verdict(lake: Lake, run: str, iteration: int, lacking: str) -> Verdict | None:
    """The verdict on an iteration, from its tables; None where nothing was judged.

    Args:
        lacking: what of it was not read; empty where all was.
    """
    if not all(lake.exists(name, run=run, iteration=iteration) for name in _JUDGED):
        return None
    rows, measures, clocks, collectives = (
        lake.table(name, run, iteration).arrow(columns) for name, columns in _JUDGED.items()
    )
    if not measures.num_rows:
        return None
    (measured,) = measures.to_pylist()
    (doubts,) = lake.query_iteration(_DOUBTS_SQL, run=run, iteration=iteration).to_pylist()
    found, unknown = rows.to_pylist(), unknown_waits(collectives)
    evidence = Evidence(
        ranks=measured["ranks"],
        partial=lacking,
        clocks=clock_facts(clocks)["solved"],
        unknown_waits=None if unknown is None else unknown.reason,
        uncertain=uncertain_waits(collectives) / max(collectives.num_rows, 1),
        unclassified=measured["unclassified_share"] or 0.0,
        open=sum(map(may_be_finding, found)),
        launchless=doubts["launchless"],
        contradicted=doubts["contradicted"],
    )
    return verdict(found, evidence)


def stored_unknown_waits(lake: Lake, run: str, iteration: int) -> UnknownWaits | None:
    """Why no wait of an iteration is certain, from its table ``collectives``; None where some are, or it has none."""
    if not lake.exists("collectives", run=run, iteration=iteration):
        return None
    return unknown_waits(lake.table("collectives", run, iteration).arrow(UNKNOWN_COLUMNS))


def stored_lost_kernels(lake: Lake, run: str, iteration: int, files: TraceFiles | None = None) -> UnknownWaits | None:
    """What of an iteration's communication the traces lost, from its table ``collectives``; see ``lost_kernels``.

    Args:
        files: its traces, where they were asked already.
    """

    def all_read() -> bool:
        told = files or trace_files(lake, run, iteration)
        return told.described == sum(row["status"] == TraceStatus.READ.value for row in told.rows)

    if not lake.exists("collectives", run=run, iteration=iteration):
        return None
    return lost_kernels(lake.table("collectives", run, iteration).arrow(UNKNOWN_COLUMNS), all_read)


def compared_environment(files: TraceFiles) -> dict[str, list[str]]:
    """What the ranks of an iteration state of their environment, in words.

    Returns:
        ``alike``: what all ranks state alike; ``unknown``: what no rank states. What ranks state differently, or only
        some of them state, is in neither: rule environment reports it.
    """
    rows, named = cast("list[dict[str, object]]", files.readable), STATED | {"settings": SETTINGS}
    said = {what: [row[column] for row in rows] for column, what in named.items()}
    return {
        "alike": [what for what, each in said.items() if len(each) > 1 and len(set(each)) == 1 and each[0] is not None],
        "unknown": [what for what, each in said.items() if each and set(each) == {None}],
    }


def kind_of_steps(files: TraceFiles) -> StepKind | None:
    """What kind of steps the ranks of an iteration ran; None where they differ, or where one does not show."""
    kind, *others = {row["step_kind"] for row in files.readable} or {None}
    return None if others or kind is None else StepKind(kind)


def framework_of(files: TraceFiles) -> TrainingFramework | None:
    """What trained the ranks of an iteration, as those say that show it; None where they differ, or none does."""
    named = {row["framework"] for row in files.readable if row["framework"] is not None}
    return TrainingFramework(named.pop()) if len(named) == 1 else None


def capture_mode(files: TraceFiles) -> str:
    """What was recorded of an iteration, in words: it shows how much the profiler slows a step."""
    rows = files.readable
    kinds = {row["format"].split("_")[0] for row in rows if row["format"] is not None}
    tools = {"kineto": "PyTorch profiler", "nsys": "Nsight Systems"}
    tool = " and ".join(sorted(tools.get(kind, kind) for kind in kinds)) or "unknown profiler"
    stacks, shapes = {row["has_stacks"] for row in rows} - {None}, {row["has_shapes"] for row in rows} - {None}
    some = "call stacks on some ranks" if True in stacks else "no call stacks"
    what = ["call stacks" if stacks == {True} else some, *(["shapes"] if shapes == {True} else [])]
    return f"{tool}, {', '.join(what)}"
