"""``traceviz what-if``: how much shorter the step would be if something were mended, as the replay predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.what_if import Edit, WhatIf
    from traceviz_dag.pipeline.across_ranks import StoredIteration

TOGETHER = "together"
"""The edit that is all others at once."""


def what_if(
    path: PathArgument = None,
    fix_rank: Annotated[
        list[int] | None, typer.Option(help="Give this rank its peers' kernel times and no host pauses. Repeatable.")
    ] = None,
    hide: Annotated[
        list[str] | None, typer.Option(help="Let transfers of a dimension (tp, dp, ... all) take no time. Repeatable.")
    ] = None,
    faster: Annotated[
        list[str] | None, typer.Option(help="Make transfers K times faster: DIMENSION=K, as in dp=2. Repeatable.")
    ] = None,
    fix_link: Annotated[
        list[int] | None, typer.Option(help="Give this rank's transfers the time of like ones without it. Repeatable.")
    ] = None,
    even_layers: Annotated[bool, typer.Option(help="Give all pipeline stages the same number of layers.")] = False,
    equal_stages: Annotated[bool, typer.Option(help="Give all pipeline stages the same computation.")] = False,
    no_jitter: Annotated[bool, typer.Option(help="Give all micro-batches of a stage the same computation.")] = False,
    no_pauses: Annotated[bool, typer.Option(help="Take the pauses of all hosts away.")] = False,
    host_free: Annotated[bool, typer.Option(help="Let no kernel wait for its launch.")] = False,
    records: Annotated[
        Path | None,
        typer.Option(help="Parquet file of StragglerAnalysis records in place of traces; its .yaml file is beside it."),
    ] = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Predict the step with something mended: a slow rank, uneven stages, exposed or slow communication, a busy host.

    Without an edit, it ranks the usual ones. Several edits are predicted one by one and together; their gains do not
    add up. The error bar spans replays with the measured delays of the host and without any. Gains are ceilings.
    """
    if records is not None:
        from traceviz_dag.commands.what_if.of_records import what_if_of_records

        if path is not None:
            raise UsageError("name traces or --records, not both")
        what_if_of_records(records, json)
        return
    flags = {
        "even_layers": even_layers,
        "equal_stages": equal_stages,
        "no_jitter": no_jitter,
        "no_pauses": no_pauses,
        "host_free": host_free,
    }
    wanted = [name for name, chosen in flags.items() if chosen]
    speeds = [_speed(text) for text in faster or ()]
    edited = bool(wanted or fix_rank or fix_link or hide or speeds)
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = []
        for each in iterations:
            rows, reason = (
                _predicted(each, _Wanted(fix_rank or (), fix_link or (), hide or (), speeds, wanted))
                if edited
                else _stored(each)
            )
            answers.append({**place(each), "certain": reason is None, "reason": reason, "rows": rows})
            if not json:
                _print(each, rows)
        if json:
            print_json(
                [
                    {**place(each), **row}
                    for each, answer in zip(iterations, answers, strict=True)
                    for row in answer["rows"]
                ]
            )
    end_untold(answers)


def _speed(text: str) -> tuple[str, float]:
    dimension, _, factor = text.partition("=")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if not dimension or not 1 < value < float("inf"):
        raise UsageError(f"--faster {text}: name a dimension and how many times faster, as in dp=2")
    return dimension, value


def _stored(iteration: StoredIteration) -> tuple[list[dict[str, Any]], str | None]:
    """The usual edits, from the table."""
    rows = iteration.table("what_if").to_pylist()
    refusals = [row["refusal"] for row in rows if row["refusal"] is not None]
    return _over_steps([row for row in rows if row["refusal"] is None]), refusals[0] if refusals else None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The edits that the command line names."""

    ranks: Sequence[int]
    links: Sequence[int]
    hidden: Sequence[str]
    speeds: Sequence[tuple[str, float]]
    general: Sequence[str]

    def edits(self, what_if: WhatIf) -> list[Edit]:
        """These edits of a step.

        Raises:
            UsageError: a dimension of which the step has no communication.
        """
        there = [*what_if.dimensions(), "all"]
        for dimension in (*self.hidden, *(name for name, _ in self.speeds)):
            if dimension not in there:
                raise UsageError(f"no communication of dimension {dimension}; there are {', '.join(there)}")
        edits = [what_if.fix_rank(rank) for rank in self.ranks]
        edits += [what_if.fix_link(rank) for rank in self.links]
        edits += [edit for edit in what_if.general() if edit.name in self.general]
        edits += [what_if.hide(dimension) for dimension in self.hidden]
        return edits + [what_if.faster(dimension, factor) for dimension, factor in self.speeds]


def _predicted(iteration: StoredIteration, wanted: _Wanted) -> tuple[list[dict[str, Any]], str | None]:
    from traceviz_dag.analyze.causes.what_if import WhatIf
    from traceviz_dag.pipeline.causes import ranked_steps

    unknown = sorted({*wanted.ranks, *wanted.links} - set(iteration.ranks))
    if unknown:
        raise UsageError(f"{iteration.run} {iteration.iteration} has no rank {unknown[0]}, or nothing of it was read")
    rows: list[dict[str, Any]] = []
    try:
        for ranked in ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages")):
            what_if = WhatIf(ranked.step, ranked.stages)
            edits = wanted.edits(what_if)
            rows += [_row(what_if, [edit]) for edit in edits]
            if len(edits) > 1:
                rows.append(_row(what_if, edits))
    except NoEvidenceError as error:
        return [], str(error)
    return _over_steps(rows), None


def _row(what_if: WhatIf, edits: Sequence[Edit]) -> dict[str, Any]:
    one = what_if.predict(*edits)
    alone = edits[0] if len(edits) == 1 else None
    return {
        "edit": alone.name if alone else TOGETHER,
        "rank": alone.rank if alone else None,
        "dimension": alone.dimension if alone else None,
        "factor": alone.factor if alone else None,
        "step_ns": one.step_ns,
        "predicted_step_ns": one.predicted_step_ns,
        "gain_ns": one.gain_ns,
        "gain_low_ns": one.gain_low_ns,
        "gain_high_ns": one.gain_high_ns,
    }


_SUMMED = ("step_ns", "predicted_step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")


def _over_steps(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each edit, summed over the steps of the iteration; the largest gain first."""
    summed: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("edit", "rank", "dimension", "factor"))
        one = summed.setdefault(
            key, {"edit": key[0], "rank": key[1], "dimension": key[2], "factor": key[3], **dict.fromkeys(_SUMMED, 0)}
        )
        for name in _SUMMED:
            one[name] += row[name]
    return sorted(summed.values(), key=lambda row: -row["gain_ns"])


def _print(iteration: StoredIteration, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        typer.echo(f"\n{heading(iteration, 'nothing can be predicted')}")
        return
    step_ns = max(row["step_ns"] for row in rows)
    print_table(
        heading(iteration, f"step {milliseconds(step_ns)} ms; gains do not add up"),
        ["edit", "gain ms", "of the step", "at least ms", "at most ms", "step then ms"],
        [
            [
                named_edit(row),
                milliseconds(row["gain_ns"]),
                percent(row["gain_ns"] / row["step_ns"]),
                *(milliseconds(row[f"gain_{end}_ns"]) for end in ("low", "high")),
                milliseconds(row["predicted_step_ns"]),
            ]
            for row in rows
        ],
    )


def named_edit(row: dict[str, Any]) -> str:
    """An edit in words."""
    dimension = "all communication" if row["dimension"] == "all" else f"{row['dimension']} communication"
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
        TOGETHER: "all of these together",
    }
    return words[row["edit"]]
