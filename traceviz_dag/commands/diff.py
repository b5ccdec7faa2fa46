"""``traceviz diff``: what changed from one run to another, in tables that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.analyze.wording import changed, numbered, percent, shortened
from traceviz_dag.commands.common.failures import end_gone, end_half_renewed, gone_iterations
from traceviz_dag.commands.common.figure_file import check_figure
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption, check_number
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped, shown
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.answers.diff import diff_answer, diff_verdict
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    from traceviz_dag.analyze.diff.changes import Bar, Change
    from traceviz_dag.analyze.diff.words import Verdict
    from traceviz_dag.pipeline.diff.comparison import Comparison
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

_WORSE = 1


def diff(
    a: Annotated[
        str,
        typer.Argument(
            help="What to compare with: a folder of traces, a trace, an export of Nsight Systems, a home, HOME/RUN, or "
            "a run of --home, each with @ITERATION for one iteration of it; or a named baseline of --home.",
            show_default=False,
        ),
    ],
    b: Annotated[str, typer.Argument(help="What is compared with A, given the same way.", show_default=False)],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare although the two differ in more than their times.")
    ] = False,
    least: Annotated[
        float, typer.Option("--least", min=0, help="Percent of A's step from which a change counts.")
    ] = 1.0,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw the change into this .png, .svg or .pdf.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show what changed from run A to run B: the change of the step, by critical path and by replay, to the nanosecond.

    The rows of both tables add up to the change. By path: what the critical path has more or less of, split into more
    calls and longer calls. By replay: what B's step becomes shorter by with A's durations, class by class. Several
    steps are compared by their means, with an error bar; a change within it is none. Then come all operations and
    modules, on the path or not, and the findings that came, went and stayed.

    Runs that differ in layout, micro-batches, GPU, shapes, types or capture mode are not compared without --anyway. The
    exit code is 0 without a change or if B is faster, 1 if B is slower, and 2 if they are not compared, or ranks are
    missing.
    """
    from traceviz_dag.analyze.diff.words import Outcome
    from traceviz_dag.pipeline.diff.comparison import compare
    from traceviz_dag.pipeline.diff.sides import side_at

    check_number("--least", least)
    if figure is not None:
        check_figure(figure, Path(a), Path(b))
    # Both are looked up before the first is read, which may take minutes.
    named = [side_at(given, home) for given in (a, b)]
    homes = [each for each in named if each.traces is None]
    gone = [gone_iterations(Lake(real_path(each.home)), each.run, each.iteration, "kernels") for each in homes]
    with ExitStack() as opened:
        sides = [opened.enter_context(each.opened()) for each in named]
        found = compare(*sides, anyway=anyway)
        judged = diff_verdict(found, least)
        if json:
            print_json(diff_answer((a, b), sides, found, judged))
        else:
            _print(sides, found, judged)
        if figure is not None and found.step is not None and judged is not None:
            _draw(figure, sides, found, judged)
        every = [each for side in sides for each in side]
        for home_of in dict.fromkeys(each.lake.home for each in every if each.inputs is None):
            places = [(each.run, each.iteration) for each in every if each.lake.home == home_of]
            end_half_renewed(home_of, places)
        for parts in gone:
            end_gone(parts)
        end_partial([each.completeness for each in every])
    if found.refused:
        raise NoEvidenceError(f"{a} and {b} are not compared: see above; --anyway compares them all the same")
    if why := found.no_path or found.no_replay:
        raise NoEvidenceError(f"the step cannot be replayed: {why}")
    if judged is not None and judged.outcome is Outcome.LONGER:
        raise typer.Exit(_WORSE)


def _draw(figure: Path, sides: Sequence[Sequence[StoredIteration]], found: Comparison, judged: Verdict) -> None:
    from traceviz_dag.show.figures.step_change import draw_step_change
    from traceviz_dag.show.page.rendering import write_figure

    assert found.step is not None
    drawn = draw_step_change(judged, [_named(side) for side in sides], found.step, found.parts, found.replay)
    write_figure(drawn, figure.parent, figure.stem, (figure.suffix.removeprefix("."),))


def _named(side: Sequence[StoredIteration]) -> str:
    return f"{side[0].run}, {numbered('iteration', (each.iteration for each in side))}"


def _print(sides: Sequence[Sequence[StoredIteration]], found: Comparison, judged: Verdict | None) -> None:
    from traceviz_dag.analyze.diff.words import Outcome, main_cause

    marks = [next((each.completeness.mark for each in side if each.completeness.mark), "") for side in sides]
    typer.echo()
    for letter, side, mark in zip("AB", sides, marks, strict=True):
        print_wrapped(f"{letter}: {_named(side)}{f' · {mark}' if mark else ''}", 3)
    if judged is not None and found.step is not None:
        print_wrapped(f"{judged.sentence}.", 4, "  ")
        cause = None if judged.outcome is Outcome.NO_CHANGE else main_cause(found.replay, found.step)
        if cause is not None:
            print_wrapped(f"{cause}.", 4, "  ")
    for one in found.differences:
        print_wrapped(f"{'Not comparable' if one.refused else 'Differs'}: {one.sentence}.", 4, "  ")
    if found.unstated:
        print_wrapped(f"Not compared, as one of the two does not record it: {', '.join(found.unstated)}.", 4, "  ")
    if found.refused:
        return
    if why := found.no_path or found.no_replay:
        print_wrapped(f"{'The steps are' if found.no_path else 'The replay is'} not compared: {why}.", 4, "  ")
    if found.no_path is None:
        if found.no_replay is None:
            _print_replay(found)
        _print_parts(found)
        _print_path(found)
    for name, words in (("operations", "operation"), ("modules", "module")):
        _print_kernels(found, name, words)
    if found.findings is not None:
        told = [{**row, "rule": row["rule"].replace("_", " ")} for row in found.findings]
        columns = ["change", "rule", ("a_gain_ns", "gain A"), ("b_gain_ns", "gain B"), ("statement", "finding")]
        print_columns("Findings", told, columns)


