"""Which iterations an answer is about, what of them was not read, and sentences that several answers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.wording import milliseconds, numbered, own_delay
from traceviz_dag.vocabulary import StepKind

if TYPE_CHECKING:
    from traceviz_dag.analyze.slow_words import SlowRank
    from traceviz_dag.analyze.waits.blamed import LateRank
    from traceviz_dag.lake.summaries import CutStep
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

MOST_RANKS = 5
"""So many of the ranks of which the same is said get lines of their own."""


STEP_KINDS: dict[str, str] = {
    StepKind.FORWARD_ONLY: "forward only: no backward pass, no optimizer",
    StepKind.INFERENCE: "inference: no training step; see its gaps, launches, kernels and copies",
    StepKind.GRAPH_REPLAY: "replays of CUDA graphs without phases; see their gaps, launches, kernels and copies",
}
"""What the first line says of an iteration that is no training step."""


def place(iteration: StoredIteration) -> dict[str, Any]:
    """Run and iteration, and what of it was not read, as the first columns of every row."""
    return {"run": iteration.run, "iteration": iteration.iteration, **iteration.completeness.as_json()}


def place_of_all(iterations: Sequence[StoredIteration]) -> dict[str, Any]:
    """``place`` of iterations of one run that are answered together: that of the last, and the numbers of all."""
    partial = next((each for each in iterations if each.completeness.partial), iterations[-1])
    told = {**place(iterations[-1]), **partial.completeness.as_json()}
    return {**told, "iterations": [each.iteration for each in iterations]}


def by_run(iterations: Sequence[StoredIteration]) -> list[list[StoredIteration]]:
    """The iterations of each run, in order."""
    runs: dict[str, list[StoredIteration]] = {}
    for each in sorted(iterations, key=lambda one: one.iteration):
        runs.setdefault(each.run, []).append(each)
    return list(runs.values())


def table_rows(iteration: StoredIteration, name: str) -> list[dict[str, Any]]:
    """A table's rows, without the columns that say which iteration it is of."""
    table = iteration.table(name)
    return table.drop_columns([each for each in ("run", "iteration") if each in table.column_names]).to_pylist()


def heading(iteration: StoredIteration, text: str) -> str:
    """A title that names run and iteration, and what of it was not read."""
    mark = iteration.completeness.mark
    return f"{iteration.run} · iteration {iteration.iteration} · {f'{mark} · ' if mark else ''}{text}"


def untold_waits(run: str, iteration: int, unknown: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``end_untold`` takes of an iteration; ranks alone that were not read are said of the iteration anyway.

    Args:
        unknown: why its waits are unknown, as ``UnknownWaits`` has it; None where they are not.
    """
    if unknown is None:
        return {"run": run, "iteration": iteration, "certain": True, "reason": None}
    return {"run": run, "iteration": iteration, "certain": unknown["unread"], "reason": unknown["reason"]}


def blame_statement(row: LateRank) -> str:
    """What a rank that is to blame did to its peers, from its row of ``blame.late_ranks``."""
    from traceviz_dag.analyze.waits.blamed import share_of_step

    own = own_delay(f"{milliseconds(row['own_ns'])} ms", row["late_category"])
    return (
        f"rank {row['rank']} delayed its peers by {own}, {share_of_step(row['own_share'], row['steps'])}, last in "
        f"{row['last']} of {row['communications']} communications; a sum of delays, not what fixing it would save"
    )


def slow_statements(rows: Sequence[SlowRank]) -> list[str]:
    """What the rows of ``slow_ranks`` say: who computes slowly, or that nobody has a peer to be compared with."""
    from traceviz_dag.analyze.slow_words import slow_statement

    if len(rows) > 1 and not any(row["items"] for row in rows):
        return [
            "no rank can be compared with peers of its stage: no kernel ran equally often on all ranks of a stage (one "
            "rank per stage, or uneven work)"
        ]
    return first_lines([slow_statement(row) for row in rows if row["slow"]], "compute slowly")


def blame_statements(rows: Iterable[LateRank]) -> list[str]:
    """What each rank that is to blame did to its peers, the worst first."""
    blamed = sorted((row for row in rows if row["blamed"]), key=lambda row: -row["own_ns"])
    return first_lines([blame_statement(row) for row in blamed], "delayed their peers")


def first_lines(lines: list[str], did: str) -> list[str]:
    """Lines of ranks, the first ones where they are many, and how many more ranks there are, with what they did."""
    more = len(lines) - MOST_RANKS
    return lines if more < 2 else [*lines[:MOST_RANKS], f"{more:,} more ranks {did}"]


def cut_statements(rows: Sequence[CutStep]) -> list[str]:
    """Which training steps beside an iteration are cut, and on which ranks, a line each."""
    how, lines = {"start": "started", "stop": "stopped"}, []
    for row in rows:
        where = "" if row["everywhere"] else f" on {numbered('rank', row['ranks'])}"
        whole = f"; {numbered('rank', row['whole'])} recorded it whole" if row["whole"] else ""
        lines.append(
            f"step {row['step']} is cut{where}: the profiler {how[row['edge']]} within it; its kernels{where} "
            "count for no wait or speed, and for a step only where they run within its time (table traces, cut_steps)"
            f"{whole}"
        )
    return lines
