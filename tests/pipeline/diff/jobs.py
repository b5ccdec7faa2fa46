"""A small job and the same one with something changed, from the same seed, each analysed once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.analyze.across_ranks import SMALL
from tests.commands.jobs import Analysed, analysed_at
from tests.made_once import made_once
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Edges, Faults

_PLAIN = JobSettings(pp=2, microbatches=4, gzip=False, **{**SMALL, "layers": 4, "hidden": 1024})

CHANGED = {
    "plain": _PLAIN,
    "slow_gpu": replace(_PLAIN, faults=Faults(slow_gpu=1)),
    "slow_link": replace(_PLAIN, faults=Faults(slow_link=1)),
    "more_layers": replace(_PLAIN, layers=8),
    "three_steps": replace(_PLAIN, iterations=3),
    "cut": replace(_PLAIN, edges=Edges(window_from=0.5)),
}


@cache
def changed(name: str) -> tuple[Analysed, ...]:
    """The iterations of one of these jobs."""
    return analysed_at(traces(name))


def traces(name: str) -> Path:
    """Its run folder."""

    def make(folder: Path) -> None:
        simulate(CHANGED[name], folder / name, workers=1)

    return made_once(f"diff_{name}", make) / name
