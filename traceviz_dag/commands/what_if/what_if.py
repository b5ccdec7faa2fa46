"""``traceviz what-if``: how much shorter the step would be if something were mended, as the replay predicts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    end_untold,
    heading,
    place,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, percent, print_json, print_table
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.vocabulary import ALL_DIMENSIONS

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.what_if import Edit, WhatIf
    from traceviz_dag.pipeline.across_ranks import StoredIteration

T = TypeVar("T")

TOGETHER = "together"
"""The edit that is all others at once."""


def what_if(
    path: PathArgument = None,
    fix_rank: Annotated[
        list[int] | None, typer.Option(help="Give this rank its peers' kernel times and no host pauses. Repeatable.")
    ] = None,
    fix_link: Annotated[
        list[int] | None,
        typer.Option(help="Give this rank's transfers the time of like transfers between others. Repeatable."),
    ] = None,
    hide: Annotated[
        list[str] | None, typer.Option(help="Let transfers of a dimension (tp, dp, ... all) take no time. Repeatable.")
    ] = None,
    faster: Annotated[
        list[str] | None, typer.Option(help="Make transfers K times faster: DIMENSION=K, as in dp=2. Repeatable.")
    ] = None,
    even_layers: Annotated[
        bool, typer.Option("--even-layers", help="Give all pipeline stages the same number of layers (needs stacks).")
    ] = False,
    equal_stages: Annotated[
        bool, typer.Option("--equal-stages", help="Give all pipeline stages the same computation.")
    ] = False,
    no_jitter: Annotated[
        bool, typer.Option("--no-jitter", help="Give all micro-batches of a stage the same computation.")
    ] = False,
    no_pauses: Annotated[bool, typer.Option("--no-pauses", help="Take the pauses of all hosts away.")] = False,
    host_free: Annotated[bool, typer.Option("--host-free", help="Let no kernel wait for its launch.")] = False,
    balanced_experts: Annotated[
        bool, typer.Option("--balanced-experts", help="Spread tokens evenly over the experts of each layer.")
    ] = False,
    microbatches: Annotated[
        int | None, typer.Option(help="Run so many micro-batches in a step, in an order made anew.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Run another schedule: 1f1b, interleaved or interleaved-overlapped.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Read StragglerAnalysis records, trace-NAME.parquet with meta-NAME.yaml beside it."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Print at most this many rows; 0 = all. JSON always has all.")] = 12,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Predict how long the step takes with something mended: a slow rank, uneven stages, communication, a busy host.

    Without an edit, it ranks the usual ones. Several edits are predicted one by one and together; their gains do not
    add up. The error bar spans replays with the measured delays of the host and without any. Gains are ceilings.
    """
    flags = {
        **{"even_layers": even_layers, "equal_stages": equal_stages, "no_jitter": no_jitter},
        **{"no_pauses": no_pauses, "host_free": host_free, "balanced_experts": balanced_experts},
    }
    wanted = _Wanted(
        _once(fix_rank or ()),
        _once(fix_link or ()),
        _once(hide or ()),
        _once(_speed(text) for text in faster or ()),
        tuple(name for name, chosen in flags.items() if chosen),
        microbatches,
        schedule,
    )
    if microbatches is not None and microbatches < 1:
        raise UsageError(f"--microbatches {microbatches}: a step has at least one")
    if limit < 0:
        raise UsageError("--limit is a number of rows")
    if records is not None:
        from traceviz_dag.commands.what_if.of_records import what_if_of_records

        if path is not None or run is not None or iteration is not None:
            raise UsageError("name traces or --records, not both")
        if wanted:
            raise UsageError("edits are of traces: --records takes none")
        what_if_of_records(records, json, limit)
        return
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = []
        for each in iterations:
            rows, reason = _predicted(each, wanted) if wanted else _stored(each)
            answers.append({**place(each), "certain": reason is None, "reason": reason, "rows": rows})
            if not json:
                _print(each, rows, limit)
        if json:
            print_json(_flat(answers))
    end_untold(answers)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The edits that the user asks for; false where there are none.

    Attributes:
        ranks, links: ranks whose kernels, and whose transfers, are to be as those of others.
        hidden: dimensions. speeds: dimensions, and how many times faster. general: names of edits of the whole job.
        microbatches, schedule: another order of work; None: as it is.
    """

    ranks: tuple[int, ...]
    links: tuple[int, ...]
    hidden: tuple[str, ...]
    speeds: tuple[tuple[str, float], ...]
    general: tuple[str, ...]
    microbatches: int | None
    schedule: str | None

    def __bool__(self) -> bool:
        some = self.ranks or self.links or self.hidden or self.speeds or self.general or self.microbatches
        return bool(some or self.schedule)

    def edits(self, what_if: WhatIf) -> list[Edit]:
        """The edits of one step.

        Raises:
            UsageError: it has no communication of such a dimension, or no kernels of such a rank; no such schedule.
        """
        from traceviz_dag.analyze.causes.reordered import SCHEDULES, Change

        if self.schedule not in (None, *SCHEDULES):
            raise UsageError(f"--schedule {self.schedule}: there are {', '.join(SCHEDULES)}")
        for rank in (*self.ranks, *self.links):
            if rank not in what_if.step.ranks:
                raise UsageError(f"rank {rank} has no kernels in the training step")
        there = [*what_if.dimensions(), ALL_DIMENSIONS]
        for dimension in (*self.hidden, *(name for name, _ in self.speeds)):
            if dimension not in there:
                raise UsageError(f"no communication of dimension {dimension}; there are {', '.join(there)}")
        edits = [what_if.fix_rank(rank) for rank in self.ranks]
        edits += [what_if.fix_link(rank) for rank in self.links]
        edits += [edit for edit in what_if.general() if edit.name in self.general]
        edits += [what_if.hide(dimension) for dimension in self.hidden]
        edits += [what_if.faster(dimension, factor) for dimension, factor in self.speeds]
        if self.microbatches or self.schedule:
            edits.append(what_if.reorder(Change(self.microbatches, self.schedule)))
        return edits


def _once(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _speed(text: str) -> tuple[str, float]:
    dimension, _, factor = text.partition("=")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if not dimension or not 1 < value < float("inf"):
        raise UsageError(f"--faster {text}: name a dimension and how many times faster, as in dp=2")
    return dimension, value


def _flat(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each edit of each iteration; one without an edit where nothing can be predicted, with the reason."""
    rows = []
    for answer in answers:
        where = {name: value for name, value in answer.items() if name != "rows"}
        rows += [{**where, **row} for row in answer["rows"] or [dict.fromkeys((*_KEYS, "steps", *_SUMMED, *_MEANS))]]
    return rows


