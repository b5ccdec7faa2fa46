"""What the commands across ranks share: where the iterations come from, and how rows and titles name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from traceviz_dag.analyze.wording import numbered
from traceviz_dag.commands.common.failures import end_gone, end_half_renewed, gone_iterations
from traceviz_dag.commands.common.output import print_wrapped
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.lake.catalogue import tables_named_in
from traceviz_dag.lake.inputs import registered_iterations
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import split_name
from traceviz_dag.lake.recorded import check
from traceviz_dag.pipeline.answers.iterations import heading
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    from traceviz_dag.analyze.findings.verdict import Lead
    from traceviz_dag.lake.partitions import Partition
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

PathArgument = Annotated[
    Path | None, typer.Argument(help="A run, iteration or trace to analyse; default: what the home holds.")
]
RunOption = Annotated[str | None, typer.Option("--run", help="Take only this run.")]
IterationOption = Annotated[
    int | None,
    typer.Option("--iteration", help="Take only this iteration; default: print the newest, JSON has all."),
]
RulesOption = Annotated[
    Path | None,
    typer.Option("--rules", help="TOML file of rules that are tried before the built-in ones; needs a path."),
]

RecordsOption = Annotated[
    Path | None,
    typer.Option(
        "--records",
        help="Read StragglerAnalysis records, trace-NAME.parquet beside meta-NAME.yaml, or a folder of Primus' dumps.",
    ),
]


SteadyOption = Annotated[
    bool,
    typer.Option("--steady", help="Join the steps of all iterations, which follow one another: their steady period."),
]


class _OfIteration(Protocol):
    """What names a run and an iteration of it."""

    @property
    def run(self) -> str: ...

    @property
    def iteration(self) -> int: ...


_Iteration = TypeVar("_Iteration", bound=_OfIteration)
_Answer = TypeVar("_Answer")


def refuse_both(path: Path | None, run: str | None, iteration: int | None) -> None:
    """Let nobody name traces beside records.

    Raises:
        UsageError: somebody did.
    """
    if path is not None or run is not None or iteration is not None:
        raise UsageError("name traces or --records, not both")


def refuse_run(path: Path | None, home: Path) -> None:
    """Say how a run of the home is named, where a path is none and has the name of one, or nearly so.

    Raises:
        UsageError: so it is.
    """
    if path is None or path.exists():
        return
    known = registered_iterations(real_path(home))
    run, iteration = split_name(str(path), known)
    if run in known:
        which = f"--run {run}"
        which += (
            f" --iteration {min(known[run], key=lambda one: abs(one - iteration))}" if iteration is not None else ""
        )
        there = "a run of that name" if iteration in (None, *known[run]) else "others of that run"
        raise UsageError(f"{path}: no such file or folder; the home has {there}: give it as {which}")
    # Imported here because no other call needs it.
    from difflib import get_close_matches

    if close := get_close_matches(run, known, 1):
        raise UsageError(f"{path}: no such file or folder; did you mean --run {close[0]}?")


@contextmanager
def chosen_iterations(
    path: Path | None,
    home: Path,
    run: str | None,
    iteration: int | None,
    rules: Path | None = None,
    rank: int | None = None,
    *,
    by_rank: bool = False,
    printed: str = "",
) -> Iterator[list[StoredIteration]]:
    """The iterations that a command is to speak of; its end says what of them was not read.

    Args:
        rank: of a single file that does not say its own. by_rank: see ``iterations_at``. printed: see ``end_stored``.

    Raises:
        UsageError: none of them has that run or number, or rules are given for what is classified already.
        IncompleteError: at the end, where something was not read or was deleted, or the last analysis of one was cut
            off; at once where nothing else is there.
    """
    from traceviz_dag.pipeline.stored_iteration import iterations_at

    refuse_run(path, home)
    if path is None and rules is not None:
        raise UsageError("--rules is for traces: give their path")
    gone = {} if path is not None else gone_iterations(Lake(real_path(home)), run, iteration, "kernels")
    with iterations_at(path, home, rules, rank, by_rank=by_rank) as found:
        chosen = [each for each in found if run in (None, each.run) and iteration in (None, each.iteration)]
        if not chosen:
            there = ", ".join(f"{each.run} {each.iteration}" for each in found[:5])
            raise UsageError(f"no such run or iteration; there are {there}")
        yield chosen
        if path is None:
            end_stored(chosen[0].lake, chosen, gone, printed)
        end_partial([each.completeness for each in chosen])


def end_stored(
    lake: Lake, shown: Sequence[_OfIteration], gone: Mapping[str, Sequence[Partition]], printed: str
) -> None:
    """End a command that showed iterations of a lake.

    Args:
        gone: of :func:`gone_iterations`. printed: names the tables that it reads where it prints, and not for JSON: so
            that the exit code is the same, those of the newest iterations are compared with what was written.

    Raises:
        BadInputError: a printed one is damaged or deleted. IncompleteError: see ``end_half_renewed``, ``end_gone``.
    """
    newest = {each.run: each.iteration for each in sorted(shown, key=lambda one: one.iteration)}
    for table in tables_named_in(printed):
        for place in newest.items():
            check(lake.tables_folder, table, lake.partitions(table.name, *place))
    end_half_renewed(lake.home, [(each.run, each.iteration) for each in shown])
    end_gone(gone)


def each_printed(iterations: Sequence[_Iteration], answers: Sequence[_Answer]) -> Iterator[tuple[_Iteration, _Answer]]:
    """The newest iteration of each run, with its answer; once these are printed, a line names the earlier ones.

    A job may have hundreds of iterations: JSON has all of them, and the exit code is by all.
    """
    runs: dict[str, list[int]] = {}
    for each in iterations:
        runs.setdefault(each.run, []).append(each.iteration)
    for each, answer in zip(iterations, answers, strict=True):
        if each.iteration == max(runs[each.run]):
            yield each, answer
    for run, numbers in runs.items():
        earlier = sorted(numbers)[:-1]
        if earlier:
            typer.echo()
            print_wrapped(
                f"Not printed: {numbered('iteration', earlier)} of {run}; --iteration shows one, --json has all", 2
            )


def end_untold(answers: Sequence[Mapping[str, Any]]) -> None:
    """Say of which iterations the traces cannot show for certain, after the answers were printed.

    Args:
        answers: one for each iteration: ``run``, ``iteration``, ``certain`` and, where that is false, ``reason``; or
            for each run, with ``iterations``.

    Raises:
        NoEvidenceError: there is such an iteration.
    """
    untold = [answer for answer in answers if not answer["certain"]]
    if untold:
        first = untold[0]
        several = first.get("iterations")
        what = "iterations" if several is None else "runs"
        more = f" ({len(untold)} of {len(answers)} {what})" if len(answers) > 1 else ""
        of = first["iteration"] if several is None else numbered("iteration", several)
        raise NoEvidenceError(f"{first['run']} {of}: {first['reason']}{more}")


def print_steady(iterations: Sequence[StoredIteration], text: str) -> None:
    """Print the title of steps that are joined, and below it what limits the last of them."""
    last = iterations[-1]
    marks = (each.completeness.mark for each in iterations)
    mark = next((f"{each} · " for each in marks if each), "")
    named = numbered("iteration", [each.iteration for each in iterations])
    print_limit(f"{last.run} · {named} · {mark}{text}", last.lead, f"This verdict is of iteration {last.iteration}.")


def print_reason(answer: Mapping[str, Any]) -> None:
    """Print why an answer is not certain where the line at the end speaks of what was not read instead."""
    if answer["reason"] is not None and answer["partial"]:
        print_wrapped(answer["reason"], 4, "  ")


def print_lead(iteration: StoredIteration, text: str, relation: str = "") -> None:
    """Print the title of an iteration, and below it what limits its step, as ``traceviz findings`` has it.

    Args:
        relation: how what follows differs from that, in a sentence.
    """
    print_limit(heading(iteration, text), iteration.lead, relation)


def print_limit(title: str, lead: Lead | None, relation: str = "") -> None:
    """:func:`print_lead` under a title; without a verdict where none is known."""
    typer.echo()
    print_wrapped(title, 2)
    if lead is not None and lead.limit:
        print_wrapped(f"Verdict: {lead.limit}. {relation}".rstrip(), 4, "  ")
