"""What-if of a job's recorded pipeline operations: its slowdown, and whom that is to be charged to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.commands.common.records import end_of_records, naming, titled, work_at
from traceviz_dag.commands.what_if.gains_table import print_gains
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.answers.wanted import Wanted

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.records_edits import RecordsEdit, RecordsWhatIf
    from traceviz_dag.analyze.causes.slowdowns import Slowdowns

_NOTHING_LOST = "the step is no longer than the ideal one, so no time is lost"


def what_if_of_records(path: Path, steps: str | None, json: bool, wanted: Wanted) -> None:
    """Print the slowdown of a job, what ideal durations would save, and what edits would gain.

    Args:
        steps: see ``work_at``. wanted: edits; where there are none, the usual ones.

    Raises:
        BadInputError: the file or its meta file cannot be read.
        UsageError: the records show nothing of an edit.
        NoEvidenceError: no step has all its operations.
        IncompleteError: at the end, where rows or steps were left out.
    """
    from traceviz_dag.analyze.causes.records_edits import RecordsWhatIf
    from traceviz_dag.analyze.causes.records_waits import with_inferred_waits
    from traceviz_dag.analyze.causes.slowdowns import slowdowns

    work, faults = work_at(path, steps)
    with naming(path):
        found = slowdowns(work)
    what_if = RecordsWhatIf(with_inferred_waits(work))
    rows, reason = _gains(what_if, wanted)
    if json:
        told = {"rows": rows, "certain": reason is None, "reason": reason}
        print_json({**_answer(path, found, len(set(work.step.tolist())), faults), **told})
    else:
        if not wanted:
            _print(path, found, len(set(work.step.tolist())), faults)
        print_gains(lambda text: typer.echo(titled(path, faults, text)), rows)
    if reason is not None:
        raise NoEvidenceError(f"{path.name}: {reason}")
    end_of_records(faults)


def _gains(what_if: RecordsWhatIf, wanted: Wanted) -> tuple[list[dict[str, Any]], str | None]:
    """A row for each edit, and why others have none."""
    from traceviz_dag.analyze.causes.gains import over_steps

    edits = wanted.edits_of_records(what_if)
    choices: list[Sequence[RecordsEdit]] = [[edit] for edit in edits] or list(what_if.standard())
    if len(edits) > 1:
        choices.append(edits)
    try:
        rows, reason = what_if.predict(choices), None
    except NoEvidenceError as error:
        rows, reason = [], str(error)
        for each in choices:
            with suppress(NoEvidenceError):
                rows += what_if.predict([each])
    place = what_if.work.places()
    told = over_steps([row for each in rows for row in each])
    for row in told:
        row["data_parallel_rank"], row["stage"] = place.get(row["rank"], (None, None))
    return told, reason


def _answer(path: Path, found: Slowdowns, steps: int, faults: list[str]) -> dict[str, Any]:
    return {
        "records": path.name,
        "steps": steps,
        "step_ns": round(found.step_ns),
        "ideal_step_ns": round(found.ideal_step_ns),
        "slowdown": found.slowdown,
        "recovered_by_last_stage": found.recovered_by_last_stage,
        "recovered_by_slowest_ranks": found.recovered_by_slowest_ranks,
        "recovered_reason": _NOTHING_LOST if found.recovered_by_last_stage is None else None,
        "slowest_ranks": [{"data_parallel_rank": rank, "stage": stage} for rank, stage in found.slowest_ranks],
        "stages": _effects("stage", found.by_stage),
        "data_parallel_ranks": _effects("data_parallel_rank", found.by_data_parallel_rank),
        "operations": _effects("operation", found.by_operation),
        "partial": bool(faults),
        "faults": faults,
    }


def _effects(name: str, effects: Mapping[Any, float]) -> list[dict[str, Any]]:
    """Rows of one kind, the costliest first."""
    return [{name: key, "slowdown": effect} for key, effect in sorted(effects.items(), key=lambda one: -one[1])]


def _print(path: Path, found: Slowdowns, steps: int, faults: list[str]) -> None:
    last = max(found.by_stage)
    named = ", ".join(f"data-parallel rank {rank} of stage {stage}" for rank, stage in found.slowest_ranks)
    text = (
        f"step {milliseconds(round(found.step_ns))} ms as replayed, mean of {steps}; that is "
        f"{found.slowdown:.3f} times the {milliseconds(round(found.ideal_step_ns))} ms that it would take if all ranks "
        "and stages took the same time"
    )
    typer.echo(titled(path, faults, text))
    if found.recovered_by_last_stage is None:
        typer.echo(f"  {_NOTHING_LOST}: no part of the job can save any of it")
    else:
        share = wording.percent(found.recovered_by_last_stage)
        typer.echo(f"  ideal durations in the last stage ({last}) would save {share} of that loss")
        share = wording.percent(found.recovered_by_slowest_ranks)
        typer.echo(f"  ideal durations on the slowest 3 % of the ranks would save {share}: {named}")
    effects: Mapping[Any, float]
    for name, effects in (
        ("stage", found.by_stage),
        ("kind of operation", found.by_operation),
        ("data-parallel rank", found.by_data_parallel_rank),
    ):
        title = f"Times the ideal step, if only one {name} were as it was"
        rows = sorted(effects.items(), key=lambda one: -one[1])
        print_columns(title, [{name: key, "effect": effect} for key, effect in rows], [name, ("effect", "times")])
