"""The critical path of a job's recorded pipeline operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.commands.common.records import end_of_records, titled, work_at

_CRITICAL_SHARE = 0.01
_TITLES = {
    "cause": "What the paths are made of",
    "operation": "Operations that the paths run through",
    "rank": "Ranks that the paths run on",
    "stage": "Pipeline stages that the paths run on",
}


def critical_path_of_records(path: Path, json: bool) -> None:
    """Print what limits the steps of a job.

    Raises:
        BadInputError: the file or its meta file cannot be read.
        NoEvidenceError: no step has all its operations.
        IncompleteError: at the end, where rows or steps were left out.
    """
    answer = _answer(path)
    if json:
        print_json(answer)
    else:
        _print(path, answer)
    end_of_records(answer["faults"])


def _answer(path: Path) -> dict[str, Any]:
    import numpy as np

    from traceviz_dag.analyze.causes.records_path import (
        profile,
        records_path,
        replayed_ends,
        segment_rows,
        slack_of,
        step_bounds,
    )
    from traceviz_dag.analyze.causes.records_waits import with_inferred_waits

    whole, faults = work_at(path)
    work = with_inferred_waits(whole)
    rows = segment_rows(work, records_path(work))
    slack, ends = slack_of(work, work.own_ns, work.lag_ns), replayed_ends(work, work.own_ns)
    bounds = step_bounds(work)
    lengths = [int(ends[low:high].max()) for low, high in bounds]
    critical = sum(
        int(np.count_nonzero(slack[low:high] <= _CRITICAL_SHARE * length))
        for (low, high), length in zip(bounds, lengths, strict=True)
    )
    return {
        "records": path.name,
        "steps": len(bounds),
        "step_ns": sum(lengths),
        "items": len(work),
        "critical_items": critical,
        **{name: profile(rows, name) for name in _TITLES},
        "legs": rows,
        "partial": bool(faults),
        "faults": faults,
    }


def _print(path: Path, answer: dict[str, Any]) -> None:
    first, count = answer["rank"][0], len(answer["rank"])
    others = f", on {count} ranks in all" if count > 1 else " and on no other"
    length = milliseconds(answer["step_ns"])
    steps = f"{answer['steps']} steps, {length} ms together; their" if answer["steps"] > 1 else f"step {length} ms; its"
    text = (
        f"{steps} critical path runs on rank {first['rank']} for "
        f"{milliseconds(first['path_ns'])} ms ({wording.percent(first['share'])}){others}"
    )
    typer.echo(titled(path, answer["faults"], text))
    critical = f"{answer['critical_items']} of {answer['items']} operations are critical"
    typer.echo(f"  {critical}: their slack is within 1 % of the step")
    for name, title in _TITLES.items():
        print_columns(title, answer[name], [name, "path_ns", ("share", "of steps")])