def _stored(iteration: StoredIteration) -> tuple[list[dict[str, Any]], str | None]:
    """The usual edits, from the table."""
    rows = iteration.table("what_if").to_pylist()
    refusals = [row["refusal"] for row in rows if row["refusal"] is not None]
    told = _over_steps([row for row in rows if row["refusal"] is None])
    return told, next(iter(refusals), None if told else _NO_STEP)


def _predicted(iteration: StoredIteration, wanted: _Wanted) -> tuple[list[dict[str, Any]], str | None]:
    from traceviz_dag.analyze.causes.what_if import WhatIf
    from traceviz_dag.pipeline.causes import ranked_steps
    from traceviz_dag.pipeline.completeness import ranks_in_words

    for option, ranks in (("--fix-rank", wanted.ranks), ("--fix-link", wanted.links)):
        unknown = sorted(set(ranks) - set(iteration.ranks))
        if unknown:
            raise UsageError(
                f"{option} {unknown[0]}: no such rank was read of {iteration.run} {iteration.iteration}; "
                f"there are {ranks_in_words(iteration.ranks)}"
            )
    rows: list[dict[str, Any]] = []
    reason = None
    try:
        for ranked in ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages")):
            what_if = WhatIf(ranked.step, ranked.stages)
            edits = wanted.edits(what_if)
            for each in [*([edit] for edit in edits), *([edits] if len(edits) > 1 else [])]:
                try:
                    rows.append(_row(what_if, each))
                except NoEvidenceError as error:
                    reason = reason or str(error)
    except NoEvidenceError as error:
        reason = str(error)
    return _over_steps(rows), reason if rows or reason else _NO_STEP


def _row(what_if: WhatIf, edits: Sequence[Edit]) -> dict[str, Any]:
    from traceviz_dag.analyze.causes.reordered import Change

    one = what_if.predict(*edits)
    alone = edits[0] if len(edits) == 1 else None
    change = next((edit.change for edit in edits if edit.change is not None), Change())
    before, after = one.microbatches or (None, None)
    return {
        "edit": alone.name if alone else TOGETHER,
        "rank": alone.rank if alone else None,
        "dimension": alone.dimension if alone else None,
        "factor": alone.factor if alone else None,
        "microbatches": change.microbatches,
        "schedule": change.schedule,
        "step_ns": one.step_ns,
        "predicted_step_ns": one.predicted_step_ns,
        "gain_ns": one.gain_ns,
        "gain_low_ns": one.gain_low_ns,
        "gain_high_ns": one.gain_high_ns,
        "microbatch_ns": round(one.step_ns / before) if before else None,
        "predicted_microbatch_ns": round(one.predicted_step_ns / after) if after else None,
    }