def _print_parts(found: Comparison) -> None:
    from traceviz_dag.analyze.diff.words import named_part

    assert found.step is not None
    rows = [row for row in found.parts if row.change_ns]
    _print_changes(
        f"By path, {changed(found.step.change_ns)} ms per step: what the critical path has more or less of",
        {"what": [named_part(*row.key[1:]) for row in rows], "stage": [row.key[0] for row in rows]},
        rows,
        found.steps,
    )


def _print_path(found: Comparison) -> None:
    from traceviz_dag.analyze.diff.changes import PATH_KEY
    from traceviz_dag.analyze.diff.words import named_part

    rows = [row for row in found.path if row.change_ns]
    keys = [dict(zip(PATH_KEY, row.key, strict=True)) for row in rows]
    _print_changes(
        "By path, operation by operation",
        {
            "what": [named_part(key["category"], key["cause"]) for key in keys],
            **{name: [key[name] for key in keys] for name in ("stage", "phase", "dimension", "module")},
            "operation": _names(
                [key["operation"] or ("after the last launch" if key["cause"] == "host" else None) for key in keys]
            ),
        },
        rows,
        found.steps,
    )


def _print_replay(found: Comparison) -> None:
    from traceviz_dag.analyze.diff.words import named_class

    assert found.step is not None
    rows = sorted((row for row in found.replay if row.change_ns), key=lambda row: (-abs(row.change_ns), row.order))
    if not rows:
        return
    bars = any(row.bar is not None for row in rows)
    ends = [("low_ns", "at least"), ("high_ns", "at most")] if bars else []
    print_columns(
        f"By replay, {changed(found.step.change_ns)} ms per step: what each class of work makes of it",
        [
            {
                **{"order": row.order, "what": named_class(row.work), "change_ns": row.change_ns},
                **{"note": None if row.is_change else "no change", **_ends(row.bar)},
            }
            for row in rows
        ],
        [
            ("order", "put in"),
            "what",
            "change_ns",
            *ends,
            *([] if all(row.is_change for row in shown(rows)) else ["note"]),
        ],
    )
    print_wrapped(
        f"{percent(found.matched)} of B's kernel time is of operations that A runs, too; classes are put in one "
        f"after the other, 1 to {len(found.replay)}, and what is put in earlier may hide what comes later",
        4,
        "  ",
    )


def _print_kernels(found: Comparison, name: str, word: str) -> None:
    every = found.tables.get(name, ())
    steps, whole = found.steps, sum(row.change_ns for row in every)
    if all(row.key[1] is None for row in every):
        return
    rows = [row for row in every if row.change_ns or row.a_calls * steps[1] != row.b_calls * steps[0]]
    _print_changes(
        f"All kernels by {word}, {changed(whole)} ms per step over the ranks, waits in communication included",
        {word: _names([row.key[1] for row in rows]), "kind": [row.key[0] for row in rows]},
        rows,
        steps,
    )


def _print_changes(
    title: str, named: Mapping[str, Sequence[object]], rows: Sequence[Change], steps: tuple[int, int]
) -> None:
    """Print rows of a change under what they are of; empty columns and tables are left out."""
    from traceviz_dag.analyze.diff.words import state_of

    if not rows:
        return
    named = {name: values for name, values in named.items() if any(value is not None for value in values)}
    worded = {f"named {name}": name for name in named}
    states, bars = [state_of(row) for row in rows], any(row.bar is not None for row in rows)
    print_columns(
        title,
        [
            {
                **dict(zip(worded, words, strict=True)),
                **{"a_ns": row.a_ns, "b_ns": row.b_ns, "change_ns": row.change_ns, **_ends(row.bar)},
                **{"calls A": _calls(row.a_calls, steps[0]), "calls B": _calls(row.b_calls, steps[1])},
                **{"count_ns": row.count_ns, "per_call_ns": row.per_call_ns, "note": state or None},
            }
            for row, state, *words in zip(rows, states, *named.values(), strict=True)
        ],
        [
            *(*worded.items(), ("a_ns", "A"), ("b_ns", "B"), "change_ns"),
            *([("low_ns", "at least"), ("high_ns", "at most")] if bars else []),
            *("calls A", "calls B", ("count_ns", "by calls"), ("per_call_ns", "by length")),
            *(["note"] if any(shown(states)) else []),
        ],
    )


def _calls(calls: int, steps: int) -> str:
    """Calls per step."""
    return f"{calls // steps:,}" if calls % steps == 0 else f"{calls / steps:,.1f}"


def _names(names: Sequence[str | None]) -> list[str | None]:
    """Names as a table shows them: as short as they are still told apart."""
    distinct = {name for name in shown(names) if name is not None}
    lengths = [most for most in (48, 96) if len({shortened(name, most) for name in distinct}) == len(distinct)]
    return [None if name is None else shortened(name, lengths[0]) if lengths else name for name in names]


def _ends(bar: Bar | None) -> dict[str, int | None]:
    return {"low_ns": None, "high_ns": None} if bar is None else {"low_ns": bar.low_ns, "high_ns": bar.high_ns}
