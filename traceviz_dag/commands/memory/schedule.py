"""``traceviz memory schedule``: activations in flight per stage, against what the schedule implies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.memory.schedule import Model
from traceviz_dag.commands.common.across import IterationOption, RunOption
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption, in_bytes
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.commands.common.shown import iterations_of
from traceviz_dag.errors import IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.pipeline.memory_schedule import RankMemory, memory_by_stage
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import FIGURE_FORMATS


def schedule(
    run: RunOption = None,
    iteration: IterationOption = None,
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens of a sample, for the formula.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Hidden size, for the formula.")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads; matter with --stored-scores.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a micro-batch.")] = 1,
    tensor: Annotated[int, typer.Option(min=1, help="Tensor-parallel size, with sequence parallelism.")] = 1,
    stored_scores: Annotated[bool, typer.Option(help="Attention keeps its scores (no fused attention).")] = False,
    recompute: Annotated[bool, typer.Option(help="Every layer is recomputed in full.")] = False,
    gpu_gib: Annotated[float | None, typer.Option(min=0.1, help="Memory of a GPU, for the headroom.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also draw it: NAME.png, .svg or .pdf.", show_default=False, dir_okay=False
        ),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show how many micro-batches' activations each stage keeps, against what the schedule implies, and their bytes.

    Needs an iteration with snapshots beside its traces, in a home that traceviz analyze filled. The clocks of snapshot
    and trace are compared by the optimizer's steps; nothing is joined where they may be too far apart.
    """
    if (sequence is None) != (hidden is None):
        raise UsageError("the formula takes both --sequence and --hidden")
    if output is not None and output.suffix.lower().removeprefix(".") not in FIGURE_FORMATS:
        raise UsageError(f"--output {output}: give a name that ends in .png, .svg or .pdf")
    model = None
    if sequence is not None and hidden is not None:
        model = Model(sequence, hidden, heads, batch, tensor, stored_scores, recompute)
    answers, refused, gpu_bytes = list[dict[str, Any]](), list[str](), in_bytes("--gpu-gib", gpu_gib)
    with iterations_of(home, [], run, iteration) as shown:
        for one in shown:
            ranks = memory_by_stage(one.lake, one.run, one.iteration, model, gpu_bytes)
            if not ranks:
                continue
            answers.append({"run": one.run, "iteration": one.iteration, "ranks": [rank.as_row() for rank in ranks]})
            refused += [f"rank {rank.rank}: {rank.alignment.refusal}" for rank in ranks if rank.alignment.refusal]
            if output is not None:
                _draw(
                    f"{one.run} · iteration {one.iteration}",
                    ranks,
                    output if len(shown) == 1 else output.with_stem(f"{output.stem}_{one.run}_{one.iteration}"),
                )
            if not json:
                _print(f"{one.run} · iteration {one.iteration}", ranks)
        if not answers:
            raise NoEvidenceError("no iteration here has snapshots of GPU memory beside its traces")
        if json:
            print_json(answers)
        if refused:
            raise IncompleteError(f"not joined with the schedule: {'; '.join(refused[:5])}")


def _draw(title: str, ranks: list[RankMemory], output: Path) -> None:
    from traceviz_dag.show.memory.stages import draw_stage_memory
    from traceviz_dag.show.page.rendering import encode
    from traceviz_dag.system.whole_files import write_atomically

    joined = [(one.rank, one.stage, one.memory) for one in ranks if one.memory is not None]
    figure = draw_stage_memory(title, joined, ranks[0].formula_bytes)
    if figure is not None:
        write_atomically(real_path(output), encode(figure, output.suffix.lower().removeprefix(".")))


def _print(title: str, ranks: list[RankMemory]) -> None:
    rows = [_row(one) for one in ranks]
    columns = [
        *("rank", "stage", "in_flight", ("expected_in_flight", "by schedule"), ("in_flight_bytes", "held in flight")),
        *("chunk_bytes", "layer_bytes", "formula_bytes", ("peak_requested_bytes", "peak"), "peak_in", "headroom_bytes"),
        *(("headroom_microbatches", "chunks that fit"), "longest_sequence", "recompute_ns"),
        *(("saved_bytes", "saved a layer"), ("residue_ns", "clocks within")),
    ]
    told = [
        column
        for number, column in enumerate(columns)
        if number < _ALWAYS or any(row[column if isinstance(column, str) else column[0]] is not None for row in rows)
    ]
    print_columns(f"{title}: activations in flight", rows, told)


_ALWAYS = 4
"""Columns that are always shown; another one of which nothing is known is left out."""


def _row(one: RankMemory) -> dict[str, Any]:
    memory = one.memory
    names = ("in_flight", "expected_in_flight", "in_flight_bytes", "chunk_bytes", "layer_bytes")
    where = None
    if memory and memory.peak_phase is not None:
        where = f"{memory.peak_phase} of micro-batch {memory.peak_microbatch}, chunk {memory.peak_chunk}"
    own = ("rank", "stage", "formula_bytes", "peak_requested_bytes", "headroom_bytes", "headroom_microbatches")
    return {
        **{name: getattr(one, name) for name in (*own, "longest_sequence", "recompute_ns", "saved_bytes")},
        **{name: None if memory is None else getattr(memory, name) for name in names},
        "peak_in": where,
        "residue_ns": one.alignment.residue_ns,
    }
