"""``traceviz nsys info``: what an export holds, and what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from traceviz_dag.arrays import distinct
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_table, shown
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, gpu_numbers, opened
from traceviz_dag.errors import UsageError
from traceviz_dag.read.events import KERNEL
from traceviz_dag.read.nsys.profile import NsysFacts, NsysProfile


def info(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    hardware: Annotated[
        bool, typer.Option("--hardware", help="Show what the export states of the GPUs themselves.")
    ] = False,
    columns: Annotated[
        bool,
        typer.Option("--columns", help="Show the columns of all tables that cannot hold secrets."),
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show versions, GPUs, tables, the time covered, and what the export lacks to answer more.

    With --gpu, show what the export states of these GPUs.
    """
    with opened(path, home) as given:
        facts = given.profile.facts
        if gpu or hardware:
            _hardware(path, facts, gpu_numbers(gpu), json)
            return
        if columns:
            _columns(facts, json)
            return
        names = {gpu.device: gpu.name for gpu in facts.gpus}
        rows = [_gpu(given.profile, device, names.get(device)) for device in given.profile.keys("operations")]
        calls, ranges = (given.profile.count(name) for name in ("calls", "ranges"))
        stated = {
            **{name: value for name, value in msgspec.to_builtins(facts).items() if name != "columns"},
            "gpus": rows,
            "calls": calls,
            "ranges": ranges,
            "last_ns": max((row["last_ns"] for row in rows), default=None),
        }
        if json:
            given.print_json(stated)
            return
        by = f"nsys {facts.product_version}" if facts.product_version else "an unknown version of nsys"
        print_columns(
            f"{path.name}: exported by {by}, schema {facts.schema_version or 'unknown'}",
            rows,
            [
                *(("gpu", "GPU"), "name", "kernels", ("launched", "of them launched"), "memory_operations"),
                *("processes", "streams", "first_ns", "last_ns"),
            ],
        )
        print_table("Tables", ["table", "rows"], list(facts.tables.items()))
        if facts.duration_ns is not None:
            capture = {"length_ns": facts.duration_ns, "calls": calls, "ranges": ranges}
            print_columns("Capture", [capture], ["length_ns", "calls", "ranges"])
        if facts.missing:
            print_table("What it lacks", ["missing"], [[sentence] for sentence in facts.missing])


def _gpu(profile: NsysProfile, device: int, name: str | None) -> dict[str, Any]:
    """What one GPU did, from the columns that this takes alone."""
    columns = ("category", "start_ns", "duration_ns", "stream", "process", "launch")
    rows = profile.rows("operations", *columns, of=[device])
    kernel, start = rows["category"] == KERNEL, rows.integers("start_ns")
    return {
        "gpu": device,
        "name": name,
        "kernels": int(kernel.sum()),
        "memory_operations": int((~kernel).sum()),
        "launched": int((rows["launch"][kernel] >= 0).sum()),
        "processes": len(distinct(rows.integers("process"))),
        "streams": len(distinct(rows.integers("stream"))),
        "first_ns": int(start.min()),
        "last_ns": int((start + rows["duration_ns"]).max()),
    }


def _columns(facts: NsysFacts, json: bool) -> None:
    """Show the tables of an export with their columns."""
    if json:
        print_json(facts.columns)
        return
    rows = [(table, column) for table, columns in facts.columns.items() for column in columns]
    print_table("Columns", ["table", "column"], shown(rows), len(rows))


def _hardware(path: Path, facts: NsysFacts, wanted: list[int], json: bool) -> None:
    """Show what the export states of each GPU, or of some."""
    stated = {one.device: one for one in facts.gpus}
    unknown = [number for number in wanted if number not in stated]
    if unknown:
        there = ", ".join(map(str, sorted(stated))) or "none"
        raise UsageError(f"{path}: the export describes no GPU {unknown[0]}; it describes {there}")
    gpus = [stated[number] for number in wanted or stated]
    if json:
        print_json([msgspec.to_builtins(one) for one in gpus])
        return
    print_columns(
        "GPUs, as far as the export describes them",
        gpus,
        [
            *("device", "name", "compute_capability", "multiprocessors", "memory_bytes", "memory_bytes_per_s"),
            *("clock_hz", "bus"),
        ],
    )
