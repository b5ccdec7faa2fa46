"""Series of nights, made of the tables of one small night: its steps and waits are longer or shorter."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.made_once import made_once
from tests.show.home import fill_home
from tests.small_run import rank_file
from traceviz_dag.lake.inputs import register, registered
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.baselines import Baseline, SetBy, keep_baseline
from traceviz_dag.pipeline.home_settings import FILE_NAME, load_settings
from traceviz_dag.pipeline.nights.judging import JudgedNight, judge_series, write_night
from traceviz_dag.pipeline.nights.series import series_of
from traceviz_dag.tables import TABLES

SETTINGS = '[nightly]\nwarmup_steps = 0\nseries = ["night-*"]\n[nightly.tolerances]\nfloor_ns = 1000\n'
DAY_NS = 86_400 * 10**9
FIRST = 10
_TABLES = ("iterations", "runs", "topology", "process_groups", "traces", "overlap", "kernels", "microbatches")
"""What verdicts and the comparison of two nights rest on."""


def first_night(folder: Path) -> Path:
    """A home with iteration 10 of a job of two ranks."""
    for rank in range(2):
        path = folder / f"job/iteration_{FIRST}/rank_{rank:04d}_iter_{FIRST}.pt.trace.json"
        rank_file(rank, 2, step=FIRST).write(path)
        os.utime(path, ns=(0, FIRST * DAY_NS))
    fill_home(folder / "home", [folder / "job"])
    (folder / "home" / FILE_NAME).write_text(SETTINGS)
    return folder / "home"


def add(lake: Lake, run: str, iteration: int, share: float, day: int, exposed: float = 1.0) -> None:
    """An iteration like the first one of the job.

    Args:
        share, exposed: what its steps, and its exposed communication, are multiplied by.
    """
    for name in _TABLES:
        for part in lake.partitions(name, "job", FIRST):
            rows = _rows(lake.home, name, part.rank)
            if name == "iterations":
                rows = _with(rows, "step_ns", pc.multiply(rows["step_ns"], share))
            if name == "overlap":
                length = pc.subtract(rows["window_end_ns"], rows["window_start_ns"])
                rows = _with(rows, "window_end_ns", pc.add(rows["window_start_ns"], pc.multiply(length, share)))
            if name in ("iterations", "overlap"):
                rows = _with(rows, "exposed_ns", pc.multiply(rows["exposed_ns"], exposed))
            lake.write(name, rows, run=run, iteration=iteration, rank=part.rank)
    inputs = registered(lake.home, f"job@{FIRST}")
    ranks = tuple(one.__class__(**{**_fields(one), "changed_ns": day * DAY_NS}) for one in inputs.ranks)
    fields = {**_fields(inputs), "run": run, "iteration": iteration, "ranks": ranks}
    register(lake.home, inputs.__class__(**fields))


@cache
def _rows(home: Path, name: str, rank: int | None) -> pa.Table:
    """Rows of the first night, which nobody changes."""
    return open_lake(home).table(name, "job", FIRST, rank).arrow([one.name for one in TABLES[name].columns])


def _fields(one) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def _with(rows: pa.Table, name: str, values) -> pa.Table:
    kind = rows.schema.field(name).type
    return rows.set_column(rows.schema.names.index(name), rows.schema.field(name), pc.round(values).cast(kind))


def steps(nights: int, noise: float = 0.01, since: int = 99, share: float = 1.0, seed: int = 5) -> list[float]:
    """Shares of the first night's step; from a night on, which is counted from 1, of another level."""
    off = noise * np.random.default_rng(seed).standard_normal(nights)
    return [(1 + one) * (share if night >= since else 1) for night, one in enumerate(off.tolist(), 1)]


def add_nights(lake: Lake, shares: Sequence[float]) -> None:
    """More nights of the job, one after the other."""
    for number, share in enumerate(shares[1:], FIRST + 1):
        add(lake, "job", number, share, number)
    lake.refresh_catalogue()


def judge(lake: Lake) -> list[JudgedNight]:
    """As the nightly gate does."""
    settings = load_settings(lake.home).nightly
    nights = []
    for series in series_of(lake, settings):
        found = judge_series(lake, series, settings)
        for one in found:
            write_night(lake, one)
        nights += found
    lake.refresh_catalogue()
    return nights


@dataclass(frozen=True)
class Made:
    """What an iteration of a series is like the first night with; ``share``, ``exposed`` as of :func:`add`."""

    run: str
    iteration: int
    share: float
    exposed: float = 20.0


def _numbered(run: str, shares: Iterable[float], exposed: Iterable[float] = repeat(20.0)) -> list[Made]:
    return [Made(run, *one) for one in zip(count(FIRST), shares, exposed)]


_MORE = steps(20, noise=0.004, since=10, share=1.026, seed=6)
_LESS = steps(20, noise=0.004, since=17, share=0.7, seed=7)
SERIES = {
    # More communication is exposed, by less than its limit allows; then the step is longer; then less is exposed again.
    "rise": _numbered("rise", steps(20, since=15, share=1.12), [20 * a * b for a, b in zip(_MORE, _LESS, strict=True)]),
    "drift": _numbered("drift", (1, 1.04, 1.08, 1.115, 1.0, 0.9), (20, 20, 20, 20, 40, 20)),
    # Only the first night has two steps, which show how much steps differ.
    "night-*": [
        *(Made("night-01", FIRST, 1), Made("night-01", FIRST + 1, 1.002), Made("night-02", FIRST, 1.12)),
        *(Made(f"night-{night:02d}", FIRST, 1 + night % 3 / 1000) for night in range(3, 10)),
        *(Made("night-10", FIRST, 1.06, 50), Made("night-11", FIRST, 1, 21)),
    ],
    # Too few nights are accepted to set a limit when it is longer.
    "early": _numbered("early", steps(14, since=7, share=1.12)),
    "shorter": _numbered("shorter", steps(15, since=10, share=0.9, noise=0.004)),
}
FAST = ("rise", "drift", "night-*")
LONG = ("shorter", "early")


def series_home(*names: str) -> Path:
    """A home with these series, judged; nobody changes it."""

    def make(folder: Path) -> None:
        lake = open_lake(first_night(folder))
        (lake.home / FILE_NAME).write_text(SETTINGS.replace("floor_ns = 1000", "floor_ns = 100"))
        for day, one in enumerate(one for name in names for one in SERIES[name]):
            add(lake, one.run, one.iteration, one.share, day + 1, one.exposed)
        judge(lake)

    return made_once(f"nights_{len(names)}_{names[0]}", make) / "home"


def home_of_other_ranks() -> Path:
    """A home with a night over one rank, then one over four, then one over one; nobody changes it."""

    def make(folder: Path) -> None:
        for iteration, ranks in ((11, (0,)), (12, range(4)), (13, (0,))):
            for rank in ranks:
                file = rank_file(rank, 4, step=iteration)
                file.write(folder / f"job/iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json")
        fill_home(folder / "home", [folder / "job"])
        (folder / "home" / FILE_NAME).write_text(SETTINGS)
        judge(open_lake(folder / "home"))
        for name, iteration in (("release", 12), ("all", None)):
            keep_baseline(folder / "home", name, Baseline("job", iteration, SetBy.NAMED))

    return made_once("nights_of_other_ranks", make) / "home"
