"""What screens show of a profile, held against SQL over the export and against the commands that they name."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.nsys_file import Export, small_export
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.commands.main import app
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.screens import Chosen, profile_model
from traceviz_dag.read.nsys.cache import open_profile
from traceviz_dag.show.lanes.lane import Lane, LaneKind, Window
from traceviz_dag.show.lanes.names import function_name
from traceviz_dag.show.screens import profile_model as module
from traceviz_dag.show.screens.model import Direction, Filter, ScreenModel, SliceId
from traceviz_dag.show.screens.profile_model import ProfileModel
from traceviz_dag.show.screens.side_by_side import SideBySide

OPERATIONS = " UNION ALL ".join(
    f'SELECT start, "end", deviceId AS gpu, streamId AS stream, {kernel} AS kernel FROM CUPTI_ACTIVITY_KIND_{name}'
    for name, kernel in (("KERNEL", 1), ("MEMCPY", 0), ("MEMSET", 0))
)
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


@pytest.fixture(scope="module")
def export(shared_data, tmp_path_factory) -> Path:
    return Path(shutil.copy(shared_data / "nsys" / "mfu_2gpu_before.sqlite", tmp_path_factory.mktemp("profile")))


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(export, home) -> ScreenModel:
    return profile_model(export, home)


@pytest.fixture(scope="module")
def asked(export):
    with closing(sqlite3.connect(export)) as connection:
        yield lambda sql: connection.execute(sql).fetchall()


def test_a_choice_shows_one_gpu_and_its_processes_in_a_window_and_counts_nothing_else(export, home, model, asked):
    first, last = model.span
    seconds = ((first + (last - first) // 4) / 1e9, (first + (last - first) // 2) / 1e9)
    chosen = profile_model(export, home, chosen=Chosen((1,), seconds))
    start, end = chosen.span
    assert (start, end) == tuple(round(one * 1e9) for one in seconds)
    assert [lane.label.split(" NVIDIA")[0] for lane in chosen.lanes() if lane.kind is LaneKind.GPU] == ["GPU 1"]
    of_gpu = {
        f"process:{pid >> 24}"
        for (pid,) in asked("SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 1")
    }
    shown = {lane.key for lane in every_lane(chosen) if lane.kind is LaneKind.PROCESS}
    assert shown == {lane.key for lane in every_lane(model) if lane.kind is LaneKind.PROCESS} & of_gpu
    # Those of the whole profile are held against its command.
    assert chosen.aggregate(chosen.span).measures == model.aggregate(chosen.span, ["gpu:1"]).measures
    assert {hit.slice.lane.split("/")[0] for hit in chosen.search(".").hits} <= {"gpu:1", *shown}
    with pytest.raises(UsageError, match="no activity on GPU 7; there is some on 0, 1"):
        profile_model(export, home, chosen=Chosen((7,)))


def every_lane(model: ScreenModel, parent: str | None = None) -> list[Lane]:
    found = []
    for lane in model.lanes(parent):
        found += [lane, *(every_lane(model, lane.key) if lane.holds_lanes else [])]
    return found


def walked(model: ScreenModel) -> int:
    """Ask for everything that a screen asks for; returns how many boxes there were, and finds no text that obeys."""
    boxes = 0
    for lane in every_lane(model):
        texts = [lane.label]
        if lane.kind is LaneKind.COUNTER:
            model.counter(lane.key, model.span, 80)
            continue
        for pixels in (1, 80):
            found = model.slices(lane.key, model.span, pixels)
            boxes += len(found)
            texts += [found.names[code] for code in found.name.tolist()]
            if len(found):
                detail = model.detail(found.slice_id(0))
                texts += [detail.title, detail.full_name, detail.command, *(str(fact.value) for fact in detail.facts)]
        assert not [text for text in texts if CONTROL.search(text)]
    model.overview(model.span, 80)
    model.marks(model.span)
    model.search(".", Filter(least_ns=1))
    return boxes


def test_streams_and_gpus_hold_what_the_export_holds(model, asked):
    streams = {lane.key: lane.rows for lane in every_lane(model) if lane.kind is LaneKind.STREAM}
    counted = asked(f"SELECT gpu, stream, count(*) FROM ({OPERATIONS}) GROUP BY 1, 2")
    assert streams == {f"gpu:{gpu}/stream:{stream}": count for gpu, stream, count in counted}
    # The busy time of all GPUs, by merging the operations of each in SQL.
    [(busy,)] = asked(
        f"""WITH o AS ({OPERATIONS}), m AS (SELECT *, max("end") OVER (PARTITION BY gpu ORDER BY start, "end"
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached FROM o)
        SELECT sum(max(0, "end" - max(start, coalesce(reached, start)))) FROM m"""
    )
    strip = model.overview(model.span, 60)
    assert int(strip.busy_ns.sum()) == busy
    assert (strip.busy_ns + strip.idle_ns == (strip.end_ns - strip.start_ns) * strip.lanes).all()


def test_a_measured_window_is_what_its_command_prints(model, home):
    window = Window(model.span.start_ns + 50_000_001, model.span.start_ns + 150_000_007)
    found = model.aggregate(window)
    for measures, command in zip(found.measures, found.commands, strict=True):
        words = shlex.split(command)
        assert words[0] == "traceviz"
        printed = CliRunner().invoke(app, [*words[1:], "--home", str(home), "--json"])
        [row] = json.loads(printed.stdout)
        for name in ("kernels", "compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "busy_ns", "idle_ns"):
            assert getattr(measures, name) == row[name]
        assert (measures.window_start_ns, measures.window_end_ns) == window
    with pytest.raises(UsageError, match="outside the time covered"):
        model.aggregate(Window(0, 10))


def test_following_a_launch_goes_to_its_call_and_back(model, asked):
    pairs = asked(
        """SELECT k.start, r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
        ON k.correlationId = r.correlationId AND k.globalPid >> 24 = r.globalTid >> 24 WHERE k.deviceId = 0"""
    )
    expected = dict(pairs)
    (stream,) = [lane for lane in model.lanes("gpu:0") if lane.kind is LaneKind.STREAM]
    followed = 0
    for row in range(0, stream.rows, 50):
        kernel = SliceId(stream.key, row)
        call, start = model.follow(kernel), model.bounds(kernel).start_ns
        if start not in expected:
            continue
        followed += 1
        assert call is not None
        assert model.bounds(call).start_ns == expected[start]
        assert model.follow(call) == kernel
        facts = {fact.label: fact.value for fact in model.detail(kernel).facts}
        assert facts["waited since the call returned"] == max(start - model.bounds(call).end_ns, 0)
    assert followed > 20


def test_paths_of_ranges_and_hosts_in_gaps_are_those_of_the_commands(model, home, export, asked):
    given = [str(export), "--gpu", "0", "--home", str(home), "--json"]
    rows = {
        row["start_ns"]: row for row in json.loads(CliRunner().invoke(app, ["nsys", "gaps", *given]).stdout)[0]["gaps"]
    }
    gaps = next(lane for lane in model.lanes("gpu:0") if lane.kind is LaneKind.GAPS)
    told = 0
    for row in range(gaps.rows):
        gap = SliceId(gaps.key, row)
        expected = rows.get(model.bounds(gap).start_ns)
        # The command begins and ends with kernels, the lane with any operation.
        if expected is None or model.bounds(gap).length_ns != expected["duration_ns"]:
            continue
        told += 1
        facts = {fact.label: fact.value for fact in model.detail(gap).facts}
        assert facts["ended by"] == function_name(expected["before"])
        path = facts.get("the host was in")
        assert (path.split(" / ")[-1] if path else None) == expected["host_range"]
        launched = expected["launched_before_end_ns"]
        window, starved = model.bounds(gap), False
        if launched is not None:
            assert facts["which was launched at"] == window.end_ns - launched
            [(returned,)] = asked(
                f'SELECT "end" FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start = {window.end_ns - launched}'
            )
            starved = 2 * (min(returned, window.end_ns) - window.start_ns) >= window.length_ns
        assert facts["shown as"] == ("starved by the host" if starved else "unexplained gap")
    assert told > 10


def test_search_finds_what_sql_finds_by_page(model, asked):
    [(count,)] = asked(
        """SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
        WHERE lower(s.value) LIKE '%nccldevkernel%' AND k."end" - k.start >= 20000"""
    )
    hits = model.search("NCCLdev.*kernel", Filter(kinds=frozenset(["communication"]), least_ns=20_000))
    assert hits.total == count > 0
    every = model.search("e")
    pages = [model.search("e", page=page) for page in range(every.pages)]
    found = [hit for page in pages for hit in page.hits]
    assert len({hit.slice for hit in found}) == every.total == len(found)
    assert [hit.start_ns for hit in found] == sorted(hit.start_ns for hit in found)
    with pytest.raises(UsageError, match="no regular expression"):
        model.search("(")


def test_moving_finds_neighbours_gaps_and_iterations(model, asked):
    lane = next(lane for lane in model.lanes("gpu:0") if lane.kind is LaneKind.STREAM)
    starts = [start for (start,) in asked(f"SELECT start FROM ({OPERATIONS}) WHERE gpu = 0 ORDER BY 1")]
    second = model.neighbour(SliceId(lane.key, 0), Direction.NEXT)
    assert model.bounds(second).start_ns == starts[1]
    assert model.at(lane.key, starts[1]) == second
    assert model.neighbour(SliceId(lane.key, 0), Direction.PREVIOUS) is None
    assert model.neighbour(SliceId(lane.key, lane.rows - 1), Direction.NEXT) is None
    long = Filter(least_ns=200_000)
    rows = asked(f'SELECT start FROM ({OPERATIONS}) WHERE gpu = 0 AND "end" - start >= 200000 ORDER BY 1')
    shown, before, way = [], None, model.nearest(lane.key, model.span.start_ns, Direction.NEXT, long)
    while way is not None:
        shown.append((model.bounds(way).start_ns,))
        assert model.neighbour(way, Direction.PREVIOUS, long) == before
        before, way = way, model.neighbour(way, Direction.NEXT, long)
    assert shown == rows and len(rows) > 10
    ends = asked(f'SELECT start, "end" FROM ({OPERATIONS}) WHERE gpu = 0 ORDER BY 1')
    gaps, reached = [], ends[0][1]
    for start, end in ends[1:]:
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    middle = sum(gaps[2]) // 2
    assert model.at(lane.key, middle) is None
    assert model.bounds(model.nearest(lane.key, middle, Direction.NEXT)).start_ns == gaps[2][1]
    last = model.nearest(lane.key, middle, Direction.PREVIOUS)
    assert model.bounds(last).start_ns == max(start for start in starts if start < middle)
    assert model.gap(lane.key, gaps[2][0] - 1, Direction.NEXT) == gaps[2]
    assert model.gap(lane.key, gaps[2][1], Direction.PREVIOUS) == gaps[2]
    drawn = model.slices("gpu:0/gaps", Window(*gaps[2]), 80)
    assert gaps[2] in list(zip(drawn.start_ns.tolist(), drawn.end_ns.tolist(), strict=True))
    mark = model.marks(model.span)[0]
    assert model.iteration(mark.start_ns - 1, Direction.NEXT) == mark


def test_short_names_are_those_of_the_export(asked):
    pairs = asked(
        """SELECT DISTINCT long.value, short.value FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN StringIds long ON long.id = demangledName JOIN StringIds short ON short.id = shortName"""
    )
    assert len(pairs) > 20
    assert [(function_name(long), short) for long, short in pairs] == [(short, short) for _, short in pairs]
    for name in ("Memcpy HtoD (Host -> Device)", "aten::mm (x -> y)", "cudaLaunchKernel_v7000"):
        assert function_name(name) in (name, "mm")


def test_tiles_are_made_once_and_go_with_their_source(tmp_path, monkeypatch):
    path, home = small_export().write(tmp_path / "export.sqlite"), tmp_path / "home"
    made = []
    for name in ("gpu_bundle", "process_bundle", "root_bundle"):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, real=real, name=name: made.append(name) or real(*given))
    boxes = walked(profile_model(path, home))
    assert sorted(made) == ["gpu_bundle", "process_bundle", "root_bundle"]
    assert walked(profile_model(path, home)) == boxes
    assert len(made) == 3
    kept = sorted(home.rglob("*.lanes"))
    assert len(kept) == 3
    damages = (
        lambda data: data[:-1],
        lambda data: data.replace(b'["l",', b'["z",'),
        lambda data: data[:40] + b"\xff" + data[41:],
    )
    for file, damage in zip(kept, damages, strict=True):
        assert damage(file.read_bytes()) != file.read_bytes()
        file.write_bytes(damage(file.read_bytes()))
    assert walked(profile_model(path, home)) == boxes
    assert len(made) == 6
    other = small_export()
    other.kernel(800, 900)
    path.unlink()
    other.write(path)
    assert walked(profile_model(path, home)) > boxes
    assert not any(file.exists() for file in kept)
    assert len(list(home.rglob("*.lanes"))) == 3


def hostile() -> Export:
    export = small_export()
    export.kernel(710, 790, "gemm\x1b]0;owned\x07\u202e<b>::\x1b[2J", correlation=9)
    export.call(700, 705, correlation=9, name="cuda\x1b[31mLaunch\ud800")
    export.range(42, 48, "\x1b[2J[/red]")
    export.range(50, None, "never ends")
    return export


@pytest.mark.parametrize(
    ("bent", "change"),
    [
        ("hostile", ""),
        ("without NVTX", "DROP TABLE NVTX_EVENTS"),
        ("names that are not UTF-8", "UPDATE StringIds SET value = CAST(x'ff1b5b' AS TEXT)"),
        ("no ends", 'UPDATE NVTX_EVENTS SET "end" = NULL'),
        ("nothing but kernels", "DROP TABLE NVTX_EVENTS; DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"),
        (
            "times near the last that are believed",
            ";".join(
                f'UPDATE {name} SET start = start + {2**62 - 5000}, "end" = "end" + {2**62 - 5000}'
                for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME")
            )
            + "; DROP TABLE NVTX_EVENTS",
        ),
        (
            "a view that never ends",
            "DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "
            'SELECT x + 1 FROM n) SELECT x AS "start", x AS "end", 59 AS eventType FROM n',
        ),
    ],
)
def test_bent_profiles_open_and_show_plain_text(tmp_path, bent, change):
    export = hostile()
    # Surrogates cannot be stored; what they come from is a text that is not UTF-8.
    export.strings = {text.replace("\ud800", ""): number for text, number in export.strings.items()}
    path = export.write(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
        connection.commit()
    model = ProfileModel(open_profile(path, None), load_rules(None))
    assert walked(model) > 0, bent
    kernels = sum(lane.rows for lane in every_lane(model) if lane.kind is LaneKind.STREAM)
    assert kernels == 5


def test_a_home_that_cannot_be_written_shows_everything_all_the_same(tmp_path):
    path, home = small_export().write(tmp_path / "export.sqlite"), tmp_path / "home"
    profile = open_profile(path, home)
    (profile.store.folder / "screens").write_text("a file where the folder of tiles belongs")
    assert walked(profile_model(path, home)) == walked(ProfileModel(open_profile(path, None), load_rules(None))) > 0


def test_a_profile_without_a_gpu_has_the_lanes_of_its_processes(tmp_path):
    export = Export()
    export.range(100, 200, "train\x1b[2J.iteration")
    model = ProfileModel(open_profile(export.write(tmp_path / "export.sqlite"), None), load_rules(None))
    assert [lane.kind for lane in model.lanes()] == [LaneKind.PROCESS]
    assert walked(model) > 0
    assert model.overview(model.span, 10).lanes == 0
    assert model.aggregate(model.span).measures == ()


def test_ranges_nested_20_000_deep_have_a_bounded_number_of_lanes(tmp_path):
    export = small_export()
    for index in range(20_000):
        export.range(index % 90, 1000, f"range {index % 50}")
    model = ProfileModel(open_profile(export.write(tmp_path / "export.sqlite"), None), load_rules(None))
    lanes = [lane for lane in every_lane(model) if lane.kind is LaneKind.RANGES]
    assert len(lanes) <= 26
    assert sum(lane.rows for lane in lanes) == 20_002
    assert walked(model) > 0
    assert any("levels deep" in note for note in model.notes)


def _steps(path: Path, starts: dict[int, int]) -> ProfileModel:
    """A profile of iterations that begin at some times, a kernel each after 10 ns; longer ones of higher numbers."""
    export = Export()
    for number, start in starts.items():
        export.range(start, start + 900, f"Iteration {number}")
        export.kernel(start + 10, start + 10 + number, f"gemm{number}")
    return ProfileModel(open_profile(export.write(path), None), load_rules(None))


def test_two_profiles_lie_side_by_side_by_iteration(tmp_path):
    first = _steps(tmp_path / "a.sqlite", {1: 1000, 2: 2000, 3: 3000})
    second = _steps(tmp_path / "b.sqlite", {2: 52_000, 3: 53_500})
    both = SideBySide(first, second)
    lanes = [lane.key for lane in every_lane(both) if lane.kind is LaneKind.STREAM]
    assert lanes == ["A/gpu:0/stream:7", "B/gpu:0/stream:7"]
    assert both.slices(lanes[0], both.span, 80).start_ns.tolist() == [1010, 2010, 3010]
    # Iteration 2 of both begins at 2000; the next one of B took longer.
    assert both.slices(lanes[1], both.span, 80).start_ns.tolist() == [2010, 3510]
    third = both.at(lanes[1], 3510)
    assert both.bounds(third) == (3510, 3513)
    assert both.detail(third).title == "gemm3"
    assert both.own_time(lanes[1], 3510) == 53_510
    measured = both.aggregate(Window(3000, 3600))
    assert [(one.lane, one.compute_ns) for one in measured.measures] == [("A/gpu:0", 3), ("B/gpu:0", 3)]
    # A has ended there, and B has not begun here: the other one is measured all the same.
    assert [one.lane for one in both.aggregate(Window(3960, 4000)).measures] == ["B/gpu:0"]
    assert [one.lane for one in both.aggregate(Window(1000, 1100)).measures] == ["A/gpu:0"]
    with pytest.raises(UsageError, match="outside the time covered"):
        both.aggregate(Window(9000, 9100))
    assert [hit.start_ns for hit in both.search("gemm3").hits] == [3010]
    of_b = both.search("gemm3", page=1)
    assert ([hit.start_ns for hit in of_b.hits], of_b.before, of_b.total) == ([3510], 1, 2)
    assert [(mark.label, mark.start_ns) for mark in both.marks(Window(3400, 3600))] == [
        ("A iteration 3", 3000),
        ("B iteration 3", 3500),
    ]
    assert SideBySide(first, second, 3).slices(lanes[1], both.span, 80).start_ns.tolist() == [1510, 3010]
    assert walked(both) > 0
    with pytest.raises(UsageError, match=r"b\.sqlite has no iteration 1; it has 2, 3"):
        SideBySide(first, second, 1)


def test_a_slice_has_a_name_as_text_and_back():
    slice_id = SliceId("gpu:0/stream:7", 12)
    assert SliceId.parse(str(slice_id)) == slice_id
    assert SliceId.parse("gpu:0") is None
