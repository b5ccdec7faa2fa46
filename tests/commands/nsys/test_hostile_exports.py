"""Exports made to hurt: every nsys command ends with figures or one clear line, and shows nothing but plain text."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.damage import call
from tests.nsys_file import SECOND, Export, global_tid, small_export
from tests.sets import fast
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.commands.main import app
from traceviz_dag.commands.nsys.app import _NsysGroup
from traceviz_dag.errors import BadInputError, IncompleteError, TracevizError
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.nsys.placement import place_exports
from traceviz_dag.pipeline.ranks import analyse_rank
from traceviz_dag.pipeline.screens import profile_model
from traceviz_dag.read.layouts import TraceFile
from traceviz_dag.show.screens.model import ScreenModel

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
_KERNELS, _COPIES, _CALLS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "RUNTIME"))
NAME = "gemm\x1b]0;owned\x07\x1b[2J\u009b31m\u202e[/red]"


def _run(command: str, export: Export, tmp_path, *more: str) -> str:
    path = tmp_path / "export.sqlite"
    path.unlink(missing_ok=True)
    export.write(path)
    arguments = ["nsys", command, str(path), *([str(path)] if command == "diff" else []), *more]
    result = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path / "home")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", ["tree", "diff", "viewer"])
@pytest.mark.parametrize("rows", ["absent", "empty"])
def test_commands_work_without_nvtx_ranges(tmp_path, command, rows):
    export = small_export()
    columns, _ = export.tables.pop("NVTX_EVENTS")
    if rows == "empty":
        export.table("NVTX_EVENTS", columns)
    _run(command, export, tmp_path, *(["--output", str(tmp_path / "page.html")] if command == "viewer" else []))


@pytest.mark.parametrize("command", ["summary", "tree", "gaps", "search", "diff"])
def test_names_cannot_move_the_cursor_and_json_keeps_them(tmp_path, command):
    export = small_export()
    export.call(45, 46, correlation=9)
    export.kernel(710, 790, NAME, correlation=9)
    export.range(42, 48, NAME)
    more = ["gemm"] if command == "search" else []
    shown = _run(command, export, tmp_path, *more)
    assert CONTROL.search(shown) is None
    text = _run(command, export, tmp_path, *more, "--json")
    assert CONTROL.search(text) is None
    # A comparison of a file with itself names nothing, and gaps name no ranges.
    assert command in ("gaps", "diff") or json.dumps(NAME)[1:-1] in json.dumps(json.loads(text))


@pytest.mark.parametrize("closed", fast([True, False], False))
def test_ranges_nested_20_000_deep_are_followed_to_a_bound_and_said(tmp_path, closed):
    export = small_export()
    for index in range(20_000):
        export.range(index % 90, 1000 if closed else None, f"range {index % 50}")
    json.loads(_run("tree", export, tmp_path, "--json"))
    assert "levels deep" in _run("info", export, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME deviceId TO gpu", "KERNEL has no column deviceId"),
        ("UPDATE StringIds SET id = zeroblob(8)", ""),
        (
            "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = 'CREATE TABLE x(' WHERE name = 'StringIds'",
            "damaged",
        ),
    ],
)
def test_columns_of_another_type_and_damaged_schemas_are_one_line(tmp_path, change, words):
    path = small_export().write(tmp_path / "export.sqlite")
    with sqlite3.connect(path) as connection:
        connection.executescript(change)
    result = CliRunner().invoke(app, ["nsys", "summary", str(path), "--home", str(tmp_path / "home")])
    if words:
        assert isinstance(result.exception, BadInputError)
        assert words in str(result.exception)
        assert "\n" not in str(result.exception)
    else:
        assert isinstance(result.exception, IncompleteError)
        assert "3 kernels without a name" in str(result.exception)


def test_ranges_that_cannot_be_read_cost_only_the_commands_that_need_them(tmp_path):
    path = small_export().write(tmp_path / "export.sqlite")
    summary, tree = (["nsys", name, str(path), "--home", str(tmp_path / "home")] for name in ("summary", "tree"))
    whole = CliRunner().invoke(app, [*summary[:-1], str(tmp_path / "other")])
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE NVTX_EVENTS RENAME start TO begun")
    for _ in range(2):
        result = CliRunner().invoke(app, summary)
        assert (result.exit_code, result.output) == (0, whole.output)
        refused = CliRunner().invoke(app, tree)
        assert isinstance(refused.exception, BadInputError)
        assert "table NVTX_EVENTS has no column start" in str(refused.exception)
        assert "\n" not in str(refused.exception)


def test_a_view_that_never_ends_is_not_read(tmp_path):
    path = small_export().write(tmp_path / "export.sqlite")
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "
            'SELECT x + 1 FROM n) SELECT x AS "start", x AS "end", 59 AS eventType FROM n'
        )
    result = CliRunner().invoke(app, ["nsys", "info", str(path), "--home", str(tmp_path / "home")])
    assert result.exit_code == 0
    assert "no table NVTX_EVENTS" in result.output


def test_rows_without_a_time_are_left_out_and_said(tmp_path):
    path = small_export().write(tmp_path / "export.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = NULL WHERE start = 600")
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9223372036854775807 WHERE start = 200")
    result = CliRunner().invoke(app, ["nsys", "info", str(path), "--json", "--home", str(tmp_path / "home")])
    said = json.loads(result.stdout)
    assert said["gpus"][0]["kernels"] == 1
    assert any("left out" in sentence for sentence in said["missing"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            f"UPDATE {{table}} SET start = end, end = start WHERE start = {SECOND + 5}",
            "1 × row of table {table} without",
        ),
        (f"UPDATE {{table}} SET start = NULL WHERE start = {SECOND + 5}", "1 × row of table {table} without"),
        (f"UPDATE {{table}} SET deviceId = -1 WHERE start = {SECOND + 5}", "1 × row of table {table} without"),
        ("DELETE FROM StringIds WHERE value = 'gemm'", "2 of 3 kernels have no name"),
    ],
)
def test_ranks_of_an_export_with_kernels_that_cannot_be_used_are_read_in_part(tmp_path, change, words):
    export = Export()
    for start in range(3):
        name = "ncclDevKernel_AllReduce_Sum" if start == 1 else "gemm"
        export.kernel(SECOND + 5 * start, SECOND + 5 * start + 4, name)
    table, path = "CUPTI_ACTIVITY_KIND_KERNEL", export.write(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(change.format(table=table))
    answer = call("analyze", path, "--home", tmp_path / "home")
    assert answer.code == 2 and "rank 0 is read in part" in answer.err and words.format(table=table) in answer.err
    assert "fault of traceviz" not in answer.err
    (row,) = call("sql", "SELECT status, fault FROM traces", "--home", tmp_path / "home", "--json").json
    assert row["status"] == "partial" and words.format(table=table) in row["fault"]
    overlap = call("nsys", "overlap", path, "--home", tmp_path / "home")
    lost = f"1 row of table {table} without" if "row of table" in words else "2 kernels without a name"
    assert overlap.code == 2 and f"partial result: export.sqlite: {lost}" in overlap.err


def _of_two_processes(tmp_path) -> Path:
    """Two processes with a GPU each, and a thread with ranges in each."""
    export = Export()
    for device in (0, 1):
        process = 100 + device
        for start in range(4):
            at = SECOND + 10 * start
            export.range(at, at + 9, f"step {start}", process=process)
            export.call(at, at + 1, correlation=start + 1, process=process)
            export.kernel(at + 2, at + 8, device=device, process=process, correlation=start + 1)
    return export.write(tmp_path / "export.sqlite")


_LAST = SECOND + 30
_UNUSABLE = {
    "a kernel without a time": (f"UPDATE {{kernels}} SET end = NULL WHERE start = {_LAST + 2} AND deviceId = 1", "1"),
    "a kernel of no GPU": (f"UPDATE {{kernels}} SET deviceId = -1 WHERE start = {_LAST + 2} AND deviceId = 1", "1"),
    "a kernel without a process": (
        f"UPDATE {{kernels}} SET end = NULL, globalPid = NULL WHERE start = {_LAST + 2} AND deviceId = 1",
        "1",
    ),
    "a call that ends early": (f"UPDATE {{calls}} SET end = 0 WHERE start = {_LAST} AND globalTid > {{first}}", "1"),
    "a range that ends early": (f"UPDATE NVTX_EVENTS SET end = 0 WHERE start = {_LAST} AND globalTid > {{first}}", "1"),
    "a kernel of nobody": (
        f"UPDATE {{kernels}} SET globalPid = NULL, deviceId = NULL WHERE start = {_LAST + 2} AND deviceId = 1",
        "01",
    ),
}


@pytest.mark.parametrize("change", fast(_UNUSABLE, *list(_UNUSABLE)[2:]))
def test_a_row_that_cannot_be_used_makes_its_rank_partial_and_all_where_nobody_can_tell(tmp_path, change):
    path, (sql, partial) = _of_two_processes(tmp_path), _UNUSABLE[change]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql.format(kernels=_KERNELS, calls=_CALLS, first=global_tid(100, 1 << 23)))
    home = ("--home", tmp_path / "home")
    assert call("analyze", path, *home).code == 2
    rows = call("sql", "SELECT DISTINCT rank FROM traces WHERE status = 'partial' ORDER BY 1", *home, "--json").json
    assert [row["rank"] for row in rows] == [int(rank) for rank in partial]
    of_each = call("nsys", "tree" if "range" in change else "launches", path, *home, "--json")
    assert of_each.code == 2
    assert {row["device"] for row in of_each.json if row["partial"]} == {int(rank) for rank in partial}
    one = call("nsys", "tree" if "range" in change else "launches", path, "--gpu", "0", *home)
    assert one.code == (2 if "0" in partial else 0)
    # What reads no such rows lacks none.
    assert call("nsys", "overlap", path, *home).code == (2 if "kernel" in change else 0)


def test_ranges_that_end_before_they_start_are_left_out_and_counted(tmp_path):
    export = small_export()
    for start, end, kind in ((50, 40, 59), (60, 40, 34), (70, None, 59)):
        export.range(start, end, f"at {start}", kind=kind)
    answer = call("nsys", "tree", export.write(tmp_path / "export.sqlite"), "--home", tmp_path / "home")
    assert answer.code == 2 and "1 row of table NVTX_EVENTS without usable times" in answer.err
    info = call("nsys", "info", tmp_path / "export.sqlite", "--home", tmp_path / "home", "--json")
    assert info.code == 2 and info.json["ranges"] == 4 and info.json["partial"]
    assert any("end before they start: they are left out" in one for one in info.json["missing"])


def test_gpus_without_recorded_kernels_are_said_to_have_none(tmp_path):
    export = small_export()
    del export.tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    answer = call("nsys", "overlap", export.write(tmp_path / "export.sqlite"), "--home", tmp_path / "home", "--json")
    assert "no kernels were recorded, so GPUs seem idle" in answer.err and answer.json[0]["compute_ns"] == 0


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_numbers_beyond_every_column_in_the_texts_of_ranges_are_none(tmp_path, digits):
    export = small_export()
    export.range(10, 20, f"ProfilerStep#{'9' * digits}")
    export.range(30, 40, f"aten::add, seq = {'9' * digits}, op_id = {'9' * digits}")
    path = export.write(tmp_path / "export.sqlite")
    placed = place_exports([TraceFile(path, "run", path.name, None, None)], None, load_rules())
    (one, *_) = placed.traces
    tables = analyse_rank(RankTrace(path, path.name, one.rank, one.step, one.part), unite({}), load_rules())
    assert tables["kernels"].num_rows > 0
    _run("tree", export, tmp_path)


def test_an_export_that_logs_ahead_is_read_and_nothing_written_beside_it(tmp_path):
    """SQLite itself would make two files beside it, or fail in a folder that may not be written."""
    folder = tmp_path / "exports"
    folder.mkdir()
    path = small_export().write(folder / "export.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE more (number)")
    assert [file.name for file in folder.iterdir()] == ["export.sqlite"]
    arguments = ["nsys", "info", str(path), "--home", str(tmp_path / "home")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [file.name for file in folder.iterdir()] == ["export.sqlite"]


def test_a_profile_that_was_read_is_not_answered_from_what_is_kept_once_a_log_lies_beside_it(tmp_path):
    """Rows in the log change neither size nor time of the file."""
    path = small_export().write(tmp_path / "export.sqlite")
    arguments = ["nsys", "summary", str(path), "--home", str(tmp_path / "home")]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        before = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert before.exit_code == 0
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 1")
        connection.commit()
        with pytest.raises(BadInputError, match="still being written"):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


_OPTIONS = {
    "search": ("*", "--parent", "*"),
    "flops": ("*", "--flops", "9"),
    "pace": ("*",),
    "tree": ("--in-order",),
    "nccl": ("--slow", "2"),
    "instructions": ("{counts}",),
    **dict.fromkeys(("viewer", "perfetto", "export-csv", "export-json"), ("--output", "{out}")),
}
"""Command → what follows the export; the others need nothing."""

_TIMED = (_KERNELS, _COPIES, _CALLS, "NVTX_EVENTS")
_HOSTILE = {
    "no ranges, calls and names": f"DROP TABLE NVTX_EVENTS; DROP TABLE {_CALLS}; DROP TABLE StringIds",
    "no operations": f"DELETE FROM {_KERNELS}; DELETE FROM {_COPIES}",
    "no ends": "".join(f"UPDATE {name} SET end = NULL;" for name in (_KERNELS, _CALLS, "NVTX_EVENTS", "OSRT_API")),
    "no lengths": "".join(f"UPDATE {name} SET end = start;" for name in _TIMED),
    "text for numbers": f"UPDATE {_KERNELS} SET streamId = 'seven'",
    "times of centuries": f"UPDATE {_KERNELS} SET start = {-(2**62) + 99}, end = {2**62 - 99}",
    "ranges that end at no time": f"UPDATE NVTX_EVENTS SET end = {2**62} WHERE start >= 10",
    "large numbers": f"UPDATE {_COPIES} SET bytes = {2**63 - 2}, streamId = {2**63 - 2}; "
    f"INSERT INTO {_COPIES} SELECT * FROM {_COPIES}; UPDATE {_CALLS} SET correlationId = {2**63 - 1}",
    "no UTF-8": "UPDATE StringIds SET value = CAST(x'67ff80' AS TEXT); "
    "UPDATE NVTX_EVENTS SET text = CAST(x'ff80' AS TEXT)",
}
_REFUSED = {"no operations", "times of centuries"}


@pytest.mark.parametrize("change", fast(_HOSTILE, *list(_HOSTILE)[::2]))
def test_every_command_answers_or_refuses_in_one_line(tmp_path, change):
    export = small_export()
    export.synchronization(30, 60, correlation=2, kind=3)
    export.system_call(5, 9)
    path = export.write(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_HOSTILE[change])
    (tmp_path / "counts").mkdir()
    (tmp_path / "counts/kernel_gemm_0123abcd_hist.csv").write_text(
        "warp_id,region_id,instruction,count,cycles\n0,0,FFMA,1,4\n"
    )
    answered = 0
    for name in set(_NsysGroup.places) - {"download", *_SCREENS}:
        more = [word.format(out=tmp_path / "out", counts=tmp_path / "counts") for word in _OPTIONS.get(name, ())]
        arguments = ["nsys", name, str(path), *([str(path)] if name == "diff" else []), *more]
        if "--output" not in more:
            arguments.append("--json")
        result = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path / "home")])
        partial = isinstance(result.exception, IncompleteError)
        if result.exception is None or partial:
            answered += 1
            if "--json" in arguments:
                shown = json.loads(result.stdout)
                objects = shown if isinstance(shown, list) else [shown]
                assert not partial or not objects or any(one["partial"] for one in objects)
                assert not {
                    number for key, number in _numbers(json.loads(result.stdout)) if number < 0 and key in _SUMS
                }
        else:
            assert isinstance(result.exception, TracevizError), (name, result.exception)
            assert "\n" not in str(result.exception)
    # Calls, ranges and tables are there without operations.
    assert answered > 15 if change not in _REFUSED else answered <= 6
    try:
        _walk(profile_model(path, tmp_path / "home"))
    except TracevizError as error:
        assert change in _REFUSED and "\n" not in str(error)


def _walk(model: ScreenModel) -> None:
    """What screens ask for at first: every lane, its slices, and all that is known of one of each."""
    waiting: list[str | None] = [None]
    while waiting:
        for lane in model.lanes(waiting.pop()):
            waiting.append(lane.key)
            slices = model.slices(lane.key, model.span, 100)
            if len(slices):
                model.detail(slices.slice_id(len(slices) // 2))


_SCREENS = {"timeline", "tui", "web", "timeline-web"}
"""Commands that run until they are left; what they draw is of the model."""


_SUMS = {"total_ns", "busy_ns", "mean_ns", "bytes", "bytes_per_s", "count", "operations", "compute_ns", "idle_ns"}


def _numbers(value, key=""):
    """Every number of a document with the key that it stands under."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, key)
    elif isinstance(value, int | float):
        yield key, value


