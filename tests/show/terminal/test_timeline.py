"""The timeline on the terminal: keys on analysed jobs and profiles, and what they show against SQL and the commands."""

from __future__ import annotations

import json
import re
import shutil
from importlib import resources
from itertools import pairwise

import numpy as np
import pytest
from textual.events import Paste
from textual.widgets import Input
from textual.worker import WorkerFailed
from typer.testing import CliRunner

from tests.commands.jobs import home_of
from tests.commands.sentences.test_nsys import export
from tests.nsys_file import small_export
from tests.sets import fast
from tests.show.terminal.driven import drive, held, press, settled, text_of
from tests.show.terminal.test_tree import hostile
from traceviz_dag.commands.main import app
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.screens import bookmarks_of_iteration, iteration_model, profile_model
from traceviz_dag.show.lanes.lane import LaneKind, Window
from traceviz_dag.show.screens.model import Slices
from traceviz_dag.show.screens.side_by_side import SideBySide
from traceviz_dag.show.terminal.app import TerminalApp
from traceviz_dag.show.terminal.look import Look
from traceviz_dag.show.terminal.timeline.cells import cells_of
from traceviz_dag.show.terminal.timeline.pairs import PairScreen
from traceviz_dag.show.terminal.timeline.screen import TimelineApp
from traceviz_dag.show.terminal.timeline.view import ABOVE, TimelineView

JOB = "two_iterations"
WIDE = (140, 45)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A copy: screens keep what makes them draw fast in the home, and others read the one that is shared."""
    place = tmp_path_factory.mktemp("job") / "home"
    shutil.copytree(home_of(JOB), place, symlinks=True)
    return place


@pytest.fixture(scope="module")
def model(home):
    return iteration_model(Lake(home), JOB, 10)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles")


def screen(model, look: Look = Look(), **more) -> TimelineApp:  # noqa: B008
    return TimelineApp(model, look, **more)


def sql(query: str) -> list[dict]:
    return Lake(home_of(JOB)).query(query).to_pylist()


@pytest.mark.parametrize(
    ("name", "size", "look"),
    [
        ("timeline_80x24", (80, 24), Look()),
        ("timeline_140x45", WIDE, Look()),
        ("timeline_ascii", (80, 24), Look(unicode=False, colour=False)),
    ],
)
def test_screen(model, name, size, look):
    async def walk(pilot):
        return await press(pilot, "space", "j", "j", "tab")

    text = drive(screen(model, look), walk, size)
    held(name, text)
    assert text.isascii() or look.unicode


def test_without_colours_the_chosen_slice_is_underlined(model):
    async def walk(pilot):
        await press(pilot, "space", "j", "tab")
        view = pilot.app.query_one(TimelineView)
        return [segment.style for y in range(view.size.height) for segment in view.render_line(y) if segment.style]

    styles = drive(screen(model, Look(unicode=False, colour=False)), walk)
    assert any(style.underline and style.reverse for style in styles)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_window_is_measured_to_the_nanosecond(model, rank):
    """By the command, and by a sweep over the kernels' rows."""

    async def measure(pilot):
        await press(pilot, *["j"] * rank, "colon", *"1234567ns 5.678901ms", "enter")
        window = pilot.app.looking.window
        return window, await press(pilot, "m"), pilot.app.measured

    window, text, found = drive(screen(model), measure, WIDE)
    assert window == Window(1_234_567, 5_678_901)
    [whole] = [one for one in found.measures if one.dimension == "all"]
    start, end = whole.window_start_ns, whole.window_end_ns
    assert end - start == window.length_ns == 4_444_334
    words = ["overlap", "--home", str(home_of(JOB)), "--run", JOB, "--iteration", "10", "--rank", str(rank)]
    words += ["--start-ns", str(start), "--end-ns", str(end), "--json"]
    rows = json.loads(CliRunner().invoke(app, words).stdout)
    parts = ("compute", "communication", "hidden", "exposed", "memory", "busy", "idle")
    for one in found.measures:
        [row] = [row for row in rows if row["dimension"] == one.dimension and row["device"] == one.device]
        assert [getattr(one, f"{part}_ns") for part in parts] == [row[f"{part}_ns"] for part in parts]
    kernels = sql(
        f"SELECT kind, start_ns AS a, start_ns + duration_ns AS b FROM kernels WHERE iteration = 10 AND rank = {rank}"
    )
    edges = sorted({start, end, *(min(max(time, start), end) for row in kernels for time in (row["a"], row["b"]))})
    compute = exposed = 0
    for low, high in pairwise(edges):
        kinds = {row["kind"] for row in kernels if row["a"] <= low and row["b"] >= high}
        compute += (high - low) * ("computation" in kinds)
        exposed += (high - low) * ("communication" in kinds and "computation" not in kinds)
    assert (whole.compute_ns, whole.exposed_ns) == (compute, exposed)
    assert f"{compute:,} ns" in text and f"{exposed:,} ns" in text
    assert f"--start-ns {start} --end-ns {end}" in " ".join(text.split())


