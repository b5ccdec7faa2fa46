"""Perfetto traces written and read: 64 ranks × 50,000 kernels exported; a 300 MB trace, our reader beside Perfetto's.

    python benchmarks/perfetto_traces.py --ranks 64 --kernels 50000
    python benchmarks/perfetto_traces.py --trace rank0.json [--trace-processor PATH]

The export is of a job laid out as tables, matched and on solved clocks, with the columns that real kernels fill. The
trace (repeat_trace.py makes a large one) is read by our reader and by Perfetto's trace processor, which is named; its
load and its extraction are timed apart. Every part runs in a separate process. Seconds are of the wall clock, and of
the processor for all processes of a part.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from across_ranks import Job, _table

from tests.show.job import empty_table
from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.matching.communications import COMMUNICATION_COLUMNS, gather_communications
from traceviz_dag.analyze.matching.matches import match_communications
from traceviz_dag.classify.topology.tables import topology_tables
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.perfetto.engines import find_engine
from traceviz_dag.read.perfetto.reader import read_session
from traceviz_dag.read.perfetto.session import open_trace
from traceviz_dag.show.perfetto.iteration import Matched, Scope, write_iteration_trace
from traceviz_dag.tables import KERNELS

COMMUNICATIONS, NAMES, MODULES = 3_000, 200, 300
PHASES, CATEGORIES = ("forward", "backward"), ("fwd_computation", "bwd_computation")


class Source:
    """The tables of a job, as an export takes them."""

    run, iteration = "benchmark", 7

    def __init__(self, ranks: int, kernels: int) -> None:
        self.job = Job(ranks, COMMUNICATIONS)
        self.kernels = kernels
        self.topology, _ = topology_tables(self.job.topology)
        self.steps = self.job.microbatches()

    def matched(self) -> Matched:
        """The communications, matched, and their clocks."""
        rows = gather_communications(self.job.communications(rank) for rank in range(self.job.ranks))
        matches = match_communications(rows, self.job.topology, self.steps)
        return Matched(matches, solve_clocks(matches))

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """The chosen columns."""
        if name == "kernels" and rank is not None:
            return self._kernels(rank).select(list(columns))
        if name == "topology":
            return self.topology.select(list(columns))
        if name == "microbatches":
            own = self.steps.filter(pa.compute.equal(self.steps["rank"], rank))
            return own.select(list(columns))
        return empty_table(name, columns)

    def _kernels(self, rank: int) -> pa.Table:
        messages = self.job.communications(rank)
        count, told = self.kernels - len(messages), len(messages)
        starts, ends = self.job.step_times(rank)
        length = int(ends[-1] - starts[0]) // count
        number = np.arange(count)
        phase = number * 2 // count
        numbers = {"microbatch": number * 32 // count, "step": np.full(count, 7), "correlation": number}
        texts = {
            "name": [f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_gemm_{n}>(Params)" for n in number % NAMES],
            "module": [f"TransformerLayer_{n}" for n in number % MODULES],
            "operator": [f"aten::operator_{n}" for n in number % NAMES],
            "phase": [PHASES[each] for each in phase],
            "category": [CATEGORIES[each] for each in phase],
            "phase_evidence": ["call_stack"] * count,
            "kind": ["computation"] * count,
            "device": [f"gpu:{rank % 8}"] * count,
        }
        computing = {
            "kernel_id": told + number,
            "start_ns": starts[0] + number * length,
            "duration_ns": np.full(count, length - 50),
            "stream": np.full(count, 7),
            **numbers,
            **{name: pa.array(values) for name, values in texts.items()},
        }
        communicating = {
            name: messages[name].combine_chunks() for name in COMMUNICATION_COLUMNS if name in KERNELS.schema.names
        }
        streams = {"tp": 20, "pp": 24, "dp": 28}
        communicating |= {
            "stream": np.array([streams[each] for each in messages["dimension"].to_pylist()]),
            "category": pa.array(["fwd_communication"] * told),
            "phase": pa.array(["forward"] * told),
        }
        fields = list(KERNELS.schema)
        parts = [_table(fields, known, rows) for known, rows in ((communicating, told), (computing, count))]
        return pa.concat_tables(parts, promote_options="permissive").cast(KERNELS.schema)


def export(ranks: int, kernels: int) -> list[tuple[str, float, float, float]]:
    """Rows of (what, seconds, processor seconds, MiB) of exporting a job."""
    source = Source(ranks, kernels)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        begin, spent = time.perf_counter(), time.process_time()
        tables = [source.table("kernels", ("name",), rank).num_rows for rank in range(ranks)]
        making = time.perf_counter() - begin, time.process_time() - spent
        begin, spent = time.perf_counter(), time.process_time()
        matched = source.matched()
        rows.append(("match and solve clocks", time.perf_counter() - begin, time.process_time() - spent, _peak()))
        begin, spent = time.perf_counter(), time.process_time()
        written = write_iteration_trace(source, Path(folder) / "out.pftrace.gz", Scope.ITERATION, matched=matched)
        seconds = time.perf_counter() - begin, time.process_time() - spent
        what = f"write {sum(tables):,} kernels, {written.arrows:,} arrows, {written.bytes / 1e6:.0f} MB gzip"
        rows.append((what, seconds[0] - making[0], seconds[1] - making[1], _peak()))
    return rows


def read_own(path: Path) -> list[tuple[str, float, float, float]]:
    """Rows of reading a trace with our reader."""
    begin, spent = time.perf_counter(), time.process_time()
    events = read_kineto(path)
    what = f"our reader, {events.report.rows_read:,} events to columns"
    return [(what, time.perf_counter() - begin, time.process_time() - spent, _peak())]


def read_perfetto(path: Path, wanted: str | None) -> list[tuple[str, float, float, float]]:
    """Rows of loading a trace into Perfetto and of extracting the same columns from it."""
    engine = find_engine(wanted)
    begin, spent = time.perf_counter(), time.process_time()
    rows = []
    with open_trace(path, engine) as session:
        inside = _processor_seconds(session.process_id)
        what = f"Perfetto's load, {engine.kind} ({engine.reason})"
        rows.append(
            (what, time.perf_counter() - begin, time.process_time() - spent + inside, _memory(session.process_id))
        )
        begin, spent = time.perf_counter(), time.process_time()
        events = read_session(session)
        more = _processor_seconds(session.process_id) - inside
        what = f"extraction by PerfettoSQL to the same columns, {events.report.rows_read:,} slices"
        rows.append(
            (what, time.perf_counter() - begin, time.process_time() - spent + more, _memory(session.process_id))
        )
    return rows


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _processor_seconds(process: int | None) -> float:
    if process is None:
        return float("nan")
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _memory(process: int | None) -> float:
    """Peak of the trace processor, MiB."""
    if process is None:
        return float("nan")
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Print a row per part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--kernels", type=int, default=50_000, help="kernels per rank")
    parser.add_argument("--trace", type=Path, help="read this trace instead of exporting")
    parser.add_argument("--trace-processor", help="as traceviz perfetto query takes it")
    options = parser.parse_args()
    parts = [(export, (options.ranks, options.kernels))]
    if options.trace:
        parts = [(read_own, (options.trace,)), (read_perfetto, (options.trace, options.trace_processor))]
        print(f"{options.trace.name}: {options.trace.stat().st_size / 1e6:.0f} MB")
    print(f"{'seconds':>9} {'CPU s':>9} {'MiB':>7}")
    for work, arguments in parts:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for what, seconds, spent, memory in pool.apply(work, arguments):
                print(f"{seconds:9.1f} {spent:9.1f} {memory:7.0f}  {what}")


if __name__ == "__main__":
    main()
