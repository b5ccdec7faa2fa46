"""Time and memory of the analysis across ranks against the number of ranks, at micro-batch and collective granularity.

    python benchmarks/across_ranks.py [--ranks 64 256 1024] [--collectives 2000]

A job of tp 8, pp 8 and data parallelism over the rest, laid out as tables; each rank has tensor-parallel collectives in
every micro-batch, pipeline exchanges, gradient collectives, and as many computation kernels in between. Each size runs
in a separate process, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.matching.communications import COMMUNICATION_COLUMNS, gather_communications
from traceviz_dag.analyze.matching.matches import match_communications
from traceviz_dag.analyze.pipelines.periods import periods_table
from traceviz_dag.analyze.pipelines.pipelines import pipelines_table
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.analyze.waits.waits import charge_waits
from traceviz_dag.classify.topology.types import Group, Replicas, Topology
from traceviz_dag.tables import KERNELS, MICROBATCHES
from traceviz_dag.vocabulary import Dimension, TopologySource

TP, STAGES, MICROBATCHES_PER_STEP = 8, 8, 32
FORWARD_NS, BACKWARD_NS, GAP_NS = 4_000_000, 8_000_000, 20_000
COMMUNICATION_NS, COMPUTATION_NS = 60_000, 50_000


def rank_order(stage: int) -> list[tuple[int, int]]:
    """(backward, micro-batch) of one stage's 1F1B."""
    warmup = STAGES - 1 - stage
    order = [(0, index) for index in range(warmup)]
    for index in range(MICROBATCHES_PER_STEP - warmup):
        order += [(0, warmup + index), (1, index)]
    return order + [(1, index) for index in range(MICROBATCHES_PER_STEP - warmup, MICROBATCHES_PER_STEP)]


