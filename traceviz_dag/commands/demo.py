"""``traceviz demo``: a small training job, simulated and taken the whole way."""

from __future__ import annotations

import shlex
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

import typer

from traceviz_dag.commands.analyze import analyze
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import home_option, print_wrapped, terminal
from traceviz_dag.system.paths import real_path

_NEXT = (
    ("findings", "what is wrong, what fixing it would save, and what to do about it"),
    ("waits", "who made whom wait, and what the late rank was doing"),
    ("pipelines", "what the bubble of each stage is made of"),
    ("overlap", "how much of each dimension's communication is hidden, rank by rank"),
    ("figures", "timelines, pipelines and replicas as pictures"),
)
"""Command → the question that it answers."""


def demo(
    home: HomeOption = DEFAULT_HOME,
    seed: Annotated[int, typer.Option(help="Random seed of the simulation.")] = 0,
    json: JsonOption = False,
) -> None:
    """Simulate a small Megatron job with one slow GPU, analyse it, and show what to look at next.

    The job has 16 ranks (tensor parallel 2, pipeline parallel 4 with two chunks per stage, data parallel 2), full
    recomputation, overlapped gradients, clocks that differ by up to 3 ms, and three iterations.
    """
    from traceviz_dag.simulate import simulate
    from traceviz_dag.simulate.settings import JobSettings

    console = terminal(stderr=True)
    folder = real_path(home) / "demo"
    started = time.monotonic()
    settings = replace(JobSettings.demo(), seed=seed)
    with console.status("simulating 16 ranks, 3 iterations") if console.is_terminal else nullcontext():
        simulate(settings, folder)
    console.print(f"simulated in {time.monotonic() - started:.1f} s: {folder}")
    analyze([folder], report=True, home=home, json=json)
    last_iteration = settings.first_iteration + settings.iterations - 1
    if not json:
        last = f"{home_option(home)} --iteration {last_iteration}"
        typer.echo("\nWhere to look next:")
        for command, question in _NEXT:
            _print_next(f"{command} {last}", question)
        _print_next(f"serve {home_option(home)}", "reports and figures of this home in a browser")
        _print_next(
            f"accuracy {shlex.quote(str(folder))} {home_option(home)}",
            "how right all of this is, against the job's truth",
        )
    console.print(f"demo done in {time.monotonic() - started:.1f} s")


def _print_next(command: str, answer: str) -> None:
    """A command to copy, and below it what it answers."""
    typer.echo(f"  traceviz {command}")
    print_wrapped(answer, 6, "      ")
