"""What screens show of an iteration of the lake, held against SQL over its tables and against the commands it names."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.commands.jobs import home_of
from tests.sets import fast
from tests.show.home import fill_home
from traceviz_dag.analyze.clocks.clocks import solved_clocks
from traceviz_dag.commands.main import app
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.screens import (
    bookmarks_of_iteration,
    iteration_model,
    screens_folder,
)
from traceviz_dag.show.lanes.bundle import Bundle, Content
from traceviz_dag.show.lanes.iteration import CATEGORIES
from traceviz_dag.show.lanes.lane import LaneKind, MarkKind, Window
from traceviz_dag.show.lanes.rows import LaneRows
from traceviz_dag.show.screens import iteration_model as module
from traceviz_dag.show.screens.bookmarks import Bookmark
from traceviz_dag.show.screens.kept import keep_bundle, read_bundle
from traceviz_dag.show.screens.model import Direction, Filter, ScreenModel, SliceId
from traceviz_dag.show.screens.tiled import Tiled
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.vocabulary import TimeAlignment


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("screens")
    job = JobSettings(pp=2, dp=2, microbatches=4, layers=4, hidden=1024, node_size=2, clock_skew_ms=3.0, stacks=True)
    fill_home(folder / "home", [simulate(job, folder / "job", workers=1)])
    return folder / "home"


@pytest.fixture(scope="module")
def lake(home) -> Lake:
    return open_lake(home)


@pytest.fixture(scope="module")
def place(lake) -> tuple[str, int]:
    part = lake.partitions("kernels")[0]
    return part.run, part.iteration


@pytest.fixture(scope="module")
def model(lake, place) -> ScreenModel:
    return iteration_model(lake, *place)


def _lanes(model: ScreenModel, rank: int, kind: LaneKind) -> list:
    return [lane for lane in model.lanes(f"rank:{rank}") if lane.kind is kind]


def test_every_lane_has_the_rows_of_its_table(model, lake):
    counted = lake.query(
        "SELECT rank, device || '/stream:' || stream AS lane, count(*) AS n FROM kernels GROUP BY 1, 2"
    ).to_pylist()
    found = {lane.key: lane.rows for rank in range(4) for lane in _lanes(model, rank, LaneKind.STREAM)}
    assert found == {f"rank:{row['rank']}/{row['lane']}": row["n"] for row in counted}
    dimensions = lake.query(
        "SELECT rank, dimension AS d, count(*) AS n FROM kernels WHERE dimension IS NOT NULL GROUP BY 1, 2"
    ).to_pylist()
    found = {(r, lane.dimension): lane.rows for r in range(4) for lane in _lanes(model, r, LaneKind.DIMENSION)}
    assert found == {(row["rank"], row["d"]): row["n"] for row in dimensions}
    gaps = lake.query("SELECT count(*) AS n FROM gpu_gaps WHERE rank = 1 AND window_name = 'step'").to_pylist()[0]["n"]
    assert _lanes(model, 1, LaneKind.GAPS)[0].rows == gaps
    path = lake.query("SELECT count(*) AS n FROM path_segments WHERE rank = 1").to_pylist()[0]["n"]
    assert sum(lane.rows for lane in _lanes(model, 1, LaneKind.PATH)) == path


def test_clocks_of_ranks_are_laid_on_one_another(model, lake, place):
    clocks = solved_clocks(lake.table("rank_clocks", *place).arrow())
    first = {
        rank: min(model.bounds(SliceId(lane.key, 0)).start_ns for lane in _lanes(model, rank, LaneKind.STREAM))
        for rank in range(4)
    }
    own = {rank: model.own_time(f"rank:{rank}", start) for rank, start in first.items()}
    starts = lake.query("SELECT rank, min(start_ns) AS start FROM kernels GROUP BY 1").to_pylist()
    assert own == {row["rank"]: row["start"] for row in starts}
    aligned = {rank: int(clocks.align(np.array([rank]), np.array([start]))[0]) for rank, start in own.items()}
    zero = min(aligned.values())
    assert first == {rank: time - zero for rank, time in aligned.items()}
    recorded = iteration_model(lake, *place, TimeAlignment.GLOBAL)
    assert recorded.own_time("rank:1", 0) == min(own.values())


def test_findings_lie_where_their_kernels_do():
    lake = open_lake(home_of("dp_only"))
    (part,) = lake.partitions("findings")
    model = iteration_model(lake, part.run, part.iteration)
    placed = {
        (lane, model.own_time(lane, window.start_ns), window.length_ns)
        for mark in model.marks(model.span)
        for lane, window in mark.places
        if mark.label == "exposed_communication"
    }
    kernels = lake.query("SELECT rank, start_ns, duration_ns FROM kernels WHERE kind = 'communication'").to_pylist()
    assert placed and placed <= {(f"rank:{row['rank']}", row["start_ns"], row["duration_ns"]) for row in kernels}


def test_a_measured_window_is_what_its_command_prints(model, home):
    window = Window(model.span.length_ns // 5, model.span.length_ns // 2)
    found = model.aggregate(window, ["rank:2/gpu:0"])
    assert {measures.lane for measures in found.measures} == {"rank:2"}
    (command,) = found.commands
    printed = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"])
    rows = json.loads(printed.stdout)
    assert len(rows) == len(found.measures) > 1
    for row, measures in zip(rows, found.measures, strict=True):
        for name in measures.__dataclass_fields__:
            assert name == "lane" or getattr(measures, name) == row[name]
    assert sum(one.total_ns for one in found.top) > 0


def test_a_communication_leads_to_its_peers_and_its_launch(model, lake):
    row = lake.query(
        "SELECT rank, kernel_id, communication FROM collectives WHERE dimension = 'dp' AND rank = 0 ORDER BY 2"
    ).to_pylist()[0]
    start = lake.query(
        f"SELECT start_ns, stream, device FROM kernels WHERE rank = 0 AND kernel_id = {row['kernel_id']}"
    ).to_pylist()[0]
    lane = f"rank:0/{start['device']}/stream:{start['stream']}"
    kernel = model.at(lane, start["start_ns"] - model.own_time("rank:0", 0))
    members = model.members(kernel)
    expected = lake.query(
        f"SELECT rank, arrival_ns FROM collectives WHERE communication = {row['communication']} ORDER BY 1"
    ).to_pylist()
    found = [(one.lane.split("/")[0], model.own_time(one.lane, model.bounds(one).start_ns)) for one in members]
    assert found == [(f"rank:{one['rank']}", one["arrival_ns"]) for one in expected]
    assert len(found) > 1
    detail = model.detail(kernel)
    assert set(detail.peers) == set(members) - {kernel}
    [told] = lake.query(detail.sql).to_pylist()
    assert told["kernel_id"] == row["kernel_id"]
    facts = {fact.label: fact.value for fact in detail.facts}
    assert facts["dimension"] == "dp"
    assert facts["group size"] == told["group_size"]
    assert {fact.label for fact in detail.evidence} >= {"phase evidence", "dimension evidence"}
    call = model.follow(kernel)
    assert model.own_time(call.lane, model.bounds(call).start_ns) == told["launch_start_ns"]
    assert model.bounds(model.follow(call)).start_ns <= model.bounds(kernel).start_ns
    assert detail.launch == call


@pytest.mark.parametrize(
    "kind",
    fast([LaneKind.MICROBATCHES, LaneKind.GAPS, LaneKind.PATH, LaneKind.CALLS], LaneKind.MICROBATCHES, LaneKind.PATH),
)
def test_the_query_of_a_slice_has_one_row(model, lake, kind):
    lane = next(lane for rank in range(4) for lane in _lanes(model, rank, kind))
    for row in range(0, lane.rows, max(lane.rows // 5, 1)):
        detail = model.detail(SliceId(lane.key, row))
        assert lake.query(detail.sql).num_rows == 1
    if kind is LaneKind.MICROBATCHES:
        [told] = lake.query(detail.sql).to_pylist()
        assert sum(fact.value for fact in detail.evidence) == told["kernels"]


def test_marks_are_the_steps_and_the_findings(model, lake):
    findings = lake.query("SELECT * FROM findings WHERE severity <> 'not_looked_at' ORDER BY finding").to_pylist()
    marks = [mark for mark in model.marks(model.span) if mark.kind in (MarkKind.FINDING, MarkKind.NOTE)]
    assert sorted(mark.number for mark in marks) == [row["finding"] for row in findings]
    for mark in marks:
        row = next(row for row in findings if row["finding"] == mark.number)
        assert mark.statement == row["statement"]
        assert (mark.lane is None) == (row["rank"] is None)
    step = model.iteration(model.span.start_ns - 10**9, Direction.NEXT)
    window = lake.query("SELECT min(window_start_ns) AS s FROM overlap WHERE rank = 0 AND window_name = 'step'")
    assert model.own_time("rank:0", step.start_ns) == window.to_pylist()[0]["s"]


def test_search_takes_dimensions_and_lanes(model, lake):
    [row] = lake.query(
        "SELECT count(*) AS n FROM kernels WHERE dimension = 'pp' AND rank = 3 AND name ILIKE '%nccl%'"
    ).to_pylist()
    found = model.search("nccl", Filter(dimensions=frozenset(["pp"]), lanes=("rank:3",)))
    assert found.total == row["n"] > 0
    [row] = lake.query("SELECT count(*) AS n FROM kernels WHERE name ILIKE '%nccl%'").to_pylist()
    assert model.search("nccl", Filter(kinds=frozenset(CATEGORIES))).total == row["n"]


def test_the_strip_has_the_time_of_all_ranks(model, lake):
    strip = model.overview(model.span, 50)
    rows = lake.query(
        "SELECT sum(busy_ns) AS busy, sum(exposed_ns) AS exposed, sum(hidden_ns) AS hidden FROM overlap "
        "WHERE window_name = 'kernels' AND dimension = 'all'"
    ).to_pylist()[0]
    assert strip.lanes == 4
    # A rank whose clock is moved may lose a part of its outermost cells.
    cell = int(strip.end_ns[0] - strip.start_ns[0])
    for name in ("busy", "exposed", "hidden"):
        assert abs(int(getattr(strip, f"{name}_ns").sum()) - rows[name]) <= 2 * 4 * cell


def test_tiles_are_kept_and_renewed_with_the_tables(lake, place, monkeypatch):
    made = []
    real = module.rank_bundle
    monkeypatch.setattr(module, "rank_bundle", lambda every, rank: made.append(rank) or real(every, rank))
    folder = screens_folder(lake.home, *place)
    before = iteration_model(lake, *place).slices("rank:0", Window(0, 10**9), 80)
    assert made in ([], [0])
    (file,) = folder.glob("rank_0-*")
    path = lake.path("kernels", run=place[0], iteration=place[1], rank=0)
    path.write_bytes(path.read_bytes())
    # A writer of the former tables was killed.
    left = folder / f".{file.name}.{'0' * 16}.writing"
    left.touch()
    made.clear()
    again = iteration_model(lake, *place).slices("rank:0", Window(0, 10**9), 80)
    assert made == [0]
    assert not file.exists() and not left.exists()
    assert again.busy_ns.tolist() == before.busy_ns.tolist()
    iteration_model(lake, *place).slices("rank:0", Window(0, 10**9), 80)
    assert made == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_tiles_of_a_thousand_ranks_take_no_descriptors(tmp_path):
    content = Content(LaneRows.of(np.array([1, 5]), np.array([3, 9])), ("a",))
    keep_bundle(tmp_path / "rank_0-0.lanes", Tiled.of(Bundle([], {"rank:0": content})))
    before = len(list(Path("/proc/self/fd").iterdir()))
    read = [read_bundle(tmp_path / "rank_0-0.lanes") for _ in range(30)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    (tmp_path / "rank_0-0.lanes").unlink()
    assert all(one.bundle.contents["rank:0"].rows.end_ns.tolist() == [3, 9] for one in read)


def test_bookmarks_stay_at_the_rank_whatever_the_clocks(lake, place, model, home):
    kept = bookmarks_of_iteration(home, *place)
    assert kept.all(model) == ()
    mine = Bookmark(Window(1000, 2000), "rank:1", "here \x1b[2J")
    whole = Bookmark(Window(5, 6))
    for bookmark in (mine, whole, whole):
        kept.add(model, bookmark)
    assert [one.window for one in kept.all(model)] == [whole.window, mine.window]
    assert kept.all(model)[1].note == "here \\u001b[2J"
    recorded = iteration_model(lake, *place, TimeAlignment.GLOBAL)
    moved = kept.all(recorded)[1].window
    assert recorded.own_time("rank:1", moved.start_ns) == model.own_time("rank:1", 1000)
    kept.add(model, Bookmark(Window(7, 8), note="x"))
    kept.remove(model, whole)
    assert len(bookmarks_of_iteration(home, *place).all(model)) == 2
    kept.path.write_text(kept.path.read_text().replace("rank:1", "rank:99"))
    assert len(kept.all(model)) == 1
    for damage in (b"{", b'{"source": "\xff", "bookmarks": []}', b'{"other": ' + b"[" * 100_000):
        kept.path.write_bytes(damage)
        with pytest.raises(BadInputError, match="no bookmarks"):
            kept.all(model)


def test_what_is_not_there_is_said_in_a_line(model, lake):
    for ask in (
        lambda: model.lane("rank:99/x"),
        lambda: model.slices("nothing", model.span, 80),
        lambda: model.counter("rank:0", model.span, 80),
        lambda: model.bounds(SliceId("rank:0", 10**9)),
        lambda: model.own_time("rank:99", 0),
        lambda: iteration_model(lake, "no such run", 1),
    ):
        with pytest.raises(UsageError):
            ask()
