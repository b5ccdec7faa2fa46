"""How soon the nightly gate finds a change, how often it finds one where there is none, and what a night costs.

Series of step time and exposed communication are drawn with normal noise; each night is judged as the gate does: by the
limit that the accepted nights before it set, and by a change point over all nights.

    python -m benchmarks.nights                 # detection and false alarms; some minutes
    python -m benchmarks.nights --cost 64 40    # a night's gate over so many ranks and nights, from the tables
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traceviz_dag.analyze.nights.confirmed import Raised, in_doubt, new_changes
from traceviz_dag.analyze.nights.limits import robust_limit
from traceviz_dag.analyze.nights.verdicts import Metric, Tolerances
from traceviz_dag.arrays import Float64

NIGHTS = 40
STEP_NS, EXPOSED_NS = 1_000_000_000, 200_000_000
_FLOOR_NS = Tolerances().floor_ns


@dataclass(frozen=True)
class Found:
    """What became of a series.

    Attributes:
        worse: nights, from 1, above the limit that those before them set. raised: confirmed changes, in order.
    """

    worse: Sequence[int]
    raised: Sequence[Raised]

    @property
    def alarms(self) -> list[Raised]:
        """Confirmed changes for the worse."""
        return [one for one in self.raised if one.is_worse]


def judged(series: Sequence[Float64]) -> Found:
    """Judge each night of a series after those before it.

    Args:
        series: step time and exposed communication, ns.
    """
    values = {metric: [round(value) for value in one.tolist()] for metric, one in zip(Metric, series, strict=True)}
    accepted: list[int] = []
    worse: list[int] = []
    raised: list[Raised] = []
    for night in range(len(series[0])):
        trusted = [one for one in accepted if one not in in_doubt(raised, night)] or accepted
        above = False
        for metric in Metric:
            limit = robust_limit([values[metric][one] for one in trusted], _FLOOR_NS, 5, None)
            above |= limit is not None and values[metric][night] > limit.high_ns
        until = {metric: values[metric][: night + 1] for metric in Metric}
        new = new_changes(until, range(night + 1), raised, _FLOOR_NS)
        raised += new
        if above:
            worse.append(night + 1)
        elif not any(one.is_worse for one in new):
            accepted.append(night)
    return Found(worse, raised)


def drawn(
    noise: float, seed: int, change: Callable[[Float64], Float64] = np.ones_like, lag: float = 0.0
) -> Sequence[Float64]:
    """A series of nights.

    Args:
        noise: standard deviation of a night, as a share. change: by the numbers of the nights, from 1, what their step
            is multiplied by. lag: correlation of a night with the one before.
    """
    random = np.random.default_rng(seed)
    off = random.standard_normal((2, NIGHTS))
    for night in range(1, NIGHTS):
        off[:, night] = lag * off[:, night - 1] + (1 - lag**2) ** 0.5 * off[:, night]
    step = change(np.arange(1.0, NIGHTS + 1))
    return STEP_NS * step * (1 + noise * off[0]), EXPOSED_NS * (1 + noise * off[1])


def later(share: float, since: int) -> Callable[[Float64], Float64]:
    """A step that is longer by a share from a night on."""
    return lambda nights: np.where(nights >= since, 1 + share, 1.0)


def outlier(share: float, night: int) -> Callable[[Float64], Float64]:
    """A step that is longer by a share in one night alone."""
    return lambda nights: np.where(nights == night, 1 + share, 1.0)


def drift(share: float) -> Callable[[Float64], Float64]:
    """A step that grows by a share of the first every night."""
    return lambda nights: 1 + share * nights


def healthy(series: int, noise: float, lag: float = 0.0) -> tuple[float, float, float]:
    """Shares of healthy series with a confirmed change for the worse, with a night above its limit, with either."""
    found = [judged(drawn(noise, seed, lag=lag)) for seed in range(series)]
    alarms, above = [bool(one.alarms) for one in found], [bool(one.worse) for one in found]
    return (
        sum(alarms) / series,
        sum(above) / series,
        sum(a or b for a, b in zip(alarms, above, strict=True)) / series,
    )


def _changes(series: int, noise: float) -> None:
    rows = {
        "5 % from night 33": later(0.05, 33),
        "10 % from night 33": later(0.10, 33),
        "40 % in night 33 alone": outlier(0.40, 33),
        "0.2 % a night": drift(0.002),
    }
    for name, change in rows.items():
        found = [judged(drawn(noise, seed, change)) for seed in range(series)]
        alarmed = [[one.night + 1 for one in each.alarms if one.metric is Metric.STEP] for each in found]
        nights = sorted(each[0] for each in alarmed if each)
        by_36 = sum(night <= 36 for night in nights) / series
        once = sum(len(each) == 1 for each in alarmed) / series
        first = f"{nights[0]} to {nights[-1]}" if nights else "none"
        print(
            f"noise {noise:.1%}, {name}: alarm in {len(nights) / series:.1%}, by night 36 in {by_36:.1%}, "
            f"exactly one in {once:.1%}; first in nights {first}",
            flush=True,
        )


def _cost(ranks: int, nights: int) -> None:
    # Imported here because the figures above need no lake.
    from tests.show.home import fill_home
    from tests.small_run import rank_file
    from traceviz_dag.lake.lake import open_lake
    from traceviz_dag.pipeline.home_settings import NightlySettings
    from traceviz_dag.pipeline.nights.judging import judge_series, write_night
    from traceviz_dag.pipeline.nights.series import series_of
    from traceviz_dag.tables import TABLES

    with tempfile.TemporaryDirectory() as folder:
        run, home = Path(folder) / "job", Path(folder) / "home"
        for rank in range(ranks):
            rank_file(rank, ranks, step=10).write(run / f"iteration_10/rank_{rank:04d}_iter_10.pt.trace.json")
        fill_home(home, [run])
        lake = open_lake(home)
        # All nights are the first again: what they hold does not matter for what they cost.
        for table in ("iterations", "topology", "traces", "overlap", "kernels"):
            for part in lake.partitions(table):
                columns = [column.name for column in TABLES[table].columns]
                rows = lake.table(table, "job", 10, part.rank).arrow(columns)
                for night in range(11, 10 + nights):
                    lake.write(table, rows, run="job", iteration=night, rank=part.rank)
        (series,) = series_of(lake, NightlySettings())
        for night in judge_series(lake, series, NightlySettings(), {f"job@{one}" for one in range(10, 9 + nights)}):
            write_night(lake, night)
        began, wall = time.process_time(), time.perf_counter()
        (series,) = series_of(lake, NightlySettings())
        (last,) = judge_series(lake, series, NightlySettings())
        write_night(lake, last)
        print(
            f"{ranks} ranks, {nights} nights: the last is judged in {time.process_time() - began:.2f} processor s, "
            f"{time.perf_counter() - wall:.2f} s: {last.verdict.statement}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=1000, help="healthy series of each noise")
    parser.add_argument("--cost", type=int, nargs=2, metavar=("RANKS", "NIGHTS"))
    asked = parser.parse_args()
    if asked.cost:
        _cost(*asked.cost)
        return
    began = time.process_time()
    for noise, lag in ((0.01, 0.0), (0.02, 0.0), (0.01, 0.6)):
        before = time.process_time()
        alarm, above, either = healthy(asked.series, noise, lag)
        named = f"noise {noise:.1%}{f', correlated by {lag:g}' if lag else ''}"
        print(
            f"{named}, {asked.series:,} healthy series: alarm in {alarm:.1%}, above a limit in {above:.1%}, either in "
            f"{either:.1%} ({time.process_time() - before:.0f} processor s)",
            flush=True,
        )
        if not lag:
            _changes(asked.series // 5, noise)
    print(f"{time.process_time() - began:.0f} processor s in all")


if __name__ == "__main__":
    main()