class Job:
    """The tables of one job; a rank's own are made when they are asked for, as a lake reads them."""

    def __init__(self, ranks: int, collectives: int) -> None:
        self.ranks, self.replicas = ranks, ranks // (TP * STAGES)
        self.per_step = max(1, collectives // (2 * MICROBATCHES_PER_STEP) - 2)
        self.orders = [rank_order(stage) for stage in range(STAGES)]
        stride = TP * self.replicas
        groups = {f"tp{i}": tuple(range(i * TP, i * TP + TP)) for i in range(ranks // TP)}
        pipelines = [tuple(range(i, ranks, stride)) for i in range(stride)]
        for stage in range(STAGES):
            for place in range(TP):
                base = stage * stride + place
                groups[f"dp{stage}.{place}"] = tuple(range(base, base + stride, TP))
        self.groups = groups
        self.names = {(name[:2], rank): name for name, members in groups.items() for rank in members}
        named = tuple(
            Group(name, None, Dimension(name[:2]), members, len(members), TopologySource.DISTRIBUTED_INFO)
            for name, members in groups.items()
        )
        self.topology = Topology(ranks, {}, named, tuple(pipelines), Replicas(), (TopologySource.DISTRIBUTED_INFO,))

    def stage(self, rank: int) -> int:
        """The stage of a rank."""
        return rank // (TP * self.replicas)

    def step_times(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of each of a rank's steps, on its own clock."""
        order = np.array(self.orders[self.stage(rank)])
        lengths = np.where(order[:, 0] == 1, BACKWARD_NS, FORWARD_NS)
        ends = np.cumsum(lengths + GAP_NS) + rank * 3_000
        return ends - lengths - GAP_NS, ends - GAP_NS

    def microbatches(self) -> pa.Table:
        """The table microbatches of all ranks."""
        parts = []
        for rank in range(self.ranks):
            order = np.array(self.orders[self.stage(rank)])
            starts, ends = self.step_times(rank)
            known = {
                "rank": np.full(len(order), rank),
                "device": ["gpu:0"] * len(order),
                "step": np.full(len(order), 7),
                "chunk": np.zeros(len(order), np.int64),
                "microbatch": order[:, 1],
                "phase": pa.array(["forward", "backward"]).take(pa.array(order[:, 0])),
                "dimension": ["all"] * len(order),
                "order_in_rank": np.arange(len(order)),
                "host_start_ns": starts,
                "span_start_ns": starts,
                "span_end_ns": ends,
            }
            parts.append(_table([pa.field("rank", pa.int64()), *MICROBATCHES.schema], known, len(order)))
        return pa.concat_tables(parts)

    def communications(self, rank: int) -> pa.Table:
        """A rank's communication kernels."""
        starts, ends = self.step_times(rank)
        offsets = np.arange(self.per_step) * (FORWARD_NS // (self.per_step + 1))
        tensor = (starts[:, None] + offsets).ravel()
        exchange = np.concatenate((starts[:1] - COMMUNICATION_NS, ends))
        gradient = ends[-1] + np.arange(32) * 100_000
        begin = np.concatenate((tensor, exchange, gradient))
        kinds = np.repeat([0, 1, 2], [len(tensor), len(exchange), len(gradient)])
        order = np.argsort(begin, kind="stable")
        begin, kinds = begin[order], kinds[order]
        # Ranks come at different times and leave together.
        late = (begin // 1000 * 7919 + rank * 104_729) % (COMMUNICATION_NS // 2)
        names = pa.array([self.names["tp", rank], None, self.names["dp", rank]])
        known = {
            "rank": np.full(len(begin), rank),
            "kernel_id": np.arange(len(begin)),
            "start_ns": begin + late,
            "duration_ns": COMMUNICATION_NS - late,
            "launch_start_ns": begin - 5_000,
            "step": np.full(len(begin), 7),
            "stage": np.full(len(begin), self.stage(rank)),
            "in_elements": np.full(len(begin), 1_000_000),
            "group_name": names.take(pa.array(kinds)),
            "collective": pa.array(["allreduce", None, "reduce_scatter"]).take(pa.array(kinds)),
            "name": pa.array(["AllReduce", "ncclDevKernel_SendRecv", "ReduceScatter"]).take(pa.array(kinds)),
            "dimension": pa.array(["tp", "pp", "dp"]).take(pa.array(kinds)),
            "device": pa.array([f"gpu:{rank % 8}"] * len(begin)),
            "kind": pa.array(["communication"] * len(begin)),
            "dtype": pa.array(["BFloat16"] * len(begin)),
        }
        schema = KERNELS.schema.append(pa.field("rank", pa.int64()))
        return _table([schema.field(name) for name in COMMUNICATION_COLUMNS], known, len(begin))

    def kernels(self, rank: int) -> pa.Table:
        """All kernels of a rank, with the columns that are needed beside its communications."""
        communications = self.communications(rank)
        begin = communications["start_ns"].to_numpy()
        count = len(begin)
        kinds = pa.array(["communication"] * count + ["computation"] * count).dictionary_encode()
        nothing = pa.array([None] * count, pa.string())
        return pa.table(
            {
                "start_ns": np.concatenate((begin, begin + COMMUNICATION_NS)),
                "duration_ns": np.repeat([COMMUNICATION_NS, COMPUTATION_NS], count),
                "kind": kinds,
                "step": np.full(2 * count, 7),
                "dimension": pa.concat_arrays(
                    [communications["dimension"].cast(pa.string()).combine_chunks(), nothing]
                ).dictionary_encode(),
                "category": pa.array(["fwd_communication"] * count + ["fwd_computation"] * count).dictionary_encode(),
            }
        )


def _table(fields: list[pa.Field], known: dict[str, object], rows: int) -> pa.Table:
    arrays = []
    for field in fields:
        values = known.get(field.name)
        if values is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(values, pa.Array):
            arrays.append(
                values.cast(pa.string()).dictionary_encode() if pa.types.is_dictionary(field.type) else values
            )
        else:
            arrays.append(pa.array(values, type=field.type))
    return pa.Table.from_arrays(
        arrays, schema=pa.schema([pa.field(f.name, a.type) for f, a in zip(fields, arrays, strict=True)])
    )


def measure(ranks: int, collectives: int) -> dict[str, float]:
    """Seconds of each part, and the peak memory of the process in MiB."""
    job = Job(ranks, collectives)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], pa.Table]) -> pa.Table:
        begin = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - begin
        return result

    microbatches = job.microbatches()
    rows = gather_communications(job.communications(rank) for rank in range(ranks))
    seconds["kernels"] = len(rows)
    matches = timed("match", lambda: match_communications(rows, job.topology, microbatches))
    assert (matches.communication >= 0).mean() > 0.95, "the communications of the benchmark must be matched"
    clocks = timed("clocks", lambda: solve_clocks(matches))
    collected = timed("collectives", lambda: collectives_table(matches, clocks))
    timed("waits", lambda: charge_waits(collected, matches, clocks, job.kernels))
    timed("pipelines", lambda: pipelines_table(microbatches, job.topology))
    timed("periods", lambda: periods_table(microbatches, job.topology, job.kernels))
    seconds["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds


def main() -> None:
    """Print a row per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--collectives", type=int, default=2000, help="communication kernels per rank")
    options = parser.parse_args()
    columns = ("kernels", "match", "clocks", "collectives", "waits", "pipelines", "periods", "MiB")
    print("ranks " + " ".join(f"{name:>11}" for name in columns))
    for ranks in options.ranks:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(measure, (ranks, options.collectives))
        print(f"{ranks:5} " + " ".join(f"{found[name]:11.2f}" for name in columns))


if __name__ == "__main__":
    main()