def test_a_table_whose_name_is_not_utf_8_is_passed_over(tmp_path):
    path = small_export().write(tmp_path / "export.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE named_oddly (also_oddly)")
    path.write_bytes(path.read_bytes().replace(b"_oddly", b"_odd\xff\x80"))
    result = CliRunner().invoke(app, ["nsys", "info", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_line_feeds_of_what_an_export_states_are_shown_as_escapes(tmp_path):
    export = small_export()
    export.add("META_DATA_EXPORT", {"name": "EXPORT_SCHEMA_VERSION", "value": "3\n24"})
    export.add("TARGET_INFO_GPU", {"id": 0, "name": "H100\nowned", "busLocation": "0\n1"})
    shown = _run("info", export, tmp_path) + _run("info", export, tmp_path, "--hardware")
    assert all(word in shown for word in (r"schema 3\u000a24", "H100 owned", r"0\u000a1"))


@pytest.mark.parametrize("end", ["soon", -5, 1 << 62, 333.5, 1e300, b"\xff"])
def test_a_range_whose_end_is_no_time_is_left_out_and_counted(tmp_path, end):
    export = small_export()
    export.range(50, end, "odd")
    path, home = export.write(tmp_path / "export.sqlite"), ("--home", tmp_path / "home")
    answer = call("nsys", "tree", path, *home)
    assert answer.code == 2 and "1 row of table NVTX_EVENTS without usable times" in answer.err
    assert "odd" not in answer.out and call("nsys", "info", path, *home, "--json").json["ranges"] == 2
    assert call("nsys", "overlap", path, *home).code == 0


def test_a_range_without_an_end_is_open_and_no_fault(tmp_path):
    export = small_export()
    export.range(50, None, "open")
    answer = call("nsys", "tree", export.write(tmp_path / "export.sqlite"), "--home", tmp_path / "home")
    assert answer.code == 0


@pytest.mark.parametrize("value", ["soon", 700.5, b"\xff", 1e300])
@pytest.mark.parametrize("column", ["end", "streamId", "correlationId"])
def test_what_is_no_integer_costs_its_row_alone(tmp_path, column, value):
    export = small_export()
    export.kernel(500, 700, "odd")
    columns, rows = export.tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    rows[-1][columns.index(column)] = value
    path, home = export.write(tmp_path / "export.sqlite"), ("--home", tmp_path / "home")
    answer = call("nsys", "overlap", path, *home)
    assert answer.code == 2
    assert "1 row of table CUPTI_ACTIVITY_KIND_KERNEL without usable times" in answer.err
    assert call("nsys", "overlap", path, *home, "--json").json[0]["kernels"] == 4
    assert call("nsys", "copies", path, *home).code == 0, "it is about memory operations"


def test_whole_numbers_among_integers_are_times_as_before(tmp_path):
    export = small_export()
    export.kernel(500, 700.0, "whole")
    assert call("nsys", "overlap", export.write(tmp_path / "export.sqlite"), "--home", tmp_path / "home").code == 0


def test_calls_of_no_thread_are_left_out_and_counted(tmp_path):
    export = small_export()
    export.call(40, 45, 99)
    columns, rows = export.tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    rows[-1][columns.index("globalTid")] = None
    path, home = export.write(tmp_path / "export.sqlite"), ("--home", tmp_path / "home")
    for command in ("calls", "launches"):
        answer = call("nsys", command, path, *home)
        assert answer.code == 2 and "1 row of table CUPTI_ACTIVITY_KIND_RUNTIME without usable times" in answer.err
    assert call("nsys", "overlap", path, *home).code == 0


def test_ranges_of_no_thread_are_left_out_and_counted(tmp_path):
    path = small_export().write(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET globalTid = NULL WHERE text = 'forward'")
        connection.commit()
    answer = call("nsys", "tree", path, "--home", tmp_path / "home")
    assert answer.code == 2 and "1 row of table NVTX_EVENTS without usable times or numbers" in answer.err


def test_names_that_an_export_lacks_concern_commands_that_show_them(tmp_path):
    path, home = small_export().write(tmp_path / "export.sqlite"), ("--home", tmp_path / "home")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE StringIds")
    answer = call("nsys", "calls", path, *home)
    assert answer.code == 2 and "3 calls without a name; export it again" in answer.err
    assert all(row["partial"] for row in call("nsys", "calls", path, *home, "--json").json)
    assert [call("nsys", command, path, *home).code for command in ("overlap", "launches", "gaps")] == [2, 0, 0]


def test_pages_files_and_screens_of_a_profile_say_what_it_lacks(tmp_path):
    lacking = small_export()
    lacking.kernel(500, "late", "odd")
    home = ("--home", tmp_path / "home")
    for export, name in ((lacking, "lacking"), (small_export(), "whole")):
        path = export.write(tmp_path / f"{name}.sqlite")
        told = [profile_model(path, tmp_path / "home").notes]
        for command, ending in (("viewer", "html"), ("perfetto", "pftrace"), ("export-json", "json")):
            output = tmp_path / f"{name}.{ending}"
            assert call("nsys", command, path, "--output", output, *home).code == (2 if name == "lacking" else 0)
            told.append(output.read_text(errors="replace"))
        assert json.loads(told.pop())["partial"] is (name == "lacking")
        mark = "PARTIAL: 1 row of table CUPTI_ACTIVITY_KIND_KERNEL without usable times"
        assert [mark in str(one) for one in told] == [name == "lacking"] * 3


def test_a_name_that_is_not_found_may_be_that_of_a_row_that_was_left_out(tmp_path):
    export = small_export()
    export.range(50, "soon", "odd")
    path, home = export.write(tmp_path / "export.sqlite"), ("--home", tmp_path / "home")
    answer = call("nsys", "search", path, "odd", *home)
    assert answer.code == 2 and "1 row of table NVTX_EVENTS" in answer.err


@pytest.mark.parametrize("table", ["OSRT_API", "GPU_METRICS"])
def test_perfetto_takes_what_starts_before_the_clock_of_the_capture(tmp_path, table):
    export = small_export()
    export.system_call(-30 if table == "OSRT_API" else 30, 40)
    export.add("GPU_METRICS", {"timestamp": -30 if table == "GPU_METRICS" else 30, "typeId": 0, "value": 1})
    path, output = export.write(tmp_path / "export.sqlite"), tmp_path / "out.pftrace"
    assert call("nsys", "perfetto", path, "--output", output, "--home", tmp_path / "home").code == 0
