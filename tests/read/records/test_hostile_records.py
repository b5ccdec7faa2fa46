"""Records that nobody's framework wrote: one line that names the file, in bounded time and memory."""

from __future__ import annotations

import resource
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traceviz_dag.analyze.causes.records_work import records_work
from traceviz_dag.analyze.causes.slowdowns import slowdowns
from traceviz_dag.errors import BadInputError, NoEvidenceError
from traceviz_dag.read.records.pipeline_records import read_pipeline_records

META = "dp_size: 1\npp_size: 1\nvpp_size: 1\n"
COLUMNS = {name: [0, 0] for name in ("step", "dp_rank", "stage", "rank", "seq_id", "mc", "mb_id")}
ROWS = {**COLUMNS, "start_ts": [0.0, 1.0], "duration": [1.0, 1.0], "optype": ["forward-compute", "backward-compute"]}


def _read(folder, rows=None, meta=META, **options):
    table = rows if isinstance(rows, pa.Table) else pa.table(rows or ROWS)
    pq.write_table(table, folder / "trace-x.parquet", **options)
    (folder / "meta-x.yaml").write_text(meta)
    return read_pipeline_records(folder / "trace-x.parquet")


def _laughs(kind):
    levels = [f"a{n}: &a{n} {kind.format(', '.join([f'*a{n - 1}'] * 9))}" for n in range(1, 12)]
    return "\n".join(["a0: &a0 {k: v}", *levels, META])


@pytest.mark.parametrize(
    "meta",
    [
        *(META + f"note: {value}\n" for value in ('!!int ""', "!!bool x", "!!timestamp x", "2001-99-99", "9" * 5000)),
        *(
            _laughs("{{<<: [{}]}}"),
            _laughs("[{}]"),
            "? [dp_size, 7]\n: pp_size\n" + META,
            f"more: {{{META[:10]}}}\n{META}",
        ),
    ],
)
def test_what_else_a_meta_file_holds_is_not_even_constructed(tmp_path, meta):
    records = _read(tmp_path, meta=meta)
    assert (records.data_parallel, records.stages, records.chunks) == (1, 1, 1)


@pytest.mark.parametrize(
    ("meta", "fault"),
    [
        ("a: " + "{a: " * 20_000, "more than the sizes"),
        (META + "\n---\n" + META, "more than the sizes"),
        (META + "dp_size: 2\n", "states dp_size twice"),
        *(
            (META.replace(": 1", f": {size}", 1), "states no dp_size")
            for size in ("9" * 5000, "true", "'1'", "*a", "1.0")
        ),
        ("[dp_size, 1, pp_size, 1, vpp_size, 1]", "states no dp_size"),
    ],
)
def test_a_meta_file_without_plain_sizes_is_one_line(tmp_path, meta, fault):
    with pytest.raises(BadInputError, match=rf"meta-x\.yaml: {fault}"):
        _read(tmp_path, meta=meta)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"step": pa.array([0, 0], pa.timestamp("ns"))}, r"a column has another type \(step holds no numbers"),
        ({"mc": [True, True]}, r"a column has another type \(mc holds no numbers"),
        ({"optype": pa.array([b"\xff", b"\xfe"]).view(pa.string())}, "a column has another type"),
        ({"optype": [["gc"], ["gc"]]}, r"a column has another type \(optype holds no names"),
        ({"stage": [-1, -1]}, "no row is an operation"),
        ({"optype": ["https://u:secretword@h/" + "x" * 90] * 2}, r".*unknown operations https://\*\*\*@h/x+\)"),
    ],
)
def test_columns_of_another_kind_are_one_line(tmp_path, change, fault):
    with pytest.raises(BadInputError, match=rf"trace-x\.parquet: {fault}"):
        _read(tmp_path, {**ROWS, **change})


def test_a_column_twice_is_one_line(tmp_path):
    table = pa.table(ROWS)
    with pytest.raises(BadInputError, match="more than one column step"):
        _read(tmp_path, table.append_column("step", table["step"]))


def test_names_take_no_more_memory_than_the_file_says(tmp_path):
    """A dictionary of one long name, 1,500 times; written out it would be 1.5 GB."""
    pq.write_table(_long_names(1500, 1_000_000), tmp_path / "trace-x.parquet", compression="zstd")
    (tmp_path / "meta-x.yaml").write_text(META)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadInputError, match="no row is an operation"):
        read_pipeline_records(tmp_path / "trace-x.parquet")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10
    with pytest.raises(BadInputError, match="bytes for 100 operations"):
        _read(tmp_path, _long_names(100, 50_000), compression="zstd", use_dictionary=False)


def _long_names(rows, length):
    name = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * length]))
    return pa.table({column: values[:1] * rows for column, values in ROWS.items()} | {"optype": name})


def test_steps_that_take_no_time_are_compared_with_nothing(tmp_path):
    records = _read(tmp_path, {**ROWS, "duration": [0.0, 0.0]})
    with pytest.raises(NoEvidenceError, match="take no time"):
        slowdowns(records_work(records))


_DAMAGED = """
import sys
from pathlib import Path
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.records.pipeline_records import read_pipeline_records
trace = Path(sys.argv[1])
whole = trace.read_bytes()
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
for at in range(footer, footer + 64):
    for value in (0x00, 0x7F):
        damaged = bytearray(whole)
        damaged[at] = value
        trace.write_bytes(damaged)
        try:
            read_pipeline_records(trace)
        except BadInputError:
            pass
"""


def test_a_damaged_footer_does_not_end_the_process(tmp_path):
    _read(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _DAMAGED, tmp_path / "trace-x.parquet"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