def test_a_profile_is_measured_as_its_command_does(profiles):
    path = export("b")

    async def measure(pilot):
        await press(pilot, "i", "z", "plus", "m")
        return pilot.app.measured

    found = drive(screen(profile_model(path, profiles)), measure)
    [whole] = [one for one in found.measures if one.dimension == "all"]
    trim = [f"{time / 1e9:.9f}" for time in (whole.window_start_ns, whole.window_end_ns)]
    words = ["nsys", "overlap", str(path), "--gpu", "0", "--trim", *trim, "--home", str(profiles), "--json"]
    [row] = json.loads(CliRunner().invoke(app, words).stdout)
    for part in ("compute", "communication", "hidden", "exposed", "memory", "busy", "idle"):
        assert getattr(whole, f"{part}_ns") == row[f"{part}_ns"], part
    assert whole.kernels == row["kernels"]


def test_slices_show_their_row_and_lead_to_launch_and_peers(model):
    async def walk(pilot):
        timeline = pilot.app
        await press(pilot, "space")
        while not timeline._lane.label.startswith("stream 7"):
            before = timeline.scene.cursor
            await press(pilot, "down")
            assert timeline.scene.cursor == before + 1
            await press(pilot, "up", "j")
            assert timeline.scene.cursor == before + 1
        await press(pilot, "tab", "tab", "tab")
        first, detail = timeline.scene.chosen, timeline.detail
        [row] = sql(detail.sql)
        assert row["name"] == detail.full_name
        assert row["duration_ns"] == first[1].length_ns
        assert f"{row['duration_ns']:,} ns" in text_of(timeline)
        await press(pilot, "x")
        assert "calls" in timeline.chosen.lane
        launch = timeline.scene.chosen[1]
        assert launch.length_ns == row["launch_duration_ns"]
        await press(pilot, "x")
        assert timeline.chosen == first[0]
        await press(pilot, "shift+tab")
        assert timeline.chosen.row == first[0].row - 1
        whole = await press(pilot, "enter")
        assert "evidence: phase evidence" in whole and "SELECT * FROM kernels" in whole
        await press(pilot, "q", "slash", *"AllReduce", "enter", "enter")
        one = timeline.chosen
        [found] = sql(timeline.detail.sql)
        await press(pilot, "o")
        [other] = sql(timeline.detail.sql)
        ids = " OR ".join(f"rank = {one['rank']} AND kernel_id = {one['kernel_id']}" for one in (found, other))
        pair = f"SELECT communication FROM collectives WHERE iteration = 10 AND ({ids})"
        assert len({row["communication"] for row in sql(pair)}) == 1
        assert other["rank"] != found["rank"] and timeline.chosen != one

    drive(screen(model), walk, WIDE)


def test_moves_are_undone_and_cost_what_is_in_sight(model):
    async def walk(pilot):
        timeline = pilot.app
        whole = timeline.looking.window
        asked = timeline.asked.queries
        await press(pilot, "plus", "right")
        lanes = len(timeline.lanes.rows)
        assert lanes == 4 and timeline.asked.queries - asked == 2 * lanes
        moved, asked = timeline.looking.window, timeline.asked.queries
        assert moved.length_ns == whole.length_ns * 7 // 10
        # What was drawn before is kept, and the cursor costs nothing.
        await press(pilot, "u", "u", "j", "k", "end", "home")
        assert timeline.looking.window == whole
        assert "there is no view before this one" in await press(pilot, "u")
        await press(pilot, "U", "U")
        assert timeline.looking.window == moved and timeline.asked.queries == asked
        await press(pilot, "0")
        assert timeline.looking.window == whole
        await press(pilot, "i")
        query = "SELECT max(window_end_ns) AS b FROM overlap WHERE rank = 0 AND iteration = 10 AND window_name = 'step'"
        [step] = sql(query)
        # It begins before the first kernel, where nothing is to be seen.
        zero = model.own_time("rank:0", 0)
        assert timeline.looking.window == Window(0, step["b"] - zero)

    drive(screen(model), walk)


