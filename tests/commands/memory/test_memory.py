"""``traceviz memory`` as its users call it."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.analyze.memory.plain_snapshots import loaded, read_here, requested_over_time
from traceviz_dag.analyze.memory.categories import CATEGORIES
from traceviz_dag.analyze.memory.examination import examined
from traceviz_dag.analyze.memory.tables import memory_tables
from traceviz_dag.commands.main import app
from traceviz_dag.commands.memory.export import _Tables
from traceviz_dag.errors import BadInputError, IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.show.memory.recording import recording_of
from traceviz_dag.show.memory.timeline import segment_image
from traceviz_dag.simulate.memory.allocator import Allocator, OutOfMemoryError
from traceviz_dag.simulate.memory.stage import Stage, StageSettings, one_forward_one_backward
from traceviz_dag.tables import TABLES

MIB = 1 << 20


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory) -> dict[str, Path]:
    """A stage that leaks and runs out of memory at last, and one that does neither."""
    folder = tmp_path_factory.mktemp("snapshots")
    found = {}
    for name, leak, device in (("sound", 0, 80 << 30), ("leaking", 4 * MIB, 450 * MIB)):
        allocator = Allocator(device)
        stage = Stage(StageSettings(leak_bytes=leak), allocator)
        try:
            for number in range(6):
                stage.step(number, one_forward_one_backward(0, 4, 8))
        except OutOfMemoryError:
            assert leak
        found[name] = folder / f"{name}.pickle"
        found[name].write_bytes(pickle.dumps(allocator.snapshot()))
    return found


def _run(*words: object, fails: type[Exception] | None = None) -> str:
    result = CliRunner().invoke(app, ["memory", *map(str, words)])
    if fails is None:
        assert result.exception is None, result.exception
    else:
        assert isinstance(result.exception, fails), result.exception
    return result.output


def test_what_a_snapshot_answers_alone_neither_needs_the_database_nor_readers_of_traces(snapshots):
    program = (
        "import sys; from traceviz_dag.commands.main import app; app(sys.argv[1:], standalone_mode=False);"
        "print([name for name in ('duckdb', 'traceviz_dag.read.kineto') if name in sys.modules])"
    )
    for words in (["summary"], ["peak"], ["leak"]):
        given = [sys.executable, "-c", program, "memory", *words, str(snapshots["sound"])]
        done = subprocess.run(given, capture_output=True, text=True, check=False)
        assert done.stdout.endswith("[]\n"), (words, done.stdout[-200:], done.stderr)


def test_the_summary_has_the_numbers_of_the_file(snapshots):
    answer = json.loads(_run("summary", snapshots["sound"], "--json"))
    plain = loaded(snapshots["sound"])
    over_time = requested_over_time(plain)
    blocks = [block for segment in plain["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] != "inactive"]
    assert {name: answer[name] for name in answer if name.endswith("_bytes")} | {"pending_bytes": 0} == {
        "live_requested_bytes": sum(block["requested_size"] for block in live),
        "live_bytes": sum(block["size"] for block in live),
        "reserved_bytes": sum(segment["total_size"] for segment in plain["segments"]),
        "inactive_bytes": sum(block["size"] for block in blocks if block["state"] == "inactive"),
        "largest_free_block_bytes": max(block["size"] for block in blocks if block["state"] == "inactive"),
        "pending_bytes": 0,
        "peak_requested_bytes": max(over_time),
        "peak_reserved_bytes": sum(
            event["size"] for event in plain["device_traces"][0] if event["action"] == "segment_alloc"
        ),
        "start_requested_bytes": over_time[0],
    }
    assert over_time[answer["peak_event"] + 1] == max(over_time)
    assert answer["peak_time_ns"] == plain["device_traces"][0][answer["peak_event"]]["time_us"] * 1000


def test_every_printed_number_of_mebibytes_is_one_of_the_json(snapshots):
    """The tables and sentences hold no number that the JSON does not hold in bytes."""
    for words in (
        ("summary",),
        ("peak", "--stacks"),
        ("timeline", "--points", "5"),
        ("fragmentation",),
    ):
        for name in snapshots:
            told = json.loads(_run(words[0], snapshots[name], *words[1:], "--json"))
            shown = {f"{number / MIB:,.2f}" for number in _numbers(told)}
            printed = re.findall(r"(?<![\w.:])[\d,]+\.\d\d(?![\d%])", _run(words[0], snapshots[name], *words[1:]))
            assert printed and set(printed) <= shown, set(printed) - shown


def _numbers(value: object) -> list[int]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for one in value for number in _numbers(one)]
    return [value] if isinstance(value, int) else []


def test_the_leak_and_the_failed_request_are_reported(snapshots):
    leaks = json.loads(_run("leak", snapshots["leaking"], "--json"))["devices"][0]["leaks"]
    assert [each["bytes_per_step"] for each in leaks] == [32 * MIB]
    assert "1 call stack holds more at each of 5 ends of steps" in _run("leak", snapshots["leaking"])
    assert "no call stack holds more at each of 6 ends of steps" in _run("leak", snapshots["sound"])
    [failed] = json.loads(_run("oom", snapshots["leaking"], "--json"))["devices"][0]["out_of_memory"]
    assert failed["explanation"] in _run("oom", snapshots["leaking"])
    plain = loaded(snapshots["leaking"])
    event = plain["device_traces"][0][-1]
    blocks = [block for segment in plain["segments"] for block in segment["blocks"]]
    free = sum(block["size"] for block in blocks if block["state"] == "inactive") + event["device_free"]
    assert event["action"] == "oom"
    assert failed["verdict"] == ("fragmentation" if event["size"] <= free else "really_full")
    assert "no request failed" in _run("oom", snapshots["sound"])
    assert "1 request failed" in _run("summary", snapshots["leaking"])
    _run("leak", snapshots["sound"], "--device", 0)
    _run("leak", snapshots["sound"], "--device", 3, fails=BadInputError)


def test_the_peak_by_source_file_is_that_by_call_site_added_up(snapshots):
    sites = json.loads(_run("peak", snapshots["sound"], "--json"))["devices"][0]["holders"]
    wanted: Counter[tuple[str, str]] = Counter()
    for row in sites:
        wanted[re.sub(r":\d+ .*", "", row["text"]), row["category"]] += row["requested_bytes"]
    found = json.loads(_run("peak", snapshots["sound"], "--modules", "--json"))["devices"][0]["holders"]
    assert {(row["text"], row["category"]): row["requested_bytes"] for row in found} == wanted
    assert ("~/Megatron-LM/megatron/core/transformer/mlp.py", "activation") in wanted
    _run("peak", snapshots["sound"], "--modules", "--stacks", fails=UsageError)


def test_a_diff_of_several_gpus_says_which_it_compares(snapshots, tmp_path):
    snapshot = loaded(snapshots["sound"])
    for segment in snapshot["segments"]:
        segment["device"] = 1
    snapshot["device_traces"].insert(0, [])
    moved = tmp_path / "moved.pickle"
    moved.write_bytes(pickle.dumps(snapshot))
    assert "peak of GPU 0 → GPU 1: " in _run("diff", snapshots["sound"], moved)
    assert "GPU" not in _run("diff", snapshots["sound"], snapshots["sound"])


def test_a_diff_adds_up(snapshots):
    answer = json.loads(_run("diff", snapshots["sound"], snapshots["leaking"], "--json"))
    assert sum(change["change_bytes"] for change in answer["changes"]) == answer["change_bytes"]
    assert sum(answer["categories"].values()) == answer["change_bytes"]
    first, second = answer["peak_requested_bytes"]
    assert second - first == answer["change_bytes"] != 0


def test_the_export_holds_the_tables_and_a_page_without_a_network(snapshots, tmp_path):
    _run("export", snapshots["sound"], "--output", tmp_path / "tables")
    files = {path.stem: pq.read_table(path) for path in (tmp_path / "tables").iterdir()}
    assert {name: table.schema.names for name, table in files.items()} == {
        name: table.schema.names for name, table in TABLES.items() if name.startswith("memory_")
    }
    peak = json.loads(_run("summary", snapshots["sound"], "--json"))["peak_requested_bytes"]
    blocks = files["memory_blocks"].to_pylist()
    assert sum(block["requested_bytes"] for block in blocks if block["live_at_peak"]) == peak
    assert max(files["memory_events"].column("requested_bytes").to_pylist()) == peak
    rows = [row for row in files["memory_peaks"].to_pylist() if row["moment"] == "peak"]
    assert sum(row["requested_bytes"] for row in rows) == peak
    page = tmp_path / "peak.html"
    _run("export", snapshots["sound"], "--output", page)
    text = page.read_text()
    assert f"{peak / MIB:,.2f} MiB requested" in text and "@@" not in text
    assert not re.search(r"(src|href)=|https?:|@import|url\(", text)
    _run("export", snapshots["sound"], "--output", tmp_path / "peak.txt", fails=UsageError)
    told = json.loads(_run("export", snapshots["sound"], "--output", tmp_path / "tables", "--json"))
    assert {Path(one["path"]).stem: one["rows"] for one in told["written"]} == {
        name: table.num_rows for name, table in files.items()
    }
    (one,) = json.loads(_run("export", snapshots["sound"], "--output", page, "--json"))["written"]
    assert one == {"path": str(page), "bytes": page.stat().st_size, "rows": None}


def test_of_several_gpus_the_one_that_is_named_is_exported(snapshots, tmp_path):
    plain = loaded(snapshots["sound"])
    other = loaded(snapshots["leaking"])
    for segment in other["segments"]:
        segment["device"] = 1
    both = tmp_path / "both.pickle"
    both.write_bytes(
        pickle.dumps(
            {**plain, "segments": plain["segments"] + other["segments"]}
            | {"device_traces": [*plain["device_traces"], *other["device_traces"]]}
        )
    )
    for device, one in enumerate((plain, other)):
        _run("export", both, "-o", tmp_path / "tables", "--device", device)
        segments = pq.read_table(tmp_path / "tables" / "memory_segments.parquet").to_pylist()
        assert [row["bytes"] for row in segments] == [segment["total_size"] for segment in one["segments"]]
        _run("export", both, "-o", tmp_path / "one.svg", "--device", device)
        peak = max(requested_over_time(one)) / MIB
        assert f"GPU {device}: at most {peak:,.2f} MiB requested" in (tmp_path / "one.svg").read_text()


def test_the_pictures_say_what_the_tables_say(snapshots, tmp_path):
    told = json.loads(_run("summary", snapshots["sound"], "--json"))
    path = tmp_path / "picture.svg"
    _run("export", snapshots["sound"], "-o", path)
    text = path.read_text()
    for number in (told["peak_requested_bytes"], told["peak_reserved_bytes"]):
        assert f"{number / MIB:,.2f}" in text
    assert all(word in text for word in ("optimizer state", "activation", "backward", "communication buffer"))
    _run("export", snapshots["sound"], "-o", path, "--picture", "segments")
    text = path.read_text()
    for name in ("inactive_bytes", "reserved_bytes", "largest_free_block_bytes"):
        assert f"{told[name] / MIB:,.2f}" in text
    plain = loaded(snapshots["sound"])
    content = read_here(plain)
    recording = recording_of(_Tables("", memory_tables(content, examined(content))))
    image, _, _ = segment_image(recording)
    shares = Counter(image.ravel().tolist())
    free = shares[len(CATEGORIES)] / image.size
    assert free == pytest.approx(told["inactive_bytes"] / told["reserved_bytes"], abs=0.01)
    bare = tmp_path / "bare.pickle"
    bare.write_bytes(pickle.dumps({**plain, "device_traces": []}))
    _run("export", bare, "-o", path, fails=NoEvidenceError)


def test_snapshots_that_show_little_say_what_they_do_not_show(snapshots, tmp_path):
    plain = loaded(snapshots["sound"])
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({**plain, "device_traces": [[]]}))
    answer = json.loads(_run("summary", path, "--json"))
    assert answer["peak_requested_bytes"] is None and answer["live_requested_bytes"] > 0
    assert "the peak, are unknown" in answer["notes"][0]
    assert "at the end" in _run("peak", path)
    _run("timeline", path, fails=NoEvidenceError)
    _run("leak", path, fails=NoEvidenceError)
    _run("oom", path, fails=NoEvidenceError)
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], "allocator_settings": {}}))
    _run("summary", path, fails=BadInputError)
    path.write_bytes(pickle.dumps(plain["segments"]))
    assert json.loads(_run("summary", path, "--json"))["live_bytes"] == answer["live_bytes"]


def test_what_is_unknown_is_counted_and_what_is_broken_makes_the_answer_partial(snapshots, tmp_path):
    plain = loaded(snapshots["sound"])
    path = tmp_path / "s.pickle"
    plain["device_traces"][0] = [
        {"action": "teleport"},
        *({**event, "colour": 1} for event in plain["device_traces"][0]),
    ]
    path.write_bytes(pickle.dumps(plain))
    count = len(plain["device_traces"][0])
    assert f"not understood and left out: {count:,} keys or actions" in _run("summary", path)
    plain["device_traces"][0] += [{"action": "alloc", "addr": -1, "size": 5}, "no event"]
    path.write_bytes(pickle.dumps(plain))
    assert "2 rows of device_traces could not be used" in _run("summary", path, fails=IncompleteError)
    del plain["device_traces"][0][-2:], plain["device_traces"][0][-40:-4:4]
    path.write_bytes(pickle.dumps(plain))
    _run("summary", path, fails=IncompleteError)


@pytest.mark.parametrize(
    ("part", "change", "told"),
    [
        ("segment", {"device": "0"}, "1 row of segments could not be used"),
        ("block", {"requested_size": -5}, "1 value of requested_size in blocks could not be used"),
        ("block", {"requested_size": 1 << 40}, "1 value of requested_size in blocks could not be used"),
        ("block", {"size": 1 << 40}, "1 segment smaller than its blocks together"),
        ("segment", {"total_size": 1 << 40}, "1 segment that reaches into the next one"),
        (
            "segment",
            {"stream": "0", "is_expandable": 1},
            "1 value of stream in segments could",
        ),
        ("event", {"stream": -1.5}, "1 value of stream in device_traces could not be used"),
        ("event", {"time_us": "now"}, "1 value of time_us in device_traces could not be used"),
        ("event", {"frames": "main"}, "1 value of frames in device_traces could not be used"),
        (
            "file",
            {"allocator_settings": {"trace_alloc_overflowed": "no"}},
            "1 value of 'trace_alloc_overflowed' in ",
        ),
        ("file", {"allocator_settings": [1]}, "1 value of allocator_settings could not be used"),
    ],
)
def test_an_end_that_cannot_be_is_partial(part, change, told, snapshots, tmp_path):
    plain = loaded(snapshots["sound"])
    segment = min(plain["segments"], key=lambda one: one["address"])
    block = next(one for one in segment["blocks"] if one["state"] != "inactive")
    parts = {"segment": segment, "block": block, "event": plain["device_traces"][0][-1], "file": plain}
    parts[part].update(change)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(plain))
    assert told in _run("summary", path, fails=IncompleteError)
    notes = json.loads(_run("summary", path, "--json", fails=IncompleteError))["notes"]
    assert any(told in note for note in notes)


def test_blocks_of_the_recording_without_frames_are_not_said_to_be_older(snapshots, tmp_path):
    plain = loaded(snapshots["sound"])
    for row in (*plain["device_traces"][0], *(block for one in plain["segments"] for block in one["blocks"])):
        row["frames"] = []
    path, page = tmp_path / "s.pickle", tmp_path / "s.html"
    path.write_bytes(pickle.dumps(plain))
    held = Counter()
    for row in json.loads(_run("peak", path, "--json"))["devices"][0]["holders"]:
        held[row["text"]] += row["requested_bytes"]
    over_time = requested_over_time(plain)
    early = over_time[0]
    assert held["no call stack recorded"] == max(over_time) - early > 0
    assert held["allocated before the recording"] == early
    _run("export", path, "-o", page)
    assert "no call stack recorded" in page.read_text()


def test_names_that_are_not_utf8_and_few_profiler_steps_cost_nothing(snapshots, tmp_path):
    plain = loaded(snapshots["sound"])
    frame = {"filename": "job/m\udce4rz.py", "name": "load", "line": 3}
    plain["device_traces"] = [[]]
    blocks = [{"address": 512 * place, "size": 512, "requested_size": 500} for place in range(6)]
    blocks = [{**block, "state": "active_allocated", "frames": [frame]} for block in blocks]
    plain["segments"] = [{"device": 0, "address": 0, "total_size": 3072, "stream": 0, "blocks": blocks}]
    plain["external_annotations"] = []
    for place, block in enumerate(blocks):
        event = {"action": "alloc", "addr": block["address"], "size": 500, "time_us": 100 * place + 50}
        plain["device_traces"][0].append({**event, "stream": 0, "frames": [frame]})
        for name in ("Optimizer.step#A", *(["ProfilerStep#1"] if place < 3 else [])):
            for stage, time in (("START", 100 * place + 10), ("END", 100 * place + 90)):
                plain["external_annotations"].append({"name": name, "stage": stage, "device": 0, "time_us": time})
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(plain))
    answer = json.loads(_run("leak", path, "--json"))["devices"][0]
    assert answer["step_end_events"] == list(range(6))
    (leak,) = answer["leaks"]
    assert (leak["bytes_per_step"], leak["site"]) == (500, "job/m\ufffdrz.py:3 load")
