"""Inputs that are Parquet files: records of pipeline operations, and exports of Nsight Systems as folders."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzzing import odd
from benchmarks.fuzzing.inputs import faithful_export

_INTEGERS = (0, 1, -1, 7, 127, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), None)
_REALS = (0.0, -0.0, -1.0, 1e-30, 9.99e5, 1e6, 1e300, float("nan"), float("inf"), None)
_WORDS = (
    "",
    "gc",
    "forward-compute",
    "backward-send",
    "x" * 5000,
    "hf_0123456789abcdef",
    odd.ESCAPE,
    "\0",
    "名前",
    None,
)


def _of(value: object, kind: pa.DataType | None = None) -> Callable[[int], pa.Array]:
    return lambda rows: pa.array([value] * rows, kind)


_COLUMNS: tuple[Callable[[int], pa.Array], ...] = (
    *(pa.nulls, _of("x"), _of("7"), _of(odd.ESCAPE), _of(True), _of(b"\xff\xfe"), _of([1]), _of({"a": 1})),
    *(_of(float("nan")), _of(1e300), _of(2**64 - 1, pa.uint64()), _of(2**62), _of(-(2**63)), _of(-1), _of(0)),
    *(_of(0, pa.timestamp("ns")), _of(10**30, pa.decimal128(38, 0)), lambda rows: pa.array(range(rows), pa.int64())),
    # Arrow does not look whether the bytes of a text are UTF-8.
    lambda rows: pa.array([b"\xff\xfe"] * rows, pa.binary()).view(pa.string()),
    lambda rows: pa.array(["x" * 2_000_000] * rows).dictionary_encode() if rows < 100 else pa.nulls(rows),
)


def records(chance: random.Random, path: Path) -> None:
    """Records of a job of two stages and two data-parallel ranks, with the meta file beside them."""
    table = _job()
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        table = _changed(table, chance)
    pq.write_table(table, path, compression=chance.choice(("snappy", "zstd")), row_group_size=chance.choice((7, 1000)))
    if chance.random() < 0.1:
        path.write_bytes(odd.raw(path.read_bytes(), chance))
    meta = path.with_name(f"{path.stem.replace('trace-', 'meta-', 1)}.yaml")
    meta.write_bytes(_meta(chance).encode("utf-8", "surrogatepass"))


_YAML = (
    *(
        "[" * odd.DEEP,
        "{a: " * odd.DEEP,
        "- " * odd.DEEP,
        "!!int ''",
        "!!bool x",
        "!!timestamp x",
        "2001-99-99",
        "0b",
        "1:x",
    ),
    *(
        "!!python/name:os.system",
        "&a [*a]",
        "*a",
        "<<: *b",
        "? [a]",
        "---",
        "%YAML 9.9",
        "|",
        ">",
        "@",
        "`",
        "\t",
        "!!set {a}",
    ),
    *("9" * 5000, "1_0", "010", "0x7", "2.0", "true", "~", "'2'", '"\\ud800"', "\x00", "\x85", "2 # two", "<<", "="),
)
_LAUGHS = "\n".join(
    ["a0: &a0 {k: v}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))]
)


def _meta(chance: random.Random) -> str:
    lines = ["trial_name: x", "dp_size: 2", "pp_size: 2", "vpp_size: 1", "world_size: 4"]
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        at, kind = chance.randrange(len(lines)), chance.random()
        if kind < 0.6:
            lines[at] = f"{lines[at].partition(':')[0]}: {chance.choice((*_YAML, *odd.TEXTS[:40]))}"
        elif kind < 0.8:
            lines.insert(at, chance.choice((_LAUGHS, *_YAML, *lines)))
        else:
            del lines[at]
            lines.append("z: 1")
    return "\n".join(lines) + "\n"


def _job() -> pa.Table:
    """Two steps of two micro-batches: what each stage computes, sends and receives."""
    rows = [
        (step, rank, stage, name, number, 0.1 * number + 0.01 * stage + 0.001 * place, 0.05)
        for step in (1, 2)
        for rank in (0, 1)
        for stage in (0, 1)
        for number in (0, 1)
        for place, name in enumerate(_OF_STAGE[stage])
    ]
    step, rank, stage, name, number, start, duration = (list(column) for column in zip(*rows, strict=True))
    zeros = [0] * len(rows)
    return pa.table(
        {
            **{"step": step, "dp_rank": rank, "stage": stage, "rank": stage, "seq_id": number, "mc": zeros},
            **{"mb_id": number, "start_ts": start, "duration": duration},
            "optype": pa.array(name).dictionary_encode(),
        }
    )


_OF_STAGE = (
    ("forward-compute", "forward-send", "backward-recv", "backward-compute"),
    ("forward-recv", "forward-compute", "backward-compute", "backward-send"),
)


def _changed(table: pa.Table, chance: random.Random) -> pa.Table:
    if not table.num_columns:
        return table
    at, kind = chance.randrange(table.num_columns), chance.random()
    name, column = table.column_names[at], table.column(at)
    if kind < 0.3:
        return table.set_column(at, name, chance.choice(_COLUMNS)(table.num_rows))
    if kind < 0.75:
        return table.set_column(at, name, _with_odd_cells(column, chance))
    if kind < 0.85:
        return table.slice(chance.randrange(table.num_rows + 1))
    more = table.append_column(chance.choice((name, odd.ESCAPE, "more")), column)
    return table.remove_column(at) if kind < 0.92 else more


def _with_odd_cells(column: pa.ChunkedArray, chance: random.Random) -> pa.ChunkedArray | pa.Array:
    try:
        cells = column.to_pylist()
    except UnicodeDecodeError:
        # An earlier change made texts of bytes that are none.
        return column
    numbers = _REALS if pa.types.is_floating(column.type) else _INTEGERS
    values = _WORDS if isinstance(next((cell for cell in cells if cell is not None), 0), str) else numbers
    for row in chance.sample(range(len(cells)), min(len(cells), chance.choice((1, 1, 3, len(cells))))):
        cells[row] = chance.choice(values)
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError):
        return column


def nsys_folder(chance: random.Random, path: Path) -> None:
    """An export of Nsight Systems as a folder of Parquet files."""
    path.mkdir()
    export = faithful_export()
    tables = {**export.tables, "StringIds": (["id", "value"], [(at, text) for text, at in export.strings.items()])}
    changed = chance.choices(list(tables), k=chance.choice((0, 1, 1, 2, 4)))
    for name, (columns, rows) in tables.items():
        table = pa.table({column: [row[at] for row in rows] for at, column in enumerate(columns)})
        for _ in range(changed.count(name)):
            table = _changed(table, chance)
        file = path / f"{name}.parquet"
        pq.write_table(table, file)
        if chance.random() < 0.01:
            file.write_bytes(odd.raw(file.read_bytes(), chance))