def test_every_key_of_the_report_does_something_here():
    source = resources.files("traceviz_dag.show.report.scripts").joinpath("keys.js").read_text()
    listed = re.findall(r'^  \[\[(.+?)\], "', source, re.MULTILINE)
    words = {
        "ArrowLeft": "left",
        "ArrowRight": "right",
        "ArrowUp": "up",
        "ArrowDown": "down",
        "/": "slash",
        " ": "space",
        "[": "left_square_bracket",
        "]": "right_square_bracket",
        "+": "plus",
    }
    words |= {
        "Shift+Tab": "shift+tab",
        "Tab": "tab",
        "?": "question_mark",
        "Escape": "escape",
        "=": "equals_sign",
        "-": "minus",
    }
    keys = {words.get(key, key) for keys in listed for key in json.loads(f"[{keys}]")}
    bound = {key for one in (*TerminalApp.BINDINGS, *TimelineApp.BINDINGS) for key in one.key.split(",")}
    assert len(keys) > 25
    # The timeline is where one is already; in its lists, t leads back to it.
    assert keys - bound == {"t"} and "t" in {key for one in PairScreen.BINDINGS for key in one.key.split(",")}


def test_the_critical_path_is_found_from_any_lane(model):
    async def walk(pilot):
        timeline = pilot.app
        await press(pilot, "end", "c")
        first = timeline._lane
        await press(pilot, "c")
        return first, timeline._lane

    first, second = drive(screen(model), walk)
    assert first.kind is second.kind is LaneKind.PATH and first != second


def test_two_iterations_lie_side_by_side(model, home):
    both = SideBySide(model, iteration_model(Lake(home), JOB, 11))

    async def walk(pilot):
        timeline = pilot.app
        labels = [row.lane.label for row in timeline.lanes.rows]
        assert [label[0] for label in labels] == ["A"] * 4 + ["B"] * 4
        await press(pilot, "end", "c")
        assert timeline._lane.key.startswith("B/rank:3/") and timeline._lane.kind is LaneKind.PATH
        await press(pilot, "home", "slash", *"AllReduce", "enter", "enter")
        here = timeline.chosen.lane
        await press(pilot, "o")
        assert timeline.chosen.lane != here and timeline.chosen.lane[0] == here[0]
        await press(pilot, "m")
        return timeline.measured

    found = drive(screen(both), walk, WIDE)
    assert len({one.lane for one in found.measures}) == 1


def test_what_cannot_be_read_is_said_and_a_fault_ends_in_the_error_itself(model):
    class Broken:
        def __getattr__(self, name):
            return getattr(model, name)

        def marks(self, window):
            raise BadInputError("findings", "is damaged", "analyse again")

        def aggregate(self, window, lanes=()):
            raise ZeroDivisionError("of the model")

    async def lanes_without_marks(pilot):
        text = text_of(pilot.app)
        assert "findings: is damaged; analyse again" in text and "rank 3" in text

    drive(screen(Broken()), lanes_without_marks)
    broken = screen(Broken())
    with pytest.raises(WorkerFailed):
        drive(broken, lambda pilot: press(pilot, "m"))
    assert isinstance(broken.fault, ZeroDivisionError)


def test_gaps_are_the_times_between_slices(model):
    async def walk(pilot):
        timeline = pilot.app
        await press(pilot, "space")
        while not timeline._lane.label.startswith("stream 7"):
            await press(pilot, "j")
        found = []
        for _ in range(3):
            await press(pilot, "g")
            found.append(timeline.looking.selection)
        await press(pilot, "G")
        assert timeline.looking.selection == found[1]
        return found

    found = drive(screen(model), walk)
    rows = sql(
        """
        SELECT gap FROM (
            SELECT start_ns - max(start_ns + duration_ns) OVER (
                ORDER BY start_ns, kernel_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS gap, start_ns
            FROM kernels WHERE iteration = 10 AND rank = 0 AND stream = 7
        ) WHERE gap > 0 ORDER BY start_ns LIMIT 3
        """
    )
    assert [window.length_ns for window in found] == [row["gap"] for row in rows]


