"""``traceviz demo``: a small training job, simulated and taken the whole way."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from traceviz_dag.commands.analyze import analyze
from traceviz_dag.commands.options import DEFAULT_HOME, HomeOption, JsonOption


def demo(
    home: HomeOption = DEFAULT_HOME,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    json: JsonOption = False,
) -> None:
    """Simulate a small Megatron job with one slow GPU, analyse it, and show what to look at next.

    16 ranks: tensor parallel 2, pipeline parallel 4 with two chunks a stage, data parallel 2; full recomputation,
    overlapped gradients, clocks that differ by up to 3 ms, three iterations.
    """
    from traceviz_dag.simulate import simulate
    from traceviz_dag.simulate.settings import Settings

    console = Console(stderr=True)
    folder = home.resolve() / "demo"
    started = time.monotonic()
    settings = replace(Settings.demo(), seed=seed)
    with console.status("simulating 16 ranks, 3 iterations") if console.is_terminal else nullcontext():
        simulate(settings, folder)
    console.print(f"simulated in {time.monotonic() - started:.1f} s: {folder}")
    analyze([folder], home=home, json=json)
    console.print(f"demo done in {time.monotonic() - started:.1f} s")
