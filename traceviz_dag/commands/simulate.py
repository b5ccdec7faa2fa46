"""``traceviz simulate``: traces of a Megatron training job that never ran, with the truth beside them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.progress import Progress, TaskID

from traceviz_dag.commands.common.options import check_number
from traceviz_dag.commands.common.output import terminal
from traceviz_dag.simulate.settings import FAULTS, OPTION, Edges, Faults, JobSettings, Option

_UNIT = re.compile("_(ms|ppm)$")


def simulate(out: Path, workers: int, slow_factor: float | None, **settings: Any) -> None:
    """Simulate Megatron training: write profiler traces, and beside them tables of what really happened.

    OUT gets iteration_N/ with a trace per rank, the topology text file, and truth/ with Parquet tables of kernels,
    edges between streams, micro-batches, pipelines, clocks and injected faults. Leave a fault out and keep --seed:
    nothing else changes. With --format nsys it gets node0.sqlite … instead of traces, as nsys export writes them: try
    traceviz nsys without a GPU.

    Simulate up to 16,384 ranks, 500,000 runs of layers (ranks x layers / pp x micro-batches) in steps that are written
    together, and 1,000,000 ranks x steps. A rank takes 1.3 MB of memory, a run of a layer 40 kB.
    """
    from traceviz_dag.simulate import simulate as run

    for name, value in {"slow_factor": slow_factor, **settings}.items():
        if isinstance(value, float):
            check_number(f"--{_UNIT.sub('', name).replace('_', '-')}", value)
    job, faults, edges = (_chosen(of, settings) for of in (JobSettings, Faults, Edges))
    if slow_factor is not None:
        # One factor for all that slows something.
        faults |= {one.name: slow_factor for one in fields(Faults) if one.name.endswith("_factor")}
    job |= {"heads": max(job["hidden"] // 128, 1), "feed_forward": 4 * job["hidden"]}
    chosen = JobSettings(**job, faults=Faults(**faults), edges=Edges(**edges))
    started = time.monotonic()
    with _shown_progress() as progress:
        run(chosen, out, workers=workers, progress=progress)
    oddities = "".join(
        f"; {what} {rank}"
        for what, rank in (
            ("no file of rank", chosen.edges.missing_rank),
            ("a truncated file of rank", chosen.edges.truncated_rank),
        )
        if rank is not None
    )
    ranks = "1 rank" if chosen.world == 1 else f"{chosen.world} ranks"
    steps = "1 step" if chosen.iterations == 1 else f"{chosen.iterations} steps"
    typer.echo(f"{ranks}, {steps} in {time.monotonic() - started:.1f} s: {out}{oddities}")


def _options(of: type) -> Iterator[tuple[str, Field[Any], Option]]:
    """Name of the option, field and how it is offered, of all settings that are offered."""
    for one in fields(of):
        if offered := one.metadata.get(OPTION):
            yield offered.name or _UNIT.sub("", one.name), one, offered


def _chosen(of: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: settings[name] for name, one, _ in _options(of)}


def _signature() -> Signature:
    """The command's options, which the settings state."""
    given = [
        ("out", Annotated[Path, typer.Argument(help="Run folder to create.", file_okay=False)], Parameter.empty),
        *_typed(JobSettings),
        *_typed(Faults),
        (
            "slow_factor",
            Annotated[
                float | None,
                typer.Option(help="How many times as long slow or throttled work takes.", rich_help_panel=FAULTS),
            ],
            None,
        ),
        *_typed(Edges),
        ("workers", Annotated[int, typer.Option(help="Processes that write traces.", min=1)], 2),
    ]
    return Signature(
        [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind) for name, kind, default in given]
    )


def _typed(of: type) -> Iterator[tuple[str, Any, Any]]:
    types = get_type_hints(of)
    for name, one, offered in _options(of):
        yield (
            name,
            Annotated[types[one.name], typer.Option(help=offered.help, rich_help_panel=offered.panel)],
            one.default,
        )


@contextmanager
def _shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr, where stderr is a terminal."""
    console = terminal(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield update


# typer asks a function for its signature and for the types of its parameters.
_SIGNATURE = _signature()
simulate.__signature__ = _SIGNATURE  # type: ignore[attr-defined]
simulate.__annotations__ = {one.name: one.annotation.__origin__ for one in _SIGNATURE.parameters.values()}