def test_search_finds_what_sql_finds_and_filters_leave_out(model):
    async def walk(pilot):
        timeline = pilot.app
        listed = await press(pilot, "slash", *"ncclDev", "enter")
        total = timeline.hits.total
        assert f"of {total:,}" in listed
        await press(pilot, "down", "enter")
        assert timeline.chosen == timeline.hits.hits[1].slice
        await press(pilot, "n")
        assert timeline.chosen == timeline.hits.hits[2].slice
        await press(pilot, "N", "N")
        assert timeline.chosen == timeline.hits.hits[0].slice
        await press(pilot, "N")
        assert timeline.chosen == timeline.hits.hits[-1].slice  # Around, and to the last page.
        await press(pilot, "escape", "F", *"memory >5us dim:pp", "enter")
        assert "filter >5µs memory" in text_of(timeline)
        kinds = {
            drawn.kinds[kind]
            for drawn in timeline.scene.drawn.values()
            if isinstance(drawn, Slices) and drawn.lane.count("/")
            for kind in drawn.kind.tolist()
        }
        assert kinds <= {"memory", "memory_alone"}
        assert "no kind is named" in await press(pilot, "F", *"nonsense", "enter")
        assert "write two times" in await press(pilot, "colon", *"1.5 2.5ms", "enter")
        for key, start in (("colon", "1 "), ("F", ">")):
            await press(pilot, key)
            # A page that is pasted by mistake is no number.
            timeline.screen.query_one(Input).post_message(Paste(start + "9" * 5000))
            await press(pilot, "enter")
        await press(pilot, "F", "delete", "enter", "slash", *"a", "enter")
        every = timeline.hits.total
        assert f"101 to 200 of {every:,}" in await press(pilot, "n")
        await press(pilot, "N", "N", "end", "enter")
        assert timeline.chosen == timeline.hits.hits[-1].slice
        assert (timeline.hits.page + 1) * 100 >= every > 200
        return total

    total = drive(screen(model), walk)
    [row] = sql("SELECT count(*) AS n FROM kernels WHERE iteration = 10 AND name ILIKE '%ncclDev%'")
    assert total == row["n"]


def test_findings_lead_to_their_place_and_bookmarks_back(model, tmp_path):
    bookmarks = bookmarks_of_iteration(tmp_path, JOB, 10)

    async def walk(pilot):
        timeline = pilot.app
        listed = await press(pilot, "f")
        assert "exposed_communication" in listed
        await press(pilot, "q", "plus", "plus", "f", "down", "down", "enter", "z")
        assert timeline.looking.window == timeline.looking.selection
        await press(pilot, "plus", "b", *"here", "enter")
        window = timeline.looking.window
        await press(pilot, "0")
        assert timeline.looking.window != window
        assert "here" in await press(pilot, "B")
        await press(pilot, "enter")
        assert timeline.looking.window == window
        [kept] = bookmarks.all(model)
        assert (kept.window, kept.note) == (window, "here")
        assert "there are no bookmarks" in await press(pilot, "B", "delete")

    drive(screen(model, bookmarks=bookmarks), walk)
    assert bookmarks.all(model) == ()


def test_lanes_fold_pin_and_move(model):
    async def walk(pilot):
        timeline = pilot.app

        def labels() -> list[str]:
            return [row.lane.label for row in timeline.lanes.rows]

        before = labels()
        await press(pilot, "space")
        opened = labels()
        assert opened[0] == before[0] and len(opened) > len(before) + 5
        # Keys that are typed before a lane is open go where they were typed.
        await press(pilot, "space")
        await pilot.press("space", "j", "j")
        await settled(pilot)
        assert labels() == opened and timeline._lane.label in (before[2], opened[2])
        await press(pilot, "home", "j", "p")
        assert labels()[0] == opened[1]
        await press(pilot, "p", "home", "space")
        assert labels() == before
        await press(pilot, "J")
        assert labels() == [before[1], before[0], *before[2:]]

    drive(screen(model), walk)


