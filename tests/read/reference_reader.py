"""A slow reader of Kineto traces by the standard library and decimal arithmetic, to check the fast one against."""

from __future__ import annotations

import gzip
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

from traceviz_dag.read.events import MISSING

HOST = {"cpu_op": 0, "python_function": 1, "user_annotation": 2}
COLLECTIVES = ("alltoall", "allgather", "reduce", "allreduce", "broadcast", "gather", "scatter", "barrier")
DEVICE = {"kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}


def load(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    return json.loads(text, parse_float=Decimal, strict=False)


def nanoseconds(microseconds: Any) -> int:
    value = Decimal(microseconds) * 1000
    assert value == int(value)
    return int(value)


def reference_rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Table → rows of plain values, in file order, as ``plain_rows`` gives them."""
    trace = load(path)
    base = trace.get("baseTimeNanoseconds", 0)
    tables: dict[str, list[tuple[Any, ...]]] = {"host": [], "launches": [], "device": [], "operators": []}
    for event in trace["traceEvents"]:
        category = event.get("cat", "")
        if event.get("ph") != "X" or category == "Trace":
            continue
        args = event.get("args", {})
        head = (event["name"], nanoseconds(event["ts"]) + base, nanoseconds(event["dur"]))
        thread = (event["pid"], event["tid"])
        if category in HOST:
            python = category == "python_function"
            ids = ("Python id", "Python parent id") if python else ("External id", "Sequence number", "Fwd thread id")
            values = tuple(MISSING if args.get(key) is None else args[key] for key in ids)
            facts = (*values, MISSING, MISSING, MISSING) if python else (MISSING, MISSING, *values)
            tables["host"].append((*head, HOST[category], thread, *facts))
            if event["name"] == "record_param_comms" and "Collective name" in args:
                tables["operators"].append((len(tables["host"]) - 1, *collective_facts(args)))
            if category == "user_annotation" and event["name"].startswith("nccl:"):
                operation = event["name"].removeprefix("nccl:")
                if operation.strip("_").replace("_", "").startswith(COLLECTIVES):
                    tables["operators"].append((len(tables["host"]) - 1, *collective_facts(annotated(operation, args))))
        elif category.endswith(("_runtime", "_driver")):
            keys = (args.get("correlation", MISSING), args.get("External id", MISSING))
            tables["launches"].append((*head, thread, *keys))
        elif category in DEVICE:
            sizes = (*args.get("grid", [MISSING] * 3), *args.get("block", [MISSING] * 3))
            keys = ("correlation", "External id", "registers per thread", "shared memory", "bytes")
            numbers = tuple(args.get(key, MISSING) for key in keys)
            place = (args.get("device", event["pid"]), args.get("stream", event["tid"]))
            row = (*head, DEVICE[category], *place, *sizes, *numbers, *collective_facts(args))
            tables["device"].append(row)
    return tables


def annotated(operation: str, args: dict[str, Any]) -> dict[str, Any]:
    """What an annotation of NCCL's backend states, under the keys of ``record_param_comms``."""
    facts: dict[str, Any] = {"Collective name": operation}
    first = next(iter(args.get("Input Dims", [])), [])
    if first:
        tensors = first if isinstance(first[0], list) else [first]
        facts["In msg nelems"] = sum(math.prod(map(int, tensor)) for tensor in tensors)
    types = [kind for kind in args.get("Input type", []) if kind != "TensorList"]
    if types:
        facts["dtype"] = types[0].removeprefix("c10::")
    return facts


def collective_facts(args: dict[str, Any]) -> tuple[Any, ...]:
    texts = ("Collective name", "Process Group Name", "Process Group Description", "Process Group Ranks", "dtype")
    splits = ("In split size", "Out split size")
    numbers = ("Group size", "In msg nelems", "Out msg nelems", "Seq", "Src Rank", "Dst Rank")
    values = [args.get(key, "") for key in (*texts, *splits)]
    if values[2] == "undefined":
        values[2] = ""
    return (*values, *(args.get(key, MISSING) for key in numbers))
