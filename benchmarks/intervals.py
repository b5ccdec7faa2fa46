"""How the time of the interval algebra and of the overlap table grows with the number of kernels.

Run: ``python benchmarks/intervals.py [--sizes 100000 1000000 10000000] [--repeats 3]``. The last column of each row
should stay flat from size to size: that is what linear cost looks like.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import Intervals, intersect, measure_within, union
from traceviz_dag.analyze.microbatches import microbatches_table
from traceviz_dag.analyze.overlap import overlap_table
from traceviz_dag.vocabulary import Dimension, Kind

SEED = 20260801
STEP_NS = 1_000_000_000
KERNELS_PER_MICROBATCH = 500


def random_intervals(size: int, generator: np.random.Generator) -> Intervals:
    """Make intervals sorted by start, as a trace holds them, that cover about half of the time."""
    starts = np.cumsum(generator.integers(1, 20_000, size))
    return Intervals(starts, starts + generator.integers(0, 14_000, size))


def random_kernels(intervals: Intervals, generator: np.random.Generator) -> pa.Table:
    """Make a table of kernels of all kinds, on one device, in forward and backward steps of micro-batches."""
    size = len(intervals.starts)
    kind = generator.choice(3, size, p=[0.8, 0.15, 0.05])
    dimension = pa.array(generator.integers(0, 3, size), mask=kind != 1)
    unit = np.arange(size) // KERNELS_PER_MICROBATCH
    nothing = pa.array(np.zeros(size, dtype=np.int32))
    return pa.table(
        {
            "start_ns": intervals.starts,
            "duration_ns": intervals.ends - intervals.starts,
            "device": _dictionary(nothing, ["gpu:0"]),
            "kind": _dictionary(pa.array(kind), [each.value for each in Kind]),
            "dimension": _dictionary(dimension, [Dimension.TP.value, Dimension.DP.value, Dimension.PP.value]),
            "phase": _dictionary(pa.array(unit % 2), ["forward", "backward"]),
            "step": nothing,
            "stage": nothing,
            "chunk": nothing,
            "microbatch": unit // 2,
        }
    )


def _dictionary(indices: pa.Array, names: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(indices.cast(pa.int32()), pa.array(names))


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest of several runs."""
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def cases(size: int) -> dict[str, Callable[[], object]]:
    """Name what is timed at one size."""
    generator = np.random.default_rng(SEED)
    first, second = random_intervals(size, generator), random_intervals(size, generator)
    order = generator.permutation(size)
    shuffled = Intervals(first.starts[order], first.ends[order])
    a, b = union(*first), union(*second)
    windows = np.arange(first.starts[0], first.ends[-1], STEP_NS // 100)
    kernels = random_kernels(first, generator)
    steps = [
        (number, int(start), int(start) + STEP_NS)
        for number, start in enumerate(range(int(first.starts[0]), int(first.ends[-1]), STEP_NS))
    ]
    return {
        "union, sorted": lambda: union(*first),
        "union, shuffled": lambda: union(*shuffled),
        "intersect": lambda: intersect(a, b),
        "measure_within": lambda: measure_within(a, windows, windows + STEP_NS // 100),
        "overlap_table": lambda: overlap_table(kernels, steps),
        "microbatches_table": lambda: microbatches_table(kernels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'what':<20} {'intervals':>11} {'ms':>10} {'ns/interval':>12}")
    for size in options.sizes:
        for name, work in cases(size).items():
            taken = seconds(work, options.repeats)
            print(f"{name:<20} {size:>11,} {taken * 1e3:>10.1f} {taken * 1e9 / size:>12.1f}")


if __name__ == "__main__":
    main()