def test_the_mouse_chooses_selects_and_scrolls(model):
    async def walk(pilot):
        timeline = pilot.app
        view = timeline.query_one("TimelineView")
        await press(pilot, "space", "colon", *"4ms 7ms", "enter")
        row = next(place for place, row in enumerate(timeline.lanes.rows) if row.lane.label.startswith("stream 7"))
        drawn = timeline.scene.drawn[timeline.lanes.rows[row].lane.key]
        cell = int(np.flatnonzero(cells_of(drawn, timeline.looking.window, view.columns).eighths == 8)[4])
        await pilot.click(view, offset=(view.labels + cell, ABOVE + row))
        await settled(pilot)
        first, last = (timeline.looking.time_of(place, view.columns) for place in (cell, cell + 1))
        window = timeline.scene.chosen[1]
        assert timeline.chosen.lane.endswith("stream:7") and window.start_ns < last and window.end_ns > first
        await pilot.mouse_down(view, offset=(view.labels + 10, ABOVE))
        await pilot.hover(view, offset=(view.labels + 19, ABOVE))
        await pilot.mouse_up(view, offset=(view.labels + 19, ABOVE))
        await settled(pilot)
        chosen = timeline.looking.selection
        assert chosen == Window(*(timeline.looking.time_of(cell, view.columns) for cell in (10, 20)))

    drive(screen(model), walk, WIDE)


@pytest.mark.parametrize("change", fast(["escapes", "no ranges", "open ends"], "escapes"))
def test_hostile_profiles_open(tmp_path, change):
    path = hostile(change).write(tmp_path / "export.sqlite")

    async def walk(pilot):
        texts = [text_of(pilot.app)]
        for keys in ("end space end space end tab tab enter q", "home j tab i m q", "slash full_stop enter enter M"):
            texts += [await press(pilot, *keys.split())]
        return "".join(texts)

    text = drive(screen(profile_model(path, tmp_path / "home")), walk)
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text


def test_names_of_wide_letters_keep_the_columns(tmp_path):
    built = small_export()
    built.call(45, 46, correlation=9)
    built.kernel(710, 790, "矩阵乘法" * 9, correlation=9)
    path = built.write(tmp_path / "export.sqlite")

    async def walk(pilot):
        text = await press(pilot, *"j/", *"矩", "enter", "z")
        strips = [pilot.app.query_one("TimelineView").render_line(y) for y in range(12)]
        assert {strip.cell_length for strip in strips} == {80}
        return text

    text = drive(screen(profile_model(path, tmp_path / "home")), walk)
    assert "矩阵" in text.replace(" ", "")


def test_columns_show_the_share_that_is_busy_and_what_most_of_it_is():
    """Held against a count of every nanosecond; slices touch the edges, overlap columns, and have no length."""
    random = np.random.default_rng(7)
    window, width = Window(100, 1_060), 60
    edge = np.sort(random.choice(np.arange(0, 1_200), 80, replace=False)).astype(np.int64)
    start, end = edge[0::2], edge[1::2]
    kind = random.integers(0, 3, len(start)).astype(np.int8)
    one = np.ones(len(start), np.int64)
    names = np.zeros(len(start), np.int32)
    slices = Slices("x", start, end, one, end - start, kind, names, names, 0, ("a", "b", "c"), ("",))
    cells = cells_of(slices, window, width)
    time = np.zeros((3, 1_200), dtype=np.int64)
    for begin, stop, which in zip(start, end, kind, strict=True):
        time[which, begin:stop] = 1
    of_cells = time[:, 100:1_060].reshape(3, width, 16).sum(axis=2)
    total = of_cells.sum(axis=0)
    assert cells.eighths.tolist() == [-(-each * 8 // 16) for each in total.tolist()]
    seen = cells.kind >= 0
    assert (seen == (total > 0)).all()
    assert (of_cells[cells.kind[seen], np.flatnonzero(seen)] == of_cells.max(axis=0)[seen]).all()


def test_an_answer_that_is_given_twice_closes_one_screen(model):
    async def answer_twice(pilot):
        await press(pilot, "slash")
        asked = pilot.app.screen
        for _ in range(2):
            asked.dismiss("gemm")
        await settled(pilot)
        return len(pilot.app.screen_stack), pilot.app.pattern

    # The second answer has not closed the list of hits, nor the timeline.
    assert drive(screen(model), answer_twice) == (2, "gemm")