_KEYS = ("edit", "rank", "dimension", "factor", "microbatches", "schedule")
_SUMMED = ("step_ns", "predicted_step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")
_MEANS = ("microbatch_ns", "predicted_microbatch_ns")
_NO_STEP = "no training step is known"


def _over_steps(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each edit, summed over the steps of the iteration; the largest gain first.

    The error bar of the sum also holds what it would be if every step gained as little, or as much, as any one does.
    """
    of_edit: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        of_edit.setdefault(tuple(row.get(name) for name in _KEYS), []).append(row)
    summed = []
    for key, parts in of_edit.items():
        one = {**dict(zip(_KEYS, key, strict=True)), "steps": len(parts)}
        one |= {name: sum(part[name] for part in parts) for name in _SUMMED}
        gains = [part["gain_ns"] for part in parts]
        one["gain_low_ns"] = min(one["gain_low_ns"], min(gains) * len(parts))
        one["gain_high_ns"] = max(one["gain_high_ns"], max(gains) * len(parts))
        for name in _MEANS:
            known = [part[name] for part in parts if part.get(name) is not None]
            one[name] = round(sum(known) / len(known)) if known else None
        summed.append(one)
    return sorted(
        summed,
        key=lambda row: (
            -row["gain_ns"],
            row["edit"],
            -1 if row["rank"] is None else row["rank"],
            str(row["dimension"]),
        ),
    )


def _print(iteration: StoredIteration, rows: Sequence[dict[str, Any]], limit: int) -> None:
    if not rows:
        typer.echo(f"\n{heading(iteration, 'nothing can be predicted')}")
        return
    step_ns, steps = max((row["step_ns"], row["steps"]) for row in rows)
    length = f"step {milliseconds(step_ns)} ms" if steps == 1 else f"{steps} steps, {milliseconds(step_ns)} ms together"
    shown = rows[: limit or None]
    print_table(
        heading(iteration, f"{length}; what edits gain, which do not add up{_first(len(shown), len(rows))}"),
        ["edit", "gain ms", "of the step", "at least ms", "at most ms", "step then ms", *(["steps"] * (steps > 1))],
        [
            [
                named_edit(row),
                milliseconds(row["gain_ns"]),
                percent(row["gain_ns"] / row["step_ns"]),
                *(milliseconds(row[f"gain_{end}_ns"]) for end in ("low", "high")),
                milliseconds(row["predicted_step_ns"]),
                *([row["steps"]] * (steps > 1)),
            ]
            for row in shown
        ],
    )
    for row in shown:
        if row["microbatches"] is not None:
            typer.echo(
                f"  {named_edit(row)}: {milliseconds(row['predicted_microbatch_ns'])} ms of the step for each micro-batch, "
                f"in place of {milliseconds(row['microbatch_ns'])} ms"
            )


def _first(shown: int, of: int) -> str:
    return f": the first {shown} of {of}" if shown < of else ""


def named_edit(row: dict[str, Any]) -> str:
    """An edit in words."""
    dimension = "all communication" if row["dimension"] == ALL_DIMENSIONS else f"{row['dimension']} communication"
    words = {
        "fix_rank": f"fix rank {row['rank']}",
        "hide": f"hide {dimension}",
        "faster": f"{row['factor'] or 0:g} times faster {dimension}",
        "fix_link": f"fix the links of rank {row['rank']}",
        "even_layers": "as many layers in every stage",
        "equal_stages": "equal pipeline stages",
        "no_jitter": "no jitter between micro-batches",
        "no_pauses": "no pauses of hosts",
        "host_free": "no waiting for launches",
        "balanced_experts": "evenly loaded experts",
        "microbatches": _named_order(row),
        "schedule": _named_order(row),
        TOGETHER: "all of these together",
    }
    return words[row["edit"]]


def _named_order(row: dict[str, Any]) -> str:
    count, schedule = row.get("microbatches"), row.get("schedule")
    words = [f"{count} micro-batch{'es' * (count > 1)}"] if count else []
    return ", ".join(words + ([f"schedule {schedule}"] if schedule else []))
