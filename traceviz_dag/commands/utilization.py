"""``traceviz utilization``: how much of their GPUs' peak training steps use, for the model and in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.answers.iterations import heading, place

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

_NAMED_BY = {"settings": "the format that the job's settings state", "operations": "the format with the most FLOPs"}


def utilization(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show how much of the GPUs' peak each training step uses: MFU, HFU, tokens per second; HFU by replica and stage.

    MFU counts what the model needs, from the job's settings; HFU counts all products, attention and convolutions that
    ran, recompute included, from the sizes of their inputs (record_shapes). Both are of the longest step over the
    ranks. Where something is unknown, the reason is printed. The exit code is 2 if a rank was not read completely, or
    neither MFU nor HFU is known.
    """
    from traceviz_dag.analyze.step_utilization import JOB

    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = [each.table("utilization").to_pylist() for each in iterations]
        if json:
            print_json([{**place(each), **row} for each, rows in zip(iterations, answers, strict=True) for row in rows])
        else:
            for each, rows in each_printed(iterations, answers):
                for step in dict.fromkeys(row["step"] for row in rows):
                    _print(each, [row for row in rows if row["step"] == step])
        whole = [row for rows in answers for row in rows if row["part"] == JOB]
        if all(row["mfu"] is None and row["hfu"] is None for row in whole):
            reason = whole[0]["hfu_refusal"] if whole else "no rank was read completely"
            raise NoEvidenceError(f"neither MFU nor HFU is known: {reason}")


def _print(iteration: StoredIteration, rows: Sequence[dict[str, Any]]) -> None:
    job = rows[0]
    named = "no step is marked" if job["step"] is None else f"step {job['step']}"
    known = [f"{name.upper()} {wording.percent(job[name])}" for name in ("mfu", "hfu") if job[name] is not None]
    told = ", ".join([f"{named}: {milliseconds(job['step_ns'])} ms", *known])
    print_wrapped(heading(iteration, told), 2, "\n")
    for line in _lines(job):
        print_wrapped(line, 4, "  ")
    parts = [row for row in rows[1:] if row["part"] != "rank"]
    for part in dict.fromkeys(row["part"] for row in parts):
        _print_parts(part, [row for row in parts if row["part"] == part])


def _lines(job: dict[str, Any]) -> list[str]:
    """What of the job is known, a line each; then why something is not."""
    lines = []
    if job["peak_flops_per_s"] is not None:
        lines.append(
            f"Peak used: {_tera(job['peak_flops_per_s'])} TFLOP/s per GPU ({job['gpu']}, {job['peak_format']}: "
            f"{_NAMED_BY[job['peak_named_by']]})"
        )
    if job["model_flops_per_gpu"] is not None:
        lines.append(f"The model needs {_tera(job['model_flops_per_gpu'])} TFLOP per GPU")
    if job["flops_per_gpu"] is not None:
        lines.append(
            f"Operations computed {_tera(job['flops_per_gpu'])} TFLOP per GPU, "
            f"{_tera(job['recompute_flops_per_gpu'])} of them recompute"
        )
    if job["tokens_per_s"] is not None:
        each = f", {job['tokens_per_s'] / job['gpus']:,.0f} per GPU" if job["gpus"] else ""
        lines.append(f"{job['tokens_per_s']:,.0f} tokens/s{each}")
    return lines + [
        f"{name.upper()} is unknown: {job[f'{name}_refusal']}"
        for name in ("mfu", "hfu")
        if job[f"{name}_refusal"] is not None
    ]


def _print_parts(part: str, rows: Sequence[dict[str, Any]]) -> None:
    print_columns(
        {"replica": "Model replicas, operations per GPU", "stage": "Pipeline stages, operations per GPU"}[part],
        rows,
        [
            *(("number", part), "ranks", "flops_per_gpu", "recompute_flops_per_gpu"),
            *("coverage", "hfu", "compute_ns", "compute_utilization"),
        ],
    )


def _tera(value: int | None) -> str | None:
    return None if value is None else f"{value / 1e12:,.2f}"
